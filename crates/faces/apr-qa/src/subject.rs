//! The model that is judged, and what that may take.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use apr_core::{Pipeline, Progress, Result};
use apr_io::Interrupt;
use apr_run::Facts;
use apr_source::Source;

use crate::assessment::{Assessment, PointReport, Verdict, chosen};
use crate::bench::Bench;
use crate::judgement::{Fault, Seen};
use crate::points::Category;

/// A model to judge.
pub struct Subject<'s> {
    /// The model, with the files beside it.
    pub source: &'s Source<'s>,
    /// Facts that the model states about itself.
    pub facts: &'s Facts,
    /// Threads that running it may take.
    pub threads: NonZeroUsize,
    /// Bytes that running it may take.
    pub max_memory: u64,
    /// Handle that stops the work from another thread or a signal.
    pub interrupt: Interrupt,
    /// Function that opens the model again to time it. Without it, opening is not timed.
    pub reopen: Option<&'s dyn Fn() -> Result<()>>,
    /// The program `apr`, by which points about the command line are judged; without it they do not
    /// apply.
    pub apr: Option<PathBuf>,
}

/// Judges a model and the tool by all points, or by the points of one category.
///
/// The model is read once, in the memory of `pipeline`, and a second time if it does not have
/// digests. Files that points create are small and in a temporary folder, which is removed
/// afterwards. `progress` receives the bytes of the first read, and `judged` receives each point
/// after that.
///
/// # Errors
/// E002 and E007 when the model can't be read, E007 if there is no space for temporary files or
/// `interrupt` was set.
pub fn assess<'s, P: Pipeline>(
    subject: &'s Subject<'s>,
    category: Option<Category>,
    pipeline: &P,
    progress: &dyn Progress,
    judged: &mut dyn FnMut(&PointReport),
) -> Result<Assessment> {
    let bench = Bench::new(subject, category, pipeline, progress)?;
    let mut points = Vec::new();
    for point in chosen(category) {
        subject.check_interrupt()?;
        let seen = (point.judge)(&bench);
        let Seen { verdict, text } =
            seen.unwrap_or_else(|Fault(text)| Seen { verdict: Verdict::Failed, text });
        // What an interrupt made of a point is none of its doing.
        subject.check_interrupt()?;
        let report = PointReport {
            number: point.number,
            name: point.name,
            claim: point.claim,
            category: point.category(),
            heading: point.heading,
            judged: point.judged,
            verdict,
            seen: text,
        };
        judged(&report);
        points.push(report);
    }
    Ok(Assessment::of(subject.source.name(), category, points))
}

impl Subject<'_> {
    fn check_interrupt(&self) -> Result<()> {
        use std::sync::atomic::Ordering;
        if self.interrupt.0.load(Ordering::Relaxed) {
            let cause = apr_core::IoCause::Interrupted;
            return Err(apr_core::Error::io(cause, "interrupted"));
        }
        Ok(())
    }
}
