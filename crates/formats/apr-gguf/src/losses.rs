//! What of a checkpoint's metadata a GGUF file can't hold.

use apr_core::{KeyValues, Loss, Metadata, TensorInfo, keys};
use serde_json::{Map, Value as Json};

use crate::derived::derived;
use crate::open_file::is_tied;

/// Configuration entries that do not affect the computation of a trained network: training
/// settings, the saving program, and values that a library returns or caches.
const BOOKKEEPING: [&str; 22] = [
    "_attn_implementation",
    "_name_or_path",
    "architectures",
    "chunk_size_feed_forward",
    "dtype",
    "gradient_checkpointing",
    "init_std",
    "initializer_factor",
    "initializer_range",
    "is_encoder_decoder",
    "label2id",
    "model_type",
    "output_attentions",
    "output_hidden_states",
    "pretraining_tp",
    "return_dict",
    "router_aux_loss_coef",
    "task_specific_params",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "use_cache",
];

/// Entries of configurations for ids that the tokenizer's pairs have.
const TOKENS: [&str; 4] = ["bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id"];

/// Returns every key that the pairs do not imply and that is not the project's own note.
///
/// Only hyperparameters that affect the network's computation from tokens count. Left out are
/// settings of training (dropout among them), [bookkeeping](BOOKKEEPING), ids of tokens that the
/// tokenizer's pairs have, entries without a value, and a list of layer types that are all full
/// attention, which is the default.
pub(crate) fn losses(metadata: &Metadata, pairs: &KeyValues, tensors: &[TensorInfo]) -> Vec<Loss> {
    // The model's type is in the pairs, perhaps in another spelling; `names` says what tensors were
    // once called. The caller stores files elsewhere.
    const CARED_FOR: [&str; 9] = [
        keys::APR_VERSION,
        keys::FILES,
        keys::GGUF,
        keys::LOSS,
        keys::MODEL_TYPE,
        keys::SOURCE,
        keys::TIED,
        keys::VIOLATIONS,
        "names",
    ];

    let derived = derived(pairs);
    let entries = metadata.iter().filter(|(key, _)| !CARED_FOR.contains(key));
    let lost = entries.filter_map(|(key, value)| match value {
        Json::Object(network) if key == keys::ARCHITECTURE => {
            lost_network(network, &derived, is_tied(tensors))
        }
        _ if is_held(key, value, &derived) => None,
        _ => {
            let why = "no key of the GGUF file holds it".into();
            Some(Loss { name: key.into(), what: "metadata".to_owned(), why })
        }
    });

    lost.collect()
}

/// Returns one loss for all hyperparameters that get lost.
fn lost_network(network: &Map<String, Json>, derived: &Metadata, tied: bool) -> Option<Loss> {
    let names = lost(network, derived, tied);
    let what = format!("hyperparameters: {}", names.join(", "));
    let why = "GGUF has no key for it".into();
    (!names.is_empty()).then(|| Loss { name: keys::ARCHITECTURE.into(), what, why })
}

/// Returns `true` if the pairs hold an entry of the metadata, or the entry carries no information
/// about the model.
fn is_held(key: &str, value: &Json, derived: &Metadata) -> bool {
    match (value, derived.get(key)) {
        (Json::Object(header), _) if key == keys::SAFETENSORS && is_format(header) => true,
        // The converter's title of the model goes before the name that a file was given.
        (_, Some(_)) if key == "model_name" => true,
        (_, Some(held)) => is_same(held, value),
        (_, None) => false,
    }
}

/// Returns the names of hyperparameters that affect the network's computation and that a file of
/// these pairs and tensors does not hold.
#[must_use]
pub fn lost_hyperparameters<'m>(
    metadata: &'m Metadata,
    pairs: &KeyValues,
    tensors: &[TensorInfo],
) -> Vec<&'m str> {
    let network = metadata.object(keys::ARCHITECTURE);
    network.map(|network| lost(network, &derived(pairs), is_tied(tensors))).unwrap_or_default()
}

fn lost<'n>(network: &'n Map<String, Json>, derived: &Metadata, tied: bool) -> Vec<&'n str> {
    let held = derived.object(keys::ARCHITECTURE);
    let is_held = |name: &str, value: &Json| {
        let held = held.and_then(|held| held.get(name));
        name == "tie_word_embeddings" && value.as_bool() == Some(tied)
            || TOKENS.contains(&name) && derived.get(&format!("tokenizer.{name}")).is_some()
            || held.is_some_and(|held| is_same(held, value))
    };
    let lost =
        network.iter().filter(|(name, value)| !says_nothing(name, value) && !is_held(name, value));
    lost.map(|(name, _)| name.as_str()).collect()
}

/// Returns `true` if an entry does not affect the network's computation.
fn says_nothing(name: &str, value: &Json) -> bool {
    let is_of_training = name.contains("dropout") || name.contains("pdrop");
    let is_full = |layers: &Vec<Json>| layers.iter().all(|layer| layer == "full_attention");
    let is_default = match name {
        "layer_types" => value.as_array().is_some_and(is_full),
        "is_decoder" | "add_cross_attention" => value == false,
        "problem_type" => !has_own_scores(value),
        _ => false,
    };
    // The types of a file are those of its tensors.
    let is_of_types = ["quantization", "quantization_config"].contains(&name);
    let is_settled = is_of_training || is_default || is_of_types;
    value.is_null() || is_settled || BOOKKEEPING.contains(&name)
}

/// Returns `true` for the `problem_type` of a classifier whose scores do not depend on each other.
///
/// Those of a classifier that may give several labels are sigmoids, and those of a
/// [regression](is_regression) are the logits. Other classifiers have the softmax of several
/// labels, or the sigmoid of one.
#[must_use]
pub fn has_own_scores(problem_type: &Json) -> bool {
    problem_type == "multi_label_classification" || is_regression(problem_type)
}

/// Returns `true` for the `problem_type` of a model whose logits are the values that it predicts.
#[must_use]
pub fn is_regression(problem_type: &Json) -> bool {
    problem_type == "regression"
}

/// Returns `true` if the values are equal; 1 equals 1.0.
fn is_same(left: &Json, right: &Json) -> bool {
    left == right || left.is_number() && left.as_f64() == right.as_f64()
}

/// Returns `true` if the text of a safetensors header has only the `format` key.
fn is_format(header: &Map<String, Json>) -> bool {
    let text = header.get("metadata").and_then(Json::as_object);
    text.is_none_or(|text| text.keys().all(|key| key == "format"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use apr_core::KeyValue;
    use serde_json::json;

    fn lost(architecture: Json, pairs: &[KeyValue]) -> Vec<Loss> {
        let mut metadata = Metadata::new();
        metadata.set(keys::ARCHITECTURE, architecture);
        metadata.set("model_name", "folder");
        losses(&metadata, &pairs.iter().collect(), &[])
    }

    #[test]
    fn all_lost_hyperparameters_are_reported() {
        let names: Vec<String> = (0..12).map(|number| format!("size_{number:02}")).collect();
        let network: Map<String, Json> =
            names.iter().map(|name| (name.clone(), json!(1))).collect();
        let losses = lost(network.into(), &[KeyValue::new("general.name", "A Folder")]);
        assert_eq!(losses.len(), 1, "{losses:?}");
        assert_eq!(losses[0].what, format!("hyperparameters: {}", names.join(", ")));
    }

    #[test]
    fn entries_that_do_not_affect_results_are_not_losses() {
        let network = json!({
            "initializer_range": 0.02, "attention_dropout": 0.1, "resid_pdrop": 0.1,
            "use_cache": true, "torch_dtype": "float16", "sliding_window": null,
            "layer_types": ["full_attention", "full_attention"], "architectures": ["X"],
            "problem_type": "single_label_classification",
            "bos_token_id": 1, "eos_token_id": [2, 3],
        });
        let pairs = [
            KeyValue::new("general.name", "A Folder"),
            KeyValue::new("tokenizer.ggml.bos_token_id", 1_u32),
            KeyValue::new("tokenizer.ggml.eos_token_id", 2_u32),
        ];
        assert_eq!(lost(network, &pairs), []);
        let network = json!({
            "eos_token_id": 2, "layer_types": ["sliding_attention", "full_attention"],
            "problem_type": "multi_label_classification",
        });
        let losses = lost(network, &[]);
        assert_eq!(losses[0].what, "hyperparameters: eos_token_id, layer_types, problem_type");
        assert_eq!(losses[1].name, "model_name");
    }
}
