//! A tokenizer's key-value pairs, checked against each other.

use std::collections::HashSet;

use apr_core::{Error, Escaped, Result, counted};
use apr_gguf::{Array, KeyValue, Value};

use super::super::tokens::{CONTROL, GAP, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, padding};
use super::tokenizer_json::Added;
use crate::input_names::INPUT_NAMES;
use crate::vocabulary::MAX_TOKENS;

/// Keys of llama.cpp that the files can represent, or that repeat the content of `config.json`.
const KEYS: [&str; 25] = [
    "model",
    "pre",
    "tokens",
    "scores",
    "token_type",
    "token_type_count",
    "merges",
    "bos_token_id",
    "eos_token_id",
    "unknown_token_id",
    "seperator_token_id",
    "padding_token_id",
    "cls_token_id",
    "mask_token_id",
    "add_bos_token",
    "add_eos_token",
    "add_sep_token",
    "add_space_prefix",
    "remove_extra_whitespaces",
    "precompiled_charsmap",
    "normalizer.lowercase",
    "normalizer.strip_accents",
    "eot_token_id",
    "eom_token_id",
    INPUT_NAMES,
];

/// The tokenizer keys of a GGUF file.
pub(super) struct TokenizerKeys<'a> {
    key_values: &'a [KeyValue],
    pub(super) model: &'a str,
    pub(super) tokens: &'a [String],
    pub(super) scores: Option<&'a [f32]>,
    types: Option<&'a [i32]>,
}

impl<'a> TokenizerKeys<'a> {
    /// Reads the keys, or returns `None` if there is no tokenizer.
    pub(super) fn read(key_values: &'a [KeyValue]) -> Result<Option<Self>> {
        let mut keys = Self { key_values, model: "", tokens: &[], scores: None, types: None };
        match keys.text("model")? {
            None | Some("none" | "no_vocab") => return Ok(None),
            Some(model) => keys.model = model,
        }

        keys.tokens = match keys.value("tokens") {
            Some(Value::Array(Array::String(tokens))) if !tokens.is_empty() => tokens,
            other => return Err(wrong("tokens", "strings", other)),
        };
        if keys.tokens.len() > MAX_TOKENS {
            return Err(Error::format(format!(
                "{} are too many",
                counted(keys.tokens.len() as u64, "token")
            )));
        }

        keys.scores = match keys.value("scores") {
            Some(Value::Array(Array::F32(scores))) => Some(keys.of_each("scores", scores)?),
            None => None,
            other => return Err(wrong("scores", "f32", other)),
        };
        keys.types = match keys.value("token_type") {
            Some(Value::Array(Array::I32(types))) => Some(keys.of_each("token_type", types)?),
            None => None,
            other => return Err(wrong("token_type", "i32", other)),
        };
        Ok(Some(keys))
    }

    fn of_each<T>(&self, key: &str, items: &'a [T]) -> Result<&'a [T]> {
        if items.len() == self.tokens.len() {
            return Ok(items);
        }
        let (items, tokens) = (items.len(), counted(self.tokens.len() as u64, "token"));
        Err(Error::format(format!("tokenizer.ggml.{key} has {items} items for {tokens}")))
    }

    pub(super) fn key_value(&self, key: &str) -> Option<&'a Value> {
        self.key_values.iter().find(|there| there.key == key).map(|there| &there.value)
    }

    pub(super) fn key_values(&self) -> &'a [KeyValue] {
        self.key_values
    }

    pub(super) fn value(&self, name: &str) -> Option<&'a Value> {
        let named = |there: &&KeyValue| there.key.strip_prefix("tokenizer.ggml.") == Some(name);
        self.key_values.iter().find(named).map(|there| &there.value)
    }

    pub(super) fn text(&self, name: &str) -> Result<Option<&'a str>> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            other => Err(wrong(name, "a string", other)),
        }
    }

    pub(super) fn flag(&self, name: &str) -> Option<bool> {
        match self.value(name) {
            Some(Value::Bool(flag)) => Some(*flag),
            _ => None,
        }
    }

    /// Returns the id of a special token, if there is such a token.
    pub(super) fn id(&self, name: &str) -> Option<usize> {
        let id = match self.value(name)? {
            Value::U32(id) => u64::from(*id),
            Value::I32(id) => u64::try_from(*id).ok()?,
            Value::U64(id) => *id,
            _ => return None,
        };
        usize::try_from(id).ok().filter(|&id| id < self.tokens.len())
    }

    pub(super) fn token(&self, name: &str) -> Option<&'a str> {
        self.tokens.get(self.id(name)?).map(String::as_str)
    }

    /// Without types all tokens are normal, special ones control tokens.
    pub(super) fn token_type(&self, id: usize) -> i32 {
        let special = || {
            ["bos_token_id", "eos_token_id", "padding_token_id"]
                .iter()
                .any(|name| self.id(name) == Some(id))
        };
        match self.types {
            Some(types) => types.get(id).copied().unwrap_or(NORMAL),
            None if special() => CONTROL,
            None => NORMAL,
        }
    }

    /// Tokens by id, without what only fills up the rows of an embedding.
    pub(super) fn filled(&self) -> impl Iterator<Item = (usize, &'a str, i32)> {
        self.tokens
            .iter()
            .enumerate()
            .map(|(id, text)| (id, text.as_str(), self.token_type(id)))
            .filter(|&(id, text, token_type)| {
                // In vocabularies of WordPiece, padding has the letter that begins a word.
                token_type != UNUSED || text.strip_prefix('\u{2581}').unwrap_or(text) != padding(id)
            })
    }

    /// Tokens that are found in a text before anything else.
    pub(super) fn added(&self) -> Vec<Added<'a>> {
        let added = self
            .filled()
            .filter(|(.., token_type)| matches!(*token_type, CONTROL | USER_DEFINED | UNKNOWN));
        let added = added.map(|(id, content, token_type)| Added {
            id,
            content,
            single_word: false,
            lstrip: false,
            rstrip: false,
            normalized: false,
            special: token_type != USER_DEFINED || content.starts_with(GAP),
        });
        added.filter(|token| !token.content.is_empty()).collect()
    }

    /// Returns warnings about key-value pairs that are invalid or that the files cannot represent.
    pub(super) fn warnings(&self) -> Vec<String> {
        let mut warnings = self.unplaced();
        warnings.extend(["eot_token_id", "eom_token_id"].iter().filter_map(|name| {
            let token = Escaped::short(self.token(name)?);
            Some(format!(
                "tokenizer.ggml.{name}: '{token}' ends a turn, which the files leave to \
                 eos_token_id of generation_config.json"
            ))
        }));
        let ids = KEYS.iter().filter(|key| key.ends_with("_token_id"));
        let no_ids = ids.filter(|key| self.value(key).is_some() && self.id(key).is_none());
        warnings.extend(
            no_ids.map(|key| format!("tokenizer.ggml.{key} is not an id of a token: left out")),
        );
        if matches!(self.model, "llama" | "t5") && self.flag("add_space_prefix").unwrap_or(true) {
            warnings.push(
                "tokenizer_config.json's legacy: GGUF has no key for it; the files put a space \
                 before a text as llama.cpp does, not behind special tokens"
                    .to_owned(),
            );
        }

        let mut texts = HashSet::with_capacity(self.tokens.len());
        let repeated = self.tokens.iter().filter(|text| !texts.insert(text.as_str())).count();
        if repeated > 0 {
            let repeated = counted(repeated as u64, "token");
            warnings.push(format!(
                "{repeated} with the text of an earlier one: a text is one token in the files"
            ));
        }

        warnings
    }

    /// Returns warnings about the tokenizer's keys that the files cannot represent.
    fn unplaced(&self) -> Vec<String> {
        let has_place = |key: &str| match key.strip_prefix("tokenizer.ggml.") {
            Some(name) => KEYS.contains(&name),
            None => key.starts_with("tokenizer.chat_template"),
        };
        let keys = self.key_values.iter().map(|there| &there.key);
        let unplaced = keys.filter(|key| key.starts_with("tokenizer.") && !has_place(key));
        unplaced.map(|key| format!("{}: the files can't store it", Escaped::short(key))).collect()
    }
}

fn wrong(name: &str, expected: &str, found: Option<&Value>) -> Error {
    let found =
        found.map_or_else(|| "is missing".to_owned(), |value| format!("is {}", value.type_name()));
    Error::format(format!("tokenizer.ggml.{name} {found}, not {expected}"))
}
