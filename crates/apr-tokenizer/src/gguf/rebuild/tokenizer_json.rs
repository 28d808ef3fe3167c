//! `tokenizer.json` as it is written.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::Value;

/// `tokenizer.json`.
#[derive(Serialize)]
pub(super) struct TokenizerFile<'a> {
    pub(super) version: &'static str,
    pub(super) truncation: Value,
    pub(super) padding: Value,
    pub(super) added_tokens: Vec<Added<'a>>,
    pub(super) normalizer: Value,
    pub(super) pre_tokenizer: Value,
    pub(super) post_processor: Value,
    pub(super) decoder: Value,
    pub(super) model: Model<'a>,
}

/// A token that is found before anything else.
#[derive(Serialize)]
pub(super) struct Added<'a> {
    pub(super) id: usize,
    pub(super) content: &'a str,
    pub(super) single_word: bool,
    pub(super) lstrip: bool,
    pub(super) rstrip: bool,
    pub(super) normalized: bool,
    pub(super) special: bool,
}

/// The tokenizer proper.
#[derive(Serialize)]
#[serde(tag = "type")]
pub(super) enum Model<'a> {
    #[serde(rename = "BPE")]
    Bpe {
        dropout: Value,
        unk_token: Option<&'a str>,
        continuing_subword_prefix: Value,
        end_of_word_suffix: Value,
        fuse_unk: bool,
        byte_fallback: bool,
        ignore_merges: bool,
        vocab: Ids<'a>,
        merges: Vec<(&'a str, &'a str)>,
    },
    WordPiece {
        unk_token: &'a str,
        continuing_subword_prefix: &'static str,
        max_input_chars_per_word: usize,
        vocab: OwnedIds,
    },
    Unigram {
        unk_id: Option<usize>,
        vocab: Vec<(&'a str, f32)>,
        byte_fallback: bool,
    },
}

/// A map of tokens to ids, in the order of the ids.
pub(super) struct Ids<'a>(pub(super) Vec<(&'a str, usize)>);

impl Serialize for Ids<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (text, id) in &self.0 {
            map.serialize_entry(text, id)?;
        }
        map.end()
    }
}

/// A map of texts that were put together to ids, in the order of the ids.
pub(super) struct OwnedIds(pub(super) Vec<(String, usize)>);

impl Serialize for OwnedIds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Ids(self.0.iter().map(|(text, id)| (text.as_str(), *id)).collect()).serialize(serializer)
    }
}
