//! What quantization cost: errors per tensor, per dtype and in total, and the gate that they can be
//! held against.

use apr_registry::{DType, Escaped};
use apr_tensor::drift::Drift;
use serde::Serialize;

use crate::layout::Layout;

/// Tensors that the report names as the worst.
const WORST: usize = 10;

/// Quantization error of a set of values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Quality {
    /// Root of the mean squared error.
    pub rmse: f64,
    /// L2 norm of the error divided by the L2 norm of the values (0 if both are zero).
    pub relative_error: f64,
    /// Largest absolute error.
    pub max_error: f64,
    /// Cosine of the angle between the values before and after (1 if both are zero).
    pub cosine: f64,
}

impl From<&Drift> for Quality {
    fn from(drift: &Drift) -> Self {
        Self {
            rmse: drift.rmse().unwrap_or_default(),
            relative_error: drift.relative_error().unwrap_or_default(),
            max_error: drift.max_error(),
            // Zeros are turned by nothing but what is not zero any more, or was none before.
            cosine: drift.cosine().unwrap_or(if drift.max_error() == 0.0 { 1.0 } else { 0.0 }),
        }
    }
}

/// A quantized tensor.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TensorQuality {
    /// Name in the target.
    pub name: String,
    /// New dtype of the tensor.
    pub dtype: DType,
    /// Layout of its codes and scales, such as `w4a16`; `None` for blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layout: Option<&'static str>,
    /// Quantization error of the tensor.
    #[serde(flatten)]
    pub quality: Quality,
}

/// All tensors of one new type.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TypeQuality {
    /// New dtype of the tensors.
    pub dtype: DType,
    /// Layout of their codes and scales, which no dtype names; `None` for blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layout: Option<LayoutOfWeights>,
    /// Tensors that became it.
    pub tensor_count: usize,
    /// Number of elements of these tensors.
    pub elements: u64,
    /// Bits per element, scales included.
    pub bits_per_weight: f64,
    /// Quantization error of the tensors with this dtype.
    #[serde(flatten)]
    pub quality: Quality,
}

/// Quantization errors of a model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct QuantizationReport {
    /// Each new type, the one with most elements first.
    pub by_type: Vec<TypeQuality>,
    /// All quantized tensors together.
    pub total: Quality,
    /// Warning that tensors have an error above 5 %; `None` if no tensor does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub degradation: Option<Degradation>,
    /// The tensors with the largest relative errors, at most ten, the worst first.
    pub worst: Vec<TensorQuality>,
    /// Every quantized tensor, in the order they are written.
    pub tensors: Vec<TensorQuality>,
}

/// Layout of the codes and scales of quantized weights.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LayoutOfWeights {
    /// Name of the layout, such as `w4a16`.
    pub name: &'static str,
    /// Columns with one scale; `None` if a scale covers a whole row.
    pub group_size: Option<u64>,
}

impl LayoutOfWeights {
    pub(crate) const fn of(layout: Layout) -> Self {
        Self { name: layout.name(), group_size: layout.group() }
    }
}

impl QuantizationReport {
    /// Returns a warning for each tensor with an error above [`LOST_ABOVE`], up to ten.
    pub fn lost(&self) -> impl Iterator<Item = String> {
        let lost = self.worst.iter().filter(|one| exceeds(one.quality.relative_error, LOST_ABOVE));
        lost.map(|TensorQuality { name, quality, .. }| {
            let (error, limit) = (100.0 * quality.relative_error, 100.0 * LOST_ABOVE);
            let name = Escaped::short(name);
            format!("tensor {name}: relative quantization error {error:.1} %, above {limit:.0} %")
        })
    }
}

/// Relative error from which on a tensor has lost its values.
pub const LOST_ABOVE: f64 = 0.5;

/// Relative error from which on a quantization is a degradation.
pub const DEGRADED_ABOVE: f64 = 0.05;

/// Warning that relative errors exceed [`DEGRADED_ABOVE`].
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Degradation {
    /// Relative error of all quantized tensors together.
    pub relative_error: f64,
    /// Quantized tensors with a larger relative error than the limit.
    pub tensor_count: usize,
    /// Quantized tensors.
    pub of: usize,
    /// Limit of the relative error.
    pub limit: f64,
}

impl std::fmt::Display for Degradation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { relative_error, tensor_count: tensors, of, limit } = self;
        let (error, limit) = (100.0 * relative_error, 100.0 * limit);
        write!(
            f,
            "degradation: relative quantization error {error:.1} %, above {limit:.0} % in \
             {tensors} of {of} tensors"
        )
    }
}

impl Degradation {
    fn of(total: &Quality, tensors: &[TensorQuality]) -> Option<Self> {
        let is_degraded =
            |tensor: &&TensorQuality| exceeds(tensor.quality.relative_error, DEGRADED_ABOVE);
        let (relative_error, of) = (total.relative_error, tensors.len());
        let tensors = tensors.iter().filter(is_degraded).count();
        (tensors > 0).then_some(Self {
            relative_error,
            tensor_count: tensors,
            of,
            limit: DEGRADED_ABOVE,
        })
    }
}

/// A tensor that was quantized, and the sums over its values.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// Name in the target.
    pub name: String,
    /// New dtype of the tensor.
    pub dtype: DType,
    /// Layout of its codes and scales; `None` for blocks.
    pub layout: Option<Layout>,
    /// Size in the new dtype, in bytes.
    pub bytes: u64,
    /// Quantization error of the tensor.
    pub drift: Drift,
}

/// Collects errors while tensors are quantized.
#[derive(Debug, Default)]
pub struct QualityLog {
    tensors: Vec<Measured>,
}

/// Sums over the tensors of one new type.
#[derive(Default)]
struct TypeSums {
    tensors: usize,
    elements: u64,
    bytes: u64,
    drift: Drift,
}

impl QualityLog {
    /// A tensor that is done.
    pub fn add(&mut self, name: &str, dtype: DType, bytes: u64, drift: &Drift) {
        let (name, layout) = (name.to_owned(), None);
        self.tensors.push(Measured { name, dtype, layout, bytes, drift: *drift });
    }

    /// Adds a weight in codes and scales.
    pub(crate) fn add_laid(&mut self, name: &str, layout: Layout, bytes: u64, drift: &Drift) {
        let (name, dtype) = (name.to_owned(), layout.reported());
        self.tensors.push(Measured { name, dtype, layout: Some(layout), bytes, drift: *drift });
    }

    /// Returns the tensors measured so far, in order.
    #[must_use]
    pub fn measured(&self) -> &[Measured] {
        &self.tensors
    }

    /// Returns the report, or `None` if no tensor was quantized.
    ///
    /// The report depends only on the order of the tensors, not on the logs that recorded them.
    #[must_use]
    pub fn finish(self) -> Option<QuantizationReport> {
        if self.tensors.is_empty() {
            return None;
        }

        let mut total = Drift::default();
        let mut types: Vec<((DType, Option<Layout>), TypeSums)> = Vec::new();
        let mut tensors = Vec::with_capacity(self.tensors.len());
        for Measured { name, dtype, layout, bytes, drift } in self.tensors {
            total.merge(&drift);
            // The list keeps the order of types, which decides among those of as many elements.
            let of = (dtype, layout);
            let known = types.iter().position(|entry| entry.0 == of).unwrap_or_else(|| {
                types.push((of, TypeSums::default()));
                types.len() - 1
            });
            let sums = &mut types[known].1;
            sums.tensors += 1;
            sums.elements += drift.count;
            sums.bytes += bytes;
            sums.drift.merge(&drift);
            let layout = layout.map(Layout::name);
            tensors.push(TensorQuality { name, dtype, layout, quality: (&drift).into() });
        }

        let of_type = |((dtype, layout), sums): ((DType, Option<Layout>), TypeSums)| TypeQuality {
            dtype,
            layout: layout.map(LayoutOfWeights::of),
            tensor_count: sums.tensors,
            elements: sums.elements,
            bits_per_weight: sums.bytes as f64 * 8.0 / sums.elements.max(1) as f64,
            quality: Quality::from(&sums.drift),
        };

        let mut by_type: Vec<TypeQuality> = types.into_iter().map(of_type).collect();
        by_type.sort_by_key(|entry| std::cmp::Reverse(entry.elements));
        let mut worst: Vec<&TensorQuality> = tensors.iter().collect();
        worst.sort_by(|a, b| b.quality.relative_error.total_cmp(&a.quality.relative_error));
        let worst = worst.into_iter().take(WORST).cloned().collect();
        let total = Quality::from(&total);
        let degradation = Degradation::of(&total, &tensors);
        Some(QuantizationReport { by_type, total, degradation, worst, tensors })
    }
}

impl Extend<Measured> for QualityLog {
    fn extend<T: IntoIterator<Item = Measured>>(&mut self, tensors: T) {
        self.tensors.extend(tensors);
    }
}

/// Limits of the error between a source and its output (`--quality-check`, `--max-drift`).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QualityGate {
    /// Largest relative error of all tensors that changed together.
    pub max_drift: f64,
    /// Largest relative error of a single tensor.
    pub max_tensor_drift: f64,
    /// Least cosine of all tensors that changed together.
    pub min_cosine: f64,
}

impl Default for QualityGate {
    fn default() -> Self {
        Self { max_drift: 0.1, max_tensor_drift: 0.5, min_cosine: 0.99 }
    }
}

impl QualityGate {
    /// Creates a gate with this limit for all tensors together, and five times the limit for each
    /// tensor.
    #[must_use]
    pub fn with_max_drift(max_drift: f64) -> Self {
        Self { max_drift, max_tensor_drift: 5.0 * max_drift, min_cosine: -1.0 }
    }

    /// Returns the exceeded limits; empty if all limits are met.
    ///
    /// `total` covers all changed tensors together. `tensors` has the name and the error of each
    /// one.
    #[must_use]
    pub fn failures(
        &self,
        total: &Quality,
        tensors: impl IntoIterator<Item = (String, f64)>,
    ) -> Vec<String> {
        let mut failures = Vec::new();
        if exceeds(total.relative_error, self.max_drift) {
            failures
                .push(format!("L2 drift: {:.4} (max: {})", total.relative_error, self.max_drift));
        }

        // Turned round, so that NaN fails as well.
        if exceeds(-total.cosine, -self.min_cosine) {
            failures
                .push(format!("cosine similarity: {:.5} (min: {})", total.cosine, self.min_cosine));
        }

        let limit = self.max_tensor_drift;
        let beyond = tensors.into_iter().filter(|(_, drift)| exceeds(*drift, limit));
        failures.extend(
            beyond.map(|(name, drift)| format!("L2 drift of {name}: {drift:.4} (max: {limit})")),
        );
        failures
    }
}

/// Returns `true` if a value is greater than its limit, or NaN.
fn exceeds(value: f64, limit: f64) -> bool {
    value > limit || value.is_nan()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(moved: f32) -> QuantizationReport {
        let mut log = QualityLog::default();
        log.add("exact", DType::Q8_0, 34, &Drift::of(&[1.0; 32], &[1.0; 32]));
        log.add("moved", DType::Q4_0, 18, &Drift::of(&[1.0; 32], &[1.0 + moved; 32]));
        log.finish().expect("two tensors")
    }

    #[test]
    fn the_worst_tensor_comes_first_and_bits_count_scales() {
        let report = log(0.25);
        assert_eq!(report.worst[0].name, "moved");
        assert_eq!(report.by_type[0].bits_per_weight, 8.5);
        assert!((report.total.rmse - (0.25_f64 * 0.25 / 2.0).sqrt()).abs() < 1e-12);
        let gone = Quality::from(&Drift::of(&[1.0; 32], &[0.0; 32]));
        assert_eq!((gone.cosine, gone.relative_error), (0.0, 1.0));
        assert!((report.total.relative_error - 0.25 / 2.0_f64.sqrt()).abs() < 1e-12);
    }

    #[test]
    fn a_gate_names_what_exceeds_it() {
        let failures = |gate: QualityGate, report: QuantizationReport| {
            let named =
                |tensor: &TensorQuality| (tensor.name.clone(), tensor.quality.relative_error);
            gate.failures(&report.total, report.worst.iter().map(named))
        };
        assert!(failures(QualityGate::default(), log(0.05)).is_empty());
        let failures = failures(QualityGate::with_max_drift(0.01), log(0.25));
        assert_eq!(
            failures,
            ["L2 drift: 0.1768 (max: 0.01)", "L2 drift of moved: 0.2500 (max: 0.05)"]
        );
    }
}
