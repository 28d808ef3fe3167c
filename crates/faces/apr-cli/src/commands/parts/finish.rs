//! `apr finish`.

use std::io::{self, Write};

use apr_core::counted;
use apr_io::{AtomicOutput, Target};
use apr_ops::diff::DriftReport;
use apr_ops::parts::{self, Finished, PartResult};
use apr_registry::{Escaped, FileInfo, Sink};
use apr_view::Coded;
use serde::Serialize;
use serde_json::json;

use super::on_disk::OpenPlan;
use super::{gates, reported, written};
use crate::args::FinishArgs;
use crate::commands::canary;
use crate::commands::convert::{Judged, findings, render_drift};
use crate::context::Context;
use crate::documents::Document;
use crate::engine::CanaryReport;
use crate::failure::{Failure, Outcome};
use crate::human;
use crate::printer::{BAD, BOLD, DIM, GOOD, ODD};

/// Maximum number of parts to name; the others are only counted.
const SHOWN: usize = 20;

/// The exit code of a check that failed.
const VALIDATION: u8 = 5;

/// Parts that are not done.
#[derive(Serialize)]
struct Unfinished {
    /// The plan, as given.
    path: String,
    /// `false`: parts are missing, and the exit code is 5.
    finished: bool,
    /// Number of parts of the plan.
    part_count: usize,
    /// Parts that must be run.
    missing: Vec<Undone>,
}

impl Document for Unfinished {
    const SCHEMA: &'static str = "finish.missing";
}

/// A part that is not done.
#[derive(Serialize)]
struct Undone {
    /// Number of the part, from 0.
    part: usize,
    /// `missing`, or `wrong` if the part's file is not the one that the part wrote.
    state: &'static str,
    /// Command that runs the part.
    command: String,
}

/// A job that is finished.
#[derive(Serialize)]
struct FinishReport {
    /// The plan, as given.
    path: String,
    /// `true`: all parts are done and the output is in place.
    finished: bool,
    /// Number of parts of the plan.
    part_count: usize,
    /// The manifest, or the only file.
    output: String,
    /// Files of the output.
    files: Vec<FileInfo>,
    /// Size of all files of the output.
    bytes_out: u64,
    #[serde(flatten)]
    found: Finished,
    /// Difference between the output and its source, if a gate measured it.
    #[serde(skip_serializing_if = "Option::is_none")]
    drift: Option<DriftReport>,
    /// Answers of the output to the inputs of a canary.
    #[serde(skip_serializing_if = "Option::is_none")]
    canary: Option<CanaryReport>,
}

impl Document for FinishReport {
    const SCHEMA: &'static str = "finish";
}

/// Checks all parts, and puts them together.
pub(in crate::commands) fn finish(args: &FinishArgs, context: &Context) -> Outcome {
    let open = OpenPlan::read(&args.plan, context)?;
    let results = results(&open, args, context)?;
    match open.plan.output {
        Some(_) => finish_written(&open, args, &results, context),
        None => reported::finish(&open, &results, context),
    }
}

/// The results of all parts, in order.
fn results(open: &OpenPlan, args: &FinishArgs, context: &Context) -> Outcome<Vec<PartResult>> {
    let (mut results, mut missing) = (Vec::new(), Vec::new());
    for part in 0..open.plan.parts.len() {
        let undone = |state| Undone { part, state, command: open.command(part) };
        match open.result(part, context) {
            None => missing.push(undone("missing")),
            Some(result) if written::is_there(open, &result, context)? => results.push(result),
            Some(_) => missing.push(undone("wrong")),
        }
        context.interrupt.check()?;
    }

    if missing.is_empty() {
        return Ok(results);
    }

    let path = args.plan.display().to_string();
    let part_count = open.plan.parts.len();
    let report = Unfinished { path, finished: false, part_count, missing };
    context.printer.report(&report, render_missing)?;
    Err(Failure::Told(VALIDATION))
}

fn finish_written(
    open: &OpenPlan,
    args: &FinishArgs,
    results: &[PartResult],
    context: &Context,
) -> Outcome {
    let files = results.iter().filter_map(|result| result.file.as_ref());
    let mut files: Vec<FileInfo> =
        files.map(|file| FileInfo { name: file.name.clone(), len: file.bytes }).collect();
    let crc32 = files.iter().map(|file| written::crc32(&written::file_path(open, &file.name)?));
    let crc32 = crc32.collect::<Outcome<Vec<u32>>>()?;
    let (mut found, manifest) =
        parts::finish(&open.plan, results, &crc32, &context.options.limits)?;
    let output = open.plan.output.as_ref().map(|output| output.path.clone()).unwrap_or_default();
    let mut judged = Judged::default();
    let mut pending = None;
    if let Some(manifest) = manifest {
        let (name, bytes) =
            (output.rsplit('/').next().unwrap_or_default().to_owned(), manifest.encode());
        // It is written last, and only here: whoever sees it sees a whole model.
        let path = written::file_path(open, &name)?;
        open.check_inside(&path)?;
        let mut file = AtomicOutput::create(Target::Model(path), true, [name.as_str()])?;
        file.names_shards(u32::try_from(files.len()).unwrap_or(u32::MAX));
        file.write_all(&bytes)?;
        judged = judge(open, &file, &found, context)?;
        pending = Some(file);
        files.push(FileInfo { name, len: bytes.len() as u64 });
    }

    let Judged { drift, canary, warnings } = judged;
    found.gate_failures = warnings;
    found
        .gate_failures
        .iter()
        .chain(&found.warnings)
        .for_each(|warning| context.printer.warn(warning));
    if let Some(file) = pending {
        context.printer.committed(&file.commit()?);
    }

    let report = FinishReport {
        path: args.plan.display().to_string(),
        finished: true,
        part_count: results.len(),
        output,
        bytes_out: files.iter().map(|file| file.len).sum(),
        files,
        found,
        drift,
        canary,
    };

    context.printer.report(&report, render)
}

/// Runs the gates on the written parts and on the manifest, before it is published.
fn judge(
    open: &OpenPlan,
    manifest: &AtomicOutput,
    found: &Finished,
    context: &Context,
) -> Outcome<Judged> {
    if !gates::has_some(&open.plan.job) {
        return Ok(Judged::default());
    }
    let (_, mut context) = open.job(context)?;
    context.encryption = written::encryption(&open.plan, &context)?;
    let options = &context.options;
    let written = || Ok(Coded::over(manifest.pending()?.open_model(options)?));
    let judged = gates::judge(open, &written, &context);
    judged.map_err(|failure| match failure {
        Failure::Gate { failures, mut measured, .. } => {
            if let Some(quantization) = &found.quantization {
                measured.insert("quantization".to_owned(), json!(quantization));
            }
            Failure::Gate { of_parts: true, failures, measured }
        }
        failure => failure,
    })
}

fn render_missing(out: &mut dyn Write, report: &Unfinished) -> io::Result<()> {
    let missing = &report.missing;
    let count = counted(missing.len() as u64, "part");
    writeln!(out, "{BAD}not finished{BAD:#}: {count} of {} to do", report.part_count)?;
    for Undone { part, state, command } in missing.iter().take(SHOWN) {
        writeln!(out, "  part {part} is {state}: {}", Escaped(command))?;
    }
    if missing.len() > SHOWN {
        writeln!(out, "{DIM}and {} more; --json lists them all{DIM:#}", missing.len() - SHOWN)?;
    }
    Ok(())
}

fn render(out: &mut dyn Write, report: &FinishReport) -> io::Result<()> {
    let (parts, bytes) =
        (counted(report.part_count as u64, "part"), human::bytes(report.bytes_out));
    writeln!(
        out,
        "{GOOD}finished{GOOD:#}: {BOLD}{}{BOLD:#}, {parts}, {bytes}",
        Escaped(&report.output)
    )?;
    let found = &report.found;
    for loss in found.losses.iter().take(SHOWN) {
        let (name, what, why) =
            (Escaped::short(&loss.name), Escaped(&loss.what), Escaped(&loss.why));
        writeln!(out, "  {ODD}lost{ODD:#}: {name} ({what}): {why}")?;
    }

    if let Some(quantization) = &found.quantization {
        let error = 100.0 * quantization.total.relative_error;
        let tensors = counted(quantization.tensors.len() as u64, "tensor");
        writeln!(out, "  {tensors} quantized, relative error {error:.3} %")?;
    }

    report.drift.iter().try_for_each(|drift| render_drift(out, drift))?;
    report.canary.iter().try_for_each(|found| canary::render_line(out, found))?;
    let (bad, odd) = (found.violations.len(), found.odd.len());
    if bad + odd > 0 {
        let checked = counted(found.checked as u64, "tensor");
        writeln!(out, "  {ODD}{}{ODD:#}", findings(&checked, bad, odd))?;
    }

    Ok(())
}
