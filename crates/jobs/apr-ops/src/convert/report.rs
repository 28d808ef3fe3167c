//! What a conversion did, or would do.

use apr_core::{FileInfo, Layout, counted};
use apr_quantize::{Measured, QuantizationReport};
use apr_registry::{DType, Format, Loss};
use apr_tensor::cast::CastCounts;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::inline::ValidationReport;

/// A tensor's way through a conversion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ConvertedTensor {
    /// Name in the target.
    pub name: String,
    /// Dtype in the source.
    pub from: DType,
    /// Dtype in the target.
    pub to: DType,
    /// Bytes in the source.
    pub bytes_before: u64,
    /// Bytes in the target.
    pub bytes_after: u64,
    /// Reason for this dtype, if a rule chose it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// `true` if the conversion changed the dtype; `false` if its input was read in the dtype of
    /// the target, such as the codes of a layout.
    #[serde(skip)]
    pub is_cast: bool,
}

/// Result of a conversion, or of a dry run.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ConvertReport {
    /// Format of the source.
    pub format: &'static Format,
    /// Files written, or to be written, with their lengths in bytes.
    pub files: Vec<FileInfo>,
    /// Folders that were made for them, from the outermost on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub made_folders: Vec<String>,
    /// The tensors, in the order they are written.
    pub tensors: Vec<ConvertedTensor>,
    /// Tensors that are another one's bytes, and not written again.
    pub tied: usize,
    /// Elements of the tensors that are written.
    pub elements: u64,
    /// Bytes of tensors read.
    pub bytes_in: u64,
    /// Bytes of all files written.
    pub bytes_out: u64,
    /// Rounding of casts, in elements.
    pub rounding: Rounding,
    /// Quantization error, if any tensor was quantized.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantization: Option<QuantizationReport>,
    /// Data that the target can't store.
    pub losses: Vec<Loss>,
    /// Validation of the tensors' values, if it was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation: Option<ValidationReport>,
    /// Warnings about the source.
    pub warnings: Vec<String>,
    /// Facts learnt about the values.
    ///
    /// The parts of a job pass them on to the step that assembles the output.
    #[serde(skip)]
    pub learnt: Learnt,
}

/// Facts that a pass learns about the values.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct Learnt {
    /// Data that the target can't store, found during the pass.
    pub losses: Vec<Loss>,
    /// Violations in tensors that were written anyway.
    pub violations: Vec<Value>,
    /// Quantization error of each tensor.
    pub measured: Vec<Measured>,
}

/// Number of elements that a cast changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Rounding {
    /// Number of values that are not representable and were rounded to the nearest value.
    pub inexact: u64,
    /// Too small, became zero.
    pub flushed: u64,
    /// Too large, became infinite.
    pub overflowed: u64,
}

impl ConvertReport {
    /// Takes over the final sizes, which are known only after compression.
    pub(super) fn measure(&mut self, layout: &Layout, mismatches: u64) {
        self.tensors
            .iter_mut()
            .zip(&layout.tensors)
            .for_each(|(tensor, planned)| tensor.bytes_after = planned.len);
        self.files.clone_from(&layout.files);
        self.bytes_out = layout.total_len();
        if mismatches > 0 {
            let blocks = counted(mismatches, "compressed block");
            let message =
                format!("{blocks} did not decode to the same bytes, and were stored uncompressed");
            self.warnings.push(message);
        }
    }

    /// Bits that an element of the tensors takes in the target, scales included; none without
    /// elements.
    #[must_use]
    pub fn bits_per_weight(&self) -> Option<f64> {
        let bytes: u64 = self.tensors.iter().map(|tensor| tensor.bytes_after).sum();
        (self.elements > 0).then(|| bytes as f64 * 8.0 / self.elements as f64)
    }
}

impl Rounding {
    /// Adds the numbers of another part.
    pub(crate) fn merge(&mut self, other: Self) {
        self.inexact = self.inexact.saturating_add(other.inexact);
        self.flushed = self.flushed.saturating_add(other.flushed);
        self.overflowed = self.overflowed.saturating_add(other.overflowed);
    }

    pub(super) fn add(&mut self, counts: CastCounts) {
        self.inexact += counts.inexact;
        self.flushed += counts.flushed;
        self.overflowed += counts.overflowed;
    }
}
