//! `apr convert --analyze-source`.

use std::io::{self, Write};

use apr_core::number;
use apr_ops::analyze::{AnalyzeReport, AnalyzedTensor, analyze};
use apr_ops::physics::Violation;
use apr_registry::{CheckpointReader, Escaped};

use crate::context::Context;
use crate::documents::Document;
use crate::failure::Outcome;
use crate::printer::{BAD, DIM, GOOD, ODD};
use crate::progress::Bar;

impl Document for AnalyzeReport {
    const SCHEMA: &'static str = "source-analysis";
}

/// Judges every tensor of a source.
pub(super) fn run(reader: &dyn CheckpointReader, name: &str, context: &Context) -> Outcome {
    let model = context.family(reader)?;
    let bar = Bar::new(&context.printer, reader.files().iter().map(|file| file.len).sum());
    let report = analyze(reader, name, model.as_ref(), &context.pipeline()?, &bar)?;
    drop(bar);
    context.printer.judge(&report, render, report.pass)
}

fn render(out: &mut dyn Write, report: &AnalyzeReport) -> io::Result<()> {
    report.tensors.iter().try_for_each(|tensor| render_tensor(out, tensor))?;
    for misfit in &report.misfits {
        writeln!(
            out,
            "{BAD}[FAIL]{BAD:#} {}: {}",
            Escaped::short(&misfit.tensor),
            Escaped(&misfit.message)
        )?;
    }

    let failed = report.tensors.iter().filter(|tensor| !tensor.pass).count() + report.misfits.len();
    let family = report.family.as_deref().unwrap_or("unknown");
    let (style, verdict) =
        if report.pass { (GOOD, "PASS".to_owned()) } else { (BAD, format!("FAIL ({failed})")) };
    writeln!(out, "\n{style}{verdict}{style:#} {DIM}family: {}{DIM:#}", Escaped(family))
}

fn render_tensor(out: &mut dyn Write, tensor: &AnalyzedTensor) -> io::Result<()> {
    let (style, mark) = match (tensor.pass, tensor.violations.is_empty()) {
        (true, true) => (GOOD, "PASS"),
        (true, false) => (ODD, "WARN"),
        (false, _) => (BAD, "FAIL"),
    };
    write!(out, "{style}[{mark}]{style:#} {}:", Escaped::short(&tensor.name))?;
    let Some(stats) = &tensor.stats else {
        return writeln!(out, " {DIM}quantized, not dequantized{DIM:#}");
    };
    if let Some(mean) = stats.mean {
        write!(out, " mean={}", number(mean))?;
    }
    let violated = tensor.violations.iter().find_map(|violation| match violation {
        Violation::Mean { expected, .. } => Some(*expected),
        _ => None,
    });
    if let Some(range) = violated.or_else(|| tensor.expected.and_then(|expected| expected.mean)) {
        write!(out, " (expected {range})")?;
    }
    if let Some((std, range)) = stats.std.zip(tensor.expected.and_then(|expected| expected.std)) {
        write!(out, " std={} (expected {range})", number(std))?;
    }

    for violation in &tensor.violations {
        write!(out, " -> {violation}")?;
    }

    writeln!(out, "{}", if tensor.pass { "" } else { " -> SOURCE ALREADY CORRUPT?" })
}
