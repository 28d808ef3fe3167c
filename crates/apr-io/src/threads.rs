use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use apr_core::{Error, IoCause, Pipeline, Result};

/// A flag that a signal sets and a pass looks at between chunks.
#[derive(Debug, Clone, Default)]
pub struct Interrupt(pub Arc<AtomicBool>);

impl Interrupt {
    fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) {
            return Err(Error::io(IoCause::Interrupted, "interrupted"));
        }
        Ok(())
    }
}

/// A pipeline on several threads; the calling thread consumes, and produces while there is nothing to consume.
#[derive(Debug, Clone)]
pub struct Threads {
    threads: NonZeroUsize,
    slots: usize,
    interrupt: Interrupt,
}

impl Threads {
    /// Bytes a slot takes at most: a chunk as it is read, widened to f64, and as it is written.
    const SLOT_BYTES: u64 = 16 << 20;

    /// `threads` of them, with as many chunks in flight as `max_memory` bytes allow.
    ///
    /// # Errors
    /// E008 when the budget does not hold one chunk.
    pub fn new(threads: NonZeroUsize, max_memory: u64, interrupt: Interrupt) -> Result<Self> {
        let affordable = usize::try_from(max_memory / Self::SLOT_BYTES).unwrap_or(usize::MAX);
        if affordable == 0 {
            return Err(Error::memory(format!(
                "the memory limit of {max_memory} bytes is too small; a pass needs {} at least",
                Self::SLOT_BYTES
            )));
        }
        // Enough that neither side waits for the other; with few slots every chunk costs a thread switch.
        let slots = affordable.min(8 * threads.get());
        // More threads than slots would only wait.
        let threads = NonZeroUsize::new(slots).unwrap_or(NonZeroUsize::MIN).min(threads);
        Ok(Self { threads, slots, interrupt })
    }
}

/// Where the jobs are. Job `i` lives in slot `i % slots` from being produced to being consumed.
#[derive(Debug)]
struct Board {
    next_to_produce: usize,
    next_to_consume: usize,
    /// Per slot: the result of producing, once there.
    ready: Vec<Option<Result<()>>>,
    stopped: bool,
}

impl Pipeline for Threads {
    fn run<S: Default + Send>(
        &self,
        jobs: usize,
        produce: impl Fn(usize, &mut S) -> Result<()> + Sync,
        mut consume: impl FnMut(usize, &mut S) -> Result<()>,
    ) -> Result<()> {
        let slots: Vec<Mutex<S>> = (0..self.slots).map(|_| Mutex::default()).collect();
        let board =
            Mutex::new(Board { next_to_produce: 0, next_to_consume: 0, ready: vec![None; self.slots], stopped: false });
        let changed = Condvar::new();

        let produce_job = |job: usize| {
            let result = self.interrupt.check().and_then(|()| produce(job, &mut lock(&slots[job % self.slots])));
            lock(&board).ready[job % self.slots] = Some(result);
            changed.notify_all();
        };
        let work = || {
            // A job that panics would leave the others waiting for its result.
            let _stop = StopOnPanic { board: &board, changed: &changed };
            let mut state = lock(&board);
            while !state.stopped && state.next_to_produce < jobs {
                if let Some(job) = self.take_job(&mut state, jobs) {
                    drop(state);
                    produce_job(job);
                    state = lock(&board);
                } else {
                    state = wait(&changed, state);
                }
            }
        };
        let mut drive = || {
            let mut state = lock(&board);
            while state.next_to_consume < jobs {
                let due = state.next_to_consume;
                if let Some(result) = state.ready[due % self.slots].take() {
                    drop(state);
                    result?;
                    consume(due, &mut lock(&slots[due % self.slots]))?;
                    state = lock(&board);
                    state.next_to_consume += 1;
                    changed.notify_all();
                } else if state.stopped {
                    return Err(Error::io(IoCause::Other, "a worker thread failed"));
                } else if let Some(job) = self.take_job(&mut state, jobs) {
                    drop(state);
                    produce_job(job);
                    state = lock(&board);
                } else {
                    state = wait(&changed, state);
                }
            }
            Ok(())
        };

        thread::scope(|scope| {
            for _ in 1..self.threads.get().min(jobs.max(1)) {
                scope.spawn(work);
            }
            let stop = StopOnDrop { board: &board, changed: &changed };
            let result = drive();
            drop(stop);
            result
        })
    }
}

impl Threads {
    fn take_job(&self, board: &mut Board, jobs: usize) -> Option<usize> {
        let job = board.next_to_produce;
        let free = job < jobs && job < board.next_to_consume + self.slots;
        free.then(|| {
            board.next_to_produce += 1;
            job
        })
    }
}

/// Tells the workers to stop when the driver leaves, by result or by panic.
struct StopOnDrop<'a> {
    board: &'a Mutex<Board>,
    changed: &'a Condvar,
}

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        lock(self.board).stopped = true;
        self.changed.notify_all();
    }
}

/// Stops everyone when the thread that holds it panics.
struct StopOnPanic<'a> {
    board: &'a Mutex<Board>,
    changed: &'a Condvar,
}

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            lock(self.board).stopped = true;
            self.changed.notify_all();
        }
    }
}

/// A panicking holder is reported by its own thread; the data stays usable for stopping.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait<'a, T>(changed: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    changed.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn threads(count: usize) -> Threads {
        Threads::new(NonZeroUsize::new(count).expect("not zero"), 1 << 30, Interrupt::default()).expect("a fair budget")
    }

    #[test]
    fn results_arrive_in_order_whatever_the_number_of_threads() {
        for count in 1..5 {
            let mut seen = Vec::new();
            let produce = |job: usize, slot: &mut usize| {
                *slot = job * job;
                Ok(())
            };
            threads(count)
                .run(100, produce, |job, slot: &mut usize| {
                    seen.push((job, *slot));
                    Ok(())
                })
                .expect("no job fails");
            assert_eq!(seen, (0..100).map(|job| (job, job * job)).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_first_error_in_order_ends_the_run() {
        for count in 1..4 {
            let produce = |job: usize, _: &mut ()| match job {
                7 => Err(Error::corrupt("seven")),
                9 => Err(Error::corrupt("nine")),
                _ => Ok(()),
            };
            let mut consumed = 0;
            let result = threads(count).run(50, produce, |_, ()| {
                consumed += 1;
                Ok(())
            });
            assert_eq!(result.map_err(|error| error.message().to_owned()), Err("seven".to_owned()));
            assert_eq!(consumed, 7);
        }
    }

    #[test]
    fn an_interrupt_ends_the_run() {
        let interrupt = Interrupt::default();
        let two = NonZeroUsize::new(2).expect("not zero");
        let pipeline = Threads::new(two, 1 << 30, interrupt.clone()).expect("a fair budget");
        let result = pipeline.run(
            1_000_000,
            |_, ()| Ok(()),
            |job, ()| {
                interrupt.0.store(job == 10, Ordering::Relaxed);
                Ok(())
            },
        );
        assert_eq!(result.map_err(|error| error.cause()), Err(Some(IoCause::Interrupted)));
    }

    #[test]
    fn a_budget_below_one_chunk_is_refused() {
        let refused = Threads::new(NonZeroUsize::MIN, 1 << 20, Interrupt::default());
        assert_eq!(refused.map_err(|error| error.code()).map(drop), Err(apr_core::Code::Memory));
    }
}
