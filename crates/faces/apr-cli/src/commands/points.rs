//! `apr validate MODEL --quality`: one model judged by the 100 points (seed 001 §4.4 and §11).

use std::cell::OnceCell;
use std::io::{self, Write};

use apr_core::counted;
use apr_io::is_remote;
use apr_ops::validate::bytes_to_read;
use apr_qa::{Assessment, LEARNT, POINTS, PointReport, Subject, assess, render};

use super::running::Opened;
use crate::args::ValidateArgs;
use crate::context::Context;
use crate::documents::Document;
use crate::failure::Outcome;
use crate::printer::DIM;
use crate::progress::Bar;
use crate::{model, signals};

impl Document for Assessment {
    const SCHEMA: &'static str = "points";
}

/// Judges a model.
pub(super) fn run(args: &ValidateArgs, context: &Context) -> Outcome {
    let opened = Opened::new(&args.model, context)?;
    let reader = &*opened.model().reader;
    let source = context.source(reader, opened.name())?;
    let reopen = || {
        let opened = context.sources.open_model_with_companions(&args.model, &context.options);
        opened.map(drop)
    };
    // What came through a pipe is gone, what is remote lies in a cache by now, and a password that
    // was asked for is not asked for again.
    let is_anew =
        args.model.as_os_str() != "-" && !is_remote(&args.model) && !model::is_encrypted(reader);
    let subject = Subject {
        source: &source,
        facts: opened.facts(),
        threads: context.threads(),
        max_memory: context.max_memory(),
        interrupt: context.interrupt.clone(),
        reopen: is_anew.then_some(&reopen),
        apr: std::env::current_exe().ok(),
    };
    let bar = Bar::new(&context.printer, bytes_to_read(reader));
    context.sources.read_whole();
    // The temporary folder goes, too.
    signals::stop_cleanly(&context.interrupt)?;
    // Running the model takes longer than reading it.
    let judging = OnceCell::new();
    let mut judged = |point: &PointReport| {
        let total = (POINTS.len() + LEARNT.len()) as u64;
        let judging = judging.get_or_init(|| bar.then_counting(&context.printer, total));
        judging.reached(u64::from(point.number));
        let next = POINTS.iter().chain(&LEARNT).nth(usize::from(point.number));
        judging.name_next(next.map_or("", |next| next.name));
    };
    let report = assess(&subject, None, &context.pipeline()?, &bar, &mut judged);

    // What was read in two states is not judged.
    context.sources.check_unchanged()?;
    let report = report?.with_minimum(args.min_score.map(usize::from));
    drop((bar, judging));
    context.printer.in_markdown(&args.markdown).judge(&report, rendered, report.is_enough())
}

fn rendered(out: &mut dyn Write, report: &Assessment) -> io::Result<()> {
    render::score(out, report)?;
    writeln!(out)?;
    render::headings(out, report)?;
    render::learnt(out, report)?;
    render::failures(out, report)?;
    let count = counted(report.not_applicable as u64, "point");
    writeln!(out, "\n{DIM}{count} not applicable; --json lists all points{DIM:#}")?;
    writeln!(
        out,
        "{DIM}Score: share of passed points among those that apply to the model; critical points \
         count four times{DIM:#}"
    )
}
