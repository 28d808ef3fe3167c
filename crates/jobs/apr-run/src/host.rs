//! What a run takes from its surroundings: threads, the time, whoever reads warnings.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use apr_infer::{Alone, Workers};
use apr_registry::{Error, Result};

use crate::error::Remedy;

/// The surroundings of a run. `apr-io` has the host of a native program; [`NoHost`] is enough for a
/// web page.
pub trait Host: Sync {
    /// Threads for the operators.
    fn workers(&self) -> &dyn Workers;

    /// Returns `true` to stop the run. It is called before every operator.
    fn is_cancelled(&self) -> bool {
        false
    }

    /// Receives a warning, and the change that avoids it.
    fn warn(&self, message: &str, remedy: Option<Remedy>);

    /// Seconds since 1970, for chat templates that print the date.
    fn now(&self) -> i64;

    /// Returns the time since any fixed moment, for measurements, or `None` if there is no clock.
    fn elapsed(&self) -> Option<Duration> {
        None
    }

    /// Runs two jobs that wait for each other, each on a thread of its own, and returns when both
    /// are done. `false`, with nothing run, where there are no threads.
    fn side_by_side(
        &self,
        first: &mut (dyn FnMut() + Send),
        second: &mut (dyn FnMut() + Send),
    ) -> bool {
        let _ = (first, second);
        false
    }

    /// Runs `work`, which hands a stranger's file (`what`) to a library that may panic or never
    /// return on a hostile one: on a thread of its own where there are threads, and with a limit of
    /// time where there is a clock.
    ///
    /// # Errors
    /// E001 where the library panicked or took too long, E007 where the run was cancelled, E008
    /// where there is no memory for a thread.
    fn isolate(&self, what: &str, work: Box<dyn FnOnce() + Send>) -> Result<()>;
}

/// Runs everything on the calling thread, and drops warnings.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoHost;

impl Host for NoHost {
    fn workers(&self) -> &dyn Workers {
        &Alone
    }

    fn warn(&self, _: &str, _: Option<Remedy>) {}

    fn now(&self) -> i64 {
        0
    }

    fn isolate(&self, _: &str, work: Box<dyn FnOnce() + Send>) -> Result<()> {
        work();
        Ok(())
    }
}

/// Runs work in isolation and returns its result.
pub(crate) fn isolated<T: Send + 'static>(
    host: &dyn Host,
    what: &str,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let slot = Arc::new(Mutex::new(None));
    let filled = Arc::clone(&slot);
    host.isolate(
        what,
        Box::new(move || {
            let done = work();
            *filled.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
        }),
    )?;
    let done = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
    done.unwrap_or_else(|| Err(Error::format(format!("{what} can't be used: its reader failed"))))
}
