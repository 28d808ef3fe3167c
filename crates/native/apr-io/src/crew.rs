#![allow(
    unsafe_code,
    reason = "threads borrow the work of a run, which ends only when none of them is in it"
)]

use std::any::Any;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};
use std::{hint, ptr};

use apr_infer::Workers;
use rayon::{ThreadPool, ThreadPoolBuilder, Yield};

/// Time for which a thread looks for work before it sleeps. Waking takes about as long, and
/// operators that are cut into pieces follow each other faster than that.
const PATIENCE: Duration = Duration::from_micros(200);

/// Threads that run pieces of an operator's work.
///
/// They live as long as the crew, and so do the buffers that they keep.
#[derive(Debug)]
pub struct Crew {
    threads: NonZeroUsize,
    /// Threads other than the calling one.
    helpers: Option<ThreadPool>,
    /// Number of helpers that currently look for work without sleeping.
    awake: Arc<AtomicUsize>,
}

impl Crew {
    /// Creates `threads` threads, including the calling one. If the system provides no more
    /// threads, the calling thread does all the work.
    #[must_use]
    pub fn new(threads: NonZeroUsize) -> Self {
        let beside = threads.get() - 1;
        let helpers = (beside > 0)
            .then(|| ThreadPoolBuilder::new().num_threads(beside).build().ok())
            .flatten();
        let threads = helpers.as_ref().map_or(NonZeroUsize::MIN, |_| threads);
        Self { threads, helpers, awake: Arc::default() }
    }

    /// Keeps idle threads looking for work for a while.
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

/// Runs the tasks of this thread's pool until there was none for [`PATIENCE`].
fn look_for_work() {
    let mut idle_since = Instant::now();
    while idle_since.elapsed() < PATIENCE {
        match rayon::yield_now() {
            Some(Yield::Executed) => idle_since = Instant::now(),
            _ => give_way(idle_since),
        }
    }
}

/// Waits for a moment. After a while it yields the processor to other programs; otherwise the
/// scheduler would take it away later, in the middle of a piece.
fn give_way(idle_since: Instant) {
    if idle_since.elapsed() < PATIENCE / 10 {
        hint::spin_loop();
    } else {
        thread::yield_now();
    }
}

/// The pieces of a run, which threads take one after the other.
struct Pieces {
    work: *const (dyn Fn(usize) + Sync),
    count: usize,
    next: AtomicUsize,
    /// The thread that waits for the end.
    caller: Thread,
    /// Number of other threads that may call `work` now.
    inside: AtomicUsize,
    /// No other thread may enter any more.
    is_closed: AtomicBool,
    /// Payload of the panic of a piece.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `work` may be called by several threads at once, and is there as long as one is inside.
unsafe impl Send for Pieces {}
// SAFETY: as above.
unsafe impl Sync for Pieces {}

impl Pieces {
    /// Calls `work` with pieces until none is left.
    ///
    /// # Safety
    /// `work` is borrowed for as long as this takes.
    unsafe fn take_all(&self) {
        loop {
            let piece = self.next.fetch_add(1, Ordering::Relaxed);
            if piece >= self.count {
                break;
            }
            // SAFETY: the caller says so.
            unsafe { (*self.work)(piece) };
        }
    }

    /// Takes pieces on another thread than the caller's, if the run has not ended.
    fn help(&self) {
        // In one order with `close`: either it sees this thread, or this thread sees the end.
        self.inside.fetch_add(1, Ordering::SeqCst);
        if !self.is_closed.load(Ordering::SeqCst) {
            // SAFETY: the run waits for those that are inside.
            let taken = catch_unwind(AssertUnwindSafe(|| unsafe { self.take_all() }));
            if let (Err(panic), Ok(mut first)) = (taken, self.panic.lock()) {
                first.get_or_insert(panic);
            }
        }
        self.inside.fetch_sub(1, Ordering::SeqCst);
        self.caller.unpark();
    }

    /// Rejects further threads, and waits for the threads that are inside. It does not wait for
    /// threads that were called but have not entered, because their processor is busy with other
    /// programs.
    fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        let start = Instant::now();
        while self.inside.load(Ordering::SeqCst) > 0 {
            if start.elapsed() < PATIENCE {
                give_way(start);
            } else {
                thread::park_timeout(PATIENCE);
            }
        }
    }
}

/// Closes a run, even if its caller panics.
struct Closing<'a>(&'a Pieces);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Workers for Crew {
    fn count(&self) -> usize {
        self.threads.get()
    }

    fn run(&self, pieces: usize, work: &(dyn Fn(usize) + Sync)) {
        let Some(helpers) = self.helpers.as_ref().filter(|_| pieces > 1) else {
            return (0..pieces).for_each(work);
        };

        // SAFETY: only the lifetime is left out. `work` is called before `Closing` has ended, and
        // that is before this returns.
        let work = unsafe {
            std::mem::transmute::<
                *const (dyn Fn(usize) + Sync + '_),
                *const (dyn Fn(usize) + Sync + 'static),
            >(ptr::from_ref(work))
        };
        let shared = Arc::new(Pieces {
            work,
            count: pieces,
            next: AtomicUsize::new(0),
            caller: thread::current(),
            inside: AtomicUsize::new(0),
            is_closed: AtomicBool::new(false),
            panic: Mutex::default(),
        });
        for _ in 1..self.threads.get().min(pieces) {
            let shared = Arc::clone(&shared);
            helpers.spawn(move || shared.help());
        }
        {
            let _closing = Closing(&shared);
            // SAFETY: this function has borrowed it.
            unsafe { shared.take_all() };
        }
        let panic = shared.panic.lock().ok().and_then(|mut panic| panic.take());
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
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
    fn a_piece_that_panics_ends_the_run_and_not_the_crew() {
        let crew = Crew::new(NonZeroUsize::new(3).unwrap());
        for failing in 0..20 {
            let run = || {
                crew.run(20, &|piece| {
                    thread::sleep(Duration::from_micros(20));
                    assert_ne!(piece, failing, "this piece fails");
                });
            };
            assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
        }
        let met = AtomicU64::new(0);
        crew.run(9, &|_| {
            met.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(met.load(Ordering::Relaxed), 9);
    }

    /// Threads that arrive late find the run closed and do not touch the data it borrowed.
    #[test]
    fn a_thread_that_does_not_come_is_not_waited_for() {
        let crew = Crew::new(NonZeroUsize::new(2).unwrap());
        let (busy, go_on) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (its_busy, its_go_on) = (Arc::clone(&busy), Arc::clone(&go_on));
        crew.helpers.as_ref().unwrap().spawn(move || {
            its_busy.store(true, Ordering::SeqCst);
            while !its_go_on.load(Ordering::SeqCst) {
                thread::yield_now();
            }
        });
        while !busy.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        for _ in 0..10 {
            let met = AtomicU64::new(0);
            crew.run(5, &|piece| {
                met.fetch_add(piece as u64, Ordering::Relaxed);
            });
            assert_eq!(met.load(Ordering::Relaxed), 10);
        }
        go_on.store(true, Ordering::SeqCst);
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
