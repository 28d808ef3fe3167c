//! Late interaction (ColBERT): what queries and documents are beside their texts.

use apr_core::{CheckpointReader, Result};
use serde_json::{Map, Value};

use super::{DENSE_WEIGHT, LATE, Module, PYLATE, Sentence, Slot, object};

/// Class of Stanford's ColBERT in a configuration.
const STANFORD: &str = "HF_ColBERT";

/// File with the settings of Stanford's ColBERT.
const ARTIFACT: &str = "artifact.metadata";

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

/// Tokens that PyLate and Stanford's ColBERT skip in documents by default.
const PUNCTUATION: &str = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";

/// Settings of a late-interaction model (ColBERT) for queries and documents.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Late {
    /// Maximum number of tokens of a query; the rest is cut off.
    pub query_length: Option<u64>,
    /// Maximum number of tokens of a document.
    pub document_length: Option<u64>,
    /// Tokens that are appended to a query.
    pub expansion: Option<Expansion>,
    /// Tokens that are prepended to a query and to a document, as old folders state them.
    pub prefixes: [Option<String>; 2],
}

/// Tokens after a query that also have vectors.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Expansion {
    /// Number of tokens of a query, including the appended ones.
    pub length: u64,
    /// `true` if longer queries stay longer.
    pub is_least: bool,
    /// `true` if the other tokens attend to them.
    pub attends: bool,
    /// The appended token; `None` for the mask, or the token that ends a text.
    pub token: Option<String>,
}

impl Sentence {
    /// Reads a model of Stanford's ColBERT: the model's own file has the projection of the vectors,
    /// and no file lists modules. Returns `None` for other models.
    ///
    /// # Errors
    /// E001 if a file is not JSON, E007 and E008 when one can't be read.
    pub(super) fn of_stanford(reader: &dyn CheckpointReader) -> Result<Option<Self>> {
        // Other errors of the configuration are for those who need it.
        let config = object(reader, "config.json").ok().flatten().unwrap_or_default();
        let classes = config.get("architectures").and_then(Value::as_array);
        if !classes.is_some_and(|classes| classes.iter().any(|class| class == STANFORD)) {
            return Ok(None);
        }
        let settings = object(reader, ARTIFACT)?.unwrap_or_default();
        let size = |key: &str| settings.get(key).and_then(Value::as_u64).filter(|size| *size > 0);
        let flag = |key: &str| settings.get(key).and_then(Value::as_bool);
        let token = |key: &str, usual: &str| {
            let stated = settings.get(key).and_then(Value::as_str).filter(|it| !it.is_empty());
            Some(stated.unwrap_or(usual).to_owned())
        };
        let skipped = match flag("mask_punctuation") {
            Some(false) => Vec::new(),
            _ => punctuation(),
        };
        let tokens = Slot::Tokens;
        let mut sentence = Self {
            modules: vec![
                Module::Transformer,
                Module::Dense {
                    folder: String::new(),
                    from: tokens,
                    to: tokens,
                    activation: None,
                    residual: false,
                },
                Module::TokenMask { skipped, tasks: vec!["document".to_owned()] },
                Module::Normalize { from: tokens, to: tokens },
            ],
            other_class: Some(LATE.to_owned()),
            similarity: Some("MaxSim".to_owned()),
            late: Late {
                query_length: None,
                document_length: size("doc_maxlen"),
                expansion: Some(Expansion {
                    length: size("query_maxlen").unwrap_or(32),
                    is_least: false,
                    attends: flag("attend_to_mask_tokens").unwrap_or(false),
                    token: None,
                }),
                prefixes: [
                    token("query_token_id", "[unused0]"),
                    token("doc_token_id", "[unused1]"),
                ],
            },
            ..Self::default()
        };
        sentence.read_transformer(reader)?;
        Ok(Some(sentence))
    }

    /// Reads the settings of queries and documents. A folder of version 6 has them next to the
    /// first module, and PyLate's in the common settings.
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
            let skipped = listed.map_or_else(punctuation, words);
            self.modules.push(Module::TokenMask { skipped, tasks: vec!["document".to_owned()] });
            self.modules.push(Module::Normalize { from: Slot::Tokens, to: Slot::Tokens });
        }
    }

    /// Returns the names of the tensors of the model's own file that modules have.
    pub fn own_tensors(&self) -> impl Iterator<Item = &'static str> {
        let is_own =
            |module: &&Module| matches!(module, Module::Dense { folder, .. } if folder.is_empty());
        self.modules.iter().filter(is_own).map(|_| DENSE_WEIGHT)
    }

    /// Returns the prompt of a query or a document. Returns `None` if another prompt is requested
    /// or none is known.
    #[must_use]
    pub fn prompt_of_role(&self, asked: Option<&str>, role: &str) -> Option<&str> {
        match asked {
            Some(_) => None,
            None => self.prompts.get(role).map(String::as_str),
        }
    }
}

fn punctuation() -> Vec<String> {
    PUNCTUATION.chars().map(String::from).collect()
}
