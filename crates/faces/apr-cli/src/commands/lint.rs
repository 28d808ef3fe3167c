//! `apr lint`.

use std::io::{self, Write};

use apr_core::counted;
use apr_ops::lint::{LintReport, Severity};
use apr_registry::Escaped;

use crate::args::LintArgs;
use crate::context::Context;
use crate::documents::Document;
use crate::failure::Outcome;
use crate::model;
use crate::printer::{BOLD, DIM, GOOD, ODD};

/// Remarks of one topic and severity shown before the rest is only counted.
const SHOWN: usize = 8;

impl Document for LintReport {
    const SCHEMA: &'static str = "lint";
}

/// Checks a model against best practices.
pub(super) fn run(args: &LintArgs, context: &Context) -> Outcome {
    let model = model::look_with_companions(&args.model, context)?;
    let report = context.session(&model)?.lint()?;
    let passes = !args.strict || report.count(Severity::Warn) == 0;
    context.printer.in_markdown(&args.markdown).judge(&report, render, passes)
}

fn render(out: &mut dyn Write, report: &LintReport) -> io::Result<()> {
    let alike = report.remarks.chunk_by(|a, b| (a.severity, a.topic) == (b.severity, b.topic));
    for group in alike {
        let (style, mark) = match group[0].severity {
            Severity::Warn => (ODD, "WARN"),
            Severity::Info => (BOLD, "INFO"),
        };
        for remark in group.iter().take(SHOWN) {
            writeln!(
                out,
                "{style}[{mark}]{style:#} {}: {}",
                remark.topic.title(),
                Escaped(&remark.message)
            )?;
        }

        if group.len() > SHOWN {
            let more = group.len() - SHOWN;
            writeln!(
                out,
                "{DIM}       {}: and {more} more; --json lists them all{DIM:#}",
                group[0].topic.title()
            )?;
        }
    }

    let (warnings, infos) = (report.count(Severity::Warn), report.count(Severity::Info));
    if report.remarks.is_empty() {
        return writeln!(out, "{GOOD}no findings{GOOD:#}");
    }

    writeln!(out, "\n{}, {}", counted(warnings as u64, "warning"), counted(infos as u64, "note"))
}
