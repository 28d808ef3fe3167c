//! What pruning did to each tensor.

use serde::Serialize;

use crate::plan::Left;

/// Report on a pruning and its error.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PruneReport {
    /// `magnitude`, `threshold`, `wanda`, `sparsegpt`, `fisher`, or a pattern such as `2:4`.
    pub method: String,
    /// Share of weights to set to zero, or `None` if the amount was not a share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// All pruned tensors together.
    pub total: PruneTotal,
    /// Each pruned tensor, in the order of the checkpoint.
    pub tensors: Vec<PrunedTensor>,
    /// Tensors that were left alone, and why.
    pub left: Vec<Left>,
}

/// Sums over all tensors that were pruned.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
#[non_exhaustive]
pub struct PruneTotal {
    /// Number of weights.
    pub elements: u64,
    /// Number of zeros before pruning.
    pub zeros_before: u64,
    /// Number of zeros after pruning.
    pub zeros: u64,
    /// Norm of the removed weights, relative to the norm of all weights.
    pub relative_error: f64,
}

/// Result of pruning one tensor.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PrunedTensor {
    /// Name of the tensor in the source.
    pub name: String,
    /// Number of weights.
    pub elements: u64,
    /// Number of zeros before pruning.
    pub zeros_before: u64,
    /// Number of zeros after pruning.
    pub zeros: u64,
    /// Norm of the removed weights, relative to the norm of the tensor.
    pub relative_error: f64,
    /// Cosine of the angle between the tensor before and now.
    pub cosine: f64,
    /// Norm of the difference of its outputs over the calibration data, relative to their norm,
    /// where what stays was updated to keep it small.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_error: Option<f64>,
}

/// Returns the cosine between a tensor and its kept weights, which are orthogonal to the removed
/// ones.
fn cosine(relative_error: f64) -> f64 {
    (1.0 - relative_error * relative_error).max(0.0).sqrt()
}

impl PruneTotal {
    /// Zeros now, of all weights.
    #[must_use]
    pub fn share(&self) -> f64 {
        ratio(self.zeros as f64, self.elements as f64)
    }
}

impl PrunedTensor {
    /// Zeros now, of all weights.
    #[must_use]
    pub fn share(&self) -> f64 {
        ratio(self.zeros as f64, self.elements as f64)
    }
}

/// Counts and sums for one tensor.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) elements: u64,
    pub(crate) zeros_before: u64,
    pub(crate) zeros: u64,
    /// Sum of squares before.
    pub(crate) energy: f64,
    /// Sum of squares of the removed weights.
    pub(crate) lost: f64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Self) {
        self.elements += other.elements;
        self.zeros_before += other.zeros_before;
        self.zeros += other.zeros;
        self.energy += other.energy;
        self.lost += other.lost;
    }

    pub(crate) fn total(&self) -> PruneTotal {
        let Self { elements, zeros_before, zeros, .. } = *self;
        PruneTotal { elements, zeros_before, zeros, relative_error: self.relative_error() }
    }

    pub(crate) fn of_tensor(&self, name: &str) -> PrunedTensor {
        let Self { elements, zeros_before, zeros, .. } = *self;
        let relative_error = self.relative_error();
        PrunedTensor {
            name: name.to_owned(),
            elements,
            zeros_before,
            zeros,
            relative_error,
            cosine: cosine(relative_error),
            output_error: None,
        }
    }

    fn relative_error(&self) -> f64 {
        ratio(self.lost, self.energy).sqrt()
    }
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}
