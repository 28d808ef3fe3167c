//! The metadata of aprender and apr-cli under the keys that this project has.

use alloc::string::String;

use apr_core::{Metadata, keys};
use serde_json::{Map, Value, json};

use crate::older::disarm;

/// Names of hyperparameters in the dialects, and Hugging Face's names.
const HYPERPARAMETERS: [(&str, &str); 13] = [
    ("hidden_size", "hidden_size"),
    ("num_layers", "num_hidden_layers"),
    ("num_heads", "num_attention_heads"),
    ("num_kv_heads", "num_key_value_heads"),
    ("vocab_size", "vocab_size"),
    ("intermediate_size", "intermediate_size"),
    ("max_position_embeddings", "max_position_embeddings"),
    ("rope_theta", "rope_theta"),
    ("rms_norm_eps", "rms_norm_eps"),
    ("head_dim", "head_dim"),
    ("num_experts", "num_experts"),
    ("num_experts_per_tok", "num_experts_per_tok"),
    ("moe_intermediate_size", "moe_intermediate_size"),
];

/// Model types that carry no information.
const NO_TYPE: [&str; 2] = ["Auto", ""];

/// Returns the metadata with the family's name and the hyperparameters under their proper keys, and
/// without null values.
pub(super) fn translated(mut metadata: Metadata) -> Metadata {
    metadata = Metadata::from(
        metadata
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key.into(), value.clone()))
            .collect::<Map<_, _>>(),
    );
    disarm(&mut metadata);
    let mut architecture = take_architecture(&mut metadata);
    for (theirs, ours) in HYPERPARAMETERS {
        if metadata.get(theirs).is_some_and(Value::is_number)
            && let Some(value) = metadata.remove(theirs)
        {
            architecture.entry(ours).or_insert(value);
        }
    }

    if let Some(class) = metadata.remove("hf_architecture") {
        architecture.entry("architectures").or_insert(json!([class]));
    }
    if let Some(name) = metadata.remove("hf_model_type") {
        architecture.entry("model_type").or_insert(name);
    }

    if let (Some(name), None) = (metadata.get("name").cloned(), metadata.get("model_name")) {
        metadata.remove("name");
        metadata.set("model_name", name);
    }

    remove_counts(&mut metadata);
    metadata.set(keys::ARCHITECTURE, architecture);
    metadata
}

/// Removes and returns the hyperparameters under the key `architecture`.
///
/// If the key holds the family's name instead, that becomes the model type, unless another key
/// states it better.
fn take_architecture(metadata: &mut Metadata) -> Map<String, Value> {
    match metadata.remove(keys::ARCHITECTURE) {
        Some(Value::Object(architecture)) => return architecture,
        Some(Value::String(family)) => {
            let told = metadata.text("hf_model_type").unwrap_or(&family);
            if metadata.text(keys::MODEL_TYPE).is_none_or(|told| NO_TYPE.contains(&told)) {
                let told = Value::from(told);
                metadata.set(keys::MODEL_TYPE, told);
            }
        }
        Some(other) => metadata.set("architecture_note", other),
        None => {}
    }
    Map::new()
}

/// Removes keys that repeat the index, and counts that the program leaves at zero.
fn remove_counts(metadata: &mut Metadata) {
    for (key, says_nothing) in
        [("tensor_shapes", None), ("total_size", Some(0)), ("param_count", Some(0))]
    {
        if metadata
            .get(key)
            .is_some_and(|value| says_nothing.is_none() || value.as_u64() == says_nothing)
        {
            metadata.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hyperparameters_get_the_names_that_configurations_have() {
        let theirs = br#"{"model_type": "Auto", "architecture": "llama",
            "hf_architecture": "LlamaForCausalLM", "hf_model_type": "llama", "num_layers": 2,
            "num_kv_heads": 1, "license": null, "name": "m", "rope_theta": 10000.0,
            "total_size": 0, "param_count": 5, "tokenizer.vocabulary": ["a"]}"#;
        let ours = translated(Metadata::parse(theirs).expect("JSON"));
        let expected = json!({
            "model_type": "llama",
            "architecture": {
                "architectures": ["LlamaForCausalLM"], "model_type": "llama",
                "num_hidden_layers": 2, "num_key_value_heads": 1, "rope_theta": 10000.0,
            },
            "model_name": "m", "param_count": 5, "tokenizer.vocabulary": ["a"],
        });
        assert_eq!(serde_json::to_value(&ours).expect("JSON"), expected);
    }

    #[test]
    fn a_stated_model_type_is_kept() {
        let ours = translated(
            Metadata::parse(br#"{"model_type": "test", "architecture": "llama"}"#).expect("JSON"),
        );
        assert_eq!(ours.text("model_type"), Some("test"));
        assert_eq!(translated(Metadata::new()).get("architecture"), Some(&json!({})));
    }
}
