//! The tokens of a model, as its `tokenizer.json` has them.

use std::collections::{BTreeMap, HashMap};

use apr_core::{Error, Result};
use serde_json::{Map, Value};

use crate::plan::Model;

/// The file that a tokenizer is in.
pub(crate) const TOKENIZER: &str = "tokenizer.json";

/// Ids without a token that a vocabulary may have beside as many as three for each token: there is
/// a row for each id.
const MOST_GAPS: u64 = 1 << 16;

/// Vocabulary with tokens and ids.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tokens {
    /// Tokens by their ids.
    pub(crate) by_id: BTreeMap<u64, String>,
    /// Ids by token; the first id if a token has several.
    pub(crate) ids: HashMap<String, u64>,
    /// Tokens that are found in the text before it is split, with their flags.
    pub(crate) added: HashMap<String, Map<String, Value>>,
    /// The whole file.
    pub(crate) file: Value,
}

impl Tokens {
    /// Reads the tokens of a model.
    ///
    /// # Errors
    /// E001 if the model has no `tokenizer.json`, or one with too many tokens; E007 and E008 when
    /// it can't be read.
    pub(crate) fn of(model: &Model<'_>) -> Result<Self> {
        let named = |error: Error| error.in_file(&model.name);
        let missing = || {
            let message = format!("missing {TOKENIZER}, which is required to compare vocabularies");
            named(Error::format(message))
        };
        let tokens = Self::parse(&bytes(model)?.ok_or_else(missing)?);
        match tokens.by_id.keys().next_back() {
            None => Err(named(Error::format(format!("{TOKENIZER} has no tokens")))),
            Some(last) if *last / 4 > tokens.by_id.len() as u64 + MOST_GAPS => {
                Err(named(Error::format(format!("{TOKENIZER} has a token of the id {last}"))))
            }
            Some(_) => Ok(tokens),
        }
    }

    pub(crate) fn parse(tokenizer: &[u8]) -> Self {
        let file: Value = serde_json::from_slice(tokenizer).unwrap_or_default();
        let mut tokens = Self::default();
        match &file["model"]["vocab"] {
            Value::Object(vocabulary) => {
                let ids = vocabulary.iter().filter_map(|(token, id)| Some((id.as_u64()?, token)));
                tokens.by_id.extend(ids.map(|(id, token)| (id, token.clone())));
            }
            Value::Array(pieces) => {
                let pieces = pieces.iter().map(|piece| piece[0].as_str().unwrap_or_default());
                tokens.by_id.extend((0..).zip(pieces.map(str::to_owned)));
            }
            _ => {}
        }
        for entry in file["added_tokens"].as_array().into_iter().flatten() {
            if let (Some(id), Some(token)) = (entry["id"].as_u64(), entry["content"].as_str()) {
                tokens.by_id.insert(id, token.to_owned());
                let flags = entry.as_object().cloned().unwrap_or_default();
                tokens.added.insert(token.to_owned(), flags);
            }
        }
        for (id, token) in &tokens.by_id {
            tokens.ids.entry(token.clone()).or_insert(*id);
        }
        tokens.file = file;
        tokens
    }

    /// One more than the largest id.
    pub(crate) fn len(&self) -> u64 {
        self.by_id.keys().next_back().map_or(0, |last| last + 1)
    }
}

/// The file of a model's tokenizer.
pub(crate) fn bytes(model: &Model<'_>) -> Result<Option<Vec<u8>>> {
    let companions = model.reader.companions();
    let position = companions.iter().position(|file| file.name == TOKENIZER);
    position.map(|position| model.reader.read_companion(position)).transpose()
}
