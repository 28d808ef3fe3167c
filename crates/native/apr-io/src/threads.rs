use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use apr_core::{Error, IoCause, Pipeline, Result};

/// Cancels work: a flag that a signal or another thread sets, and a pass looks at between chunks.
/// Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Interrupt(pub Arc<AtomicBool>);

impl Interrupt {
    /// Stops the work at its next check, with E007. Output in progress is dropped.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Checks whether work may continue.
    ///
    /// # Errors
    /// E007 once the flag is set.
    pub fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) {
            return Err(Error::io(IoCause::Interrupted, "interrupted"));
        }
        Ok(())
    }
}

/// A pipeline on several threads. The calling thread consumes, and produces while there are no
/// results to consume.
#[derive(Debug, Clone)]
pub struct Threads {
    threads: NonZeroUsize,
    slots: usize,
    interrupt: Interrupt,
}

impl Threads {
    /// Maximum number of bytes of a slot: a chunk as read, widened to f64, and as written.
    const SLOT_BYTES: u64 = 16 << 20;

    /// Creates a pipeline of `threads` threads, with as many chunks in flight as `max_memory` bytes
    /// allow.
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
        // Enough that neither side waits for the other; with few slots every chunk costs a thread
        // switch.
        let slots = affordable.min(8 * threads.get());
        // More threads than slots would only wait.
        let threads = NonZeroUsize::new(slots).unwrap_or(NonZeroUsize::MIN).min(threads);
        Ok(Self { threads, slots, interrupt })
    }
}

/// State of the tasks: a window of `ready.len()` tasks from the one that is due.
#[derive(Debug)]
struct Board<S> {
    next_to_produce: usize,
    next_to_consume: usize,
    /// Task `i` is at `i % ready.len()` from being produced to being consumed.
    ready: Vec<Option<Produced<S>>>,
    /// Slots that no task has; the last one used is the first one taken, while its buffers are
    /// still in the cache.
    free: Vec<S>,
    stopped: bool,
}

#[derive(Debug)]
struct Produced<S> {
    slot: S,
    result: Result<()>,
}

impl<S: Default> Board<S> {
    fn new(window: usize) -> Self {
        let ready = (0..window).map(|_| None).collect();
        Self { next_to_produce: 0, next_to_consume: 0, ready, free: Vec::new(), stopped: false }
    }

    fn take_task(&mut self, tasks: usize) -> Option<(usize, S)> {
        let task = self.next_to_produce;
        let open = task < tasks && task < self.next_to_consume + self.ready.len();
        open.then(|| {
            self.next_to_produce += 1;
            (task, self.free.pop().unwrap_or_default())
        })
    }

    fn put(&mut self, task: usize, produced: Produced<S>) {
        let window = self.ready.len();
        self.ready[task % window] = Some(produced);
    }

    fn take_due(&mut self) -> Option<Produced<S>> {
        let window = self.ready.len();
        self.ready[self.next_to_consume % window].take()
    }
}

impl Pipeline for Threads {
    fn run<S: Default + Send>(
        &self,
        tasks: usize,
        produce: impl Fn(usize, &mut S) -> Result<()> + Sync,
        mut consume: impl FnMut(usize, &mut S) -> Result<()>,
    ) -> Result<()> {
        let board = Mutex::new(Board::<S>::new(self.slots));
        let changed = Condvar::new();

        let produce_task = |task: usize, mut slot: S| {
            let result = self.interrupt.check().and_then(|()| produce(task, &mut slot));
            lock(&board).put(task, Produced { slot, result });
            changed.notify_all();
        };
        let work = || {
            // A task that panics would leave the others waiting for its result.
            let _stop = StopOnPanic { board: &board, changed: &changed };
            let mut state = lock(&board);
            while !state.stopped && state.next_to_produce < tasks {
                if let Some((task, slot)) = state.take_task(tasks) {
                    drop(state);
                    produce_task(task, slot);
                    state = lock(&board);
                } else {
                    state = wait(&changed, state);
                }
            }
        };

        let mut drive = || {
            let mut state = lock(&board);
            while state.next_to_consume < tasks {
                if let Some(Produced { mut slot, result }) = state.take_due() {
                    let due = state.next_to_consume;
                    drop(state);
                    result?;
                    consume(due, &mut slot)?;
                    state = lock(&board);
                    state.next_to_consume += 1;
                    state.free.push(slot);
                    changed.notify_all();
                } else if state.stopped {
                    return Err(Error::io(IoCause::Other, "a worker thread failed"));
                } else if let Some((task, slot)) = state.take_task(tasks) {
                    drop(state);
                    produce_task(task, slot);
                    state = lock(&board);
                } else {
                    state = wait(&changed, state);
                }
            }
            Ok(())
        };

        thread::scope(|scope| {
            for _ in 1..self.threads.get().min(tasks.max(1)) {
                // With fewer threads than were asked for, the driver does more itself.
                if thread::Builder::new().spawn_scoped(scope, work).is_err() {
                    break;
                }
            }
            let stop = StopOnDrop { board: &board, changed: &changed };
            let result = drive();
            drop(stop);
            result
        })
    }
}

/// Stops the workers when the driver returns or panics.
struct StopOnDrop<'a, S> {
    board: &'a Mutex<Board<S>>,
    changed: &'a Condvar,
}

impl<S> Drop for StopOnDrop<'_, S> {
    fn drop(&mut self) {
        lock(self.board).stopped = true;
        self.changed.notify_all();
    }
}

/// Stops everyone when the thread that holds it panics.
struct StopOnPanic<'a, S> {
    board: &'a Mutex<Board<S>>,
    changed: &'a Condvar,
}

impl<S> Drop for StopOnPanic<'_, S> {
    fn drop(&mut self) {
        if thread::panicking() {
            lock(self.board).stopped = true;
            self.changed.notify_all();
        }
    }
}

/// Locks a mutex even if its holder panicked. That thread reports the panic; the data stays usable
/// for stopping.
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
        Threads::new(NonZeroUsize::new(count).expect("not zero"), 1 << 30, Interrupt::default())
            .expect("a fair budget")
    }

    #[test]
    fn results_arrive_in_order_whatever_the_number_of_threads() {
        for count in 1..5 {
            let mut seen = Vec::new();
            let produce = |task: usize, slot: &mut usize| {
                *slot = task * task;
                Ok(())
            };
            threads(count)
                .run(100, produce, |task, slot: &mut usize| {
                    seen.push((task, *slot));
                    Ok(())
                })
                .expect("no task fails");
            assert_eq!(seen, (0..100).map(|task| (task, task * task)).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_first_error_in_order_ends_the_run() {
        for count in 1..4 {
            let produce = |task: usize, _: &mut ()| match task {
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
            |task, ()| {
                interrupt.0.fetch_or(task == 10, Ordering::Relaxed);
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
