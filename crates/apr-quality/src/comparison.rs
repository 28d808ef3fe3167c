//! The outputs of two models on the same inputs (seed 001 §4.8.4).

use apr_core::{Error, Escaped};
use apr_graph::Meaning;
use apr_run::{RunError, RunResult};
use serde::Serialize;

use crate::distance::l2_and_cosine;
use crate::layers::{Drifts, LayerDrift};
use crate::perplexity::Done;
use crate::samples::Sample;
use crate::subject::{Output, Reading, Subject, floats};

/// How far outputs may be from each other.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Thresholds {
    /// Most of the mean relative L2 distance.
    pub mean_l2: f64,
    /// Most of the largest relative L2 distance.
    pub max_l2: f64,
    /// Least of the mean cosine similarity.
    pub cosine: f64,
}

impl Default for Thresholds {
    /// Those of seed 001 §4.8.4.
    fn default() -> Self {
        Self { mean_l2: 0.1, max_l2: 0.5, cosine: 0.99 }
    }
}

/// The outputs of two models.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ComparisonReport {
    /// Of each input and output.
    pub results: Vec<OutputDistance>,
    /// Mean over [`results`](Self::results).
    pub mean_l2: f64,
    /// Largest of [`results`](Self::results).
    pub max_l2: f64,
    /// Mean cosine similarity.
    pub cosine: f64,
    /// Share of positions, or of inputs, at which both models find the same token or label
    /// likeliest; `None` for models without logits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub same_top: Option<f64>,
    /// Of layers that both models have, in the order in which they run.
    pub layers: Vec<LayerDrift>,
    /// Layers that were not compared for each input, as what they end with exceeds a quarter of
    /// [`RunOptions::max_memory`](apr_run::RunOptions::max_memory).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub layers_left_out: Vec<String>,
    /// What was allowed.
    pub thresholds: Thresholds,
    /// Outputs that only one of the models has.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unmatched: Vec<String>,
    /// Whether all thresholds are met.
    pub passed: bool,
}

/// How far an output of B is from that of A.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct OutputDistance {
    /// The input.
    pub input: String,
    /// The output, by A's name.
    pub output: String,
    /// Norm of the difference, divided by A's norm.
    pub l2: f64,
    /// Cosine of the angle between the two.
    pub cosine: f64,
    /// Rows of logits, and for how many of them the largest is at the same place.
    #[serde(skip)]
    top: Option<[usize; 2]>,
}

/// Gives two models the same samples, one at a time: the same ids of tokens too, which are those of
/// the other's tokenizer where a model has none.
///
/// # Errors
/// [`RunError::Request`] where the models have no output in common, split a text into different
/// tokens, or outputs differ in shape; E001 where A makes numbers that are not finite; those of
/// [`Prepared::run`](apr_run::Prepared::run).
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
        return Err(RunError::request("the models have no output in common"));
    }

    let (mut results, mut drifts) = (Vec::new(), Drifts::default());
    for (at, sample) in samples.iter().enumerate() {
        check_tokens(a, b, sample)?;
        let (left, right) = (a.made(sample, reading)?, b.made(sample, reading)?);
        drifts.add(&left.layers, &right.layers)?;
        for [one, other] in &pairs {
            results.push(distance(sample, &left.outputs[*one], &right.outputs[*other])?);
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
    let tops = results.iter().filter_map(|one| one.top);
    let tops = tops.reduce(|sum, one| [sum[0] + one[0], sum[1] + one[1]]);
    let passed =
        mean_l2 <= thresholds.mean_l2 && max_l2 <= thresholds.max_l2 && cosine >= thresholds.cosine;
    let same_top = tops.map(|[rows, same]| share(same, rows));
    let (layers, layers_left_out) = drifts.report();
    Ok(ComparisonReport {
        results,
        mean_l2,
        max_l2,
        cosine,
        same_top,
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
        "the tokenizers differ: A and B split {} into different tokens, so that their outputs \
         can't be compared",
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

fn distance(sample: &Sample, left: &Output, right: &Output) -> RunResult<OutputDistance> {
    let shapes = [left.tensor.shape(), right.tensor.shape()];
    if shapes[0] != shapes[1] {
        return Err(RunError::request(format!(
            "output '{}' has shape {:?} in A and {:?} in B, so that they can't be compared",
            Escaped(&left.name),
            shapes[0],
            shapes[1]
        )));
    }
    let (a, b) = (floats(left)?, floats(right)?);
    if a.iter().any(|value| !value.is_finite()) {
        return Err(Error::format(format!(
            "output '{}' of A is NaN or infinite for {}, so that it is no reference",
            Escaped(&left.name),
            Escaped(&sample.name)
        ))
        .into());
    }
    let width = shapes[0].last().copied().unwrap_or(1).max(1);
    let top = (left.meaning == Meaning::Logits).then(|| agreement(&a, &b, width));
    let (l2, cosine) = l2_and_cosine(&a, &b);
    Ok(OutputDistance { input: sample.name.clone(), output: left.name.clone(), l2, cosine, top })
}

/// Rows, and for how many of them the largest number is at the same place.
fn agreement(a: &[f32], b: &[f32], width: usize) -> [usize; 2] {
    let top = |row: &[f32]| {
        let best = row.iter().enumerate().max_by(|left, right| left.1.total_cmp(right.1));
        best.map(|(at, _)| at)
    };
    let rows = a.chunks_exact(width).zip(b.chunks_exact(width));
    rows.fold([0, 0], |[rows, same], (a, b)| [rows + 1, same + usize::from(top(a) == top(b))])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_of_each_row_counts() {
        assert_eq!(agreement(&[1.0, 2.0, 5.0, 4.0], &[0.0, 1.0, 1.0, 2.0], 2), [2, 1]);
    }
}
