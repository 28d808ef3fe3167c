//! Where llama.cpp computes otherwise than the configuration says, since GGUF can't express it.

use apr_arch::{FamilyModel, text_part};
use apr_gguf::{KeyValue, Value as Typed};
use apr_registry::{CheckpointReader, Escaped, Metadata, TensorInfo, keys};
use apr_view::View;
use serde_json::{Map, Value};

use super::tensors::{LLAMA3, LONG};
use crate::rope;

/// Keys for the activation function of the feed-forward networks. The first key that is present
/// counts.
const ACTIVATIONS: [&str; 5] =
    ["hidden_activation", "hidden_act", "activation_function", "activation", "feed_forward_proj"];

/// Keys that repeat parts of `feed_forward_proj` in T5's configuration.
const PARTS_OF_ACTIVATION: [&str; 2] = ["dense_act_fn", "is_gated_act"];

/// Returns a warning about entries of the configuration that llama.cpp ignores. For a model that is
/// exported as another family, these are all entries that GGUF can't store. For other models, they
/// are only factors that scale values.
///
/// Beside `text_config`, entries are about other parts than the language model, which have a file
/// of their own.
pub(super) fn beyond_family(
    metadata: &Metadata,
    tensors: &[TensorInfo],
    is_stranger: bool,
) -> Option<String> {
    let config = metadata.object(keys::ARCHITECTURE)?;
    let pairs = metadata.key_values().ok().flatten()?;
    if text_part(config).is_some() {
        return None;
    }

    // Ids of tokens are the tokenizer's business, which has a warning of its own.
    let lost = apr_gguf::lost_hyperparameters(metadata, &pairs, tensors).into_iter();
    let lost = lost.filter(|name| !name.ends_with("_token_id"));
    let counts =
        |name: &&str| is_stranger || config.get(*name).is_some_and(|value| is_scale(name, value));
    let listed: Vec<String> = lost
        .filter(counts)
        .filter_map(|name| Some(format!("{name} = {}", config.get(name)?)))
        .collect();
    (!listed.is_empty()).then(|| {
        let listed = listed.join(", ");
        format!(
            "no GGUF key for this architecture, ignored by llama.cpp: {listed}; results will \
             differ"
        )
    })
}

/// Returns `true` if an entry of a configuration is a factor that scales values in the network.
fn is_scale(name: &str, value: &Value) -> bool {
    let is_named_so = ["multiplier", "scaling", "scale"].iter().any(|end| name.ends_with(end))
        || name.starts_with("scale_");
    is_named_so && value.as_f64().is_some_and(|factor| factor != 1.0)
}

/// Returns `true` if llama.cpp scales positions by this kind of `rope_scaling`.
pub(super) fn is_stretched(
    kind: &str,
    config: &Map<String, Value>,
    keys: &[KeyValue],
    view: &View<'_>,
) -> bool {
    // Some architectures always have the key, which says `none`.
    let key = keys.iter().find(|pair| pair.key.ends_with(".rope.scaling.type"));
    let has_key = key.is_some();
    let says_kind =
        matches!(key.map(|pair| &pair.value), Some(Typed::String(text)) if text == kind);
    let has_tensor = |name: &str| view.tensors().iter().any(|info| info.name == name);
    match kind {
        "linear" => says_kind,
        // Phi-3 stretches by lists of factors under this type, too.
        "yarn" => says_kind || has_tensor(LONG),
        "llama3" | rope::PROPORTIONAL => has_tensor(LLAMA3),
        "su" | "longrope" => has_tensor(LONG),
        // With `alpha`, it is another base at every length, and the key says that nothing else is.
        "dynamic" => {
            let alpha = config.get("rope_scaling").and_then(|rope| rope.get("alpha"));
            let has_factor = keys.iter().any(|pair| pair.key.ends_with(".rope.scaling.factor"));
            alpha.is_some() && has_key && has_factor
        }
        _ => false,
    }
}

pub(super) fn unstretched(kind: &str, config: &Map<String, Value>) -> String {
    let original =
        config.get("rope_scaling").and_then(|rope| rope.get("original_max_position_embeddings"));
    let trained =
        original.or_else(|| config.get("max_position_embeddings")).and_then(Value::as_u64);
    let trained =
        trained.map_or_else(|| "those it was trained on".to_owned(), |count| count.to_string());
    let texts = if kind == "dynamic" { "longer texts" } else { "texts" };
    format!(
        "rope_scaling of the type '{kind}' is left out, which GGUF can't express for this \
         architecture: llama.cpp does not stretch positions beyond {trained}, so it computes \
         {texts} otherwise"
    )
}

/// Returns a warning if the configuration names another activation function than llama.cpp
/// computes. llama.cpp has one for each architecture, which the conversion back puts into `held`.
pub(super) fn other_activation(
    config: &Map<String, Value>,
    held: &Map<String, Value>,
) -> Option<String> {
    let first = |config: &Map<String, Value>| {
        ACTIVATIONS.iter().find_map(|key| Some((*key, config.get(*key)?.as_str()?.to_owned())))
    };
    let ((key, told), (_, computed)) = (first(config)?, first(held)?);
    (of_ggml(&told) != of_ggml(&computed)).then(|| {
        format!(
            "config.json's '{key}' is '{told}', but llama.cpp computes '{computed}' in all models \
             of this architecture, and GGUF has no key for it: results will differ"
        )
    })
}

/// ggml's function for an activation of `transformers`: of the kinds of GELU it has the
/// approximation by tanh alone.
fn of_ggml(activation: &str) -> &str {
    match activation {
        "gelu_new" | "gelu_fast" | "gelu_pytorch_tanh" | "gelu_python" | "gelu_accurate" => "gelu",
        "swish" => "silu",
        other => other,
    }
}

/// Takes out of the configuration what the file's keys lead back to, so that it does not count as
/// lost.
pub(super) fn forget_what_is_held(
    metadata: &mut Metadata,
    held: &Map<String, Value>,
    has_other_activation: bool,
) {
    let Some(mut config) = metadata.object(keys::ARCHITECTURE).cloned() else { return };
    let is_same = |told: &Value, held: &Value| {
        told == held || told.is_number() && told.as_f64() == held.as_f64()
    };
    config.retain(|key, told| {
        let is_activation = ACTIVATIONS.iter().chain(&PARTS_OF_ACTIVATION).any(|name| name == key);
        // Stretched positions have keys and tensors, or a loss of their own.
        let is_rope = ["rope_scaling", "rope_parameters"].contains(&key.as_str());
        let is_held = held.get(key).is_some_and(|held| is_same(told, held));
        !is_rope && if is_activation { has_other_activation } else { !is_held }
    });
    metadata.set(keys::ARCHITECTURE, config);
}

/// Returns a warning if a model without a head becomes a language model, because the keys of the
/// file can't state that it has none.
pub(super) fn gained_head(
    config: &Map<String, Value>,
    held: &Map<String, Value>,
) -> Option<String> {
    let class = |config: &Map<String, Value>| {
        let class = config.get("architectures")?.get(0)?.as_str()?;
        Some(class.to_owned())
    };
    let own = class(config).filter(|name| name.ends_with("Model") && !name.contains("LMHead"))?;
    let becomes = class(held).filter(|name| name.ends_with("ForCausalLM"))?;
    Some(format!(
        "{} has no head, and the keys of the file describe {becomes}: programs generate text with \
         the token embeddings as its head",
        Escaped::short(&own)
    ))
}

/// Returns a warning if llama.cpp needs an output matrix that is missing. Without one, it uses the
/// token embeddings for most models, but not for all.
pub(super) fn missing_output(view: &View<'_>, model: &FamilyModel<'_>) -> Option<String> {
    let needs_it = ["phi2", "gptneox"].contains(&model.gguf_architecture()?);
    let has_it = view.tensors().iter().any(|info| info.name == "output.weight");
    (needs_it && !has_it).then(|| "llama.cpp can't run it: missing output.weight".to_owned())
}
