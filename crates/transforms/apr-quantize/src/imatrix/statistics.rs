//! Statistics of an importance matrix, as `llama-imatrix --show-statistics` computes them.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{ColumnSums, ImatrixSums};

/// Mean squares up to this count as 0.
const INACTIVE: f64 = 1e-5;

/// Statistics of the mean squares of the inputs of a weight.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct WeightStatistics {
    /// GGUF name of the weight.
    pub weight: String,
    /// Number of mean squares: a column each, for each expert with inputs.
    pub elements: u64,
    /// Sum of the mean squares.
    pub sum: f64,
    /// Smallest mean square.
    pub min: f64,
    /// Largest mean square.
    pub max: f64,
    /// Mean of the mean squares.
    pub mean: f64,
    /// Standard deviation of the mean squares.
    pub deviation: f64,
    /// Share of the mean squares above 1e-5.
    pub active: f64,
    /// Entropy of their distribution over the columns, in bits.
    #[serde(rename = "entropy_bits")]
    pub entropy: f64,
    /// The entropy as a share of the largest that is possible.
    pub normalized_entropy: f64,
    /// Share of the mean squares more than a standard deviation above the mean.
    pub zd: f64,
    /// Cosine similarity to the same weight of the layer before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cosine: Option<f64>,
}

impl ImatrixSums {
    /// Returns the statistics of each weight that had inputs, by the name within the layer, then by
    /// the sum, largest first.
    #[must_use]
    pub fn statistics(&self) -> Vec<WeightStatistics> {
        let measured = self.entries.iter();
        let mut found: Vec<WeightStatistics> = measured
            .filter_map(|(name, entry)| {
                let cosine = before(name).and_then(|name| self.entries.get(&name));
                let cosine = cosine.and_then(|before| cosine_of(&entry.sums, &before.sums));
                Some(WeightStatistics { cosine, ..statistics(name, entry)? })
            })
            .collect();
        found.sort_by(|a, b| {
            within_layer(&a.weight).cmp(within_layer(&b.weight)).then(b.sum.total_cmp(&a.sum))
        });
        found
    }
}

/// Returns the statistics of a weight, or `None` if it had no inputs.
#[expect(clippy::cast_precision_loss, reason = "counts of rows and columns")]
fn statistics(name: &str, entry: &ColumnSums) -> Option<WeightStatistics> {
    let rows = entry.sums.chunks(entry.columns.max(1)).zip(&entry.counts);
    let means: Vec<f64> = rows
        .filter(|(_, count)| **count > 0)
        .flat_map(|(sums, count)| sums.iter().map(|sum| sum / *count as f64))
        .collect();
    let count = means.len() as f64;
    let sum: f64 = means.iter().sum();
    let mean = sum / count;
    let variance = means.iter().map(|value| value * value).sum::<f64>() / count - mean * mean;
    let deviation = variance.max(0.0).sqrt();
    let share =
        |is: &dyn Fn(f64) -> bool| means.iter().filter(|value| is(**value)).count() as f64 / count;
    let shares = means.iter().map(|value| value / sum).filter(|share| *share > 0.0);
    let entropy: f64 = shares.map(|share| -share * share.log2()).sum();
    let most = count.log2();
    (!means.is_empty()).then(|| WeightStatistics {
        weight: name.to_owned(),
        elements: means.len() as u64,
        sum,
        min: means.iter().copied().fold(f64::INFINITY, f64::min),
        max: means.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        mean,
        deviation,
        active: share(&|value| value > INACTIVE),
        entropy,
        normalized_entropy: if most > 0.0 { entropy / most } else { 0.0 },
        zd: if deviation > 0.0 { share(&|value| (value - mean) / deviation > 1.0) } else { 0.0 },
        cosine: None,
    })
}

/// Returns the name of the same weight in the layer before.
fn before(name: &str) -> Option<String> {
    let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    let layer: u64 = layer.parse().ok()?;
    Some(format!("blk.{}.{rest}", layer.checked_sub(1)?))
}

fn within_layer(name: &str) -> &str {
    name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')).map_or(name, |(_, rest)| rest)
}

fn cosine_of(one: &[f64], other: &[f64]) -> Option<f64> {
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let norms = (product(one, one) * product(other, other)).sqrt();
    (one.len() == other.len() && norms > 0.0).then(|| product(one, other) / norms)
}

/// Weights of a layer, and averages over their elements.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LayerStatistics {
    /// Number of the layer, or `None` for weights outside of layers.
    pub layer: Option<u64>,
    /// Average of the sums.
    pub sum: f64,
    /// Average of the shares above a standard deviation.
    pub zd: f64,
    /// Average of the cosine similarities; 0 for the first layer.
    pub cosine: f64,
}

/// Returns the averages of each layer, weighted by the number of elements.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "counts of elements")]
pub fn layer_statistics(weights: &[WeightStatistics]) -> Vec<LayerStatistics> {
    let mut layers: BTreeMap<Option<u64>, Vec<&WeightStatistics>> = BTreeMap::new();
    for weight in weights {
        let layer = weight.weight.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
        let layer = layer.and_then(|(layer, _)| layer.parse().ok());
        layers.entry(layer).or_default().push(weight);
    }
    let average = |weights: &[&WeightStatistics], of: &dyn Fn(&WeightStatistics) -> f64| {
        let elements = weights.iter().map(|weight| weight.elements as f64).sum::<f64>();
        weights.iter().map(|weight| weight.elements as f64 * of(weight)).sum::<f64>() / elements
    };
    let layers = layers.into_iter().map(|(layer, weights)| LayerStatistics {
        layer,
        sum: average(&weights, &|weight| weight.sum),
        zd: average(&weights, &|weight| weight.zd),
        cosine: average(&weights, &|weight| weight.cosine.unwrap_or_default()),
    });
    layers.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experts_without_inputs_do_not_count() {
        let mut experts = ColumnSums::new(2, 2);
        experts.add(1, &[1.0, 3.0]).expect("a row");
        let mut sums = ImatrixSums::new("a.txt", 2);
        sums.entries.insert("blk.0.ffn_up_exps.weight".into(), experts);
        sums.entries.insert("blk.1.ffn_up_exps.weight".into(), ColumnSums::new(2, 2));
        let found = sums.statistics();
        assert_eq!((found.len(), found[0].elements), (1, 2));
        assert_eq!((found[0].sum, found[0].min, found[0].max), (10.0, 1.0, 9.0));
        assert_eq!(layer_statistics(&found)[0].layer, Some(0));
    }
}
