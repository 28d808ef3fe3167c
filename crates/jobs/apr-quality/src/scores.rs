//! What a model says of the tokens of a window.

use std::borrow::Cow;

use apr_graph::Meaning;
use apr_infer::Tensor;
use apr_registry::Error;
use apr_run::{Prepared, RunError, RunResult};

use crate::subject::{completed, text_inputs};
use crate::windows::Window;

/// Logits of a window's positions, one row each.
pub(crate) struct Logits {
    tensor: Tensor,
    /// Row of the first position that is scored.
    first: usize,
    rows: usize,
    width: usize,
}

impl Logits {
    /// Runs a model over a window.
    ///
    /// Logits before the first scored position can be absent. In a small model with a large
    /// vocabulary, computing them would be most of the work.
    pub(crate) fn of(part: &Prepared<'_>, window: &Window) -> RunResult<Self> {
        let (context, scored) = window.input.split_at(window.first);
        match part.logits_behind(context, scored)? {
            Some(tensor) => Self::with(tensor, window, 0),
            None => Self::of_all(part, window),
        }
    }

    /// Runs a model over a window, for the logits of all positions.
    pub(crate) fn of_all(part: &Prepared<'_>, window: &Window) -> RunResult<Self> {
        Self::with(logits(part, &window.input, None)?, window, window.first)
    }

    /// Runs a decoder over a window, with these states of its encoder.
    pub(crate) fn behind(part: &Prepared<'_>, window: &Window, states: &Tensor) -> RunResult<Self> {
        Self::with(logits(part, &window.input, Some(states))?, window, window.first)
    }

    fn with(tensor: Tensor, window: &Window, first: usize) -> RunResult<Self> {
        let (len, rows) = (window.input.len() + first - window.first, window.targets.len());
        let width = tensor.shape().last().copied().unwrap_or_default();
        if tensor.shape() != [1, len, width] || width == 0 {
            return Err(Error::version(format!(
                "perplexity requires logits of shape [1, {len}, vocabulary], found {:?}",
                tensor.shape()
            ))
            .into());
        }
        Ok(Self { tensor, first, rows, width })
    }

    /// Bytes of all of them.
    pub(crate) fn bytes(&self) -> u64 {
        self.tensor.bytes()
    }

    /// Tokens of the vocabulary.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// All as floats, of which [`rows`](Self::rows) takes what is scored.
    pub(crate) fn floats(&self) -> RunResult<Cow<'_, [f32]>> {
        Ok(self.tensor.floats()?)
    }

    /// A scored row, counted as the window's targets are.
    pub(crate) fn row<'f>(&self, floats: &'f [f32], at: usize) -> LogProbabilities<'f> {
        let start = (self.first + at) * self.width;
        LogProbabilities::of(&floats[start..start + self.width])
    }

    /// All rows, whether they are scored or not.
    pub(crate) fn all_rows<'f>(
        &self,
        floats: &'f [f32],
    ) -> impl Iterator<Item = LogProbabilities<'f>> + use<'f> {
        floats.chunks_exact(self.width).map(LogProbabilities::of)
    }

    /// Returns `true` if a row is scored.
    pub(crate) fn is_scored(&self, row: usize) -> bool {
        (self.first..self.first + self.rows).contains(&row)
    }
}

/// All logits of a text.
fn logits(part: &Prepared<'_>, ids: &[i64], states: Option<&Tensor>) -> RunResult<Tensor> {
    let body = &part.graph().body;
    let mut outputs = body.outputs.iter().map(|id| body.value(*id));
    let output = outputs.find(|value| value.meaning == Meaning::Logits).ok_or_else(|| {
        Error::version("perplexity requires a language model that returns logits")
    })?;
    let inputs = completed(part, text_inputs(part, ids, states)?)?;
    let outcome = part.run(inputs, &[&output.name])?;
    let value = outcome.outputs.into_iter().next();
    let value = value.ok_or_else(|| Error::format("the graph has no output"))?;
    Ok(value.tensor()?.clone())
}

/// Natural logarithms of the probabilities of all tokens.
pub(crate) struct LogProbabilities<'f> {
    logits: &'f [f32],
    /// Divisor of the logits.
    temperature: f64,
    /// Number that is subtracted from a logit after the division.
    norm: f64,
    /// Index of the likeliest.
    pub(crate) top: usize,
}

impl<'f> LogProbabilities<'f> {
    pub(crate) fn of(logits: &'f [f32]) -> Self {
        let top = logits.iter().enumerate().max_by(|left, right| left.1.total_cmp(right.1));
        let top = top.map_or(0, |(at, _)| at);
        Self { logits, temperature: 1.0, norm: 0.0, top }.softened(1.0)
    }

    /// Returns the log-probabilities of the same logits, divided by a temperature.
    pub(crate) fn softened(&self, temperature: f64) -> Self {
        let Self { logits, top, .. } = *self;
        let scaled = |logit: &f32| f64::from(*logit) / temperature;
        let highest = logits.get(top).map_or(0.0, scaled);
        let sum: f64 = logits.iter().map(|logit| (scaled(logit) - highest).exp()).sum();
        Self { logits, temperature, norm: highest + sum.ln(), top }
    }

    /// Returns the log-probability of one token, or NaN if the model lacks the token or gives no
    /// numbers.
    pub(crate) fn get(&self, token: i64) -> f64 {
        let at = usize::try_from(token).ok();
        at.and_then(|at| self.logits.get(at)).map_or(f64::NAN, |it| self.of_logit(*it))
    }

    fn of_logit(&self, logit: f32) -> f64 {
        f64::from(logit) / self.temperature - self.norm
    }

    /// Iterates over the log-probabilities of all tokens.
    pub(crate) fn iter(&self) -> impl Iterator<Item = f64> + '_ {
        self.logits.iter().map(|logit| self.of_logit(*logit))
    }
}

/// Returns an error for the first window in which a model gives NaN or infinite logits.
pub(crate) fn no_number(name: &str, chunk: usize) -> RunError {
    RunError::from(Error::format(format!(
        "the logits of {name} in window {} are NaN or infinite",
        chunk + 1
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_sum_to_one_and_keep_the_order() {
        let row = LogProbabilities::of(&[1.0, 3.0, 2.0]);
        let sum: f64 = row.iter().map(f64::exp).sum();
        assert!((sum - 1.0).abs() < 1e-12);
        // scipy.special.log_softmax([1, 3, 2])[2] == -1.4076059644443804
        assert!((row.get(2) + 1.407_605_964_444_380_4).abs() < 1e-12);
        assert_eq!(row.top, 1);
        // scipy.special.log_softmax([0.5, 1.5, 1])[2] == -1.1802696706417346
        assert!((row.softened(2.0).get(2) + 1.180_269_670_641_734_6).abs() < 1e-12);
        assert!(row.get(3).is_nan() && row.get(-1).is_nan());
    }
}
