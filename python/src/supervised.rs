//! Work on a thread apart from the interpreter's. Ctrl-C ends it, and a callback receives progress.

use std::num::NonZeroUsize;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use apr::{Error, Interrupt, Progress, ProgressFn, Step};
use apr_io::Threads;
use pyo3::prelude::*;

use crate::errors::Failure;

/// Interval between checks for signals, and between calls of `progress`.
pub(crate) const PERIOD: Duration = Duration::from_millis(50);

/// State that a job shares with the thread of the interpreter.
#[derive(Clone, Default)]
pub(crate) struct Watch {
    pub(crate) interrupt: Interrupt,
    step: Arc<Mutex<Option<Step>>>,
    warnings: Arc<Mutex<Vec<String>>>,
}

impl Watch {
    /// Stores the progress of the job.
    pub(crate) fn tell(&self, step: Step) {
        *self.step.lock().unwrap_or_else(PoisonError::into_inner) = Some(step);
    }

    /// Returns a progress that stores its steps.
    pub(crate) fn progress(&self) -> impl Progress + use<> {
        let watch = self.clone();
        ProgressFn::new(move |step| watch.tell(step))
    }

    /// Returns threads on all cores for a pass, which ends when the job is cancelled.
    pub(crate) fn threads(&self) -> apr::Result<Threads> {
        /// Memory for the buffers of a pass, in bytes.
        const MEMORY: u64 = 1 << 28;
        let threads = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        Threads::new(threads, MEMORY, self.interrupt.clone())
    }

    /// Stores a warning.
    pub(crate) fn warn(&self, message: &str) {
        self.warnings.lock().unwrap_or_else(PoisonError::into_inner).push(message.to_owned());
    }

    /// Passes what was stored to Python: warnings, and the last step to `progress`.
    pub(crate) fn pass_on(&self, py: Python<'_>, progress: Option<&Py<PyAny>>) -> PyResult<()> {
        py.check_signals()?;
        let warnings =
            std::mem::take(&mut *self.warnings.lock().unwrap_or_else(PoisonError::into_inner));
        if !warnings.is_empty() {
            let warn = py.import("warnings")?.getattr("warn")?;
            for warning in warnings {
                warn.call1((warning,))?;
            }
        }
        let step = self.step.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let (Some(progress), Some(step)) = (progress, step) {
            progress.call1(py, (step.phase.to_string(), step.done, step.total))?;
        }
        Ok(())
    }
}

/// Runs `job` on a thread of its own without the interpreter. An exception of `progress` or of a
/// signal cancels it, and is raised after it ended.
pub(crate) fn supervised<T: Send>(
    py: Python<'_>,
    progress: Option<&Py<PyAny>>,
    job: impl FnOnce(&Watch) -> Result<T, Failure> + Send,
) -> PyResult<T> {
    let watch = Watch::default();
    let done = py.detach(|| {
        thread::scope(|scope| {
            let (finished, waits) = mpsc::channel::<()>();
            let worker = watch.clone();
            let handle = thread::Builder::new()
                .name("apr".to_owned())
                .spawn_scoped(scope, move || {
                    // Dropped when the job ends, however it does.
                    let _finished = finished;
                    job(&worker)
                })
                .map_err(|error| Failure::Model(Error::memory(error.to_string())));
            let handle = match handle {
                Ok(handle) => handle,
                Err(failure) => return Ok(Err(failure)),
            };
            let mut raised = None;
            while waits.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                let told = Python::attach(|py| watch.pass_on(py, progress));
                if let (Err(error), None) = (told, &raised) {
                    watch.interrupt.cancel();
                    raised = Some(error);
                }
            }
            let ended = handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            raised.map_or(Ok(ended), Err)
        })
    })?;
    let done = done.map_err(|failure| failure.raised(py))?;
    watch.pass_on(py, progress)?;
    Ok(done)
}
