//! `apr validate MODEL --quality`: one model judged by the 100 points (seed 001 §4.4 and §11).

use std::io::{self, Write};

use apr_core::counted;
use apr_ops::validate::bytes_to_read;
use apr_qa::{Assessment, Subject, assess, render};

use super::running::Opened;
use crate::args::ValidateArgs;
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::printer::DIM;
use crate::progress::Bar;
use crate::signals;

/// Judges a model.
pub(super) fn run(args: &ValidateArgs, context: &Context) -> Outcome {
    let opened = Opened::new(&args.model, context)?;
    let reader = &*opened.model().reader;
    let source = context.source(reader, opened.name())?;
    let subject = Subject {
        source: &source,
        facts: opened.facts(),
        threads: context.threads(),
        max_memory: context.max_memory(),
        interrupt: context.interrupt.clone(),
        apr: std::env::current_exe().ok(),
    };
    let bar = Bar::new(&context.printer, bytes_to_read(reader));
    context.sources.read_whole();
    // The temporary folder goes, too.
    signals::stop_cleanly(&context.interrupt)?;
    let report = assess(&subject, None, &context.pipeline()?, &bar);

    // What was read in two states is not judged.
    context.sources.check_unchanged()?;
    let report = report?.with_minimum(args.min_score.map(usize::from));
    drop(bar);
    context.printer.report(&report, rendered)?;
    if report.is_enough() { Ok(()) } else { Err(Failure::Validation) }
}

fn rendered(out: &mut dyn Write, report: &Assessment) -> io::Result<()> {
    render::headings(out, report)?;
    render::failures(out, report)?;
    let count = counted(report.not_applicable as u64, "point");
    writeln!(out, "\n{DIM}{count} not applicable; --json lists all points{DIM:#}")
}
