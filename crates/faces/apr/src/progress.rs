//! How far a job is, for a closure.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use apr_core::{Phase, Progress};

/// Progress of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Step {
    /// Current phase of the job.
    pub phase: Phase,
    /// Bytes that the phase has gone through.
    pub done: u64,
    /// Approximate number of bytes of the whole phase, at least `done`.
    pub total: u64,
}

impl Step {
    /// Returns the completed fraction, from 0 to 1; 1 for an empty phase.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "nobody sees the last bits")]
    pub fn fraction(&self) -> f64 {
        if self.total == 0 { 1.0 } else { self.done as f64 / self.total as f64 }
    }
}

/// A [`Progress`] that calls a closure with each [`Step`].
///
/// ```
/// use apr::{Phase, Progress, ProgressFn};
///
/// let progress = ProgressFn::new(|step| {
///     println!("{} {:.0} %", step.phase, 100.0 * step.fraction());
/// });
/// progress.begin(Phase::Converting, 200);
/// progress.advance(50); // converting 25 %
/// ```
pub struct ProgressFn<F> {
    call: F,
    phase: Mutex<Option<Phase>>,
    done: AtomicU64,
    total: AtomicU64,
}

impl<F: Fn(Step)> ProgressFn<F> {
    /// Calls `call` when a phase begins, and with each step of it.
    pub const fn new(call: F) -> Self {
        Self { call, phase: Mutex::new(None), done: AtomicU64::new(0), total: AtomicU64::new(0) }
    }

    fn tell(&self, done: u64) {
        let phase = *self.phase.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(phase) = phase else { return };
        let total = self.total.load(Ordering::Relaxed).max(done);
        (self.call)(Step { phase, done, total });
    }
}

impl<F: Fn(Step)> Progress for ProgressFn<F> {
    fn begin(&self, phase: Phase, total: u64) {
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner) = Some(phase);
        self.total.store(total, Ordering::Relaxed);
        self.done.store(0, Ordering::Relaxed);
        self.tell(0);
    }

    fn advance(&self, bytes: u64) {
        let before = self.done.fetch_add(bytes, Ordering::Relaxed);
        self.tell(before.saturating_add(bytes));
    }
}
