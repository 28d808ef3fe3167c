//! `apr validate` (seed 001 §4.4).

use std::io::{self, Write};

use apr::Escaped;
use apr_ops::validate::{Check, Level, Status, ValidateOptions, ValidateReport, bytes_to_read, validate};

use crate::args::ValidateArgs;
use crate::context::Context;
use crate::failure::Failure;
use crate::printer::{BAD, BOLD, DIM, GOOD, ODD};
use crate::progress::Bar;
use crate::{Outcome, human, model};

/// Findings shown before the rest is only counted.
const SHOWN: usize = 20;

/// Checks a model.
pub(super) fn run(args: &ValidateArgs, context: &Context) -> Outcome {
    let model = model::open(&args.model, context)?;
    let settings = &context.config.validate;
    let all = !(args.checksum || args.nan_check || args.zero_check);
    let options = ValidateOptions {
        checksum: all || args.checksum,
        nan: all || args.nan_check,
        zero: all || args.zero_check,
        strict: args.strict || settings.strict,
        require_signature: settings.require_signature,
    };
    let bar = Bar::new(&context.printer, bytes_to_read(&*model.reader));
    let report = validate(&*model.reader, &model.name, options, &context.pipeline()?, &bar)?;
    let seconds = bar.elapsed().as_secs_f64();
    drop(bar);
    context.printer.detail(&format!(
        "read {} in {seconds:.3} s, {:.2} GB/s",
        human::bytes(report.bytes_read),
        report.bytes_read as f64 / seconds / 1e9
    ));
    context.printer.report(&report, render)?;
    if report.valid { Ok(()) } else { Err(Failure::Validation) }
}

pub(super) fn render(out: &mut dyn Write, report: &ValidateReport) -> io::Result<()> {
    writeln!(out, "{BOLD}=== {} ==={BOLD:#}", Escaped(&report.file))?;
    for outcome in &report.checks {
        let (style, mark) = match outcome.status {
            Status::Pass => (GOOD, "pass"),
            Status::Warn => (ODD, "warn"),
            Status::Fail => (BAD, "FAIL"),
            Status::Skipped => (DIM, "skip"),
        };
        writeln!(out, "{style}{mark}{style:#}  {:<16} {DIM}{}{DIM:#}", title(outcome.check), outcome.detail)?;
    }
    if !report.findings.is_empty() {
        writeln!(out)?;
    }
    for finding in report.findings.iter().take(SHOWN) {
        let (style, mark) = match finding.level {
            Level::Error => (BAD, finding.code.unwrap_or("error")),
            Level::Warning => (ODD, "warning"),
        };
        write!(out, "{style}{mark}{style:#}: ")?;
        if let Some(tensor) = &finding.tensor {
            write!(out, "tensor '{}': ", Escaped::short(tensor))?;
        }
        write!(out, "{}", Escaped(&finding.message))?;
        match finding.offset {
            Some(offset) => writeln!(out, " (at byte {offset})")?,
            None => writeln!(out)?,
        }
    }
    if report.findings.len() > SHOWN {
        writeln!(out, "{DIM}and {} more; --json lists them all{DIM:#}", report.findings.len() - SHOWN)?;
    }
    let (style, verdict) = if report.valid { (GOOD, "VALID") } else { (BAD, "INVALID") };
    writeln!(out, "\n{style}{verdict}{style:#}")
}

fn title(check: Check) -> &'static str {
    match check {
        Check::Structure => "Structure",
        Check::Checksum => "File checksum",
        Check::Digests => "Tensor digests",
        Check::Finite => "NaN and infinity",
        Check::Zeros => "Zero tensors",
        Check::Signature => "Signature",
    }
}
