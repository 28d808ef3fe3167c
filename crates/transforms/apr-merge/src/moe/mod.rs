//! Dense models as the experts of one: mergekit-moe.
//!
//! A [`Recipe`] names a base and experts. The result has the base's tensors, the feed-forward
//! networks of the experts in place of its own, and in each layer a router whose rows are vectors
//! of the experts' prompts: [`Gates`]. [`Moe`] is the checkpoint, whose tensors are copied or cast
//! as they are read.
//!
//! Configurations, checks and arithmetic are those of mergekit-moe 0.1.5, as they were observed
//! from outside. Tensors have the names under which models of the kind are published, which all
//! readers know; mergekit 0.1.5 writes Mixtral's and Qwen3's experts as transformers 5 stacks them
//! in memory.

mod checkpoint;
mod condition;
mod gates;
mod parse;
mod plan;
mod target;

use std::collections::BTreeSet;

use apr_core::DType;
use serde::Serialize;

pub use self::checkpoint::Moe;
pub use self::gates::Gates;
pub use self::parse::parse;
pub use self::plan::layers;
pub use self::target::Target;

/// Configuration of a mixture of experts in mergekit-moe's form.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Recipe {
    /// The model that gives everything but the experts.
    pub base: String,
    /// The experts, of which a router chooses.
    pub experts: Vec<Expert>,
    /// The expert that all tokens pass, for kinds of models that have one.
    pub shared: Option<Expert>,
    /// Source of the router rows.
    pub gate: GateMode,
    /// Dtype of the result; by default the dtype of the base.
    pub dtype: Option<DType>,
    /// Experts that a token passes; 2 by default.
    pub per_token: Option<u64>,
    /// The kind of model to make, as the beginning of its name.
    pub architecture: Option<String>,
    /// Random seed.
    pub seed: u64,
    /// Text that the model card quotes.
    pub text: String,
}

/// A model whose feed-forward networks become experts.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Expert {
    /// Name of the model in the configuration.
    pub model: String,
    /// Texts that the expert is for.
    pub positive: Vec<String>,
    /// Texts that it is not for.
    pub negative: Vec<String>,
    /// Standard deviation of noise that is added to its weights.
    pub noise: Option<f64>,
    /// Factor for the expert's share of the residual stream, applied to its down projections.
    pub residual: Option<f64>,
}

/// Source of the router rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum GateMode {
    /// The state of a prompt's last token in front of each layer.
    Hidden,
    /// The mean of the states of all its tokens.
    HiddenAvg,
    /// The sum of its tokens' embeddings, the same for all layers.
    CheapEmbed,
    /// Random numbers of a normal distribution.
    Random,
    /// Random numbers as a new linear layer has them.
    UniformRandom,
}

impl GateMode {
    /// Returns the name in configurations.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hidden => "hidden",
            Self::HiddenAvg => "hidden_avg",
            Self::CheapEmbed => "cheap_embed",
            Self::Random => "random",
            Self::UniformRandom => "uniform_random",
        }
    }

    /// Returns `true` if the gates do not depend on prompts.
    #[must_use]
    pub const fn is_random(self) -> bool {
        matches!(self, Self::Random | Self::UniformRandom)
    }

    /// Returns `true` if the mode requires a run of the base model.
    #[must_use]
    pub const fn needs_states(self) -> bool {
        matches!(self, Self::Hidden | Self::HiddenAvg)
    }
}

impl Recipe {
    /// The models that it names, each once, the base first.
    #[must_use]
    pub fn models(&self) -> Vec<&str> {
        let mut seen = BTreeSet::new();
        std::iter::once(self.base.as_str())
            .chain(self.all().map(|expert| expert.model.as_str()))
            .filter(|name| seen.insert(*name))
            .collect()
    }

    /// The experts, the shared one last.
    fn all(&self) -> impl Iterator<Item = &Expert> {
        self.experts.iter().chain(&self.shared)
    }

    /// Experts that have a vector in routers, the shared one last.
    fn gated(&self) -> impl Iterator<Item = &Expert> {
        let has_gate = |shared: &&Expert| self.gate.is_random() || !shared.positive.is_empty();
        self.experts.iter().chain(self.shared.iter().filter(has_gate))
    }
}

/// Report on a mixture of experts.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct MoeReport {
    /// The kind of model.
    pub architecture: Target,
    /// The model that gives everything but the experts.
    pub base: String,
    /// Names of the experts.
    pub experts: Vec<String>,
    /// The expert that all tokens pass.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared: Option<String>,
    /// Experts that a token passes.
    pub per_token: u64,
    /// Source of the router rows.
    pub gate_mode: GateMode,
    /// Ratio of the largest and the smallest singular value of each layer's router: the larger, the
    /// more alike are the experts' prompts. None where vectors are the same; left out for random
    /// gates and more than 128 experts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Option<f64>>,
    /// Tensors of the base.
    pub copied: usize,
    /// Tensors of experts.
    pub of_experts: usize,
}
