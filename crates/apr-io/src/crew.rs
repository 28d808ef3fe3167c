use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use apr_infer::Workers;

/// Threads that run pieces of an operator's work.
///
/// They are started for each piece of work that is worth it, and end with it: that takes some 20 microseconds a thread.
#[derive(Debug, Clone, Copy)]
pub struct Crew {
    threads: NonZeroUsize,
}

impl Crew {
    /// So many threads, the calling one among them.
    #[must_use]
    pub const fn new(threads: NonZeroUsize) -> Self {
        Self { threads }
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
        thread::scope(|scope| {
            for _ in 1..self.threads.get().min(pieces) {
                scope.spawn(take_all);
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
