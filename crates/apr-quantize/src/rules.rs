//! The types that llama.cpp's mixes give tensors: what matters more than its size suggests gets more bits.
//!
//! Taken from what `llama_tensor_get_type_impl` of llama.cpp (`src/llama-quant.cpp`, MIT) computes; the tests compare
//! both, tensor by tensor.

use apr_core::{DType, Error, Result};

use super::category::{Category, layer, matrices};
use super::facts::ModelFacts;
use super::mix::{Candidate, Choices};
use super::scheme::Scheme;

/// Rules, applied to tensors in llama.cpp's order, since some count what they saw.
pub(super) struct Rules<'a> {
    facts: &'a ModelFacts,
    choices: &'a Choices,
    /// Whether the token embeddings are the output matrix too.
    tied: bool,
    /// Tensors of attention values, in all.
    values: u64,
    values_seen: u64,
    downs_seen: u64,
}

/// A type, and the part of the model that has a rule for it.
pub(super) type Ruled = (DType, Option<&'static str>);

impl<'a> Rules<'a> {
    pub(super) fn new(facts: &'a ModelFacts, choices: &'a Choices, candidates: &[Candidate]) -> Self {
        let count = |category| candidates.iter().filter(|candidate| candidate.category() == category).count();
        Self {
            facts,
            choices,
            tied: count(Category::Output) == 0,
            values: count(Category::Value) as u64,
            values_seen: 0,
            downs_seen: 0,
        }
    }

    /// The type of a tensor that may be quantized and that no choice names.
    ///
    /// # Errors
    /// E001 when a model of experts has a feed-forward tensor whose name does not say the layer.
    pub(super) fn apply(&mut self, tensor: &Candidate, category: Category) -> Result<Ruled> {
        let scheme = self.choices.scheme;
        let default = scheme.dtype();
        if self.facts.architecture == "glm5-next"
            && ["attn_q_a", "attn_q_b", "nextn.eh_proj"].iter().any(|part| tensor.name.contains(part))
        {
            return Ok((DType::Q8_0, Some("latent queries")));
        }
        let is_output = category == Category::Output || (self.tied && category == Category::TokenEmbedding);
        let (dtype, rule) = if is_output {
            (self.output(tensor), "output")
        } else if scheme == Scheme::MXFP4_MOE {
            self.experts_only(tensor, category)
        } else {
            match category {
                Category::TokenEmbedding => (self.embedding(), "token embeddings"),
                Category::Value => (self.value(), "attention values"),
                Category::Key => (if self.facts.experts == 8 { DType::Q8_0 } else { default }, "attention keys"),
                Category::AttentionOutput => (self.attention_output(), "attention output"),
                Category::FeedForwardDown => (self.down(&tensor.name)?, "feed-forward output"),
                Category::FeedForwardUp | Category::FeedForwardGate => {
                    self.layer_of(&tensor.name, 0)?;
                    (default, "")
                }
                Category::Query | Category::Output | Category::Other => (default, ""),
            }
        };
        Ok((dtype, (dtype != default).then_some(rule)))
    }

    fn is_falcon(&self) -> bool {
        self.facts.architecture == "falcon"
    }

    fn output(&self, tensor: &Candidate) -> DType {
        let default = self.choices.scheme.dtype();
        if let Some(asked) = self.choices.output_type {
            asked
        } else if self.choices.scheme == Scheme::MXFP4_MOE
            || self.is_falcon()
            || !tensor.shape.row_len().is_multiple_of(default.block_len())
            || default == DType::Q8_0
        {
            DType::Q8_0
        } else {
            DType::Q6_K
        }
    }

    fn experts_only(&self, tensor: &Candidate, category: Category) -> (DType, &'static str) {
        // The latent projections of this architecture are stacked matrices too.
        let may_be_experts = self.facts.architecture != "bailingmoe3" || category.is_feed_forward();
        if matrices(&tensor.shape) > 1 && may_be_experts { (DType::MXFP4, "") } else { (DType::Q8_0, "no experts") }
    }

    fn embedding(&self) -> DType {
        match self.choices.scheme {
            Scheme::TQ1_0 | Scheme::TQ2_0 => DType::Q4_K,
            scheme => scheme.dtype(),
        }
    }

    fn value(&mut self) -> DType {
        let seen = self.values_seen;
        self.values_seen += 1;
        // Shared by several queries, values are few and each error counts several times.
        let shared = self.facts.queries_per_key() >= 4;
        let dtype = match self.choices.scheme {
            Scheme::Q2_K if !shared => DType::Q3_K,
            Scheme::Q2_K | Scheme::Q2_K_S if shared => DType::Q4_K,
            Scheme::Q3_K_M if seen >= 2 => DType::Q4_K,
            Scheme::Q3_K_M | Scheme::Q3_K_L => DType::Q5_K,
            Scheme::IQ4_NL | Scheme::IQ4_XS if shared => DType::Q5_K,
            Scheme::Q4_K_M | Scheme::Q5_K_M if deserves_more(seen, self.values) => DType::Q6_K,
            Scheme::Q4_K_S if seen < 4 => DType::Q5_K,
            scheme => scheme.dtype(),
        };
        if self.facts.experts == 8 {
            DType::Q8_0
        } else if self.facts.is_70b() && matches!(dtype, DType::Q3_K | DType::Q4_K) {
            DType::Q5_K
        } else {
            dtype
        }
    }

    fn attention_output(&self) -> DType {
        let scheme = self.choices.scheme;
        if self.is_falcon() {
            return if scheme == Scheme::Q3_K_L { DType::Q4_K } else { scheme.dtype() };
        }
        if self.facts.experts == 8 {
            return match scheme {
                Scheme::Q2_K
                | Scheme::Q3_K_S
                | Scheme::Q3_K_M
                | Scheme::Q4_K_S
                | Scheme::Q4_K_M
                | Scheme::IQ4_NL
                | Scheme::IQ4_XS => DType::Q5_K,
                _ => scheme.dtype(),
            };
        }
        match scheme {
            Scheme::Q2_K => DType::Q3_K,
            Scheme::Q3_K_M => DType::Q4_K,
            Scheme::Q3_K_L => DType::Q5_K,
            _ => scheme.dtype(),
        }
    }

    fn down(&mut self, name: &str) -> Result<DType> {
        let layers = self.facts.layers;
        let layer = self.layer_of(name, self.downs_seen)?;
        self.downs_seen += 1;
        let first_eighth = layer < layers / 8;
        let first_sixteenth = layer < layers / 16;
        let more = deserves_more(layer, layers);
        let falcon = self.is_falcon();
        let importance = self.choices.has_importance;
        Ok(match self.choices.scheme {
            Scheme::Q2_K => DType::Q3_K,
            Scheme::Q2_K_S if first_eighth => DType::Q4_K,
            Scheme::Q3_K_M if first_sixteenth => DType::Q5_K,
            Scheme::Q3_K_M if !falcon || more => DType::Q4_K,
            Scheme::Q3_K_L if falcon => DType::Q4_K,
            Scheme::Q3_K_L => DType::Q5_K,
            Scheme::Q4_K_M if falcon && more && !first_sixteenth => DType::Q5_K,
            Scheme::Q4_K_M | Scheme::Q5_K_M if more => DType::Q6_K,
            Scheme::Q4_K_S if first_eighth && !falcon => DType::Q5_K,
            Scheme::IQ4_NL | Scheme::IQ4_XS if first_eighth && !importance => DType::Q5_K,
            // Without importance these two stay as they always were; with it, the first layers need a minimum.
            Scheme::Q4_0 if first_eighth && importance => DType::Q4_1,
            Scheme::Q5_0 if first_eighth && importance => DType::Q5_1,
            scheme => scheme.dtype(),
        })
    }

    /// The layer of a feed-forward tensor: how many came before, or what the name says where experts are apart.
    fn layer_of(&self, name: &str, seen: u64) -> Result<u64> {
        if self.facts.experts <= 1 {
            return Ok(seen);
        }
        let layers = self.facts.layers;
        match layer(name).map(u64::from) {
            Some(layer) if layer < layers => Ok(layer),
            Some(layer) => Err(Error::format(format!("the name says layer {layer}, but there are {layers}"))),
            None => Err(Error::format("the name does not say which layer it is, which a mix for experts needs")),
        }
        .map_err(|error| error.for_tensor(name))
    }
}

/// Whether a layer is among the first or last eighth, or every third in between.
fn deserves_more(layer: u64, layers: u64) -> bool {
    let eighth = layers / 8;
    layer < eighth || layer >= layers.saturating_mul(7) / 8 || (layer - eighth) % 3 == 2
}
