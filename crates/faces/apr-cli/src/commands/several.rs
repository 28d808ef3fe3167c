//! Reports on one model or on several.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::context::Context;
use crate::documents::{Document, FailureDocument};
use crate::failure::{Failure, Outcome};

/// Prints a report on each model; as JSON one document for each. One that fails does not keep the
/// others from being looked at, and the first failure decides on the exit code.
pub(super) fn each<R: Document>(
    models: &[PathBuf],
    context: &Context,
    mut report: impl FnMut(&Path) -> Outcome<R>,
    render: impl Fn(&mut dyn Write, &R) -> io::Result<()>,
) -> Outcome {
    if let [only] = models {
        return context.printer.report(&report(only)?, render);
    }

    context.printer.share_warnings();
    let mut failed: Option<Failure> = None;
    for (number, model) in models.iter().enumerate() {
        match report(model) {
            Ok(report) => context.printer.report_each(&report, |out, report| {
                if number > 0 {
                    writeln!(out)?;
                }
                render(out, report)
            })?,
            Err(failure) => {
                let told = failure.told();
                if context.json {
                    let document = FailureDocument::of(&failure, Some(model));
                    context.printer.report_each(&document, |_, _| Ok(()))?;
                }
                failed.get_or_insert(told);
            }
        }
    }
    failed.map_or(Ok(()), Err)
}
