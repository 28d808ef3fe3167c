//! What a tensor is, and which statistics that leads to expect (`docs/families.md`, "Ranges").

use serde::{Deserialize, Serialize};

/// Kind of a tensor, which determines the values that are expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TensorKind {
    /// Matrix of a linear layer or an attention projection.
    Linear,
    /// Bias of a linear layer or a convolution.
    Bias,
    /// Kernel of a convolution.
    Conv,
    /// Gamma of a layer norm or RMS norm.
    NormGamma,
    /// Beta of a layer norm.
    NormBeta,
    /// Rows that ids select.
    Embedding,
    /// Rows that positions select.
    Position,
    /// Projection to the vocabulary or to classes.
    Head,
    /// Data that are not learnt: position ids, masks, frequencies, running statistics.
    Buffer,
    /// Other learnt values: class tokens, layer scales, relative attention biases.
    Scale,
}

/// Values between two bounds, both included.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(from = "(f64, f64)", into = "(f64, f64)")]
#[non_exhaustive]
pub struct Range {
    /// Smallest value.
    pub low: f64,
    /// Largest value.
    pub high: f64,
}

impl Range {
    /// Values from `low` to `high`.
    #[must_use]
    pub const fn new(low: f64, high: f64) -> Self {
        Self { low, high }
    }

    /// Returns `true` if the value is within the bounds; NaN is not.
    #[must_use]
    pub fn contains(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }
}

impl From<(f64, f64)> for Range {
    fn from((low, high): (f64, f64)) -> Self {
        Self { low, high }
    }
}

impl From<Range> for (f64, f64) {
    fn from(range: Range) -> Self {
        (range.low, range.high)
    }
}

impl std::fmt::Display for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "[{}, {}]", apr_core::number(self.low), apr_core::number(self.high))
    }
}

/// Statistics that a healthy tensor has.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TensorExpectation {
    /// Kind of the tensor.
    pub kind: TensorKind,
    /// Expected mean of the values; reports warn if a tensor is outside.
    #[serde(rename = "expected_mean")]
    pub mean: Option<Range>,
    /// Standard deviation of its values.
    #[serde(rename = "expected_std")]
    pub std: Option<Range>,
    /// Standard deviation times the root of the number of values for each output.
    ///
    /// Layers are initialized with about the inverse of that root. A tensor within either this
    /// range or `std` is valid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub std_by_width: Option<Range>,
    /// Mean of the values that the model computes with, [`offset`](Self::offset) added. A tensor
    /// that is nearly constant and outside is corrupt: no training leads there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub constant: Option<Range>,
    /// Constant that the model adds to the stored values: 1 if the weight of a norm is stored minus
    /// 1, otherwise 0.
    pub offset: f64,
    /// `true` if the expectation is guessed from the tensor's name and must not cause errors.
    pub guessed: bool,
}

/// Share of the mean below which the standard deviation means that the values are nearly constant.
///
/// Among the trained norms with a mean outside of the range, the minimum is 8 %
/// (`fixtures/statistics`).
const NEARLY_CONSTANT: f64 = 0.05;

/// Value used instead of [`NEARLY_CONSTANT`] if the mean is small.
///
/// Batch norms shrink channels alike, to 2 % in MobileNetV2.
const NEARLY_CONSTANT_AND_SMALL: f64 = 0.01;

impl TensorExpectation {
    /// Returns the expectation for a tensor with this number of inputs for each output, if its
    /// deviation depends on it.
    #[must_use]
    pub fn for_width(self, inputs: u64) -> Self {
        let root = (inputs.max(1) as f64).sqrt();
        let scaled = self.std_by_width.map(|by| Range::new(by.low / root, by.high / root));
        let std = match (self.std, scaled) {
            (Some(std), Some(scaled)) => {
                Some(Range::new(std.low.min(scaled.low), std.high.max(scaled.high)))
            }
            (std, scaled) => std.or(scaled),
        };
        Self { std, std_by_width: None, ..self }
    }

    /// The range of stored means that a nearly constant tensor with this mean and standard
    /// deviation violates, which makes it corrupt.
    #[must_use]
    pub fn corrupt(self, mean: f64, std: f64) -> Option<Range> {
        let (range, value) = (self.constant?, mean + self.offset);
        let is_small = value.abs() < range.high;
        let share = if is_small { NEARLY_CONSTANT_AND_SMALL } else { NEARLY_CONSTANT };
        let is_corrupt = std < share * value.abs() && !range.contains(value);
        is_corrupt.then(|| Range::new(range.low - self.offset, range.high - self.offset))
    }
}

impl TensorKind {
    /// Returns the expectation for any model (`docs/families.md`, "Ranges"), wide enough for valid
    /// ones.
    ///
    /// Trained models differ widely, so a tensor outside of a range is a warning. Training makes
    /// the values of a norm differ, however. A norm whose values are all equal and far from their
    /// initial value was overwritten.
    #[must_use]
    pub const fn expectation(self) -> TensorExpectation {
        let near_zero = Some(Range::new(-0.2, 0.2));
        let (mean, std) = match self {
            Self::NormGamma => (Some(Range::new(-0.1, 15.0)), None),
            Self::NormBeta => (Some(Range::new(-3.0, 3.0)), None),
            Self::Linear | Self::Head => (near_zero, Some(Range::new(0.001, 0.5))),
            Self::Conv => (near_zero, Some(Range::new(0.001, 2.0))),
            Self::Embedding => (near_zero, Some(Range::new(0.0001, 0.2))),
            Self::Position => (near_zero, Some(Range::new(0.000_001, 1.0))),
            Self::Bias | Self::Buffer | Self::Scale => (None, None),
        };
        let constant = match self {
            Self::NormGamma => Some(Range::new(0.5, 3.0)),
            Self::NormBeta => Some(Range::new(-0.5, 0.5)),
            _ => None,
        };

        // Kaiming's and Xavier's initialisations come to 0.6 to 1.4, a fixed 0.02 to 0.1 in 32 and
        // to 2.6 in 16,384 inputs, GPT-2's outputs to a tenth of that; training adds a few times as
        // much.
        let std_by_width = match self {
            Self::Linear | Self::Head | Self::Conv => Some(Range::new(0.005, 8.0)),
            _ => None,
        };
        TensorExpectation {
            kind: self,
            mean,
            std,
            std_by_width,
            constant,
            offset: 0.0,
            guessed: false,
        }
    }

    /// Returns the name used in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Linear => "linear weight",
            Self::Bias => "bias",
            Self::Conv => "convolution kernel",
            Self::NormGamma => "norm weight (gamma)",
            Self::NormBeta => "norm bias (beta)",
            Self::Embedding => "embedding",
            Self::Position => "positional embedding",
            Self::Head => "output head",
            Self::Buffer => "buffer",
            Self::Scale => "learnt scale",
        }
    }

    /// Returns the kind that a tensor's name suggests, for tensors that no family describes.
    ///
    /// It recognizes layer norms, attention projections and feed-forward layers by the names in
    /// Hugging Face models.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        let lower = name.to_ascii_lowercase();
        let norm = ["layer_norm.", "layernorm.", "_ln."].iter().any(|norm| lower.contains(norm));
        let mut parts = lower.rsplit('.');
        match (norm, parts.next()?, parts.next().unwrap_or_default()) {
            (true, "weight" | "gamma", _) => Some(Self::NormGamma),
            (true, "bias" | "beta", _) => Some(Self::NormBeta),
            (
                _,
                "weight",
                "q_proj" | "k_proj" | "v_proj" | "o_proj" | "out_proj" | "fc1" | "fc2",
            ) => Some(Self::Linear),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn norms_are_known_by_name() {
        assert_eq!(
            TensorKind::of_name("encoder.layers.0.self_attn_layer_norm.weight"),
            Some(TensorKind::NormGamma)
        );
        assert_eq!(TensorKind::of_name("encoder.LayerNorm.beta"), Some(TensorKind::NormBeta));
        assert_eq!(TensorKind::of_name("layer_norm_proj.weight"), None);
        assert_eq!(TensorKind::of_name(""), None);
    }

    #[test]
    fn projections_are_known_by_name() {
        for name in [
            "model.layers.0.self_attn.q_proj.weight",
            "encoder.layers.3.fc2.weight",
            "out_proj.weight",
        ] {
            assert_eq!(TensorKind::of_name(name), Some(TensorKind::Linear), "{name}");
        }
        for name in
            ["q_proj.bias", "q_proj.weight_scale", "q_proj.qweight", "xq_proj.weight", "fc1"]
        {
            assert_eq!(TensorKind::of_name(name), None, "{name}");
        }
    }

    #[test]
    fn a_deviation_may_follow_the_width_or_not() {
        let linear = TensorKind::Linear.expectation();
        // Two outputs of 1, and of 16,384 inputs, by Xavier's law.
        for inputs in [1_u64, 16_384] {
            let std = linear.for_width(inputs).std.expect("a range");
            assert!(std.contains(1.0 / (inputs as f64).sqrt()), "{inputs}: {std}");
            assert!(!std.contains(100.0) && !std.contains(1e-6), "{inputs}: {std}");
        }
        assert_eq!(
            TensorKind::Embedding.expectation().for_width(4).std,
            Some(Range::new(0.0001, 0.2))
        );
    }

    #[test]
    fn a_norm_is_corrupt_only_where_no_trained_one_is() {
        let (gamma, beta) = (TensorKind::NormGamma, TensorKind::NormBeta);
        let corrupt =
            |kind: TensorKind, mean: f64, std: f64| kind.expectation().corrupt(mean, std).is_some();
        assert!(corrupt(gamma, 11.0, 0.02) && corrupt(gamma, 0.2, 0.0) && corrupt(beta, -5.0, 0.1));
        // Whisper tiny.en, Gemma 3 270M, SmolLM2, a batch norm of MobileNetV2; Whisper's beta.
        for (mean, std) in [(10.78, 1.25), (324.0, 94.0), (0.305, 0.026), (0.2346, 0.00467)] {
            assert!(!corrupt(gamma, mean, std), "{mean}, {std}");
        }
        assert!(!corrupt(beta, 1.989, 4.393));
        // Gemma's files have the gain less one.
        let from_one = TensorExpectation { offset: 1.0, ..gamma.expectation() };
        assert_eq!(from_one.corrupt(0.0, 0.0), None);
        assert_eq!(from_one.corrupt(10.0, 0.1), Some(Range::new(-0.5, 2.0)));
    }

    #[test]
    fn a_range_holds_its_bounds_and_no_nan() {
        let range = Range::new(0.5, 3.0);
        assert!(range.contains(0.5) && range.contains(3.0));
        assert!(!range.contains(3.1) && !range.contains(f64::NAN));
    }
}
