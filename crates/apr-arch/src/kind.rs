//! What a tensor is, and which statistics that leads to expect (seed 001 §10.9).

use serde::{Deserialize, Serialize};

/// What a tensor does, as far as its values are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Kind {
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
    /// Not learnt: position ids, masks, frequencies, running statistics.
    Buffer,
    /// Other learnt values: class tokens, layer scales, relative attention biases.
    Scale,
}

/// Values between two bounds, both included.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(from = "(f64, f64)", into = "(f64, f64)")]
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

    /// Whether the value lies between the bounds; NaN does not.
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
        write!(f, "[{}, {}]", self.low, self.high)
    }
}

/// Statistics that a healthy tensor has.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TensorExpectation {
    /// What the tensor is.
    pub kind: Kind,
    /// Mean of its values.
    pub mean: Option<Range>,
    /// Standard deviation of its values.
    pub std: Option<Range>,
    /// Whether a tensor outside is wrong ("MUST" in seed 001 §10.9) rather than odd ("should").
    pub must: bool,
}

impl Kind {
    /// What seed 001 §10.9 expects of any model, wide enough for healthy ones.
    ///
    /// The norm ranges are the specification's. Its other figures describe typical checkpoints, not limits: published
    /// models leave them in both directions, so these are warnings and their bounds are several times wider.
    #[must_use]
    pub const fn expectation(self) -> TensorExpectation {
        let (mean, std, must) = match self {
            Self::NormGamma => (Some(Range::new(0.5, 3.0)), None, true),
            Self::NormBeta => (Some(Range::new(-0.5, 0.5)), None, true),
            Self::Linear | Self::Conv | Self::Head => (Some(Range::new(-0.2, 0.2)), None, false),
            Self::Embedding => (Some(Range::new(-0.2, 0.2)), Some(Range::new(0.0, 0.2)), false),
            Self::Position => (Some(Range::new(-0.2, 0.2)), Some(Range::new(0.0, 1.0)), false),
            Self::Bias | Self::Buffer | Self::Scale => (None, None, false),
        };
        TensorExpectation { kind: self, mean, std, must }
    }

    /// As a reader of a report sees it.
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

    /// What a name says where no family knows the tensor: layer norms alone, by the names of seed 001 §10.9.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        let lower = name.to_ascii_lowercase();
        let norm = ["layer_norm.", "layernorm.", "_ln."].iter().any(|norm| lower.contains(norm));
        match (norm, lower.rsplit('.').next()?) {
            (true, "weight" | "gamma") => Some(Self::NormGamma),
            (true, "bias" | "beta") => Some(Self::NormBeta),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn norms_are_known_by_name() {
        assert_eq!(Kind::of_name("encoder.layers.0.self_attn_layer_norm.weight"), Some(Kind::NormGamma));
        assert_eq!(Kind::of_name("encoder.LayerNorm.beta"), Some(Kind::NormBeta));
        assert_eq!(Kind::of_name("layer_norm_proj.weight"), None);
        assert_eq!(Kind::of_name(""), None);
    }

    #[test]
    fn a_range_holds_its_bounds_and_no_nan() {
        let range = Range::new(0.5, 3.0);
        assert!(range.contains(0.5) && range.contains(3.0));
        assert!(!range.contains(3.1) && !range.contains(f64::NAN));
    }
}
