use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};

use apr_infer::Workers;
use rayon::{ThreadPool, ThreadPoolBuilder};

/// Threads that run pieces of an operator's work.
///
/// They live as long as the crew, and so do the buffers that they keep.
#[derive(Debug)]
pub struct Crew {
    threads: NonZeroUsize,
    /// The threads beside the calling one.
    helpers: Option<ThreadPool>,
}

impl Crew {
    /// So many threads, the calling one among them. Where the system gives no more threads, the calling one does the work.
    #[must_use]
    pub fn new(threads: NonZeroUsize) -> Self {
        let beside = threads.get() - 1;
        let helpers = (beside > 0).then(|| ThreadPoolBuilder::new().num_threads(beside).build().ok()).flatten();
        Self { threads: helpers.as_ref().map_or(NonZeroUsize::MIN, |_| threads), helpers }
    }
}

impl Workers for Crew {
    fn count(&self) -> usize {
        self.threads.get()
    }

    fn run(&self, pieces: usize, work: &(dyn Fn(usize) + Sync)) {
        let next = AtomicUsize::new(0);
        let take_all = || {
            loop {
                let piece = next.fetch_add(1, Ordering::Relaxed);
                if piece >= pieces {
                    break;
                }
                work(piece);
            }
        };
        let Some(helpers) = &self.helpers else { return take_all() };
        helpers.in_place_scope(|scope| {
            for _ in 1..self.threads.get().min(pieces) {
                scope.spawn(|_| take_all());
            }
            take_all();
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn every_piece_is_run_once() {
        for threads in 1..4 {
            let met: Vec<AtomicU64> = (0..100).map(|_| AtomicU64::new(0)).collect();
            let crew = Crew::new(NonZeroUsize::new(threads).unwrap());
            crew.run(met.len(), &|piece| {
                met[piece].fetch_add(1, Ordering::Relaxed);
            });
            assert!(met.iter().all(|times| times.load(Ordering::Relaxed) == 1));
        }
    }
}
