//! `apr validate --quality`: models judged by their outputs (seed 001 §4.8.4).

use std::io::{self, Write};
use std::path::Path;

use apr_core::counted;
use apr_ops::tensors::{TensorsOptions, list};
use apr_quality::{
    ComparisonReport, DivergenceReport, ErrorRates, Estimate, LayerDrift, Percentile,
    PerplexityReport, Sample, Subject, Thresholds, WindowOptions, Windows, built_in, compare,
    divergence, perplexity, transcription_errors,
};
use apr_registry::Escaped;
use apr_run::{RunOptions, Runner};
use serde::Serialize;

use super::points;
use super::run::read_media;
use super::running::{self, Opened};
use crate::args::ValidateArgs;
use crate::context::Context;
use crate::documents::Document;
use crate::failure::Outcome;
use crate::human;
use crate::printer::{BAD, BOLD, DIM, GOOD, ODD};
use crate::progress::Bar;
use crate::text_file::read_text;

/// Width of the rules that frame a report.
const RULE: usize = 63;

/// Judges one model by the 100 points or by a text, or two by their outputs.
pub(super) fn run(args: &ValidateArgs, context: &Context) -> Outcome {
    match (&args.other, &args.text) {
        (None, None) => points::run(args, context),
        (None, Some(text)) => one(args, text, context),
        (Some(other), Some(text)) => predictions(args, other, text, context),
        (Some(other), None) => outputs(args, other, context),
    }
}

/// Perplexity of one model.
#[derive(Serialize)]
struct OneReport<'a> {
    /// Path or location of the model, as given.
    path: &'a str,
    /// Path of the text, as given.
    text: String,
    #[serde(flatten)]
    perplexity: PerplexityReport,
}

impl Document for OneReport<'_> {
    const SCHEMA: &'static str = "perplexity";
}

fn one(args: &ValidateArgs, path: &Path, context: &Context) -> Outcome {
    let text = read_text(path)?;
    let opened = Opened::new(&args.model, context)?;
    let options = continuing(context, 1);
    let report = opened.with_runner(context, &options, |runner| {
        let windows = windows(args, &text, &[runner])?;
        let part = runner.prepare()?;
        Ok(perplexity(&part, &windows, &mut counting(context, windows.len()))?)
    })?;
    let report =
        OneReport { path: opened.name(), text: path.display().to_string(), perplexity: report };
    context.printer.in_markdown(&args.markdown).report(&report, |out, report| {
        writeln!(out, "{BOLD}Perplexity: {}{BOLD:#}", Escaped(report.path))?;
        render_text(out, &report.text, &report.perplexity)?;
        writeln!(out, "PPL = {}", estimate(report.perplexity.perplexity, 4))
    })
}

/// Options for one of some models whose windows are read in two steps, as the first halves of them
/// are not scored.
fn continuing(context: &Context, models: u64) -> RunOptions {
    let mut options = running::reading(context, models);
    options.keeps_past = true;
    options
}

fn windows(args: &ValidateArgs, text: &str, models: &[&Runner<'_>]) -> Outcome<Windows> {
    let mut options = WindowOptions::default();
    options.context = args.context.map(|tokens| tokens as usize);
    options.chunks = args.chunks.map(|windows| windows as usize);
    Ok(Windows::of_text(text, models, options)?)
}

/// Moves a bar on, one step for each window or input.
fn counting(context: &Context, total: usize) -> impl FnMut(usize) {
    let bar = Bar::counting(&context.printer, total as u64);
    move |done| bar.reached(done as u64)
}

/// Two models, ready to run.
fn with_both<R>(
    models: [&Opened; 2],
    options: &RunOptions,
    context: &Context,
    then: impl FnOnce(&Runner<'_>, &Runner<'_>) -> Outcome<R>,
) -> Outcome<R> {
    models[0]
        .with_runner(context, options, |a| models[1].with_runner(context, options, |b| then(a, b)))
}

/// Differences between the predictions of B and A.
#[derive(Serialize)]
struct PredictionsReport<'a> {
    /// Path or location of the first model, as given.
    path: &'a str,
    /// Path or location of the second model, as given.
    other_path: &'a str,
    /// Path of the text, as given.
    text: String,
    #[serde(flatten)]
    divergence: DivergenceReport,
}

impl Document for PredictionsReport<'_> {
    const SCHEMA: &'static str = "compare.predictions";
}

fn predictions(args: &ValidateArgs, other: &Path, path: &Path, context: &Context) -> Outcome {
    // A pipe gives it once.
    let text = read_text(path)?;
    let [a, b] = [Opened::new(&args.model, context)?, Opened::new(other, context)?];
    let options = continuing(context, 2);
    let found = with_both([&a, &b], &options, context, |left, right| {
        let windows = windows(args, &text, &[left, right])?;
        let parts = [left.prepare()?, right.prepare()?];
        let mut done = counting(context, windows.len());
        Ok(divergence(&parts[0], &parts[1], &windows, &mut done)?)
    })?;
    let report = PredictionsReport {
        path: a.name(),
        other_path: b.name(),
        text: path.display().to_string(),
        divergence: found,
    };
    context.printer.in_markdown(&args.markdown).report(&report, render_predictions)
}

/// A model in the table of a comparison.
#[derive(Serialize)]
struct ModelSummary {
    /// Number of tensors.
    tensor_count: usize,
    /// Elements of all tensors.
    parameters: u64,
    /// Elements that are not zero.
    nonzero_parameters: u64,
    /// Size of all files.
    bytes: u64,
    /// Bits of a weight in the narrowest type that a twentieth of the weights has.
    bits: f64,
}

/// The outputs of two models.
#[derive(Serialize)]
struct OutputsReport {
    /// Path or location of the first model, as given.
    path: String,
    /// Path or location of the second model, as given.
    other_path: String,
    /// The first model.
    model: ModelSummary,
    /// The second model.
    other_model: ModelSummary,
    /// Number of inputs.
    input_count: usize,
    #[serde(flatten)]
    comparison: ComparisonReport,
    /// Error rates of B's transcriptions, with A's transcriptions as the reference.
    #[serde(skip_serializing_if = "Option::is_none")]
    error_rates: Option<ErrorRates>,
}

impl Document for OutputsReport {
    const SCHEMA: &'static str = "compare.outputs";
}

fn outputs(args: &ValidateArgs, other: &Path, context: &Context) -> Outcome {
    let [a, b] = [Opened::new(&args.model, context)?, Opened::new(other, context)?];
    let given = given(args, context)?;
    let summaries = [summary(&a, context)?, summary(&b, context)?];
    let [one, two] = &summaries;
    let thresholds =
        args.max_drift.map_or_else(|| Thresholds::of_bits(one.bits, two.bits), Thresholds::at);

    // What is said in tones and noise would say nothing of a model.
    let transcribes = given.iter().any(|sample| sample.audio.is_some());
    let mut options = running::reading(context, 2);
    options.keeps_past = transcribes;
    let (inputs, comparison, error_rates) =
        with_both([&a, &b], &options, context, |left, right| {
            let samples = if given.is_empty() { built_in(left) } else { given };
            let subjects = [Subject::of(left)?, Subject::of(right)?];
            let mut done = counting(context, samples.len());
            let found = compare(&subjects[0], &subjects[1], &samples, thresholds, &mut done)?;
            let rates = match transcribes {
                true => transcription_errors(left, right, &samples)?,
                false => None,
            };
            Ok((samples.len(), found, rates))
        })?;
    context.sources.check_unchanged()?;
    let [model, other_model] = summaries;
    let report = OutputsReport {
        path: a.name().to_owned(),
        other_path: b.name().to_owned(),
        model,
        other_model,
        input_count: inputs,
        comparison,
        error_rates,
    };
    let printer = context.printer.in_markdown(&args.markdown);
    printer.judge(&report, render_outputs, report.comparison.passed)
}

/// The inputs of the command line.
fn given(args: &ValidateArgs, context: &Context) -> Outcome<Vec<Sample>> {
    let sample = |path: &std::path::PathBuf| {
        Ok(Sample::of_file(&path.display().to_string(), read_media(path, context)?)?)
    };
    args.input.iter().map(sample).collect()
}

fn summary(opened: &Opened, context: &Context) -> Outcome<ModelSummary> {
    let reader = &*opened.model().reader;
    let options = TensorsOptions { stats: true, ..TensorsOptions::default() };
    let total = reader.tensors().iter().filter_map(|info| info.byte_len().ok()).sum();
    let bar = Bar::new(&context.printer, total);
    let list = list(reader, opened.name(), &options, &context.pipeline()?, &bar)?;
    let zeros = list.tensors.iter().filter_map(|row| row.stats.as_ref()).map(|stats| stats.zeros);
    let parameters: u64 = list.tensors.iter().map(|row| row.elements).sum();
    Ok(ModelSummary {
        tensor_count: list.tensor_count,
        parameters,
        nonzero_parameters: parameters - zeros.sum::<u64>(),
        bytes: reader.files().iter().map(|file| file.len).sum(),
        bits: list.narrowest_bits(),
    })
}

fn estimate(found: Estimate, digits: usize) -> String {
    format!("{:.digits$} ± {:.digits$}", found.value, found.error)
}

fn render_text(out: &mut dyn Write, text: &str, found: &PerplexityReport) -> io::Result<()> {
    writeln!(
        out,
        "{DIM}{}: {} of {} tokens, {} scored{DIM:#}",
        Escaped(text),
        counted(found.chunks as u64, "window"),
        found.context,
        counted(found.scored as u64, "token")
    )
}

/// The rows of `llama-perplexity --kl-divergence`.
fn render_predictions(out: &mut dyn Write, report: &PredictionsReport<'_>) -> io::Result<()> {
    let found = &report.divergence;
    writeln!(
        out,
        "{BOLD}Prediction Comparison: {} vs {}{BOLD:#}",
        Escaped(report.path),
        Escaped(report.other_path)
    )?;
    render_text(out, &report.text, &found.base)?;
    let section = |out: &mut dyn Write, title: &str| writeln!(out, "\n{BOLD}{title}{BOLD:#}");
    let row =
        |out: &mut dyn Write, title: &str, value: String| writeln!(out, "{title:<28} {value}");

    section(out, "Perplexity (A = base, B = Q)")?;
    row(out, "Mean PPL(Q)", estimate(found.other.perplexity, 6))?;
    row(out, "Mean PPL(base)", estimate(found.base.perplexity, 6))?;
    row(out, "Cor(ln(PPL(Q)), ln(PPL(b)))", format!("{:.2} %", 100.0 * found.correlation))?;
    row(out, "Mean ln(PPL(Q)/PPL(base))", estimate(found.log_ratio, 6))?;
    row(out, "Mean PPL(Q)/PPL(base)", estimate(found.ratio, 6))?;
    row(out, "Mean PPL(Q)-PPL(base)", estimate(found.difference, 6))?;

    section(out, "KL divergence (nats)")?;
    let kl = &found.kl_divergence;
    row(out, "Mean", estimate(kl.mean, 6))?;
    row(out, "Maximum", format!("{:.6}", kl.max))?;
    percentiles(out, &kl.percentiles, kl.median, |value| format!("{value:.6}"))?;
    row(out, "Minimum", format!("{:.6}", kl.min))?;

    section(out, "Probability of the right token")?;
    let percent = |value: f64| format!("{:.3} %", 100.0 * value);
    let both =
        |found: Estimate| format!("{:.3} ± {:.3} %", 100.0 * found.value, 100.0 * found.error);
    let change = &found.probability_change;
    row(out, "Mean Δp", both(change.mean))?;
    row(out, "Maximum", percent(change.max))?;
    percentiles(out, &change.percentiles, change.median, percent)?;
    row(out, "Minimum", percent(change.min))?;
    row(out, "RMS Δp", both(found.probability_rms))?;
    row(out, "Same top p", both(found.same_top))
}

fn percentiles(
    out: &mut dyn Write,
    found: &[Percentile],
    median: f64,
    text: impl Fn(f64) -> String,
) -> io::Result<()> {
    let (above, below): (Vec<Percentile>, Vec<Percentile>) =
        found.iter().partition(|one| one.percent > 50.0);
    let row = |out: &mut dyn Write, title: String, value: f64| {
        writeln!(out, "{title:<28} {}", text(value))
    };
    above.iter().try_for_each(|one| row(out, format!("{:.1} %", one.percent), one.value))?;
    row(out, "Median".to_owned(), median)?;
    below.iter().try_for_each(|one| row(out, format!("{:.1} %", one.percent), one.value))
}

/// The layout of seed 001 §4.8.4.
fn render_outputs(out: &mut dyn Write, report: &OutputsReport) -> io::Result<()> {
    let rule = "═".repeat(RULE);
    let (a, b) = (&report.model, &report.other_model);
    writeln!(
        out,
        "{BOLD}Quality Comparison: {} vs {}{BOLD:#}\n{rule}",
        Escaped(&report.path),
        Escaped(&report.other_path)
    )?;
    writeln!(out, "{:<18} {:>14} {:>14} {:>10}", "", "Original", "Optimized", "Δ")?;
    let rows = [
        (
            "Tensor count",
            [a.tensor_count as u64, b.tensor_count as u64],
            human::count as fn(u64) -> String,
        ),
        ("Total params", [a.parameters, b.parameters], human::metric),
        ("Non-zero params", [a.nonzero_parameters, b.nonzero_parameters], human::metric),
        ("Size", [a.bytes, b.bytes], human::bytes),
    ];
    for (title, [left, right], text) in rows {
        writeln!(
            out,
            "{title:<18} {:>14} {:>14} {:>10}",
            text(left),
            text(right),
            change(left, right)
        )?;
    }

    let found = &report.comparison;
    let inputs = counted(report.input_count as u64, "test input");
    writeln!(out, "\nOutput Comparison ({inputs}):")?;
    let limits = found.thresholds;
    let bounds = [
        ("Mean L2 distance", found.mean_l2, limits.mean_l2, found.mean_l2 <= limits.mean_l2),
        ("Max L2 distance", found.max_l2, limits.max_l2, found.max_l2 <= limits.max_l2),
        ("Cosine similarity", found.cosine, limits.cosine, found.cosine >= limits.cosine),
    ];
    for (title, value, limit, passes) in bounds {
        let (style, mark) = verdict(passes);
        writeln!(out, "{title}: {value:.4} (threshold: {limit}) {style}{mark}{style:#}")?;
    }
    let percent = |share: f64| format!("{:.1}%", 100.0 * share);
    if let Some(nats) = found.kl_divergence {
        if nats.is_nan() {
            writeln!(out, "KL divergence: none {BAD}FAIL{BAD:#} (logits of the second are NaN)")?;
        } else {
            writeln!(out, "KL divergence: {nats:.6} nats")?;
        }
    }
    let numbers = [
        ("Mean rank of the original's first choice", found.expected_rank),
        ("Cosine similarity of centred states", found.centred_cosine),
    ];
    for (title, value) in numbers {
        if let Some(value) = value {
            writeln!(out, "{title}: {value:.4}")?;
        }
    }
    let shares = [
        ("Same top prediction", found.same_top),
        ("Top 5 predictions kept", found.same_top5),
        ("Nearest neighbours kept", found.same_neighbours),
        ("Word error rate", report.error_rates.map(|rates| rates.word)),
        ("Character error rate", report.error_rates.map(|rates| rates.character)),
    ];
    for (title, share) in shares {
        if let Some(share) = share {
            writeln!(out, "{title}: {}", percent(share))?;
        }
    }
    let worst = found.results.iter().max_by(|one, other| one.l2.total_cmp(&other.l2));
    if let Some(worst) = worst {
        writeln!(
            out,
            "{DIM}largest distance: {} at '{}'{DIM:#}",
            Escaped::short(&worst.input),
            Escaped::short(&worst.output)
        )?;
    }
    if !found.unmatched.is_empty() {
        let names: Vec<String> =
            found.unmatched.iter().map(|name| Escaped::short(name).to_string()).collect();
        writeln!(out, "{DIM}not compared, as one model has it alone: {}{DIM:#}", names.join(", "))?;
    }

    render_layers(out, &found.layers)?;
    if !found.layers_left_out.is_empty() {
        let count = counted(found.layers_left_out.len() as u64, "layer");
        writeln!(out, "{DIM}not compared for lack of memory: {count}; raise --max-memory{DIM:#}")?;
    }
    let (style, mark) = verdict(found.passed);
    let text = match found.passed {
        true => "Optimized model within quality tolerance",
        false => "Optimized model outside quality tolerance",
    };
    writeln!(out, "\n{BOLD}VERDICT:{BOLD:#} {style}{mark}{style:#} - {text}")?;
    writeln!(out, "{}\n{rule}", in_words(found))
}

/// Explains the results in a sentence for a decision, and in one for a closer look.
fn in_words(found: &ComparisonReport) -> String {
    let percent = |share: f64| format!("{:.1} % of the cases", 100.0 * share);
    let decides = match (found.same_top, found.same_neighbours) {
        _ if !found.mean_l2.is_finite() => {
            "The optimized model's outputs are not all numbers".to_owned()
        }
        (Some(share), _) => format!("Both models have the same first choice in {}", percent(share)),
        (None, Some(share)) => {
            format!("Both models have the same nearest neighbour of {}", percent(share))
        }
        (None, None) => {
            let off = 100.0 * found.mean_l2;
            format!("The optimized model's outputs are {off:.1} % off on average")
        }
    };
    let limits = found.thresholds;
    let missed = [
        ("the mean distance", found.mean_l2 > limits.mean_l2),
        ("the largest distance", found.max_l2 > limits.max_l2),
        ("the cosine similarity", found.cosine < limits.cosine),
    ];
    let missed: Vec<&str> =
        missed.into_iter().filter(|(_, is_missed)| *is_missed).map(|(name, _)| name).collect();
    let most = found.layers.iter().max_by(|one, other| one.l2.total_cmp(&other.l2));
    let layer = most
        .filter(|layer| layer.l2 > 0.0)
        .map(|layer| format!("{} drifts most ({:.4})", Escaped::short(&layer.layer), layer.l2));
    let bounds = match missed.as_slice() {
        [] => "All bounds are kept".to_owned(),
        missed => format!("Outside its bound: {}", missed.join(", ")),
    };
    let looks = [Some(bounds), layer].into_iter().flatten().collect::<Vec<_>>().join("; ");
    format!("{decides}.\n{looks}.")
}

fn render_layers(out: &mut dyn Write, layers: &[LayerDrift]) -> io::Result<()> {
    if layers.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nLayer-by-layer drift:")?;
    let highest = layers.iter().map(|layer| layer.l2).fold(0.0, f64::max);
    layers.iter().try_for_each(|layer| {
        let name = Escaped::short(&layer.layer);
        match layer.l2 >= highest && highest > 0.0 {
            true => writeln!(out, "{name}: {:.4} {ODD}⚠{ODD:#} (highest drift)", layer.l2),
            false => writeln!(out, "{name}: {:.4} {GOOD}✓{GOOD:#}", layer.l2),
        }
    })
}

fn verdict(passes: bool) -> (anstyle::Style, &'static str) {
    if passes { (GOOD, "✓ PASS") } else { (BAD, "✗ FAIL") }
}

/// A change in per cent; `0` for none.
fn change(before: u64, after: u64) -> String {
    if before == after {
        return "0".to_owned();
    }
    #[expect(clippy::cast_precision_loss, reason = "for reading")]
    let percent = 100.0 * (after as f64 - before as f64) / (before.max(1) as f64);
    format!("{percent:+.0}%")
}
