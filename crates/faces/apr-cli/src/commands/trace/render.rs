//! Traces on the terminal.

use std::io::{self, Write};

use apr_registry::Escaped;
use apr_trace::{
    AttentionPattern, InputTrace, PassTrace, Predictions, StepTrace, Trace, ValueStatistics,
    ValueTrace,
};

use crate::human::{bytes, count, number, shortened};
use crate::printer::{BOLD, DIM, GOOD, ODD, columns};

/// Maximum columns of names if the width of the terminal is unknown.
const WIDTH: usize = 60;
/// Columns beside the name in a table.
const BESIDE: usize = 34;
/// A line under a heading.
pub(super) const RULE: &str = "═══════════════════════════════════════════════════════════════";
/// Times the standard deviation from which on a value is a spike.
const SPIKE: f64 = 10.0;

/// The table of §4.10: a row for each step.
pub(super) fn table(out: &mut dyn Write, trace: &Trace) -> io::Result<()> {
    let longest = trace.steps().map(|(_, step)| Escaped(&step.path).to_string().chars().count());
    let room = columns().map_or(WIDTH, |columns| columns.saturating_sub(BESIDE).max(16));
    let width = longest.max().unwrap_or_default().clamp(5, room);
    writeln!(out, "{BOLD}{:<width$}  {:>10}  {:>12}{BOLD:#}", "Layer", "Time (ms)", "Memory (MB)")?;
    for pass in &trace.passes {
        if trace.passes.len() > 1 {
            writeln!(out, "{DIM}{}{DIM:#}", Escaped(&pass.part))?;
        }
        for step in &pass.steps {
            let name = shortened(&Escaped(&step.path).to_string(), width);
            let pad = width.saturating_sub(name.chars().count());
            let (time, memory) = (millis(step.seconds), megabytes(step.peak_bytes));
            writeln!(out, "{name}{:pad$}  {time:>10}  {memory:>12}", "")?;
        }
    }

    let (time, memory) = (millis(trace.seconds), megabytes(trace.peak_bytes));
    writeln!(out, "{BOLD}{:<width$}  {time:>10}  {memory:>12}{BOLD:#}", "TOTAL")?;
    writeln!(
        out,
        "{DIM}Memory: peak size of activations and small weights during the step{DIM:#}"
    )?;
    generated(out, trace)?;
    assumed(out, trace)
}

/// The payload, step by step (§4.8.5).
pub(super) fn payload(out: &mut dyn Write, trace: &Trace) -> io::Result<()> {
    let (input, file) = (Escaped::short(&trace.input), Escaped(&trace.path));
    writeln!(out, "{BOLD}Payload Trace: {input} → {file}{BOLD:#}\n{RULE}")?;
    generated(out, trace)?;
    assumed(out, trace)?;
    let mut last = 0;
    for pass in &trace.passes {
        if trace.passes.len() > 1 {
            writeln!(out, "{DIM}{}{DIM:#}", Escaped(&pass.part))?;
        }
        last = steps(out, pass, last)?;
    }

    for predictions in &trace.predictions {
        last += 1;
        outputs(out, predictions, last)?;
    }
    writeln!(out, "{RULE}")?;
    let time = trace.seconds.map(|_| format!(", {} ms", millis(trace.seconds))).unwrap_or_default();
    writeln!(out, "{DIM}{last} steps{time}, {} of values at most{DIM:#}", bytes(trace.peak_bytes))
}

fn steps(out: &mut dyn Write, pass: &PassTrace, before: usize) -> io::Result<usize> {
    let mut number = before;
    for input in &pass.inputs {
        number += 1;
        writeln!(out, "{BOLD}Step {number}: {}{BOLD:#}", Escaped(&input.name))?;
        let about = about_sound(input);
        value(out, &input.value, &about)?;
    }
    for found in &pass.steps {
        number = found.number;
        writeln!(out, "{BOLD}Step {number}: {}{BOLD:#}", Escaped(&found.path))?;
        step(out, found)?;
    }
    Ok(number)
}

fn about_sound(input: &InputTrace) -> String {
    input.sound.as_ref().map_or_else(String::new, |sound| {
        let kilohertz = f64::from(sound.model_rate) / 1000.0;
        format!("({:.3}s @ {kilohertz}kHz)", sound.seconds)
    })
}

fn step(out: &mut dyn Write, step: &StepTrace) -> io::Result<()> {
    if let Some(found) = &step.value {
        value(out, found, "")?;
    }
    if step.seconds.is_some() {
        writeln!(out, "  Time: {} ms", millis(step.seconds))?;
    }
    if let Some(weights) = &step.weights
        && let Some(stats) = &weights.weight_statistics
    {
        let shown = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), number);
        let (mean, std) = (shown(stats.mean), shown(stats.std));
        let parameters = count(weights.parameters);
        writeln!(out, "  Weights: mean={mean}, std={std} ({parameters} parameters)")?;
    }
    if let Some(pattern) = &step.attention {
        attention(out, pattern)?;
    }
    if let Some(path) = &step.not_finite_at {
        writeln!(out, "  {ODD}⚠ NaN or infinity from {}{ODD:#}", Escaped(path))?;
    }
    let statistics = step.value.as_ref().and_then(|value| value.statistics.as_ref());
    if let Some(statistics) = statistics {
        remarks(out, step, statistics)?;
    }
    Ok(())
}

fn value(out: &mut dyn Write, value: &ValueTrace, about: &str) -> io::Result<()> {
    let shape = dims(&value.shape);
    let kind = if value.element == "f32" { "" } else { value.element.as_str() };
    let about = [kind, about].into_iter().filter(|text| !text.is_empty());
    let about: String = about.map(|text| format!(" {text}")).collect();
    writeln!(out, "  Shape: {shape}{about}")?;
    let Some(found) = &value.statistics else { return Ok(()) };
    let shown = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), number);
    let stats = &found.stats;
    let [mean, std, min, max] = [stats.mean, stats.std, stats.min, stats.max].map(shown);
    writeln!(out, "  Stats: mean={mean}, std={std}, range=[{min}, {max}]")?;
    if stats.nan + stats.inf > 0 {
        writeln!(out, "  {ODD}⚠ {} NaN, {} infinite{ODD:#}", stats.nan, stats.inf)?;
    }
    let line = found.sparkline();
    if !line.trim().is_empty() {
        writeln!(out, "  {line}")?;
    }
    Ok(())
}

/// A norm that normalizes, and a value far from all others.
fn remarks(out: &mut dyn Write, step: &StepTrace, statistics: &ValueStatistics) -> io::Result<()> {
    let (Some(mean), Some(std)) = (statistics.stats.mean, statistics.stats.std) else {
        return Ok(());
    };
    let is_norm = step.path.contains("norm");
    if is_norm && mean.abs() < 0.1 && (0.5..2.0).contains(&std) {
        writeln!(out, "  {GOOD}✓ properly normalized{GOOD:#}")?;
    }
    let magnitude = statistics.magnitude();
    if std > 0.0 && magnitude - mean.abs() > SPIKE * std {
        let at = dims(&statistics.largest_at);
        let value = number(magnitude);
        writeln!(out, "  {ODD}⚠ Activation spike at position {at} (value: {value}){ODD:#}")?;
    }
    Ok(())
}

fn attention(out: &mut dyn Write, pattern: &AttentionPattern) -> io::Result<()> {
    let (heads, queries, keys) = (pattern.heads, pattern.queries, pattern.keys);
    writeln!(out, "  Attention pattern: {DIM}{heads} heads, {queries} by {keys}{DIM:#}")?;
    let largest = pattern.cells.iter().flatten().copied().fold(0.0, f64::max);
    let clearest = (0..pattern.cells.len()).max_by(|&a, &b| {
        let most = |at: usize| pattern.cells[at].iter().copied().fold(0.0, f64::max);
        most(a).total_cmp(&most(b))
    });
    for (at, row) in pattern.cells.iter().enumerate() {
        let cells: String = row.iter().map(|cell| shade(*cell, largest)).collect();
        let note = pattern.focus.get(at).filter(|_| clearest == Some(at));
        let note = note.map(|(from, to)| match from == to {
            true => format!(" ← attending to position {from}"),
            false => format!(" ← attending to positions {from}-{to}"),
        });
        writeln!(out, "  {cells}{}", note.unwrap_or_default())?;
    }
    if !pattern.sums_to_one {
        writeln!(out, "  {ODD}⚠ rows do not sum to 1{ODD:#}")?;
    }
    Ok(())
}

fn shade(cell: f64, largest: f64) -> char {
    match cell / largest.max(f64::MIN_POSITIVE) {
        share if share >= 0.75 => '█',
        share if share >= 0.5 => '▓',
        share if share >= 0.25 => '▒',
        _ => '░',
    }
}

fn outputs(out: &mut dyn Write, found: &Predictions, number: usize) -> io::Result<()> {
    let name = Escaped(&found.output);
    let at = found.position.map_or_else(String::new, |at| format!(" at position {at}"));
    writeln!(out, "{BOLD}Step {number}: Output {name}{at}{BOLD:#}")?;
    writeln!(out, "  Shape: {}\n  Top predictions:", dims(&found.shape))?;
    for (place, prediction) in found.top.iter().enumerate() {
        let text = match &prediction.text {
            Some(text) => format!("\"{}\"", Escaped(text)),
            None => format!("class {}", prediction.id),
        };
        writeln!(out, "  {}. {text} ({:.3})", place + 1, prediction.probability)?;
    }
    Ok(())
}

pub(super) fn generated(out: &mut dyn Write, trace: &Trace) -> io::Result<()> {
    let Some(written) = &trace.generated else { return Ok(()) };
    let count = written.added.len();
    let text = written.text.as_ref().map(|text| format!(": \"{}\"", Escaped::short(text)));
    writeln!(out, "{DIM}with {count} generated tokens{}{DIM:#}", text.unwrap_or_default())
}

fn assumed(out: &mut dyn Write, trace: &Trace) -> io::Result<()> {
    for input in trace.passes.iter().flat_map(|pass| &pass.assumed) {
        let (name, shape) = (Escaped(&input.name), dims(&input.shape));
        writeln!(out, "{DIM}not given: {name}, taken as {} {shape}{DIM:#}", input.value)?;
    }
    Ok(())
}

pub(super) fn dims(shape: &[usize]) -> String {
    let sizes: Vec<String> = shape.iter().map(ToString::to_string).collect();
    format!("[{}]", sizes.join(", "))
}

fn millis(seconds: Option<f64>) -> String {
    match seconds.map(|seconds| seconds * 1e3) {
        None => "-".to_owned(),
        Some(millis) if millis < 10.0 => format!("{millis:.3}"),
        Some(millis) => format!("{millis:.1}"),
    }
}

fn megabytes(bytes: u64) -> String {
    let megabytes = bytes as f64 / 1e6;
    if megabytes < 10.0 { format!("{megabytes:.3}") } else { format!("{megabytes:.1}") }
}
