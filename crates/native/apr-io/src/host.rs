//! What a native program lends to a run: threads, a clock, and threads apart for strangers' files.

use std::num::NonZeroUsize;
use std::sync::Once;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{panic, thread};

use apr_core::{Error, IoCause, Result};
use apr_infer::Workers;
use apr_run::{Host, Remedy};

use crate::{Crew, Interrupt};

/// Maximum time for a tokenizer or template.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time between two checks of the interrupt flag.
const GLANCE: Duration = Duration::from_millis(50);
/// Stack of the thread, for rules inside rules.
const STACK: usize = 64 << 20;

/// Threads, the system's clock, and an interrupt.
///
/// Tokenizers and templates of strangers run on a thread of their own, which is given up after a
/// minute.
pub struct NativeHost<W> {
    crew: Crew,
    interrupt: Interrupt,
    begun: Instant,
    warn: W,
}

impl<W: Fn(&str, Option<Remedy>) + Sync> NativeHost<W> {
    /// Creates a host with `threads` threads; `warn` receives warnings.
    ///
    /// Panics that become errors are not reported from here on: the process's panic hook is wrapped
    /// once.
    pub fn new(threads: NonZeroUsize, interrupt: Interrupt, warn: W) -> Self {
        silence_guarded_panics();
        Self { crew: Crew::new(threads), interrupt, begun: Instant::now(), warn }
    }
}

impl<W: Fn(&str, Option<Remedy>) + Sync> Host for NativeHost<W> {
    fn workers(&self) -> &dyn Workers {
        &self.crew
    }

    fn is_cancelled(&self) -> bool {
        self.interrupt.0.load(Ordering::Relaxed)
    }

    fn warn(&self, message: &str, remedy: Option<Remedy>) {
        (self.warn)(message, remedy);
    }

    fn now(&self) -> i64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        i64::try_from(now).unwrap_or(0)
    }

    fn elapsed(&self) -> Option<Duration> {
        Some(self.begun.elapsed())
    }

    fn side_by_side(
        &self,
        first: &mut (dyn FnMut() + Send),
        second: &mut (dyn FnMut() + Send),
    ) -> bool {
        thread::scope(|scope| {
            let builder = thread::Builder::new().stack_size(STACK);
            let Ok(handle) = builder.spawn_scoped(scope, second) else { return false };
            first();
            // A panic of the second job goes on here.
            handle.join().unwrap_or_else(|panic| panic::resume_unwind(panic));
            true
        })
    }

    fn isolate(&self, what: &str, work: Box<dyn FnOnce() + Send>) -> Result<()> {
        let (sender, receiver) = mpsc::channel();

        let run = move || {
            work();
            // Nobody listens any more where the host has given up.
            let _ = sender.send(());
        };
        thread::Builder::new().stack_size(STACK).spawn(run).map_err(|error| {
            Error::memory(format!("can't start the thread for {what}: {error}"))
        })?;
        let start = Instant::now();
        loop {
            match receiver.recv_timeout(GLANCE) {
                Ok(()) => return Ok(()),
                // The thread panicked, and dropped the sender.
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::format(format!("{what} can't be used: its reader failed")));
                }
                Err(RecvTimeoutError::Timeout) if self.is_cancelled() => {
                    return Err(Error::io(IoCause::Interrupted, "interrupted"));
                }
                Err(RecvTimeoutError::Timeout) if start.elapsed() > PATIENCE => {
                    let seconds = PATIENCE.as_secs();
                    return Err(Error::format(format!(
                        "{what} takes longer than {seconds} seconds"
                    )));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

fn silence_guarded_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !apr_run::is_guarded() {
                before(info);
            }
        }));
    });
}
