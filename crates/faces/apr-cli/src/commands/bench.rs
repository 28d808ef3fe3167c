//! `apr bench`.

use std::io::{self, Write};
use std::num::NonZeroUsize;

use apr_registry::Escaped;
use apr_run::{Arithmetic, BenchOptions, BenchResult, Facts, RunOptions, bench, with_runner};
use serde::Serialize;

use super::run::host_with;
use super::running::warn_of_idle_exact;
use crate::args::BenchArgs;
use crate::context::Context;
use crate::documents::Document;
use crate::failure::Outcome;
use crate::human;
use crate::model;

/// Result of the benchmark.
#[derive(Serialize)]
struct BenchReport {
    path: String,
    /// Stored bytes of all tensors.
    bytes: u64,
    /// Elements of all tensors.
    parameters: u64,
    /// Results, one for each test.
    results: Vec<Row>,
}

impl Document for BenchReport {
    const SCHEMA: &'static str = "bench";
}

#[derive(Serialize)]
struct Row {
    /// Backend of the computation: `CPU`.
    backend: &'static str,
    /// Number of threads.
    threads: usize,
    #[serde(flatten)]
    result: BenchResult,
}

/// Measures a model.
pub(super) fn run(args: &BenchArgs, context: &Context) -> Outcome {
    let model = model::open_with_companions(&args.model, context)?;
    model.reader.warnings().iter().for_each(|warning| context.printer.warn(warning));
    warn_of_idle_exact(args.exact, &*model.reader, context);
    let facts = Facts::of(&*model.reader)?;
    let source = context.source(&*model.reader, &model.name)?;
    let tensors = model.reader.tensors();
    let sum = |of: &dyn Fn(usize) -> u64| (0..tensors.len()).map(of).fold(0, u64::saturating_add);
    let mut report = BenchReport {
        path: model.name.clone(),
        bytes: sum(&|at| tensors[at].byte_len().unwrap_or_default()),
        parameters: sum(&|at| tensors[at].shape.elements().unwrap_or_default()),
        results: Vec::new(),
    };

    let mut options = RunOptions::default();
    options.part.clone_from(&args.part);
    options.max_memory = context.max_memory();
    // The work that runs share would be used up by repetitions.
    options.max_work = Some(u64::MAX);
    options.keeps_past = options.generates(&facts);
    options.arithmetic = if args.exact { Arithmetic::Exact } else { Arithmetic::Fast };
    if let Some(name) = args.cache_type {
        options.cache_type = name.into();
    }
    let mut asked = BenchOptions::default();
    asked.prompts.clone_from(&args.prompt_tokens);
    asked.generated.clone_from(&args.generated_tokens);
    asked.depths.clone_from(&args.depth);
    asked.repeat = args.repeat.get();

    let of_context = [context.threads()];
    let counts: &[NonZeroUsize] =
        if args.thread_counts.is_empty() { &of_context } else { &args.thread_counts };
    for &threads in counts {
        let host = host_with(context, threads);
        let rows = &mut report.results;
        with_runner(&source, &facts, &options, &host, |runner| {
            let part = runner.prepare()?;
            bench(&part, &asked, &mut |result| {
                rows.push(Row { backend: "CPU", threads: threads.get(), result });
                Ok(())
            })
        })?;
    }
    context.sources.check_unchanged()?;
    context.printer.report(&report, render)
}

/// The columns of llama-bench, and the arithmetic.
fn render(out: &mut dyn Write, report: &BenchReport) -> io::Result<()> {
    let heads = ["model", "size", "params", "backend", "arithmetic", "threads", "test", "t/s"];
    let mut table = vec![heads.map(str::to_owned)];
    for Row { backend, threads, result } in &report.results {
        let per_second = match result.unit {
            "tokens" => "",
            _ => " runs/s",
        };
        table.push([
            Escaped(&report.path).to_string(),
            human::bytes(report.bytes),
            format!("{:.2} M", report.parameters as f64 / 1e6),
            (*backend).to_owned(),
            result.arithmetic.to_owned(),
            threads.to_string(),
            result.test.clone(),
            format!("{:.2} ± {:.2}{per_second}", result.per_second, result.deviation),
        ]);
    }

    let widths: [usize; 8] = std::array::from_fn(|column| {
        table.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)
    });
    for (number, row) in table.iter().enumerate() {
        let cells = row.iter().zip(widths).enumerate().map(|(column, (cell, width))| {
            // Text to the left, numbers to the right.
            if matches!(column, 0 | 3 | 4) {
                format!("{cell:<width$}")
            } else {
                format!("{cell:>width$}")
            }
        });
        writeln!(out, "| {} |", cells.collect::<Vec<_>>().join(" | "))?;
        if number == 0 {
            let lines = widths.iter().map(|width| "-".repeat(*width));
            writeln!(out, "| {} |", lines.collect::<Vec<_>>().join(" | "))?;
        }
    }
    Ok(())
}
