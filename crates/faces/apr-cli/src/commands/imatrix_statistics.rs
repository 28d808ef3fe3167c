//! Statistics of an importance matrix, for `apr inspect`.

use std::io::{self, Write};

use apr_quantize::{ImatrixSums, LayerStatistics, WeightStatistics, layer_statistics};
use apr_registry::{CheckpointReader, Escaped};
use serde::Serialize;

use crate::failure::Outcome;
use crate::printer::{BOLD, DIM};

/// Weights that are shown without `--full`.
const SHOWN: usize = 16;
/// Widths of the columns of numbers.
const WIDTHS: [usize; 10] = [10, 9, 9, 8, 8, 8, 7, 8, 7, 7];

/// Statistics of an importance matrix.
#[derive(Serialize)]
pub(super) struct ImatrixStatistics {
    /// Data sets on which it was measured.
    datasets: Vec<String>,
    /// Number of chunks of text that were measured.
    chunk_count: u32,
    /// Tokens of a chunk.
    chunk_size: u32,
    /// Statistics of each weight.
    weights: Vec<WeightStatistics>,
    /// Averages over the weights of each layer.
    layers: Vec<LayerStatistics>,
}

/// Returns the statistics if a model is an importance matrix in GGUF.
pub(super) fn of(reader: &dyn CheckpointReader) -> Outcome<Option<ImatrixStatistics>> {
    let pairs = reader.metadata().key_values()?.unwrap_or_default();
    if pairs.get("imatrix.chunk_count").is_none() {
        return Ok(None);
    }
    let sums = ImatrixSums::from_checkpoint(reader)?;
    let weights = sums.statistics();
    Ok(Some(ImatrixStatistics {
        chunk_count: sums.chunk_count(),
        layers: layer_statistics(&weights),
        weights,
        datasets: sums.datasets,
        chunk_size: sums.chunk_size,
    }))
}

/// Renders the statistics in the order of llama-imatrix.
pub(super) fn render(out: &mut dyn Write, found: &ImatrixStatistics, full: bool) -> io::Result<()> {
    let ImatrixStatistics { datasets, chunk_count, chunk_size, weights, layers } = found;
    writeln!(out, "\n{BOLD}Importance of weights{BOLD:#}")?;
    writeln!(
        out,
        "{chunk_count} chunks of {chunk_size} tokens from {}",
        Escaped(&datasets.join(", "))
    )?;
    let shown = if full { weights.len() } else { SHOWN };
    let width = weights.iter().take(shown).map(|weight| weight.weight.chars().count()).max();
    let width = width.unwrap_or_default().max(6);
    let head = ["Sum", "Min", "Max", "Mean", "Std", "Active", "N", "Entropy", "ZD", "Cosine"];
    let row = |cells: [String; 10]| {
        let cells = cells.iter().zip(WIDTHS).map(|(cell, width)| format!("  {cell:>width$}"));
        cells.collect::<String>()
    };
    writeln!(out, "{DIM}{:<width$}{}{DIM:#}", "Weight", row(head.map(str::to_owned)))?;
    for weight in weights.iter().take(shown) {
        let percent = |share: f64| format!("{:.2}%", share * 100.0);
        let cells = [
            format!("{:.2}", weight.sum),
            format!("{:.4}", weight.min),
            format!("{:.4}", weight.max),
            format!("{:.2}", weight.mean),
            format!("{:.2}", weight.deviation),
            percent(weight.active),
            weight.elements.to_string(),
            percent(weight.normalized_entropy),
            percent(weight.zd),
            weight.cosine.map_or_else(|| "-".to_owned(), |cosine| format!("{cosine:.4}")),
        ];
        writeln!(out, "{:<width$}{}", Escaped(&weight.weight).to_string(), row(cells))?;
    }
    if weights.len() > shown {
        writeln!(out, "{DIM}{} more; --full shows them{DIM:#}", weights.len() - shown)?;
    }
    writeln!(out, "{DIM}{:<7} {:>12}  {:>7}  {:>7}{DIM:#}", "Layer", "Sum", "ZD", "Cosine")?;
    for LayerStatistics { layer, sum, zd, cosine, .. } in layers {
        let layer = layer.map_or_else(|| "-".to_owned(), |layer| layer.to_string());
        writeln!(out, "{layer:<7} {sum:>12.2}  {:>6.2}%  {cosine:>7.4}", zd * 100.0)?;
    }
    Ok(())
}
