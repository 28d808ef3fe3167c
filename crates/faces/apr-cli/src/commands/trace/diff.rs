//! Two models step by step (§4.8.5).

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::Path;

use apr_arch::OptionChange;
use apr_core::json::text;
use apr_registry::Escaped;
use apr_run::Facts;
use apr_source::Source;
use apr_trace::{
    Blame, Divergence, PassDiff, Subject, TokenChoice, TokensDrift, TraceDiff, TraceOptions,
    WeightDrift, diff, trace,
};
use serde_json::Value;

use super::render::{RULE, dims};
use super::{interactive, payload, run_options};
use crate::args::TraceArgs;
use crate::commands::run::host;
use crate::context::Context;
use crate::documents::Document;
use crate::failure::{Failure, Outcome};
use crate::human::shortened;
use crate::model;
use crate::printer::{BAD, BOLD, DIM, GOOD, ODD, columns};

/// Maximum columns of names if the width of the terminal is unknown.
const WIDTH: usize = 50;
/// Columns beside the name in a table.
const BESIDE: usize = 42;
/// Relative drift from which on a block of eight less is drawn.
const BLOCKS: [f64; 8] = [0.01, 0.05, 0.15, 0.3, 0.5, 0.75, 1.0, 1.4];
/// Weights of a step that are shown.
const WEIGHTS: usize = 4;
/// Default number of tokens to generate for a screen if `--max-tokens` is not given.
const TOKENS: usize = 16;
/// Unmatched steps that are shown.
const UNMATCHED: usize = 8;

impl Document for TraceDiff {
    const SCHEMA: &'static str = "trace.diff";
}

/// Compares two models.
pub(super) fn run(args: &TraceArgs, other: &Path, context: &Context) -> Outcome {
    if args.max_tokens == Some(0) {
        let message = "--max-tokens: --diff compares at least 1 generated token";
        return Err(Failure::Usage(message.to_owned()));
    }
    let models = [
        model::open_with_companions(&args.model, context)?,
        model::open_with_companions(other, context)?,
    ];
    let facts = [Facts::of(&*models[0].reader)?, Facts::of(&*models[1].reader)?];
    let payload = payload::of(args, &facts[0], context)?;
    let source = |at: usize| -> Outcome<Source<'_>> {
        models[at].reader.warnings().iter().for_each(|warning| context.printer.warn(warning));
        context.source(&*models[at].reader, &models[at].name)
    };
    let (one, two) = (source(0)?, source(1)?);
    let subjects =
        [Subject { source: &one, facts: &facts[0] }, Subject { source: &two, facts: &facts[1] }];

    let mut options = TraceOptions::new(run_options(args, context));
    options.level = args.level.into();
    // What the screen shows of the first model is of the tokens that both were compared on.
    options.max_tokens = args.max_tokens.or(args.interactive.then_some(TOKENS));
    let host = host(context);
    let found = diff(subjects, &payload, &options, args.blame, &host)?;
    if args.interactive {
        (options.payload, options.weights) = (true, true);
        let traced = trace(subjects[0], &payload, &options, &host, None)?;
        context.sources.check_unchanged()?;
        return interactive::run(traced, Some(found), !args.no_mouse, context);
    }
    context.sources.check_unchanged()?;
    context.printer.judge(&found, render, !args.exit_code || found.is_alike())
}

fn render(out: &mut dyn Write, diff: &TraceDiff) -> io::Result<()> {
    let (one, two) = (Escaped(&diff.path), Escaped(&diff.other_path));
    writeln!(out, "{BOLD}Trace Diff: {one} vs {two}{BOLD:#}\n{RULE}")?;
    writeln!(out, "{DIM}input: {}{DIM:#}", Escaped::short(&diff.input))?;
    settings(out, &diff.settings)?;
    for pass in &diff.passes {
        if diff.passes.len() > 1 {
            writeln!(out, "{DIM}{}{DIM:#}", Escaped(&pass.part))?;
        }
        steps(out, pass)?;
        inputs(out, pass)?;
        unmatched(out, "the first model", &pass.only_original)?;
        unmatched(out, "the second model", &pass.only_other)?;
    }

    match diff.divergence() {
        Some(found) => divergence(out, found)?,
        None if diff.is_equal() => writeln!(out, "\n{GOOD}No drift at all{GOOD:#}")?,
        None => {
            writeln!(out, "\nNo divergence: no step adds more drift than rounding explains")?;
            let most = diff.passes.iter().flat_map(|pass| &pass.most_added);
            if let Some(most) = most.max_by(|one, two| one.added.total_cmp(&two.added)) {
                writeln!(
                    out,
                    "  {DIM}most is added at {} (step {}): {}{DIM:#}",
                    Escaped(&most.path),
                    most.step,
                    share(most.added)
                )?;
            }
        }
    }
    let more = diff.passes.iter().flat_map(|pass| &pass.divergences).skip(1);
    for found in more {
        writeln!(
            out,
            "  {ODD}also at {} (step {}), adds {}{ODD:#}",
            Escaped(&found.path),
            found.step,
            share(found.added)
        )?;
    }
    for pass in &diff.passes {
        blame(out, &pass.blame)?;
    }
    if let Some(found) = &diff.tokens {
        tokens(out, found)?;
    }
    writeln!(out, "{BOLD}Recommendation:{BOLD:#} {}", Escaped(&diff.recommendation))
}

/// Renders the differences between the configurations that change the graph.
fn settings(out: &mut dyn Write, changes: &[OptionChange]) -> io::Result<()> {
    let value = |value: &Option<Value>| value.as_ref().map_or("none".to_owned(), text);
    for change in changes {
        let at = if change.at.is_empty() { "" } else { " of " };
        writeln!(
            out,
            "{BAD}configuration differs{BAD:#}: {}{at}{}: {} -> {}",
            Escaped(&change.option),
            Escaped(&change.at),
            Escaped::short(&value(&change.value)),
            Escaped::short(&value(&change.other_value))
        )?;
    }
    Ok(())
}

fn steps(out: &mut dyn Write, pass: &PassDiff) -> io::Result<()> {
    let longest = pass.steps.iter().map(|step| Escaped(&step.path).to_string().chars().count());
    let room = columns().map_or(WIDTH, |columns| columns.saturating_sub(BESIDE).max(16));
    let width = longest.max().unwrap_or_default().clamp(5, room);
    writeln!(
        out,
        "{BOLD}{:>4}  {:<width$}  Original  Optimized    Drift    Added{BOLD:#}",
        "Step", "Layer"
    )?;
    let marked: BTreeSet<usize> = pass.divergences.iter().map(|found| found.step).collect();
    for step in &pass.steps {
        let name = shortened(&Escaped(&step.path).to_string(), width);
        let pad = width.saturating_sub(name.chars().count());
        let Some(drift) = &step.drift else { continue };
        write!(out, "{:>4}  {name}{:pad$}  ████████  ", step.number, "")?;
        if let Some(shape) = &drift.other_shape {
            writeln!(out, "{ODD}{:?} and {shape:?}: not compared{ODD:#}", drift.shape)?;
            continue;
        }
        let relative = drift.relative_l2;
        let lost = BLOCKS.iter().filter(|least| relative >= **least).count();
        let (left, mark) = (8 - lost, if marked.contains(&step.number) { " ⚠" } else { "" });
        let added = step.added.map_or_else(|| "-".to_owned(), share);
        writeln!(
            out,
            "{}{}   {:>7}  {added:>7}{ODD}{mark}{ODD:#}",
            "█".repeat(left),
            "░".repeat(lost),
            share(relative)
        )?;
    }
    writeln!(
        out,
        "{DIM}drift: |difference| / |original|, each model with its own values; added: the drift \
         of the step alone for equal inputs{DIM:#}"
    )
}

/// A relative drift.
fn share(drift: f64) -> String {
    match drift {
        0.0 => "0.000".to_owned(),
        _ if drift < 5e-4 => format!("{drift:.0e}"),
        _ if drift.is_infinite() => "inf".to_owned(),
        _ if drift >= 1000.0 => format!("{drift:.1e}"),
        _ => format!("{drift:.3}"),
    }
}

fn inputs(out: &mut dyn Write, pass: &PassDiff) -> io::Result<()> {
    for name in &pass.not_taken {
        writeln!(out, "{ODD}the second model does not have the input {}{ODD:#}", Escaped(name))?;
    }
    for (whose, assumed) in [("", &pass.assumed), (" of the second model", &pass.other_assumed)] {
        for input in assumed {
            let (name, shape) = (Escaped(&input.name), dims(&input.shape));
            writeln!(
                out,
                "{DIM}not given: {name}{whose}, taken as {} {shape}{DIM:#}",
                input.value
            )?;
        }
    }
    Ok(())
}

fn unmatched(out: &mut dyn Write, whose: &str, paths: &[String]) -> io::Result<()> {
    if paths.is_empty() {
        return Ok(());
    }
    let shown: Vec<String> =
        paths.iter().take(UNMATCHED).map(|path| Escaped(path).to_string()).collect();
    let more = match paths.len().saturating_sub(UNMATCHED) {
        0 => String::new(),
        more => format!(", and {more} more (--json lists them)"),
    };
    writeln!(out, "{ODD}only in {whose}, not compared: {}{more}{ODD:#}", shown.join(", "))
}

fn divergence(out: &mut dyn Write, found: &Divergence) -> io::Result<()> {
    let path = Escaped(&found.path);
    writeln!(out, "\n{BAD}Divergence detected at: {path} (step {}){BAD:#}", found.step)?;
    writeln!(out, "  Original mean: {:.4}", found.mean)?;
    writeln!(out, "  Optimized mean: {:.4}", found.other_mean)?;
    let usual = match found.usual {
        Some(usual) => format!("; others with weights of its type add {}", share(usual)),
        None => ", and no other step has weights of its type".to_owned(),
    };
    writeln!(
        out,
        "  Drift: {}, of its inputs {}; it adds {} to equal inputs{usual}",
        share(found.drift),
        share(found.input_drift),
        share(found.added)
    )?;
    for weight in found.weights.iter().take(WEIGHTS) {
        weight_line(out, weight)?;
    }
    for weight in found.not_compared.iter().take(WEIGHTS) {
        writeln!(out, "  {ODD}Not compared: {}{ODD:#}", Escaped(weight))?;
    }
    match found.memory_needed {
        Some(needed) => {
            let mebibytes = needed.div_ceil(1 << 20);
            writeln!(out, "  {DIM}raise --max-memory to {mebibytes}MiB to compare them{DIM:#}")
        }
        None => Ok(()),
    }
}

fn weight_line(out: &mut dyn Write, weight: &WeightDrift) -> io::Result<()> {
    let other = weight.other_tensor.as_ref().map(|other| format!(" / {}", Escaped(other)));
    let dtypes = match weight.dtype == weight.other_dtype {
        true => weight.dtype.to_string(),
        false => format!("{} to {}", weight.dtype, weight.other_dtype),
    };
    writeln!(
        out,
        "  Weight {}{}: {dtypes}, {}, differs by {}",
        Escaped(&weight.tensor),
        other.unwrap_or_default(),
        weight.change.described(),
        share(weight.relative_l2)
    )
}

fn blame(out: &mut dyn Write, found: &[Blame]) -> io::Result<()> {
    if found.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{BOLD}Outputs with a weight of the first model in the second{BOLD:#}")?;
    for blame in found {
        writeln!(
            out,
            "  {}: drift {} instead of {} ({:.0} % less)",
            Escaped(&blame.tensor),
            share(blame.drift_without),
            share(blame.drift),
            // No negative zero.
            (100.0 * blame.share).round() + 0.0
        )?;
    }
    Ok(())
}

fn tokens(out: &mut dyn Write, found: &TokensDrift) -> io::Result<()> {
    let Some(first) = &found.first else {
        return match found.compared {
            0 => Ok(()),
            1 => writeln!(out, "\nGenerated tokens: 1, and it is equal"),
            all => writeln!(out, "\nGenerated tokens: all {all} are equal"),
        };
    };
    writeln!(out, "\nGenerated tokens: {} equal, then", first.at)?;
    let choice = |out: &mut dyn Write, whose: &str, choice: &TokenChoice| {
        let text = choice.text.as_ref().map_or_else(
            || format!("token {}", choice.id),
            |text| format!("\"{}\" ({})", Escaped(text), choice.id),
        );
        writeln!(
            out,
            "  {whose} {text}: probability {:.4}, by the other {:.4}",
            if whose == "Original" { choice.probability } else { choice.other_probability },
            if whose == "Original" { choice.other_probability } else { choice.probability }
        )
    };
    choice(out, "Original", &first.original)?;
    choice(out, "Optimized", &first.other)
}
