//! A bar for jobs that take a while.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use apr_core::Progress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::printer::{Printer, columns_of_remarks};

/// Duration of a job after which it shows a bar.
const PATIENCE: Duration = Duration::from_millis(500);

/// Progress bar on standard error, which appears when a job outlasts [`PATIENCE`].
///
/// It never appears if standard error is not a terminal.
pub(crate) struct Bar {
    bar: ProgressBar,
    started: Instant,
    shown: AtomicBool,
}

impl Bar {
    pub(crate) fn new(printer: &Printer, total: u64) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template(template(columns_of_remarks())) {
            bar.set_style(style);
        }
        Self { bar, started: Instant::now(), shown: AtomicBool::new(!printer.shows_progress()) }
    }

    /// Returns a bar that counts steps instead of bytes.
    pub(crate) fn counting(printer: &Printer, total: u64) -> Self {
        let bar = Self::new(printer, total);
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len}  {eta} left") {
            bar.bar.set_style(style);
        }
        bar
    }

    /// Replaces this finished bar by one that counts steps and names the next step.
    ///
    /// The new bar is shown immediately, because its steps are few and some of them long.
    #[cfg(feature = "qa")]
    pub(crate) fn then_counting(&self, printer: &Printer, total: u64) -> Self {
        self.bar.finish_and_clear();
        let next = Self::new(printer, total);
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}") {
            next.bar.set_style(style);
        }
        if !next.shown.swap(true, Ordering::Relaxed) {
            next.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        next
    }

    /// Returns a bar that counts the steps of a training and shows a message about the last one.
    pub(crate) fn training(printer: &Printer, total: u64) -> Self {
        let bar = Self::new(printer, total);
        if let Ok(style) = ProgressStyle::with_template("{bar:20} {pos}/{len}  {msg}  {eta} left") {
            bar.bar.set_style(style);
        }
        bar
    }

    /// Sets the name of the next step.
    pub(crate) fn name_next(&self, name: &str) {
        self.bar.set_message(name.to_owned());
    }

    /// Advances the bar to `steps` completed steps.
    pub(crate) fn reached(&self, steps: u64) {
        self.advance(steps.saturating_sub(self.bar.position()));
    }

    /// Returns the time since the start of the job.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }
}

/// Returns a template that fits a line of the terminal.
///
/// A bar that wraps would be redrawn one line further down each time.
fn template(columns: Option<usize>) -> &'static str {
    match columns.unwrap_or(80) {
        84.. => {
            "{bar:30} {percent:>3}%  {decimal_bytes}/{decimal_total_bytes}  \
             {decimal_bytes_per_sec}  {eta} left"
        }
        64.. => "{bar:16} {percent:>3}%  {decimal_bytes}/{decimal_total_bytes}  {eta} left",
        36.. => "{percent:>3}%  {decimal_bytes}/{decimal_total_bytes}  {eta}",
        _ => "{percent:>3}%",
    }
}

impl Progress for Bar {
    fn advance(&self, bytes: u64) {
        self.bar.inc(bytes);
        if self.started.elapsed() > PATIENCE && !self.shown.swap(true, Ordering::Relaxed) {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
