//! The types that llama.cpp's mixes give tensors: what matters more than its size suggests gets
//! more bits.
//!
//! Taken from what `llama_tensor_get_type_impl` of llama.cpp (`src/llama-quant.cpp`, MIT) computes;
//! the tests compare both, tensor by tensor.

use apr_core::{DType, Error, Result};

use super::candidate::Candidate;
use super::category::{Category, layer, matrices};
use super::choices::Choices;
use super::facts::ModelFacts;

use super::scheme::Scheme;

/// Rules, applied to tensors in llama.cpp's order, since some count what they saw.
pub(super) struct Rules<'a> {
    facts: &'a ModelFacts,
    choices: &'a Choices,
    /// `true` if the token embeddings are also the output matrix.
    tied: bool,
    /// Tensors of attention values, in all.
    values: u64,
    values_seen: u64,
    downs_seen: u64,
    gates_seen: u64,
    ups_seen: u64,
}

/// A type, and the part of the model that has a rule for it.
pub(super) type Ruled = (DType, Option<&'static str>);

impl<'a> Rules<'a> {
    pub(super) fn new(
        facts: &'a ModelFacts,
        choices: &'a Choices,
        candidates: &[Candidate],
    ) -> Self {
        let count = |category| {
            candidates.iter().filter(|candidate| candidate.category() == category).count()
        };
        Self {
            facts,
            choices,
            tied: count(Category::Output) == 0,
            values: count(Category::Value) as u64,
            values_seen: 0,
            downs_seen: 0,
            gates_seen: 0,
            ups_seen: 0,
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
            && ["attn_q_a", "attn_q_b", "nextn.eh_proj"]
                .iter()
                .any(|part| tensor.name.contains(part))
        {
            return Ok((DType::Q8_0, Some("latent queries")));
        }
        let is_output =
            category == Category::Output || (self.tied && category == Category::TokenEmbedding);
        let (dtype, rule) = if is_output {
            (self.output(tensor), "output")
        } else if scheme == Scheme::MXFP4_MOE {
            self.experts_only(tensor, category)
        } else {
            (self.by_category(&tensor.name, category)?, part(category))
        };

        Ok((dtype, (dtype != default).then_some(rule)))
    }

    fn by_category(&mut self, name: &str, category: Category) -> Result<DType> {
        let scheme = self.choices.scheme;
        Ok(match category {
            Category::TokenEmbedding => self.embedding(),
            _ if is_below_three_bits(scheme) => self.below_three_bits(category),
            Category::Value => self.value(),
            // With eight experts attention is a small part: llama.cpp's authors count 128 MB for
            // this.
            Category::Key if self.facts.experts == 8 => DType::Q8_0,
            Category::Key | Category::Query => query_or_key(scheme),
            Category::AttentionOutput => self.attention_output(),
            Category::FeedForwardDown => self.down(name)?,
            Category::FeedForwardUp => {
                self.ups_seen += 1;
                self.up_or_gate(name, self.ups_seen - 1)?
            }
            Category::FeedForwardGate => {
                self.gates_seen += 1;
                self.up_or_gate(name, self.gates_seen - 1)?
            }
            Category::Output | Category::Other => scheme.dtype(),
        })
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
        } else if is_below_three_bits(self.choices.scheme) || self.choices.scheme == Scheme::IQ3_XXS
        {
            DType::Q5_K
        } else {
            DType::Q6_K
        }
    }

    fn experts_only(&self, tensor: &Candidate, category: Category) -> (DType, &'static str) {
        // The latent projections of this architecture are stacked matrices too.
        let may_be_experts = self.facts.architecture != "bailingmoe3" || category.is_feed_forward();
        if matrices(&tensor.shape) > 1 && may_be_experts {
            (DType::MXFP4, "")
        } else {
            (DType::Q8_0, "no experts")
        }
    }

    fn embedding(&self) -> DType {
        match self.choices.scheme {
            Scheme::IQ1_S | Scheme::IQ1_M | Scheme::IQ2_XXS | Scheme::IQ2_XS => DType::Q2_K,
            Scheme::IQ2_S | Scheme::IQ2_M | Scheme::IQ3_XXS => DType::IQ3_S,
            Scheme::TQ1_0 | Scheme::TQ2_0 | Scheme::Q2_0 => DType::Q4_K,
            scheme => scheme.dtype(),
        }
    }

    /// The IQ types of one and two bits, for everything but embeddings and output.
    fn below_three_bits(&mut self, category: Category) -> DType {
        let scheme = self.choices.scheme;
        let more = if matches!(scheme, Scheme::IQ2_S | Scheme::IQ2_M) {
            DType::IQ3_S
        } else {
            DType::Q2_K
        };
        let experts = self.facts.experts;
        match category {
            Category::Value => {
                if self.shares_values() || experts >= 4 {
                    DType::Q4_K
                } else {
                    more
                }
            }
            Category::Key if experts == 8 => DType::Q4_K,
            Category::FeedForwardDown => {
                self.downs_seen += 1;
                if self.downs_seen <= self.facts.layers / 8 { more } else { scheme.dtype() }
            }
            Category::AttentionOutput => self.attention_output_below_three_bits(),
            _ => scheme.dtype(),
        }
    }

    fn attention_output_below_three_bits(&self) -> DType {
        match self.choices.scheme {
            _ if self.facts.experts == 8 => DType::Q5_K,
            Scheme::IQ1_S | Scheme::IQ1_M => DType::IQ2_XXS,
            Scheme::IQ2_S | Scheme::IQ2_M => DType::IQ3_S,
            scheme => scheme.dtype(),
        }
    }

    fn value(&mut self) -> DType {
        let seen = self.values_seen;
        self.values_seen += 1;
        let dtype = match self.choices.scheme {
            Scheme::IQ3_XXS
            | Scheme::IQ3_XS
            | Scheme::IQ3_S
            | Scheme::IQ3_M
            | Scheme::IQ4_NL
            | Scheme::IQ4_XS => self.value_of_i_quant(),
            _ => self.value_of_k_quant(seen),
        };

        if self.facts.experts == 8 {
            DType::Q8_0
        } else if self.facts.is_70b() && matches!(dtype, DType::Q3_K | DType::Q4_K) {
            // Eight queries share a value there: the matrix is small, and more bits cost little.
            DType::Q5_K
        } else {
            dtype
        }
    }

    /// Returns `true` if several queries share values. There are few values then, and each error
    /// counts several times.
    fn shares_values(&self) -> bool {
        self.facts.queries_per_key() >= 4
    }

    /// The IQ types of three and four bits.
    fn value_of_i_quant(&self) -> DType {
        match (self.choices.scheme, self.shares_values()) {
            (Scheme::IQ3_M, _) | (Scheme::IQ3_XXS | Scheme::IQ3_XS | Scheme::IQ3_S, true) => {
                DType::Q4_K
            }
            (Scheme::IQ3_XXS, false) if !self.choices.has_importance => DType::IQ3_S,
            (Scheme::IQ4_NL | Scheme::IQ4_XS, true) => DType::Q5_K,
            (scheme, _) => scheme.dtype(),
        }
    }

    /// The K types, and those without a rule.
    fn value_of_k_quant(&self, seen: u64) -> DType {
        match (self.choices.scheme, self.shares_values()) {
            (Scheme::Q2_K, false) => DType::Q3_K,
            (Scheme::Q2_K | Scheme::Q2_K_S, true) => DType::Q4_K,
            (Scheme::Q3_K_M, _) if seen >= 2 => DType::Q4_K,
            (Scheme::Q3_K_M | Scheme::Q3_K_L, _) => DType::Q5_K,
            (Scheme::Q4_K_M | Scheme::Q5_K_M, _) if deserves_more(seen, self.values) => DType::Q6_K,
            (Scheme::Q4_K_S, _) if seen < 4 => DType::Q5_K,
            (scheme, _) => scheme.dtype(),
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
                | Scheme::IQ3_XXS
                | Scheme::IQ3_XS
                | Scheme::IQ3_S
                | Scheme::IQ3_M
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
            Scheme::IQ3_XXS => DType::IQ3_S,
            Scheme::Q3_K_M | Scheme::IQ3_M => DType::Q4_K,
            Scheme::Q3_K_L => DType::Q5_K,
            _ => scheme.dtype(),
        }
    }

    fn down(&mut self, name: &str) -> Result<DType> {
        let depth =
            Depth { layer: self.layer_of(name, self.downs_seen)?, layers: self.facts.layers };
        self.downs_seen += 1;
        Ok(match self.choices.scheme {
            Scheme::Q2_K | Scheme::Q2_K_S | Scheme::IQ3_M => self.down_below_four_bits(depth),
            Scheme::Q3_K_M | Scheme::Q3_K_L => self.down_of_q3_k(depth),
            Scheme::Q4_K_S | Scheme::Q4_K_M | Scheme::Q5_K_M => self.down_of_q4_k_or_q5_k(depth),
            _ => self.down_by_importance(depth),
        })
    }

    fn down_below_four_bits(&self, depth: Depth) -> DType {
        let of_eight_experts = self.facts.experts == 8;
        match self.choices.scheme {
            Scheme::Q2_K => DType::Q3_K,
            Scheme::Q2_K_S if depth.is_in_first(8) => DType::Q4_K,
            Scheme::IQ3_M
                if depth.is_in_first(8) || (of_eight_experts && depth.deserves_more()) =>
            {
                DType::Q4_K
            }
            scheme => scheme.dtype(),
        }
    }

    fn down_of_q3_k(&self, depth: Depth) -> DType {
        let falcon = self.is_falcon();
        match self.choices.scheme {
            Scheme::Q3_K_L if falcon => DType::Q4_K,
            Scheme::Q3_K_L => DType::Q5_K,
            Scheme::Q3_K_M if depth.is_in_first(16) => DType::Q5_K,
            Scheme::Q3_K_M if !falcon || depth.deserves_more() => DType::Q4_K,
            scheme => scheme.dtype(),
        }
    }

    fn down_of_q4_k_or_q5_k(&self, depth: Depth) -> DType {
        let (falcon, more) = (self.is_falcon(), depth.deserves_more());
        match self.choices.scheme {
            Scheme::Q4_K_M if falcon && more && !depth.is_in_first(16) => DType::Q5_K,
            Scheme::Q4_K_M | Scheme::Q5_K_M if more => DType::Q6_K,
            Scheme::Q4_K_S if depth.is_in_first(8) && !falcon => DType::Q5_K,
            scheme => scheme.dtype(),
        }
    }

    /// Returns the dtype for schemes whose rule depends on importance.
    fn down_by_importance(&self, depth: Depth) -> DType {
        let first_eighth = depth.is_in_first(8);
        match (self.choices.scheme, self.choices.has_importance) {
            (Scheme::IQ3_XXS, false) if first_eighth => DType::Q4_K,
            (Scheme::IQ3_XXS, false) => DType::Q3_K,
            (Scheme::IQ4_NL | Scheme::IQ4_XS, false) if first_eighth => DType::Q5_K,
            // Without importance these two stay as they always were; with it, the first layers need
            // a minimum.
            (Scheme::Q4_0, true) if first_eighth => DType::Q4_1,
            (Scheme::Q5_0, true) if first_eighth => DType::Q5_1,
            (scheme, _) => scheme.dtype(),
        }
    }

    fn up_or_gate(&self, name: &str, seen: u64) -> Result<DType> {
        let layers = self.facts.layers;
        let layer = self.layer_of(name, seen)?;
        let scheme = self.choices.scheme;
        let in_the_middle = layer >= layers / 8 && layer < layers.saturating_mul(7) / 8;
        Ok(if scheme == Scheme::IQ3_XS && in_the_middle { DType::IQ3_XXS } else { scheme.dtype() })
    }

    /// Returns the layer of a feed-forward tensor: the number of tensors before it, or the number
    /// in the name if experts are separate tensors.
    fn layer_of(&self, name: &str, seen: u64) -> Result<u64> {
        if self.facts.experts <= 1 {
            return Ok(seen);
        }

        // A file's experts need not follow one another, so their order does not lead to the layer.
        let layers = self.facts.layers;
        match layer(name).map(u64::from) {
            Some(layer) if layer < layers => Ok(layer),
            Some(layer) => {
                Err(Error::format(format!("the name has layer {layer}, but there are {layers}")))
            }
            None => Err(Error::format(
                "a mix for experts needs the layer, which the name does not have",
            )),
        }
        .map_err(|error| error.for_tensor(name))
    }
}

/// The IQ types of one and two bits, which have rules of their own.
fn is_below_three_bits(scheme: Scheme) -> bool {
    matches!(
        scheme,
        Scheme::IQ1_S
            | Scheme::IQ1_M
            | Scheme::IQ2_XXS
            | Scheme::IQ2_XS
            | Scheme::IQ2_S
            | Scheme::IQ2_M
    )
}

fn query_or_key(scheme: Scheme) -> DType {
    match scheme {
        Scheme::IQ3_XS => DType::IQ3_XXS,
        Scheme::IQ3_XXS => DType::IQ2_S,
        _ => scheme.dtype(),
    }
}

/// Returns the description of a rule's category.
fn part(category: Category) -> &'static str {
    match category {
        Category::TokenEmbedding => "token embeddings",
        Category::Value => "attention values",
        Category::Key => "attention keys",
        Category::Query => "attention queries",
        Category::AttentionOutput => "attention output",
        Category::FeedForwardDown => "feed-forward output",
        Category::FeedForwardUp => "feed-forward input",
        Category::FeedForwardGate => "feed-forward gate",
        Category::Output => "output",
        Category::Other => "",
    }
}

/// Position of a layer in the network.
#[derive(Clone, Copy)]
struct Depth {
    layer: u64,
    layers: u64,
}

impl Depth {
    /// Returns `true` if the layer is in the first of `parts` equal parts.
    fn is_in_first(self, parts: u64) -> bool {
        self.layer < self.layers / parts
    }

    fn deserves_more(self) -> bool {
        deserves_more(self.layer, self.layers)
    }
}

/// Returns `true` for layers in the first or last eighth, and for every third in between.
fn deserves_more(layer: u64, layers: u64) -> bool {
    let eighth = layers / 8;
    // The first test keeps the difference from going below 0.
    layer < eighth || layer >= layers.saturating_mul(7) / 8 || (layer - eighth) % 3 == 2
}
