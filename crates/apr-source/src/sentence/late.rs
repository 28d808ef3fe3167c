//! Late interaction (ColBERT): what queries and documents are beside their texts.

use serde_json::{Map, Value};

use super::{Module, PYLATE, Sentence, Slot};

/// Settings that PyLate alone has.
const OF_PYLATE: [&str; 7] = [
    "query_length",
    "document_length",
    "do_query_expansion",
    "attend_to_expansion_tokens",
    "query_prefix",
    "document_prefix",
    "skiplist_words",
];

/// What PyLate skips in documents unless it is told otherwise.
const PUNCTUATION: &str = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";

/// How a late-interaction model (ColBERT) reads queries and documents.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Late {
    /// Most tokens of a query; more are left out.
    pub query_length: Option<u64>,
    /// Most tokens of a document.
    pub document_length: Option<u64>,
    /// What is put behind a query.
    pub expansion: Option<Expansion>,
    /// Tokens that are put in front of a query and of a document, as old folders say it.
    pub prefixes: [Option<String>; 2],
}

/// Tokens behind a query that have vectors, too.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Expansion {
    /// Tokens of a query with those behind it.
    pub length: u64,
    /// Whether longer queries stay longer.
    pub is_least: bool,
    /// Whether the other tokens see them.
    pub attends: bool,
    /// The token; `None` for the mask, or what ends a text.
    pub token: Option<String>,
}

impl Sentence {
    /// Reads how queries and documents are read: a folder of version 6 says so beside the first
    /// module, and one of PyLate in the settings of all.
    pub(super) fn read_late(&mut self, settings: &Map<String, Value>) {
        let size = |key: &str| settings.get(key).and_then(Value::as_u64);
        let flag = |key: &str| settings.get(key).and_then(Value::as_bool);
        let text = |key: &str| settings.get(key).and_then(Value::as_str).map(str::to_owned);
        let late = &mut self.late;
        late.query_length = size("query_length").or(late.query_length);
        late.document_length = size("document_length").or(late.document_length);
        for (prefix, key) in late.prefixes.iter_mut().zip(["query_prefix", "document_prefix"]) {
            *prefix = text(key).filter(|text| !text.is_empty()).or(prefix.take());
        }
        if let Some(Value::Object(own)) = settings.get("query_expansion") {
            let length = own.get("length").and_then(Value::as_u64).filter(|length| *length > 0);
            late.expansion = length.map(|length| Expansion {
                length,
                is_least: own.get("strategy").and_then(Value::as_str) == Some("min"),
                attends: own.get("attend").and_then(Value::as_bool).unwrap_or(false),
                token: own.get("token").and_then(Value::as_str).map(str::to_owned),
            });
        } else if !settings.contains_key("query_expansion")
            && OF_PYLATE.iter().any(|key| settings.contains_key(*key))
            && flag("do_query_expansion") != Some(false)
        {
            let attends = flag("attend_to_expansion_tokens").or(flag("attend_to_mask_tokens"));
            late.expansion = Some(Expansion {
                length: size("query_length").filter(|length| *length > 0).unwrap_or(32),
                is_least: false,
                attends: attends.unwrap_or(false),
                token: None,
            });
        }
        let listed = settings.get("skiplist_words").and_then(Value::as_array);
        let is_masked = |module: &Module| matches!(module, Module::TokenMask { .. });
        if self.other_class.as_deref() == Some(PYLATE) && !self.modules.iter().any(is_masked) {
            let words = |words: &Vec<Value>| -> Vec<String> {
                words.iter().filter_map(|word| word.as_str().map(str::to_owned)).collect()
            };
            let punctuation = || PUNCTUATION.chars().map(String::from).collect();
            let skipped = listed.map_or_else(punctuation, words);
            self.modules.push(Module::TokenMask { skipped, tasks: vec!["document".to_owned()] });
            self.modules.push(Module::Normalize { from: Slot::Tokens, to: Slot::Tokens });
        }
    }

    /// The prompt of a query or a document, unless another one is asked for, or none is known.
    #[must_use]
    pub fn prompt_of_role(&self, asked: Option<&str>, role: &str) -> Option<&str> {
        match asked {
            Some(_) => None,
            None => self.prompts.get(role).map(String::as_str),
        }
    }
}
