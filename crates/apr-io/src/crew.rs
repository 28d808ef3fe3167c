use std::hint;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use apr_infer::Workers;
use rayon::{ThreadPool, ThreadPoolBuilder, Yield};

/// How long a thread looks for the next piece of work before it sleeps. To wake it takes about as
/// long, and operators that are cut into pieces follow each other faster than that.
const PATIENCE: Duration = Duration::from_micros(200);

/// Threads that run pieces of an operator's work.
///
/// They live as long as the crew, and so do the buffers that they keep.
#[derive(Debug)]
pub struct Crew {
    threads: NonZeroUsize,
    /// The threads beside the calling one.
    helpers: Option<ThreadPool>,
    /// How many of them look for work at this moment, without sleeping.
    awake: Arc<AtomicUsize>,
}

impl Crew {
    /// So many threads, the calling one among them. Where the system gives no more threads, the
    /// calling one does the work.
    #[must_use]
    pub fn new(threads: NonZeroUsize) -> Self {
        let beside = threads.get() - 1;
        let helpers = (beside > 0)
            .then(|| ThreadPoolBuilder::new().num_threads(beside).build().ok())
            .flatten();
        let threads = helpers.as_ref().map_or(NonZeroUsize::MIN, |_| threads);
        Self { threads, helpers, awake: Arc::default() }
    }

    /// Lets the threads that are done look for work for a while.
    fn stay_awake(&self, helpers: &ThreadPool) {
        while self.awake.load(Ordering::Relaxed) < self.threads.get() - 1 {
            self.awake.fetch_add(1, Ordering::Relaxed);
            let awake = Arc::clone(&self.awake);
            helpers.spawn(move || {
                look_for_work();
                awake.fetch_sub(1, Ordering::Relaxed);
            });
        }
    }
}

/// Does what this thread's pool has to do until there was nothing for as long as [`PATIENCE`].
fn look_for_work() {
    let mut idle_since = Instant::now();
    while idle_since.elapsed() < PATIENCE {
        match rayon::yield_now() {
            Some(Yield::Executed) => idle_since = Instant::now(),
            _ => hint::spin_loop(),
        }
    }
}

/// Waits until a number is there, or as long as [`PATIENCE`].
fn wait_for(number: &AtomicUsize, wanted: usize) {
    let start = Instant::now();
    while number.load(Ordering::Acquire) < wanted && start.elapsed() < PATIENCE {
        hint::spin_loop();
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

        let Some(helpers) = self.helpers.as_ref().filter(|_| pieces > 1) else { return take_all() };
        let (called, done) = (self.threads.get().min(pieces) - 1, AtomicUsize::new(0));
        helpers.in_place_scope(|scope| {
            for _ in 0..called {
                scope.spawn(|_| {
                    take_all();
                    done.fetch_add(1, Ordering::Release);
                });
            }
            take_all();
            // The end of the scope would sleep.
            wait_for(&done, called);
        });
        self.stay_awake(helpers);
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

    #[test]
    fn runs_follow_each_other_at_once_and_after_a_sleep() {
        let crew = Crew::new(NonZeroUsize::new(3).unwrap());
        let met = AtomicU64::new(0);
        for round in 0..200 {
            if round % 50 == 0 {
                std::thread::sleep(PATIENCE * 3);
            }
            crew.run(7, &|piece| {
                met.fetch_add(piece as u64, Ordering::Relaxed);
            });
        }
        assert_eq!(met.load(Ordering::Relaxed), 200 * 21);
        assert!(
            crew.awake.load(Ordering::Relaxed) <= 2,
            "no more threads look for work than there are helpers"
        );
    }
}
