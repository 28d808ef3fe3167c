//! `apr run-part`.

use std::io::{self, Write};

use apr_ops::parts::PartResult;
use apr_registry::Escaped;
use serde::Serialize;

use super::on_disk::{self, OpenPlan};
use super::{reported, written};
use crate::args::RunPartArgs;
use crate::context::Context;
use crate::documents::Document;
use crate::failure::{Failure, Outcome};
use crate::human;
use crate::printer::{BOLD, DIM};

/// Result of a part.
#[derive(Serialize)]
struct PartReport {
    /// The plan, as given.
    path: String,
    /// Parts of the plan.
    of: usize,
    /// `true` if the part was already done and was left unchanged.
    skipped: bool,
    #[serde(flatten)]
    result: PartResult,
}

impl Document for PartReport {
    const SCHEMA: &'static str = "run-part";
}

/// Runs a part, unless it is already done.
pub(in crate::commands) fn run_part(args: &RunPartArgs, context: &Context) -> Outcome {
    let open = OpenPlan::read(&args.plan, context)?;
    let (part, of) = (args.part, open.plan.parts.len());
    if part >= of {
        let message = format!("no part {part}: the plan has {of}, from 0 to {}", of - 1);
        return Err(Failure::Usage(message));
    }

    let done = match open.result(part, context) {
        Some(result) if written::is_there(&open, &result, context)? => Some(result),
        _ => None,
    };
    let skipped = done.is_some();
    let result = match done {
        Some(result) => result,
        None => {
            let result = match open.plan.output {
                Some(_) => written::run(&open, part, context)?,
                None => reported::run(&open, part, context)?,
            };

            // It comes last: where a result is, the part's file is whole.
            open.check_inside(&open.result_path(part))?;
            on_disk::write(&open.result_path(part), &result.encode(), true, context)?;
            result
        }
    };

    let path = args.plan.display().to_string();
    context.printer.report(&PartReport { path, of, skipped, result }, render)
}

fn render(out: &mut dyn Write, report: &PartReport) -> io::Result<()> {
    let PartReport { of, skipped, result, .. } = report;
    write!(out, "{BOLD}part {}{BOLD:#} of {of}", result.part)?;
    if let Some(file) = &result.file {
        write!(out, ": {}, {}", Escaped(&file.name), human::bytes(file.bytes))?;
    }
    if *skipped { writeln!(out, " {DIM}(already finished; skipped){DIM:#}") } else { writeln!(out) }
}
