//! `tokenizer_config.json` and `special_tokens_map.json`.

use apr_gguf::{Array, Value};
use serde_json::{Map, Value as Json, json};

use super::super::tokens::SPACE;
use super::keys::TokenizerKeys;
use crate::input_names::{INPUT_NAMES, input_names};

/// Roles by the key of their id.
const ROLES: [(&str, &str); 7] = [
    ("bos_token", "bos_token_id"),
    ("eos_token", "eos_token_id"),
    ("unk_token", "unknown_token_id"),
    ("sep_token", "seperator_token_id"),
    ("pad_token", "padding_token_id"),
    ("cls_token", "cls_token_id"),
    ("mask_token", "mask_token_id"),
];

pub(super) fn settings(
    keys: &TokenizerKeys<'_>,
    warnings: &mut Vec<String>,
) -> (Map<String, Json>, Map<String, Json>) {
    let mut map = Map::new();
    for (role, key) in ROLES {
        if let Some(text) = keys.token(key) {
            map.insert(
                role.to_owned(),
                text.strip_prefix(SPACE).filter(|_| keys.model == "bert").unwrap_or(text).into(),
            );
        }
    }

    if keys.model == "bert" {
        // llama.cpp calls BERT's first token its bos and its last one its eos.
        if let Some(first) = map.remove("bos_token") {
            map.insert("cls_token".to_owned(), first);
        }
        if map.get("eos_token") == map.get("sep_token") {
            map.remove("eos_token");
        }
    }

    let mut settings = map.clone();
    settings.insert("tokenizer_class".to_owned(), "PreTrainedTokenizerFast".into());
    settings.insert("clean_up_tokenization_spaces".to_owned(), false.into());
    for key in ["add_bos_token", "add_eos_token"] {
        if let Some(adds) = keys.flag(key) {
            settings.insert(key.to_owned(), adds.into());
        }
    }

    if let Some(names) = model_input_names(keys) {
        settings.insert(INPUT_NAMES.to_owned(), names.into());
    }

    if let Some(template) = chat_template(keys, warnings) {
        settings.insert("chat_template".to_owned(), template);
    }

    (settings, map)
}

/// Returns the inputs of a model with several token types, which the class alone does not return.
fn model_input_names(keys: &TokenizerKeys<'_>) -> Option<Vec<String>> {
    if let Some(Value::Array(Array::String(names))) = keys.value(INPUT_NAMES) {
        return Some(names.clone());
    }
    let types = keys.value("token_type_count").and_then(Value::as_u64)?;
    (types > 1).then(|| input_names(true))
}

/// Returns the chat template, or a list of named templates if there are several.
fn chat_template(keys: &TokenizerKeys<'_>, warnings: &mut Vec<String>) -> Option<Json> {
    const KEY: &str = "tokenizer.chat_template";

    let named = |name: &str, template: &str| json!({ "name": name, "template": template });
    let default = keys.key_value(KEY).and_then(|value| text(value, KEY, warnings));
    let mut templates = Vec::new();
    for there in keys.key_values() {
        let Some(name) = there.key.strip_prefix(KEY).and_then(|key| key.strip_prefix('.')) else {
            continue;
        };
        templates
            .extend(text(&there.value, &there.key, warnings).map(|template| named(name, template)));
    }

    if templates.is_empty() {
        return default.map(Json::from);
    }
    if let Some(default) = default {
        templates.insert(0, named("default", default));
    }

    Some(templates.into())
}

fn text<'a>(value: &'a Value, key: &str, warnings: &mut Vec<String>) -> Option<&'a str> {
    if let Value::String(text) = value {
        return Some(text);
    }
    warnings.push(format!(
        "{} is {}, no template: left out",
        apr_core::Escaped::short(key),
        value.type_name()
    ));
    None
}
