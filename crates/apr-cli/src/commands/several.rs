//! Reports on one model or on several.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use crate::context::Context;
use crate::failure::{Failure, Outcome};

/// Prints a report on each model; as JSON one document, an array where there are several. One that
/// fails does not keep the others from being looked at, and the first failure decides on the exit
/// code.
pub(super) fn each<R: Serialize>(
    models: &[PathBuf],
    context: &Context,
    mut report: impl FnMut(&Path) -> Outcome<R>,
    render: impl Fn(&mut dyn Write, &R) -> io::Result<()>,
) -> Outcome {
    if let [only] = models {
        return context.printer.report(&report(only)?, render);
    }

    let mut documents = Vec::new();
    let mut failed: Option<Failure> = None;
    for (number, model) in models.iter().enumerate() {
        match report(model) {
            Ok(report) if context.json => {
                documents.push(serde_json::to_value(&report).map_err(io::Error::from)?);
            }
            Ok(report) => context.printer.report(&report, |out, report| {
                if number > 0 {
                    writeln!(out)?;
                }
                render(out, report)
            })?,
            Err(failure) => {
                documents.push(of_failure(model, &failure));
                let told = failure.told();
                failed.get_or_insert(told);
            }
        }
    }

    if context.json {
        context.printer.report(&documents, |_, _| Ok(()))?;
    }

    failed.map_or(Ok(()), Err)
}

fn of_failure(model: &Path, failure: &Failure) -> Value {
    let mut document = failure.to_json();
    document["file"] = model.display().to_string().into();
    document
}
