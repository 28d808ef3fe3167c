//! What becomes of scores: probabilities, second classes, the class that wins.

use apr_core::{Error, Result};
use apr_graph::ElementType;

use crate::call::Call;
use crate::{Tensor, Value};

/// Transformation of the scores of a row.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Transform {
    None,
    Softmax,
    Logistic,
    SoftmaxZero,
    Probit,
}

impl Transform {
    pub(super) fn of(call: &Call<'_>) -> Result<Self> {
        let name = call.text("post_transform", "NONE");
        Ok(match name.as_str() {
            "NONE" => Self::None,
            "SOFTMAX" => Self::Softmax,
            "LOGISTIC" => Self::Logistic,
            "SOFTMAX_ZERO" => Self::SoftmaxZero,
            "PROBIT" => Self::Probit,
            _ => return Err(Error::format(format!("unknown post_transform '{name}'"))),
        })
    }

    /// Returns the transformation with this number in version 5.
    pub(super) fn numbered(number: i64) -> Result<Self> {
        let all = [Self::None, Self::Softmax, Self::Logistic, Self::SoftmaxZero, Self::Probit];
        let found = usize::try_from(number).ok().and_then(|at| all.get(at));
        found.copied().ok_or_else(|| Error::format(format!("unknown post_transform {number}")))
    }

    pub(super) fn apply(self, scores: &mut [f64]) {
        match self {
            Self::None => {}
            Self::Logistic => scores.iter_mut().for_each(|score| *score = logistic(*score)),
            Self::Probit => scores.iter_mut().for_each(|score| *score = probit(*score)),
            Self::Softmax | Self::SoftmaxZero => softmax(scores, self == Self::SoftmaxZero),
        }
    }

    /// The scores of two classes, of which one has a score.
    pub(super) fn both(self, score: f64, second: Second) -> Vec<f64> {
        let first = match (self, second) {
            (_, Second::None) => return vec![score],
            (Self::Logistic, _) | (_, Second::Opposite) => -score,
            (_, Second::Rest) => 1.0 - score,
        };
        match self {
            Self::Logistic | Self::Probit => {
                let mut both = vec![first, score];
                self.apply(&mut both);
                both
            }
            _ => vec![first, score],
        }
    }

    /// The number of a regression with one target. As in ONNX Runtime, of one number alone there
    /// are no shares, and it is not made one.
    pub(super) fn of_one(self, score: f64) -> f64 {
        if self == Self::Probit { probit(score) } else { score }
    }
}

/// Relation of a second class's score to the score of the first.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Second {
    /// No second score.
    None,
    /// 1 minus the first score.
    Rest,
    /// Negative of the first score.
    Opposite,
}

pub(super) fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + libm::exp(-x))
}

/// The inverse of the normal distribution's cumulative function, by Winitzki's approximation of the
/// inverse error function (2008), which ONNX's reference has too.
fn probit(x: f64) -> f64 {
    const A: f64 = 0.147;

    let x = 2.0 * x - 1.0;
    let log = libm::log((1.0 - x) * (1.0 + x));
    let v = 2.0 / (std::f64::consts::PI * A) + 0.5 * log;
    std::f64::consts::SQRT_2 * (-v + (v * v - log / A).sqrt()).sqrt().copysign(x)
}

/// Computes the softmax of a row. If `keeps_zeros`, scores of 0 are left out of it.
fn softmax(scores: &mut [f64], keeps_zeros: bool) {
    /// Magnitude up to which a score counts as 0, as in ONNX Runtime.
    const ZERO: f64 = 1e-7;

    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut sum = 0.0;
    for score in scores.iter_mut() {
        if keeps_zeros && score.abs() <= ZERO {
            *score *= libm::exp(-largest);
        } else {
            *score = libm::exp(*score - largest);
            sum += *score;
        }
    }
    scores.iter_mut().for_each(|score| *score /= sum);
}

/// Returns the position of the largest score, the first of equal ones, or 0 if no score is a
/// number.
pub(super) fn largest(scores: &[f64]) -> usize {
    let mut best = 0;
    for (at, score) in scores.iter().enumerate() {
        if *score > scores[best] || scores[best].is_nan() {
            best = at;
        }
    }
    best
}

/// Rows of scores, all of one length.
pub(super) fn tensor(call: &Call<'_>, rows: usize, scores: Vec<f64>) -> Result<Value> {
    let shape = vec![rows, scores.len().checked_div(rows).unwrap_or(0)];
    call.room(&shape, ElementType::F32)?;
    Ok(Tensor::new(shape, scores.into_iter().map(|score| score as f32).collect())?.into())
}
