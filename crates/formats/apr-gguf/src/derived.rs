//! What key-value pairs say about a model, under the names that the project uses for every format.
//!
//! | key | from |
//! |---|---|
//! | `model_type` | `general.architecture` |
//! | `model_name` | `general.name` |
//! | `license` | `general.license`, in lower case |
//! | `author`, `organization`, `description`, `url`, `version` | `general.author`, ... |
//! | `context_length`, `hidden_size` | `ARCH.context_length`, `ARCH.embedding_length` |
//! | `architecture` | `ARCH.*` under the names of Hugging Face configurations |
//! | `tokenizer.vocab_size` | length of `tokenizer.ggml.tokens` |
//! | `tokenizer.model_type` | `tokenizer.ggml.model` |
//! | `tokenizer.ROLE_token_id`, `tokenizer.ROLE_token` | `tokenizer.ggml.ROLE_token_id`, and the token of that id |
//! | `tokenizer.chat_template` | `tokenizer.chat_template`, up to 1 MiB |
//!
//! ARCH is what `general.architecture` says. The vocabulary itself stays where it is, in the pairs.

use apr_core::{Array, KeyValues, Metadata, Value, keys};
use serde_json::{Map, Value as Json};

/// Longest text that is given a second time, in bytes.
const MAX_TEXT: usize = 1 << 20;

/// Longest array of a hyperparameter, one value a layer.
const MAX_LAYERS: usize = 256;

/// Keys of the description, and their names here.
const GENERAL: [(&str, &str); 6] = [
    ("general.name", "model_name"),
    ("general.author", "author"),
    ("general.organization", "organization"),
    ("general.description", "description"),
    ("general.url", "url"),
    ("general.version", "version"),
];

/// Hyperparameters: the key after the architecture's name, and its names in configurations.
const HYPERPARAMETERS: [(&str, &[&str]); 30] = [
    ("attention.head_count", &["num_attention_heads"]),
    ("attention.head_count_kv", &["num_key_value_heads"]),
    ("attention.key_length", &["head_dim"]),
    ("attention.kv_lora_rank", &["kv_lora_rank"]),
    ("attention.layer_norm_epsilon", &["layer_norm_eps"]),
    ("attention.layer_norm_rms_epsilon", &["rms_norm_eps"]),
    ("attention.q_lora_rank", &["q_lora_rank"]),
    ("attention.relative_buckets_count", &["relative_attention_num_buckets"]),
    ("attention.sliding_window", &["sliding_window"]),
    ("attn_logit_softcapping", &["attn_logit_softcapping"]),
    ("block_count", &["num_hidden_layers"]),
    ("context_length", &["max_position_embeddings"]),
    ("decoder_block_count", &["num_decoder_layers"]),
    ("decoder_start_token_id", &["decoder_start_token_id"]),
    ("embedding_length", &["hidden_size"]),
    ("expert_count", &["num_local_experts", "num_experts"]),
    ("expert_feed_forward_length", &["moe_intermediate_size"]),
    ("expert_shared_count", &["n_shared_experts"]),
    ("expert_shared_feed_forward_length", &["shared_expert_intermediate_size"]),
    ("expert_used_count", &["num_experts_per_tok"]),
    ("feed_forward_length", &["intermediate_size"]),
    ("final_logit_softcapping", &["final_logit_softcapping"]),
    ("leading_dense_block_count", &["first_k_dense_replace"]),
    ("logit_scale", &["logit_scale"]),
    ("rope.dimension_count", &["rotary_dim"]),
    ("rope.freq_base", &["rope_theta"]),
    ("ssm.conv_kernel", &["conv_kernel"]),
    ("ssm.state_size", &["state_size"]),
    ("use_parallel_residual", &["use_parallel_residual"]),
    ("vocab_size", &["vocab_size"]),
];

/// Hyperparameters of T5, whose configuration has different names.
const T5: [(&str, &[&str]); 6] = [
    ("attention.head_count", &["num_heads"]),
    ("attention.key_length", &["d_kv"]),
    ("block_count", &["num_layers"]),
    ("context_length", &["n_positions"]),
    ("embedding_length", &["d_model"]),
    ("feed_forward_length", &["d_ff"]),
];

/// Roles of tokens: as GGUF spells them, and here.
const ROLES: [(&str, &str); 8] = [
    ("bos", "bos"),
    ("eos", "eos"),
    ("unknown", "unk"),
    ("padding", "pad"),
    // Most writers misspell it.
    ("seperator", "sep"),
    ("separator", "sep"),
    ("cls", "cls"),
    ("mask", "mask"),
];

/// Converts key-value pairs to metadata. Facts that the pairs lack are left out.
///
/// ```
/// use apr_gguf::{KeyValue, KeyValues, derived};
///
/// let pairs: KeyValues = [
///     KeyValue::new("general.architecture", "llama"),
///     KeyValue::new("llama.block_count", 22_u32),
///     KeyValue::new("tokenizer.ggml.tokens", vec!["<unk>".to_owned(), "<s>".to_owned()]),
///     KeyValue::new("tokenizer.ggml.bos_token_id", 1_u32),
/// ]
/// .into_iter()
/// .collect();
/// let metadata = derived(&pairs);
/// assert_eq!(metadata.text("model_type"), Some("llama"));
/// assert_eq!(
///     metadata.object("architecture").and_then(|it| it["num_hidden_layers"].as_u64()),
///     Some(22)
/// );
/// assert_eq!(metadata.text("tokenizer.bos_token"), Some("<s>"));
/// ```
#[must_use]
pub fn derived(pairs: &KeyValues) -> Metadata {
    let mut metadata = Metadata::new();
    for (key, name) in GENERAL {
        if let Some(text) = text(pairs, key) {
            metadata.set(name, text);
        }
    }

    if let Some(license) = text(pairs, "general.license") {
        metadata.set("license", license.to_lowercase());
    }

    if let Some(architecture) = text(pairs, "general.architecture") {
        metadata.set(keys::MODEL_TYPE, architecture);
        describe_network(pairs, architecture, &mut metadata);
    }

    describe_tokenizer(pairs, &mut metadata);
    metadata
}

fn text<'a>(pairs: &'a KeyValues, key: &str) -> Option<&'a str> {
    pairs.text(key).filter(|text| text.len() <= MAX_TEXT)
}

/// Returns the number of tokens, if there is a vocabulary.
fn tokens(pairs: &KeyValues) -> Option<u64> {
    let pair = pairs.find("tokenizer.ggml.tokens")?;
    if pair.texts().is_some() { pair.items() } else { None }
}

fn describe_network(pairs: &KeyValues, name: &str, metadata: &mut Metadata) {
    let value = |key: &str| {
        let pair = pairs.find(&format!("{name}.{key}"))?;
        // Longer ones are not hyperparameters.
        pair.items()
            .is_none_or(|items| items <= MAX_LAYERS as u64)
            .then(|| hyperparameter(&pair.value()))?
    };

    for (key, top) in [("context_length", "context_length"), ("embedding_length", "hidden_size")] {
        if let Some(number) = value(key).and_then(|number| number.as_u64()) {
            metadata.set(top, number);
        }
    }

    let mut network = Map::new();
    let own: &[(&str, &[&str])] = if matches!(name, "t5" | "t5encoder") { &T5 } else { &[] };
    for (key, names) in HYPERPARAMETERS.iter().chain(own) {
        if let Some(value) = value(key) {
            network.extend(names.iter().map(|&name| (name.to_owned(), value.clone())));
        }
    }

    if let Some(tokens) = tokens(pairs) {
        network.entry("vocab_size").or_insert_with(|| tokens.into());
    }
    if !network.is_empty() {
        metadata.set(keys::ARCHITECTURE, network);
    }
}

/// Returns a scalar, or a list with one value per layer. If all layers have the same value, returns
/// that value.
fn hyperparameter(value: &Value) -> Option<Json> {
    match value {
        Value::F32(value) => shortest(*value),
        Value::F64(value) => serde_json::Number::from_f64(*value).map(Json::Number),
        Value::Bool(value) => Some((*value).into()),
        Value::String(text) => (text.len() <= MAX_LAYERS).then(|| text.as_str().into()),
        Value::Array(items) => {
            if items.len() > MAX_LAYERS {
                return None;
            }
            let layers = layers(items)?;
            let first = layers.first()?;
            Some(if layers.iter().all(|layer| layer == first) {
                first.clone()
            } else {
                layers.into()
            })
        }
        integer => integer.as_u64().map(Json::from).or_else(|| integer.as_i64().map(Json::from)),
    }
}

fn layers(items: &Array) -> Option<Vec<Json>> {
    match items {
        Array::U8(items) => Some(items.iter().map(|&item| item.into()).collect()),
        Array::I8(items) => Some(items.iter().map(|&item| item.into()).collect()),
        Array::U16(items) => Some(items.iter().map(|&item| item.into()).collect()),
        Array::I16(items) => Some(items.iter().map(|&item| item.into()).collect()),
        Array::U32(items) => Some(items.iter().map(|&item| item.into()).collect()),
        Array::I32(items) => Some(items.iter().map(|&item| item.into()).collect()),
        Array::U64(items) => Some(items.iter().map(|&item| item.into()).collect()),
        Array::I64(items) => Some(items.iter().map(|&item| item.into()).collect()),
        Array::F32(items) => items.iter().map(|&item| shortest(item)).collect(),
        Array::Bool(items) => Some(items.iter().map(|&item| item.into()).collect()),
        _ => None,
    }
}

/// Returns the shortest decimal that rounds to the float, as configurations have it: 1e-5, not
/// 9.99999974737875e-6.
fn shortest(value: f32) -> Option<Json> {
    let decimal: f64 = value.to_string().parse().ok()?;
    serde_json::Number::from_f64(decimal).map(Json::Number)
}

fn describe_tokenizer(pairs: &KeyValues, metadata: &mut Metadata) {
    let tokens = tokens(pairs);
    if let Some(tokens) = tokens {
        metadata.set("tokenizer.vocab_size", tokens);
    }

    let model_type = text(pairs, "tokenizer.ggml.model").and_then(tokenizer_type);
    if let Some(model_type) = model_type {
        metadata.set("tokenizer.model_type", model_type);
    }

    for (spelt, role) in ROLES {
        let id = pairs.get(&format!("tokenizer.ggml.{spelt}_token_id")).and_then(|id| id.as_u64());
        // Some files name an id past their vocabulary for a token that they don't have.
        if let Some(id) = id.filter(|&id| tokens.is_none_or(|tokens| id < tokens)) {
            describe_token(pairs, role, id, metadata);
        }
    }

    if let Some(template) = text(pairs, "tokenizer.chat_template") {
        metadata.set("tokenizer.chat_template", template);
    }
}

/// Returns the name in tokenizer files of an algorithm that llama.cpp names differently.
fn tokenizer_type(model: &str) -> Option<&str> {
    match model {
        "llama" => Some("SentencePiece BPE"),
        "t5" => Some("SentencePiece Unigram"),
        "gpt2" | "gemma4" | "hybriddna" | "whitespace" => Some("BPE"),
        "bert" => Some("WordPiece"),
        "none" | "no_vocab" => None,
        other => Some(other),
    }
}

/// Sets id and text of the token with this role.
fn describe_token(pairs: &KeyValues, role: &str, id: u64, metadata: &mut Metadata) {
    let texts = pairs.find("tokenizer.ggml.tokens").and_then(|pair| pair.texts());
    let token = texts.and_then(|mut texts| texts.nth(usize::try_from(id).ok()?));
    if let Some(token) = token.filter(|token| token.len() <= MAX_TEXT) {
        metadata.set(&format!("tokenizer.{role}_token"), token);
    }
    metadata.set(&format!("tokenizer.{role}_token_id"), id);
}

#[cfg(test)]
mod tests {
    use super::*;
    use apr_core::KeyValue;
    use serde_json::json;

    fn of(pairs: &[(&str, Value)]) -> Metadata {
        let pairs: KeyValues =
            pairs.iter().map(|(key, value)| KeyValue::new(*key, value.clone())).collect();
        derived(&pairs)
    }

    #[test]
    fn hyperparameters_get_the_names_of_configurations() {
        let metadata = of(&[
            ("general.architecture", "qwen3moe".into()),
            ("qwen3moe.embedding_length", 2048_u32.into()),
            ("qwen3moe.context_length", 32_768_u64.into()),
            ("qwen3moe.expert_count", 128_u32.into()),
            ("qwen3moe.attention.layer_norm_rms_epsilon", 1e-6_f32.into()),
            ("qwen3moe.attention.head_count_kv", vec![4_u32; 3].into()),
            ("qwen3moe.attention.head_count", vec![32_u64; 3].into()),
            ("qwen3moe.feed_forward_length", vec![4_u32, 5].into()),
            ("qwen2.block_count", 7_u32.into()),
            ("tokenizer.ggml.tokens", vec![String::new(); 9].into()),
        ]);
        let expected = json!({
            "hidden_size": 2048, "max_position_embeddings": 32768, "num_experts": 128,
            "num_local_experts": 128, "rms_norm_eps": 1e-6, "num_attention_heads": 32,
            "num_key_value_heads": 4, "intermediate_size": [4, 5], "vocab_size": 9,
        });
        assert_eq!(metadata.get(keys::ARCHITECTURE), Some(&expected));
        assert_eq!(metadata.get("context_length"), Some(&json!(32_768)));
        assert_eq!(metadata.get("hidden_size"), Some(&json!(2048)));
    }

    #[test]
    fn special_tokens_are_named_unless_their_id_is_invalid() {
        let metadata = of(&[
            ("tokenizer.ggml.model", "gpt2".into()),
            ("tokenizer.ggml.tokens", vec!["a".to_owned(), "b".to_owned()].into()),
            ("tokenizer.ggml.unknown_token_id", 1_u32.into()),
            ("tokenizer.ggml.seperator_token_id", 0_i32.into()),
            ("tokenizer.ggml.padding_token_id", u32::MAX.into()),
            ("tokenizer.ggml.eos_token_id", (-1_i32).into()),
        ]);
        let expected = json!({
            "tokenizer.model_type": "BPE", "tokenizer.vocab_size": 2, "tokenizer.unk_token": "b",
            "tokenizer.unk_token_id": 1, "tokenizer.sep_token": "a", "tokenizer.sep_token_id": 0,
        });
        assert_eq!(serde_json::to_value(&metadata).expect("JSON"), expected);
    }

    #[test]
    fn values_of_the_wrong_type_are_left_out() {
        let metadata = of(&[
            ("general.architecture", 1_u32.into()),
            ("general.name", vec![1_u8].into()),
            ("tokenizer.ggml.tokens", "x".into()),
            ("tokenizer.ggml.bos_token_id", 1.0_f32.into()),
        ]);
        assert!(metadata.is_empty(), "{metadata:?}");
    }
}
