//! The kinds of models that experts are put into: names of their tensors, and configurations.

use apr_core::{DType, Error, Escaped, Result, torch_name};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::Recipe;

/// A kind of model with experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Target {
    /// Mixtral, of LLaMA and Mistral.
    Mixtral,
    /// The first DeepSeek MoE, of LLaMA and Mistral.
    DeepSeek,
    /// Qwen2-MoE, of LLaMA, Mistral and Qwen2, with a shared expert that has a gate.
    QwenMoe,
    /// Qwen3-MoE, of Qwen3.
    Qwen3Moe,
}

/// The projections of a feed-forward network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Projection {
    Gate,
    Up,
    Down,
}

impl Projection {
    pub(super) const ALL: [Self; 3] = [Self::Gate, Self::Up, Self::Down];

    /// Returns the name of the projection in dense models.
    pub(super) const fn dense(self) -> &'static str {
        match self {
            Self::Gate => "gate_proj",
            Self::Up => "up_proj",
            Self::Down => "down_proj",
        }
    }
}

/// Defaults of keys that dense models' configurations omit, if configurations with experts have
/// other defaults.
const DEFAULTS: [(&str, Dense); 3] = [
    ("llama", Dense { context: 2048, theta: 10_000.0, tied: false }),
    ("mistral", Dense { context: 4096 * 32, theta: 10_000.0, tied: false }),
    ("qwen2", Dense { context: 32_768, theta: 10_000.0, tied: false }),
];

struct Dense {
    context: u64,
    theta: f64,
    tied: bool,
}

impl Target {
    const ALL: [Self; 4] = [Self::Mixtral, Self::DeepSeek, Self::QwenMoe, Self::Qwen3Moe];

    /// Returns the name of the target. A prefix of it is enough in a configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mixtral => "Mixtral",
            Self::DeepSeek => "DeepSeek MoE",
            Self::QwenMoe => "Qwen MoE",
            Self::Qwen3Moe => "Qwen3 MoE",
        }
    }

    /// Returns the target of a recipe, or the first target that its models allow.
    ///
    /// `types` contains the `model_type` of each model.
    ///
    /// # Errors
    /// E001 if there is none, with the requirements of each target.
    pub(super) fn of(recipe: &Recipe, types: &[(&str, Option<String>)]) -> Result<Self> {
        let asked = recipe.architecture.as_deref().map(str::to_lowercase);
        let is_asked = |target: &Self| {
            asked.as_deref().is_none_or(|asked| target.name().to_lowercase().starts_with(asked))
        };
        let asked_for: Vec<Self> = Self::ALL.into_iter().filter(is_asked).collect();
        if asked_for.is_empty() {
            let name = Escaped::short(recipe.architecture.as_deref().unwrap_or_default());
            let known = Self::ALL.map(Self::name).join(", ");
            return Err(Error::format(format!("'architecture' is '{name}': {known} can be made")));
        }
        let mut reasons = Vec::new();
        for target in asked_for {
            match target.refusal(recipe, types) {
                None => return Ok(target),
                Some(reason) => reasons.push(format!("{} {reason}", target.name())),
            }
        }
        Err(Error::format(format!("no mixture of these models: {}", reasons.join("; "))))
    }

    /// Returns the reason why these models can't form this target, if there is one.
    fn refusal(self, recipe: &Recipe, types: &[(&str, Option<String>)]) -> Option<String> {
        let shared = match (self, &recipe.shared) {
            (Self::Mixtral | Self::Qwen3Moe, Some(_)) => Some("has no shared expert"),
            (Self::QwenMoe, None) => Some("needs a shared expert"),
            (Self::QwenMoe, Some(shared)) => (!recipe.gate.is_random()
                && shared.positive.is_empty())
            .then_some("needs prompts for its shared expert"),
            (Self::DeepSeek, Some(shared)) => (!shared.positive.is_empty())
                .then_some("has no gate of its shared expert, which then has no prompts"),
            _ => None,
        };
        if let Some(shared) = shared {
            return Some(shared.to_owned());
        }
        let dense: &[&str] = match self {
            Self::Mixtral | Self::DeepSeek => &["llama", "mistral"],
            Self::QwenMoe => &["llama", "mistral", "qwen2"],
            Self::Qwen3Moe => &["qwen3"],
        };
        let first = types.first().and_then(|(_, kind)| kind.as_deref());
        types.iter().find_map(|(name, kind)| {
            let (name, known) = (Escaped::short(name), kind.as_deref().unwrap_or("not stated"));
            if !dense.contains(&known) {
                let known = Escaped::short(known);
                let dense = dense.join(", ");
                return Some(format!("is made of {dense}: the model_type of '{name}' is {known}"));
            }
            let differs = first.is_some_and(|first| first != known);
            differs.then(|| format!("needs models of one type, and '{name}' is {known}"))
        })
    }

    /// The name of an expert's weight.
    pub(super) fn expert(self, layer: usize, expert: usize, projection: Projection) -> String {
        if self == Self::Mixtral {
            let name = match projection {
                Projection::Gate => "w1",
                Projection::Down => "w2",
                Projection::Up => "w3",
            };
            return format!("model.layers.{layer}.block_sparse_moe.experts.{expert}.{name}.weight");
        }
        format!("model.layers.{layer}.mlp.experts.{expert}.{}.weight", projection.dense())
    }

    /// The name of the shared expert's weight.
    pub(super) fn shared(self, layer: usize, projection: Projection) -> String {
        let name = if self == Self::DeepSeek { "shared_experts" } else { "shared_expert" };
        format!("model.layers.{layer}.mlp.{name}.{}.weight", projection.dense())
    }

    /// The name of a layer's router.
    pub(super) fn router(self, layer: usize) -> String {
        let block = if self == Self::Mixtral { "block_sparse_moe" } else { "mlp" };
        format!("model.layers.{layer}.{block}.gate.weight")
    }

    /// Returns the name of the gate of a layer's shared expert, if the target has such a gate.
    pub(super) fn shared_gate(self, layer: usize) -> Option<String> {
        let has_one = self == Self::QwenMoe;
        has_one.then(|| format!("model.layers.{layer}.mlp.shared_expert_gate.weight"))
    }

    /// Returns `true` if a layer contains this tensor outside the feed-forward network.
    ///
    /// `rest` is the part of the name after the layer's number.
    pub(super) fn has_in_layer(self, rest: &str) -> bool {
        let attention = ["q", "k", "v", "o"];
        let is_weight =
            |name: &str| attention.iter().any(|p| name == format!(".self_attn.{p}_proj.weight"));
        let is_bias =
            |name: &str| attention[..3].iter().any(|p| name == format!(".self_attn.{p}_proj.bias"));
        let is_norm = [".input_layernorm.weight", ".post_attention_layernorm.weight"];
        is_weight(rest)
            || is_norm.contains(&rest)
            || (self == Self::QwenMoe && is_bias(rest))
            || (self == Self::Qwen3Moe
                && [".self_attn.q_norm.weight", ".self_attn.k_norm.weight"].contains(&rest))
    }

    /// Returns the projections with attention biases. The biases are zeros if the base does not
    /// have them.
    pub(super) fn biases(self) -> &'static [&'static str] {
        match self {
            Self::QwenMoe => &["q_proj", "k_proj", "v_proj"],
            _ => &[],
        }
    }

    /// Returns the number of experts per token: 2 unless the recipe sets it.
    pub(super) fn per_token(recipe: &Recipe) -> u64 {
        recipe.per_token.unwrap_or(2).min(recipe.experts.len() as u64)
    }

    /// The configuration of the result, of the base's.
    pub(super) fn configuration(
        self,
        base: &Map<String, Value>,
        recipe: &Recipe,
        dtype: Option<DType>,
    ) -> Map<String, Value> {
        let mut config = base.clone();
        state_defaults(&mut config);
        let (class, kind) = match self {
            Self::Mixtral => ("MixtralForCausalLM", "mixtral"),
            Self::DeepSeek => ("DeepseekForCausalLM", "deepseek"),
            Self::QwenMoe => ("Qwen2MoeForCausalLM", "qwen2_moe"),
            Self::Qwen3Moe => ("Qwen3MoeForCausalLM", "qwen3_moe"),
        };
        let (experts, per_token) = (recipe.experts.len(), Self::per_token(recipe));
        let inner = config.get("intermediate_size").cloned().unwrap_or_default();
        let own = match self {
            Self::Mixtral => json!({"num_local_experts": experts, "sliding_window": null}),
            Self::DeepSeek => json!({
                "n_routed_experts": experts,
                "n_shared_experts": recipe.shared.as_ref().map(|_| 1),
                "first_k_dense_replace": 0,
                "moe_layer_freq": 1,
                "scoring_func": "softmax",
                "norm_topk_prob": true,
                "moe_intermediate_size": inner,
                "auto_map": deepseek_code(),
            }),
            Self::QwenMoe => json!({
                "num_experts": experts,
                "decoder_sparse_step": 1,
                "norm_topk_prob": true,
                "sliding_window": null,
                "use_sliding_window": false,
                "shared_expert_intermediate_size": inner,
                "moe_intermediate_size": inner,
            }),
            Self::Qwen3Moe => json!({
                "num_experts": experts,
                "decoder_sparse_step": 1,
                "norm_topk_prob": true,
                "moe_intermediate_size": inner,
            }),
        };
        if let Value::Object(own) = own {
            config.extend(own);
        }
        config.insert("architectures".into(), json!([class]));
        config.insert("model_type".into(), kind.into());
        config.insert("num_experts_per_tok".into(), per_token.into());
        if let Some(name) = dtype.and_then(torch_name) {
            let key = if config.contains_key("dtype") { "dtype" } else { "torch_dtype" };
            config.insert(key.into(), name.into());
        }
        config
    }
}

/// Returns the location of the first DeepSeek MoE's code for transformers.
fn deepseek_code() -> Value {
    let place = "deepseek-ai/deepseek-moe-16b-base--";
    json!({
        "AutoConfig": format!("{place}configuration_deepseek.DeepseekConfig"),
        "AutoModel": format!("{place}modeling_deepseek.DeepseekModel"),
        "AutoModelForCausalLM": format!("{place}modeling_deepseek.DeepseekForCausalLM"),
    })
}

/// States what a configuration means by keys that it omits.
fn state_defaults(config: &mut Map<String, Value>) {
    let kind = config.get("model_type").and_then(Value::as_str).unwrap_or_default();
    let Some((_, dense)) = DEFAULTS.iter().find(|(name, _)| *name == kind) else { return };
    let is_mistral = kind == "mistral";
    let heads = match is_mistral {
        true => Some(json!(8)),
        false => config.get("num_attention_heads").cloned(),
    };
    let mut state = |key: &str, value: Value| {
        if config.get(key).is_none_or(Value::is_null) {
            config.insert(key.to_owned(), value);
        }
    };
    if let Some(heads) = heads {
        state("num_key_value_heads", heads);
    }
    state("max_position_embeddings", json!(dense.context));
    state("rms_norm_eps", json!(1e-6));
    state("hidden_act", json!("silu"));
    state("tie_word_embeddings", json!(dense.tied));
    if !config.get("rope_parameters").is_some_and(Value::is_object) {
        let theta = config.get("rope_theta").filter(|theta| !theta.is_null());
        let theta = theta.cloned().unwrap_or_else(|| json!(dense.theta));
        config.insert("rope_theta".into(), theta);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moe::parse;

    fn recipe(more: &str) -> Recipe {
        let text = format!(
            "base_model: a\ngate_mode: cheap_embed\nexperts:\n- {{source_model: b, \
             positive_prompts: [x]}}\n- {{source_model: c, positive_prompts: [y]}}\n{more}"
        );
        parse(&text).expect("valid").expect("a mixture")
    }

    #[test]
    fn the_kind_follows_from_models_and_shared_experts() {
        let shared = "shared_experts: [{source_model: a}]\n";
        let gated = "shared_experts: [{source_model: a, positive_prompts: [z]}]\n";
        for (more, kind, expected) in [
            ("", "llama", Some(Target::Mixtral)),
            ("", "qwen3", Some(Target::Qwen3Moe)),
            ("", "qwen2", None),
            (shared, "mistral", Some(Target::DeepSeek)),
            (gated, "llama", Some(Target::QwenMoe)),
            (gated, "qwen2", Some(Target::QwenMoe)),
            ("architecture: deepseek\n", "llama", Some(Target::DeepSeek)),
            ("architecture: Qwen\n", "qwen3", Some(Target::Qwen3Moe)),
            ("architecture: mixtral\n", "gemma", None),
        ] {
            let types = [("a", Some(kind.to_owned())), ("b", Some(kind.to_owned()))];
            assert_eq!(Target::of(&recipe(more), &types).ok(), expected, "{more}{kind}");
        }
        let types = [("a", Some("llama".to_owned())), ("b", Some("mistral".to_owned()))];
        let error = Target::of(&recipe(""), &types).expect_err("two types").to_string();
        assert!(error.contains("'b' is mistral"), "{error}");
    }

    #[test]
    fn defaults_of_dense_configurations_are_written_out() {
        let base = json!({"model_type": "llama", "num_attention_heads": 4, "hidden_size": 8});
        let base = base.as_object().expect("an object");
        let config = Target::Mixtral.configuration(base, &recipe(""), Some(DType::BF16));
        for (key, expected) in [
            ("rope_theta", json!(10_000.0)),
            ("num_key_value_heads", json!(4)),
            ("rms_norm_eps", json!(1e-6)),
            ("max_position_embeddings", json!(2048)),
            ("num_local_experts", json!(2)),
            ("torch_dtype", json!("bfloat16")),
        ] {
            assert_eq!(config[key], expected, "{key}");
        }
    }
}
