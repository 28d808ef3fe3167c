//! `apr plan`.

use std::io::{self, Write};
use std::path::Path;

use apr_core::counted;
use apr_ops::parts::{FORMAT_VERSION, MAX_PARTS, PartsPlan};
use apr_registry::Escaped;
use serde::Serialize;

use super::draft::Draft;
use super::on_disk::{self, VERSION};
use super::words::{portable, real, typed, values};
use super::{input, reported, written};
use crate::args::PlanArgs;
use crate::context::Context;
use crate::documents::Document;
use crate::failure::{Failure, Outcome, quoted};
use crate::human;
use crate::printer::{BOLD, DIM};

/// Report of a plan.
#[derive(Serialize)]
struct PlanReport {
    /// The model of the job, as given; of several the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    /// The second of two models that the job compares.
    #[serde(skip_serializing_if = "Option::is_none")]
    other_path: Option<String>,
    /// The plan that was written.
    output: String,
    /// Number of parts.
    part_count: usize,
    /// Maximum bytes of tensors in a part, if parts are shards.
    shard_size: Option<u64>,
    /// Maximum number of bytes that a part reads.
    largest_read: u64,
    /// Warnings about the job and its parts.
    warnings: Vec<String>,
}

impl Document for PlanReport {
    const SCHEMA: &'static str = "plan";
}

/// Cuts a job into parts.
pub(in crate::commands) fn plan(args: &PlanArgs, context: &Context) -> Outcome {
    if context.has_job_options() {
        let message =
            "options of the model and of reading it belong to the job: write them after its name";
        return Err(Failure::Usage(message.to_owned()));
    }

    let given = args.output.parent().unwrap_or(Path::new(""));
    let folder = real(if given.as_os_str().is_empty() { Path::new(".") } else { given })?;
    let (job, _) = typed(&args.job, &|path| portable(path, &folder))?;
    let (words, _) = typed(&args.job, &|path| Ok(path.to_owned()))?;
    let first = |key| values(&words, key).first().map(|path| (*path).to_owned());
    let path = first("model").or_else(|| first("models")).or_else(|| first("left"));
    let other_path = first("right");
    if args.parts.is_none() && args.max_part.is_none() {
        let message = "pass --parts N for a number of parts, or --max-part SIZE for their size";
        return Err(Failure::Usage(message.to_owned()));
    }
    let settings = input::settings(&job, given)?;
    let empty = PartsPlan {
        apr_plan: FORMAT_VERSION,
        apr: VERSION.to_owned(),
        job,
        settings,
        ..PartsPlan::default()
    };

    let Draft { plan, mut warnings } = match empty.job.command.as_str() {
        "validate" => reported::plan_validate(args, empty, given, context)?,
        "diff" => reported::plan_diff(args, empty, given, context)?,
        _ => written::plan(args, empty, given, context)?,
    };
    if plan.parts.len() > MAX_PARTS {
        let message = format!("{} parts exceed the maximum of {MAX_PARTS}", plan.parts.len());
        return Err(Failure::Usage(message));
    }

    if let Some(asked) = args.parts.filter(|asked| *asked != plan.parts.len()) {
        let why = if plan.parts.len() < asked {
            "tensors are not split"
        } else {
            "a part would be too large otherwise"
        };
        let parts = counted(plan.parts.len() as u64, "part");
        let warning = format!("{parts} instead of {asked}: {why}");
        context.printer.warn(&warning);
        warnings.push(warning);
    }

    on_disk::write(&args.output, &plan.encode(), args.overwrite, context)?;
    let reads = plan.parts.iter().map(|part| part.reads.iter().map(|read| read.len).sum());
    let report = PlanReport {
        path,
        other_path,
        output: args.output.display().to_string(),
        part_count: plan.parts.len(),
        shard_size: plan.output.as_ref().map(|output| output.shard_size),
        largest_read: reads.max().unwrap_or_default(),
        warnings,
    };

    context.printer.report(&report, render)
}

fn render(out: &mut dyn Write, report: &PlanReport) -> io::Result<()> {
    let plan = Escaped(&report.output);
    let read = human::bytes(report.largest_read);
    writeln!(
        out,
        "{BOLD}{plan}{BOLD:#}: {}, {read} to read at most",
        counted(report.part_count as u64, "part")
    )?;
    if let Some(size) = report.shard_size {
        writeln!(out, "{DIM}same files as one process with --shard-size {size}{DIM:#}")?;
    }

    let others = match report.part_count {
        0 | 1 => String::new(),
        count => format!("     up to {}, in any order, on any machine", count - 1),
    };
    let typed = quoted(&report.output).unwrap_or_else(|| plan.to_string());
    let done = if report.part_count > 1 { "all parts are" } else { "the part is" };
    writeln!(out, "  apr run-part {typed} 0{others}")?;
    writeln!(out, "  apr finish {typed}         when {done} finished")
}
