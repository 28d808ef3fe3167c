//! The outputs of two models on the same inputs (seed 001 §4.8.4).

use apr_core::{Error, Escaped};
use apr_graph::Meaning;
use apr_run::{RunError, RunResult};
use serde::Serialize;

use crate::distance::l2_and_cosine;
use crate::layers::{Drifts, LayerDrift};
use crate::perplexity::Done;
use crate::rows::{Agreement, centred, centred_cosine};
use crate::samples::Sample;
use crate::subject::{Output, Reading, Subject, floats};

/// Maximum distances between outputs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Thresholds {
    /// Maximum of the mean relative L2 distance.
    pub mean_l2: f64,
    /// Maximum of the largest relative L2 distance.
    pub max_l2: f64,
    /// Least of the mean cosine similarity.
    pub cosine: f64,
}

/// Maximum mean distance of a valid model, by the minimum number of bits per weight.
///
/// The limits are about one and a half times the worst result of trained models with 22 to 135
/// million weights, which rounding changes most (docs/commands/quality.md, "What rounding costs").
const OF_BITS: [(f64, f64); 6] =
    [(15.5, 0.02), (5.9, 0.1), (4.9, 0.25), (4.4, 0.5), (2.0, 0.7), (0.0, 1.0)];

impl Default for Thresholds {
    /// Returns the thresholds of seed 001 §4.8.4.
    fn default() -> Self {
        Self::at(0.1)
    }
}

impl Thresholds {
    /// Returns the thresholds for a maximum mean distance.
    ///
    /// The maximum of the largest distance is five times the mean. The cosine is that of two
    /// vectors of equal length at the mean distance, with twice the margin.
    ///
    /// ```
    /// use apr_quality::Thresholds;
    ///
    /// let seed = Thresholds { mean_l2: 0.1, max_l2: 0.5, cosine: 0.99 };
    /// assert_eq!(Thresholds::default(), seed);
    /// ```
    #[must_use]
    pub fn at(mean_l2: f64) -> Self {
        Self { mean_l2, max_l2: 5.0 * mean_l2, cosine: 1.0 - mean_l2.powi(2) }
    }

    /// Returns the thresholds for two models with `a` and `b` bits per weight.
    ///
    /// The narrower model determines the expected rounding error. The bits are those of the
    /// narrowest type that at least a twentieth of the weights has. Models of equal types, such as
    /// one and its fine-tuned copy, get at least the thresholds of seed 001, because nothing is
    /// rounded from one to the other. So do `bf16` and `f16`, whose roundings were not measured.
    #[must_use]
    pub fn of_bits(a: f64, b: f64) -> Self {
        let narrow = a.min(b);
        let found = OF_BITS.iter().find(|(least, _)| narrow >= *least);
        let mean = found.map_or(Self::default().mean_l2, |(_, mean)| *mean);
        let is_of_types = (a - b).abs() > 0.01;
        if is_of_types { Self::at(mean) } else { Self::at(mean.max(Self::default().mean_l2)) }
    }
}

/// The outputs of two models.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ComparisonReport {
    /// Distances of each input and output.
    pub results: Vec<OutputDistance>,
    /// Mean over [`results`](Self::results).
    pub mean_l2: f64,
    /// Largest of [`results`](Self::results).
    pub max_l2: f64,
    /// Mean cosine similarity.
    pub cosine: f64,
    /// Kullback-Leibler divergence of B from A in nats, mean over positions, or over inputs; `None`
    /// for models without logits of which a softmax makes probabilities, NaN if logits of B are
    /// NaN.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kl_divergence: Option<f64>,
    /// Share of positions, or of inputs, at which both models find the same token or label
    /// likeliest; `None` for models without logits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub same_top: Option<f64>,
    /// Share of A's five likeliest tokens or labels that are among B's five.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub same_top5: Option<f64>,
    /// Mean rank that B gives to the token or label that A finds likeliest, 1 for the first; `None`
    /// for models without logits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_rank: Option<f64>,
    /// Mean cosine similarity of hidden states, without the mean of their positions; `None` for
    /// models that are compared by other outputs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub centred_cosine: Option<f64>,
    /// Share of the inputs whose vector has the same nearest other input in both models; `None` for
    /// models that make no vector of a text, and for fewer than three inputs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub same_neighbours: Option<f64>,
    /// Drifts of the layers that both models have, in execution order.
    pub layers: Vec<LayerDrift>,
    /// Layers that were not compared for each input, as what they end with exceeds a quarter of
    /// [`RunOptions::max_memory`](apr_run::RunOptions::max_memory).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub layers_left_out: Vec<String>,
    /// Thresholds of the comparison.
    pub thresholds: Thresholds,
    /// Outputs that only one of the models has.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unmatched: Vec<String>,
    /// `true` if all thresholds are met.
    pub passed: bool,
}

/// Distance between an output of B and the same output of A.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct OutputDistance {
    /// Input that the output belongs to.
    pub input: String,
    /// The output, by A's name.
    pub output: String,
    /// Norm of the difference, divided by A's norm. Logits are taken without the mean of their row,
    /// which no softmax sees.
    pub l2: f64,
    /// Cosine of the angle between the two, of logits without the mean of their row.
    pub cosine: f64,
    /// Cosine of hidden states without the mean of their positions.
    #[serde(skip)]
    centred: Option<f64>,
    /// Agreement of the rows of logits.
    #[serde(skip)]
    rows: Option<Agreement>,
    /// `true` if a softmax turns the logits into probabilities.
    #[serde(skip)]
    is_softmax: bool,
}

/// Compares two models on the same samples, one at a time.
///
/// Both models get the same token ids. A model without a tokenizer uses the other model's
/// tokenizer.
///
/// # Errors
/// [`RunError::Request`] if the models have no output in common, split a text into different
/// tokens, or have outputs of different shapes; E001 if A computes numbers that are not finite; the
/// errors of [`Prepared::run`](apr_run::Prepared::run).
pub fn compare(
    a: &Subject<'_>,
    b: &Subject<'_>,
    samples: &[Sample],
    thresholds: Thresholds,
    done: &mut Done<'_>,
) -> RunResult<ComparisonReport> {
    check_inputs(a, b)?;
    let reading = Reading::shared(a, b);
    let outputs = [a, b].map(|model| model.outputs(reading.pooling));
    let pairs = paired(&outputs[0], &outputs[1]);
    if pairs.is_empty() {
        return Err(RunError::request("the models do not have a common output"));
    }

    let (mut results, mut drifts) = (Vec::new(), Drifts::default());
    let mut vectors = [Vec::new(), Vec::new()];
    for (at, sample) in samples.iter().enumerate() {
        check_tokens(a, b, sample)?;
        let (left, right) = (a.made(sample, reading)?, b.made(sample, reading)?);
        drifts.add(&left.layers, &right.layers)?;
        for [one, other] in &pairs {
            let (one, other) = (&left.outputs[*one], &right.outputs[*other]);
            results.push(distance(a, sample, one, other)?);
            if reading.pooling.is_some() && one.meaning == Meaning::HiddenStates {
                vectors[0].push(floats(one)?);
                vectors[1].push(floats(other)?);
            }
        }
        done(at + 1);
    }

    #[expect(clippy::cast_precision_loss, reason = "counts fit a double")]
    let share = |part: usize, whole: usize| part as f64 / whole.max(1) as f64;
    #[expect(clippy::cast_precision_loss, reason = "counts fit a double")]
    let mean = |of: fn(&OutputDistance) -> f64| {
        results.iter().map(of).sum::<f64>() / results.len().max(1) as f64
    };
    let (mean_l2, cosine) = (mean(|one| one.l2), mean(|one| one.cosine));
    let max_l2 = results.iter().map(|one| one.l2).fold(0.0, f64::max);
    let rows = results.iter().filter_map(|one| one.rows).reduce(|sum, one| sum.plus(&one));
    let is_softmax = results.iter().any(|one| one.is_softmax);
    let kl_divergence = rows.filter(|_| is_softmax).map(|rows| {
        #[expect(clippy::cast_precision_loss, reason = "counts fit a double")]
        let count = rows.rows.max(1) as f64;
        rows.divergence / count
    });
    let centred: Vec<f64> = results.iter().filter_map(|one| one.centred).collect();
    #[expect(clippy::cast_precision_loss, reason = "counts fit a double")]
    let centred_cosine =
        (!centred.is_empty()).then(|| centred.iter().sum::<f64>() / centred.len() as f64);
    #[expect(clippy::cast_precision_loss, reason = "counts fit a double")]
    let expected_rank = rows.map(|rows| rows.ranks as f64 / rows.rows.max(1) as f64);
    let passed = mean_l2 <= thresholds.mean_l2
        && max_l2 <= thresholds.max_l2
        && cosine >= thresholds.cosine
        && !kl_divergence.is_some_and(f64::is_nan);
    let (layers, layers_left_out) = drifts.report();
    Ok(ComparisonReport {
        results,
        mean_l2,
        max_l2,
        cosine,
        kl_divergence,
        same_top: rows.map(|rows| share(rows.same_top, rows.rows)),
        same_top5: rows.map(|rows| share(rows.kept, rows.keepable)),
        expected_rank,
        centred_cosine,
        same_neighbours: same_neighbours(&vectors[0], &vectors[1]),
        layers,
        layers_left_out,
        thresholds,
        unmatched: names_without_pair(&outputs, &pairs),
        passed,
    })
}

/// Refuses models of which one reads what the other does not.
fn check_inputs(a: &Subject<'_>, b: &Subject<'_>) -> RunResult<()> {
    let (ours, theirs) = (a.takes(), b.takes());
    let is_known = !ours.is_empty() && !theirs.is_empty();
    if is_known && !ours.iter().any(|word| theirs.contains(word)) {
        return Err(RunError::request(format!(
            "the models take different inputs: A has {} input, and B {} input",
            ours.join(" and "),
            theirs.join(" and ")
        )));
    }
    Ok(())
}

/// Refuses a text that two tokenizers split differently: outputs are compared token by token.
fn check_tokens(a: &Subject<'_>, b: &Subject<'_>, sample: &Sample) -> RunResult<()> {
    let (Some(text), Some(a), Some(b)) = (&sample.text, a.tokenizer(), b.tokenizer()) else {
        return Ok(());
    };
    if a.encode(text, true)? == b.encode(text, true)? {
        return Ok(());
    }
    Err(RunError::request(format!(
        "the tokenizers differ: A and B split {} into different tokens, so their outputs can't \
         be compared",
        Escaped(&sample.name)
    )))
}

/// Positions of outputs of the same name, or else of the same meaning.
fn paired(left: &[(String, Meaning)], right: &[(String, Meaning)]) -> Vec<[usize; 2]> {
    let pair = |(at, (name, meaning)): (usize, &(String, Meaning))| {
        let same_name = right.iter().position(|(other, _)| other == name);
        let same_meaning = || {
            let known = *meaning != Meaning::Unknown;
            let mut others = right.iter().enumerate();
            let mut next = || others.find(|(_, (_, other))| known && other == meaning);
            next().filter(|_| next().is_none()).map(|(other, _)| other)
        };
        Some([at, same_name.or_else(same_meaning)?])
    };
    left.iter().enumerate().filter_map(pair).collect()
}

fn names_without_pair(outputs: &[Vec<(String, Meaning)>; 2], pairs: &[[usize; 2]]) -> Vec<String> {
    let alone = |side: usize| {
        let is_paired = move |at: &usize| pairs.iter().any(|pair| pair[side] == *at);
        let names = outputs[side].iter().enumerate();
        names.filter(move |(at, _)| !is_paired(at)).map(|(_, (name, _))| name.clone())
    };
    alone(0).chain(alone(1)).collect()
}

fn distance(
    model: &Subject<'_>,
    sample: &Sample,
    left: &Output,
    right: &Output,
) -> RunResult<OutputDistance> {
    let shapes = [left.tensor.shape(), right.tensor.shape()];
    if shapes[0] != shapes[1] {
        return Err(RunError::request(format!(
            "output '{}' has shape {:?} in A and {:?} in B, so that they can't be compared",
            Escaped(&left.name),
            shapes[0],
            shapes[1]
        )));
    }
    let (mut a, mut b) = (floats(left)?, floats(right)?);
    if a.iter().any(|value| !value.is_finite()) {
        return Err(Error::format(format!(
            "output '{}' of A is NaN or infinite for {}, so it can't be a reference",
            Escaped(&left.name),
            Escaped(&sample.name)
        ))
        .into());
    }
    let width = shapes[0].last().copied().unwrap_or(1).max(1);
    let is_logits = left.meaning == Meaning::Logits;
    let is_softmax = is_logits && !model.runner().scores_each(width);
    let rows = is_logits.then(|| Agreement::of(&a, &b, width));
    if is_softmax {
        centred(&mut a, width);
        centred(&mut b, width);
    }
    let (l2, cosine) = l2_and_cosine(&a, &b);
    let is_states = matches!(left.meaning, Meaning::HiddenStates | Meaning::EncoderStates);
    let centred = if is_states { centred_cosine(&a, &b, width) } else { None };
    let (input, output) = (sample.name.clone(), left.name.clone());
    Ok(OutputDistance { input, output, l2, cosine, centred, rows, is_softmax })
}

/// The share of vectors whose nearest other one, by cosine, is the same in both models.
fn same_neighbours(a: &[Vec<f32>], b: &[Vec<f32>]) -> Option<f64> {
    let nearest = |vectors: &[Vec<f32>], at: usize| {
        let others = (0..vectors.len()).filter(|other| *other != at);
        let cosine = |other: &usize| l2_and_cosine(&vectors[at], &vectors[*other]).1;
        others.max_by(|one, other| cosine(one).total_cmp(&cosine(other)))
    };
    let same = (0..a.len()).filter(|at| nearest(a, *at) == nearest(b, *at)).count();
    #[expect(clippy::cast_precision_loss, reason = "counts fit a double")]
    (a.len() >= 3).then(|| same as f64 / a.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coarser_types_may_cost_more() {
        let mean = |a: f64, b: f64| Thresholds::of_bits(a, b).mean_l2;
        assert_eq!([mean(32.0, 16.0), mean(16.0, 8.5), mean(8.5, 6.5625)], [0.02, 0.1, 0.1]);
        assert_eq!([mean(5.5, 32.0), mean(16.0, 4.5), mean(32.0, 2.625)], [0.25, 0.5, 0.7]);
        // Nothing is rounded from one to the other.
        assert_eq!([mean(32.0, 32.0), mean(16.0, 16.0), mean(4.5, 4.5)], [0.1, 0.1, 0.5]);
        // From bf16 to f16.
        assert_eq!(Thresholds::of_bits(16.0, 16.0).mean_l2, 0.1);
        let four = Thresholds::of_bits(16.0, 4.5);
        assert_eq!((four.max_l2, four.cosine), (2.5, 0.75));
    }

    #[test]
    fn the_nearest_other_vector_counts() {
        let a = [vec![1.0, 0.0], vec![0.9, 0.1], vec![0.0, 1.0]];
        let b = [vec![1.0, 0.0], vec![0.1, 0.9], vec![0.0, 1.0]];
        assert_eq!(same_neighbours(&a, &a), Some(1.0));
        // The first has the second next to it in both; the second has the third in B.
        assert_eq!(same_neighbours(&a, &b), Some(2.0 / 3.0));
        assert_eq!(same_neighbours(&a[..2], &b[..2]), None);
    }
}
