//! `apr explain --importance`: how much the weights of a model matter for some texts.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use apr_core::counted;
use apr_distill::{Row, TensorImportance, WeightImportance, importance};
use apr_prune::unit_tensors;
use apr_registry::Escaped;
use apr_run::{RunResult, Runner, with_runner};
use serde::Serialize;

use super::distill::{padding, reading, rows};
use super::run::terse_host;
use super::running::Opened;
use crate::context::Context;
use crate::documents::Document;
use crate::failure::{Failure, Outcome};
use crate::human;
use crate::printer::{BOLD, DIM};
use crate::progress::Bar;
use crate::signals;
use crate::text_file::read_text;

/// Tensors that are shown.
const SHOWN: usize = 16;

/// Report of the command.
#[derive(Serialize)]
struct ImportanceReport {
    /// Path or location of the model, as given.
    path: String,
    /// Rows that were cut to the model's context.
    cut: usize,
    #[serde(flatten)]
    found: WeightImportance,
    /// Importance of each layer; tensors outside of layers are not included.
    layers: Vec<LayerImportance>,
}

impl Document for ImportanceReport {
    const SCHEMA: &'static str = "explain.importance";
}

/// The tensors of a layer together.
#[derive(Serialize)]
struct LayerImportance {
    /// Number of the layer, from 0.
    layer: u64,
    /// Elements of its tensors.
    elements: u64,
    /// Sum of the saliency of its elements.
    saliency: f64,
}

/// Measures a model on texts.
pub(super) fn run(model: &Path, data: &Path, context: &Context) -> Outcome {
    let opened = Opened::new(model, context)?;
    let source = context.source(&*opened.model().reader, opened.name())?;
    let units = unit_tensors(&source)?;
    let (found, cut) = on_rows(&opened, data, context, |runner, rows, padding, done| {
        importance(runner, rows, padding, &units, done)
    })?;

    let mut layers: BTreeMap<u64, (u64, f64)> = BTreeMap::new();
    if let Some(model) = source.family()? {
        for tensor in &found.tensors {
            if let Some(layer) = model.family().layer(&tensor.name) {
                let sums = layers.entry(layer).or_default();
                *sums = (sums.0 + tensor.elements, sums.1 + tensor.saliency);
            }
        }
    }
    let layer = |(layer, (elements, saliency))| LayerImportance { layer, elements, saliency };
    let layers = layers.into_iter().map(layer).collect();
    let report = ImportanceReport { path: opened.name().to_owned(), cut, found, layers };
    context.printer.report(&report, render)
}

/// Calls `measure` with a model that is ready to run, the rows of a file, the token that fills them
/// up, and what is to be told how many are done. With it comes how many rows were cut.
pub(super) fn on_rows<R>(
    opened: &Opened,
    data: &Path,
    context: &Context,
    measure: impl FnOnce(&Runner<'_>, &[Row], i64, &mut dyn FnMut(usize)) -> RunResult<R>,
) -> Outcome<(R, usize)> {
    signals::stop_cleanly(&context.interrupt)?;
    let text = read_text(data)?;
    let options = reading(context);
    let source = context.source(&*opened.model().reader, opened.name())?;
    let found = with_runner(&source, opened.facts(), &options, &terse_host(context), |runner| {
        let (rows, cut) = rows(&text, data, runner)?;
        let bar = Bar::counting(&context.printer, rows.len() as u64);
        let padding = padding(opened.facts());
        let found = measure(runner, &rows, padding, &mut |done| bar.reached(done as u64))?;
        Ok::<_, Failure>((found, cut))
    })?;
    context.sources.check_unchanged()?;
    Ok(found)
}

fn render(out: &mut dyn Write, report: &ImportanceReport) -> io::Result<()> {
    let found = &report.found;
    writeln!(
        out,
        "{BOLD}{}{BOLD:#}: {} on {}, {} tokens",
        Escaped(&report.path),
        counted(found.tensors.len() as u64, "tensor"),
        counted(found.rows as u64, "row"),
        human::count(found.tokens)
    )?;
    if report.cut > 0 {
        writeln!(out, "  {} rows were cut to the model's context", report.cut)?;
    }
    writeln!(
        out,
        "  {DIM}saliency: second-order estimate of the loss without it; squared gradient: mean \
         over its weights{DIM:#}"
    )?;
    if !report.layers.is_empty() {
        writeln!(out, "\n  {DIM}{:>10}  {:>10}  {:>10}{DIM:#}", "layer", "weights", "saliency")?;
    }
    for layer in &report.layers {
        let weights = human::count(layer.elements);
        writeln!(out, "  {:>10}  {weights:>10}  {:>10.3e}", layer.layer, layer.saliency)?;
    }

    render_units(out, found)?;
    let mut tensors: Vec<&TensorImportance> = found.tensors.iter().collect();
    tensors.sort_by(|a, b| b.saliency.total_cmp(&a.saliency));
    writeln!(
        out,
        "\n  {DIM}{:>10}  {:>16}  {:>10}  tensor{DIM:#}",
        "saliency", "squared gradient", "weights"
    )?;
    for tensor in tensors.iter().take(SHOWN) {
        writeln!(
            out,
            "  {:>10.3e}  {:>16.3e}  {:>10}  {}",
            tensor.saliency,
            tensor.squared_gradient,
            human::count(tensor.elements),
            Escaped(&tensor.name)
        )?;
    }
    match tensors.len().saturating_sub(SHOWN) {
        0 => Ok(()),
        more => writeln!(out, "  {DIM}and {more} more; --json lists them all{DIM:#}"),
    }
}

/// The least and most important heads and neurons of each layer.
fn render_units(out: &mut dyn Write, found: &WeightImportance) -> io::Result<()> {
    if found.units.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "\n  {DIM}{:>10}  {:>28}  {:>30}{DIM:#}",
        "layer", "heads, least and most", "neurons, least and most"
    )?;
    for units in &found.units {
        let (heads, neurons) = (least_and_most(&units.groups), least_and_most(&units.neurons));
        writeln!(out, "  {:>10}  {heads:>28}  {neurons:>30}", units.layer)?;
    }
    let groups = "heads are counted with the query heads that share their keys";
    writeln!(out, "  {DIM}{groups}; `apr prune --prune-method fisher` drops the least{DIM:#}")
}

/// The numbers of the least and the most important unit, with their saliency.
fn least_and_most(saliency: &[f64]) -> String {
    let places = || 0..saliency.len();
    let order = |a: &usize, b: &usize| saliency[*a].total_cmp(&saliency[*b]);
    match (places().min_by(order), places().max_by(order)) {
        (Some(least), Some(most)) => {
            let shown = |at: usize| format!("{at} {:.2e}", saliency[at]);
            format!("{}, {}", shown(least), shown(most))
        }
        _ => "-".to_owned(),
    }
}
