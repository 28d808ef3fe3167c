//! `apr validate`.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::Path;

use apr_ops::manifest::Manifest;
use apr_ops::sarif;
use apr_ops::validate::{
    Check, Finding, Level, Status, ValidateOptions, ValidateReport, bytes_to_read,
};
use apr_registry::{ByteSource, Code, Error, Escaped, HEAD_LEN, IoCause};
use apr_scan::{ScanReport, Verdict, may_hold_pickles};
use serde::Serialize;

use super::beside::{beside_log, write_json_beside};
use super::convert::check_sha256;
use super::left_out;
use super::scan::render_findings;
use crate::args::ValidateArgs;
use crate::context::Context;
use crate::documents::Document;
use crate::failure::{Failure, Outcome};
use crate::model::Model;
use crate::options::in_options;
use crate::printer::{BAD, BOLD, DIM, GOOD, ODD, Printer};
use crate::progress::Bar;
use crate::text_file::read_text;
use crate::{human, model, secrets};

/// Findings shown before the rest is only counted.
const SHOWN: usize = 20;

impl Document for ValidateReport {
    const SCHEMA: &'static str = "validate";
}

/// Checks a model.
pub(super) fn run(args: &ValidateArgs, context: &Context) -> Outcome {
    let printer = beside_log(args.sarif.as_deref(), context).in_markdown(&args.markdown);
    let model = match model::look_with_companions(&args.model, context) {
        Ok(model) => model,
        Err(Failure::Model(error)) => return does_not_open(args, error, printer, context),
        Err(failure) => return Err(failure),
    };
    let trusted = trusted(args, context)?;
    let options = options(args, &trusted, context);
    let bar = Bar::new(&context.printer, bytes_to_read(&*model.reader));
    context.sources.read_whole();
    let report = context.session(&model)?.validate(options, &context.pipeline()?, &bar);

    // What was read in two states is not judged.
    context.sources.check_unchanged()?;
    let mut report = report?;
    let seconds = bar.elapsed().as_secs_f64();
    drop(bar);
    add_asked(&mut report, args, &model, context)?;
    context.sources.check_unchanged()?;
    context.printer.detail(&format!(
        "read {} in {seconds:.3} s, {:.2} GB/s",
        human::bytes(report.bytes_read),
        report.bytes_read as f64 / seconds / 1e9
    ));
    if let Some(path) = &args.sarif {
        write_json_beside(path, &sarif::of_validation(&report), &printer)?;
    }

    printer.judge(&report, render, report.valid)
}

/// Returns the trusted public keys, if signatures are checked.
pub(super) fn trusted(args: &ValidateArgs, context: &Context) -> Outcome<Vec<[u8; 32]>> {
    let settings = &context.config.validate;
    if !args.signature && !settings.require_signature && args.trusted.is_empty() {
        return Ok(Vec::new());
    }
    secrets::read_trusted_bytes(args.trusted.iter().chain(&settings.trusted))
}

/// Returns the checks to make: the named ones, or all.
pub(super) fn options<'a>(
    args: &ValidateArgs,
    trusted: &'a [[u8; 32]],
    context: &Context,
) -> ValidateOptions<'a> {
    let settings = &context.config.validate;
    let named = [args.checksum, args.nan_check, args.zero_check, args.shapes, args.physics];
    let all = !named.contains(&true) && !args.signature;
    let [checksum, nan, zero, shapes, physics] = named.map(|is_named| all || is_named);
    ValidateOptions {
        checksum,
        nan,
        zero,
        shapes,
        physics,
        strict: args.strict || settings.strict,
        require_signature: args.signature || settings.require_signature,
        trusted,
    }
}

/// Adds the checks that are made on request alone.
fn add_asked(
    report: &mut ValidateReport,
    args: &ValidateArgs,
    model: &Model,
    context: &Context,
) -> Outcome {
    if let Some(expected) = &args.sha256 {
        let found = match check_sha256(&args.model, model, expected, context) {
            Ok(()) => Ok("as expected".to_owned()),
            Err(Failure::Model(error)) if error.code() == Code::Checksum => Err(error),
            Err(failure) => return Err(failure),
        };
        report.add(Check::Sha256, found);
    }

    if let Some(path) = &args.manifest {
        let outcome = check_manifest(path, model, context)?;
        report.add(Check::Manifest, outcome);
    }

    if args.source {
        let source = model.reader.metadata().object("source").cloned().unwrap_or_default();
        match context.sources.check_provenance(&source.into()) {
            Err(error) if error.code() == Code::Io && error.cause() != Some(IoCause::NotFound) => {
                return Err(error.into());
            }
            outcome => report.add(Check::Source, outcome),
        }
    }

    Ok(())
}

/// Compares the tensors with a list of digests.
fn check_manifest(path: &Path, model: &Model, context: &Context) -> Outcome<Result<String, Error>> {
    let text = read_text(path)?;
    let manifest = Manifest::parse(&text).map_err(|error| error.in_file(path.display()))?;
    let reader = &*model.reader;
    let bar = Bar::new(&context.printer, bytes_to_read(reader));
    match manifest.check(reader, &context.pipeline()?, &bar) {
        Err(error) if error.code() != Code::Checksum => Err(error.into()),
        outcome => Ok(outcome),
    }
}

/// Report of a file that does not open, with the code that it would run if it is a pickle.
#[derive(Serialize)]
struct Refusal {
    /// Path or location of the model, as given.
    path: String,
    /// `false`: the model does not open.
    valid: bool,
    /// Reason for which the model does not open.
    error: String,
    /// Code that loading the file would run.
    scan: ScanReport,
}

impl Document for Refusal {
    const SCHEMA: &'static str = "validate.refused";
}

/// Reports why a model does not open.
fn does_not_open(
    args: &ValidateArgs,
    error: Error,
    printer: Printer,
    context: &Context,
) -> Outcome {
    if let Some(path) = args.sarif.as_ref().filter(|_| error.code() != Code::Io) {
        write_json_beside(
            path,
            &sarif::of_error(&args.model.display().to_string(), &error),
            &printer,
        )?;
    }
    scan_pickles(args, error, printer, context)
}

/// Reports why a file does not open and, if pickles are the reason, everything that they import and
/// call.
fn scan_pickles(args: &ValidateArgs, error: Error, printer: Printer, context: &Context) -> Outcome {
    let path = args.model.as_path();
    if path.is_dir() || error.code() == Code::Io {
        return Err(error.into());
    }

    let (source, _spool) = model::open_bytes(path, context)?;
    let mut head = vec![0; usize::try_from(source.len().min(HEAD_LEN)).unwrap_or_default()];
    source.read_at(0, &mut head)?;

    // Bytes of another format would be read as opcodes that nobody meant.
    if !may_hold_pickles(&head) {
        return Err(error.into());
    }

    let scan =
        apr_scan::scan_pickles(source, &path.display().to_string(), &context.options.limits)?;

    // A pickle that names nothing runs nothing: what is wrong with the file is all there is to say.
    if scan.findings().next().is_none() {
        return Err(error.into());
    }
    let refused = in_options(&error.to_string());
    if let Some(path) = &args.sarif {
        write_json_beside(path, &sarif::of_scan(&scan, &refused), &printer)?;
    }

    let refusal = Refusal { path: scan.path.clone(), valid: false, error: refused, scan };
    printer.judge(&refusal, render_refusal, false)
}

fn render_refusal(out: &mut dyn Write, refusal: &Refusal) -> io::Result<()> {
    writeln!(out, "{BOLD}=== {} ==={BOLD:#}", Escaped(&refusal.path))?;
    writeln!(out, "{BAD}refused{BAD:#}: {}", refusal.error)?;
    // Most errors say it already.
    let assurance = match refusal.error.contains("nothing was executed") {
        true => "",
        false => "Nothing was executed. ",
    };
    writeln!(out, "\n{assurance}Loading the file in Python would:")?;
    render_findings(out, &refusal.scan)?;
    render_own_classes(out, refusal)?;
    writeln!(out, "\n{BAD}INVALID{BAD:#}")
}

/// Explains how to read a module with a custom class, if nothing in the file is known to be
/// dangerous.
fn render_own_classes(out: &mut dyn Write, refusal: &Refusal) -> io::Result<()> {
    let odd = || refusal.scan.findings().filter(|finding| finding.verdict != Verdict::Allowed);
    if odd().next().is_none() || odd().any(|finding| finding.verdict == Verdict::Dangerous) {
        return Ok(());
    }
    let names: BTreeSet<String> =
        odd().map(|finding| format!("{}.{}", finding.module, finding.name)).collect();
    let options: Vec<String> =
        names.iter().map(|name| format!("--pickle-class {}", Escaped::short(name))).collect();
    writeln!(
        out,
        "\nIf these are the model's own classes, their parameters can be read without executing \
         code:"
    )?;
    writeln!(out, "  {}", options.join(" "))
}

pub(super) fn render(out: &mut dyn Write, report: &ValidateReport) -> io::Result<()> {
    writeln!(out, "{BOLD}=== {} ==={BOLD:#}", Escaped(&report.path))?;
    for outcome in &report.checks {
        let (style, mark) = match outcome.status {
            Status::Pass => (GOOD, "pass"),
            Status::Warn => (ODD, "warn"),
            Status::Fail => (BAD, "FAIL"),
            Status::Skipped => (DIM, "skip"),
        };
        writeln!(
            out,
            "{style}{mark}{style:#}  {:<16}  {DIM}{}{DIM:#}",
            outcome.check.title(),
            outcome.detail
        )?;
    }

    if !report.findings.is_empty() {
        writeln!(out)?;
    }

    report.findings.iter().take(SHOWN).try_for_each(|finding| render_finding(out, finding))?;
    if report.findings.len() > SHOWN {
        writeln!(
            out,
            "{DIM}and {} more; --json lists them all{DIM:#}",
            report.findings.len() - SHOWN
        )?;
    }

    if !report.left_out.is_empty() {
        writeln!(out)?;
        left_out::render(out, &report.left_out)?;
    }

    let (style, verdict) = if report.valid { (GOOD, "VALID") } else { (BAD, "INVALID") };
    writeln!(out, "\n{style}{verdict}{style:#}")
}

fn render_finding(out: &mut dyn Write, finding: &Finding) -> io::Result<()> {
    let (style, mark) = match finding.level {
        Level::Error => (BAD, finding.code.unwrap_or("error")),
        Level::Warning => (ODD, "warning"),
    };
    write!(out, "{style}{mark}{style:#}: ")?;
    if let Some(file) = &finding.file {
        write!(out, "{}: ", Escaped::short(file))?;
    }
    if let Some(tensor) = &finding.tensor {
        write!(out, "tensor '{}': ", Escaped::short(tensor))?;
    }

    write!(out, "{}", Escaped(&finding.message))?;
    match finding.offset {
        Some(offset) => writeln!(out, " (at byte {offset})"),
        None => writeln!(out),
    }
}
