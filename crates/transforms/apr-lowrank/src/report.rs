//! What factorizing, and rounding by inputs, did to each tensor.

use apr_quantize::Quality;
use serde::Serialize;

/// Report on a factorization and its error.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct FactorReport {
    /// `svd` or `lora`.
    pub method: String,
    /// Requested rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u64>,
    /// Requested share of the energy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub energy: Option<f64>,
    /// All factorized tensors together.
    pub total: FactorTotal,
    /// Each factorized tensor, in the order of the checkpoint.
    pub tensors: Vec<FactorizedTensor>,
    /// Tensors that were left alone, and why.
    pub left: Vec<Left>,
}

/// Sums over all tensors that were factorized.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
#[non_exhaustive]
pub struct FactorTotal {
    /// Bytes of the dense tensors, in the dtype of their factors.
    pub bytes_before: u64,
    /// Bytes of the factors.
    pub bytes: u64,
    /// Norm of the difference, relative to the norm of the weights.
    pub relative_error: f64,
}

/// Result of factorizing one tensor.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct FactorizedTensor {
    /// Name of the tensor in the source.
    pub name: String,
    /// Rows and columns.
    pub shape: [u64; 2],
    /// Columns of the first factor, and rows of the second.
    pub rank: u64,
    /// Bytes of the dense tensor, in the dtype of its factors.
    pub bytes_before: u64,
    /// Bytes of the factors.
    pub bytes: u64,
    /// Share of the sum of squared singular values that was kept.
    pub energy: f64,
    /// Frobenius norm of the difference, relative to the norm of the tensor.
    ///
    /// It is measured on the stored factors, which are rounded.
    pub relative_error: f64,
}

/// A tensor that was left alone, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Left {
    /// Name of the tensor.
    pub name: String,
    /// Reason why the tensor is left unchanged.
    pub why: String,
}

/// Sums of squares of a tensor and of the difference to its approximation.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Loss {
    pub(crate) energy: f64,
    pub(crate) lost: f64,
}

impl Loss {
    pub(crate) fn add(&mut self, other: Self) {
        self.energy += other.energy;
        self.lost += other.lost;
    }

    pub(crate) fn relative_error(self) -> f64 {
        if self.energy > 0.0 { (self.lost / self.energy).sqrt() } else { 0.0 }
    }
}

/// Report on rounding by inputs.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct RoundingReport {
    /// Name of the method, `gptq`.
    pub method: &'static str,
    /// Rows of inputs that the first matrix was measured on.
    pub rows: u64,
    /// Each matrix, in the order of the checkpoint.
    pub tensors: Vec<RoundedTensor>,
    /// Weights that are rounded to the nearest code, and why.
    pub left: Vec<Left>,
}

/// Result of rounding one matrix by inputs.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct RoundedTensor {
    /// Name of the tensor in the source.
    pub name: String,
    /// Quantization error of the matrix.
    #[serde(flatten)]
    pub quality: Quality,
    /// Norm of the difference of its outputs over the calibration data, relative to their norm.
    pub output_error: f64,
}
