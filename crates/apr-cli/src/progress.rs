//! A bar for jobs that take a while.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use apr_core::Progress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::printer::{Printer, columns_of_remarks};

/// How long a job may take before it shows a bar.
const PATIENCE: Duration = Duration::from_millis(500);

/// A bar on standard error that appears when a job outlasts [`PATIENCE`]; it never does where that
/// is not a terminal.
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

    /// One that counts steps, and not bytes.
    pub(crate) fn counting(printer: &Printer, total: u64) -> Self {
        let bar = Self::new(printer, total);
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len}  {eta} left") {
            bar.bar.set_style(style);
        }
        bar
    }

    /// One that counts steps and names the next one, in the place of this bar, which is done. It is
    /// shown at once: its steps are few, and some of them long.
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

    /// One that counts the steps of a training, with what it says of the last one.
    pub(crate) fn training(printer: &Printer, total: u64) -> Self {
        let bar = Self::new(printer, total);
        if let Ok(style) = ProgressStyle::with_template("{bar:20} {pos}/{len}  {msg}  {eta} left") {
            bar.bar.set_style(style);
        }
        bar
    }

    /// What is done next.
    pub(crate) fn name_next(&self, name: &str) {
        self.bar.set_message(name.to_owned());
    }

    /// So many steps are done.
    pub(crate) fn reached(&self, steps: u64) {
        self.advance(steps.saturating_sub(self.bar.position()));
    }

    /// How long the job has taken.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }
}

/// What fits a line of the terminal: a bar that is broken is drawn again and again, each time a
/// line further down.
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
