//! `tokenizer.json`, as far as it decides which ids a text gets.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::vocabulary::MAX_TOKENS;

/// Contents of `tokenizer.json`.
#[derive(Debug, Deserialize)]
#[serde(expecting = "an object with a tokenizer's 'model'")]
pub(crate) struct TokenizerJson {
    #[serde(default)]
    pub(crate) added_tokens: Vec<AddedToken>,
    #[serde(default)]
    pub(crate) normalizer: Value,
    #[serde(default)]
    pub(crate) pre_tokenizer: Value,
    #[serde(default)]
    pub(crate) post_processor: Value,
    #[serde(default)]
    pub(crate) decoder: Value,
    pub(crate) model: Model,
}

/// A token that is found in a text before anything else is done to it.
#[derive(Debug, Clone, Deserialize)]
#[serde(expecting = "an added token as an object with its 'content'")]
pub(crate) struct AddedToken {
    #[serde(default)]
    pub(super) id: u64,
    pub(crate) content: String,
    #[serde(default)]
    pub(crate) special: bool,
    #[serde(default)]
    pub(crate) lstrip: bool,
    #[serde(default)]
    pub(crate) rstrip: bool,
    #[serde(default)]
    pub(crate) single_word: bool,
}

/// Model that turns a piece of text into tokens.
#[derive(Debug, Deserialize)]
#[serde(expecting = "a tokenizer's model as an object with its 'vocab'")]
pub(crate) struct Model {
    #[serde(rename = "type")]
    model_type: Option<String>,
    pub(crate) vocab: Vocab,
    #[serde(default)]
    pub(crate) merges: Vec<Merge>,
    pub(super) unk_token: Option<String>,
    pub(super) unk_id: Option<u64>,
    #[serde(default)]
    pub(crate) byte_fallback: bool,
    #[serde(default)]
    pub(crate) ignore_merges: bool,
    #[serde(default)]
    pub(super) continuing_subword_prefix: Option<String>,
    #[serde(default)]
    pub(super) end_of_word_suffix: Option<String>,
    max_input_chars_per_word: Option<u64>,
}

impl Model {
    /// Files from before 2020 leave the type to the fields.
    pub(crate) fn kind(&self) -> &str {
        match (&self.model_type, &self.vocab) {
            (Some(kind), _) => kind,
            (None, Vocab::Scores(_)) => "Unigram",
            (None, _) if self.max_input_chars_per_word.is_some() => "WordPiece",
            (None, _) => "BPE",
        }
    }
}

/// Tokens by id, or in the order of their ids with the logarithms of their probabilities.
#[derive(Debug)]
pub(crate) enum Vocab {
    Ids(Vec<(String, u64)>),
    Scores(Vec<(String, f64)>),
}

impl<'de> Deserialize<'de> for Vocab {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(VocabVisitor)
    }
}

struct VocabVisitor;

impl<'de> Visitor<'de> for VocabVisitor {
    type Value = Vocab;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of tokens to ids, or a list of tokens with scores")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocab, A::Error> {
        let mut tokens = Vec::new();
        while let Some(entry) = map.next_entry()? {
            push(&mut tokens, entry)?;
        }
        Ok(Vocab::Ids(tokens))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vocab, A::Error> {
        let mut tokens = Vec::new();
        while let Some(entry) = list.next_element()? {
            push(&mut tokens, entry)?;
        }
        Ok(Vocab::Scores(tokens))
    }
}

/// Stops at the limit, not after a file of it is in memory.
fn push<T, E: Error>(tokens: &mut Vec<T>, token: T) -> Result<(), E> {
    if tokens.len() == MAX_TOKENS {
        return Err(E::custom("too many tokens"));
    }
    tokens.push(token);
    Ok(())
}

/// Two tokens that become one; written `"a b"`, or since 2024 `["a", "b"]`, which allows for spaces
/// in them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Merge(pub(crate) String, pub(crate) String);

impl Merge {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (left, right) = text.split_once(' ').filter(|(_, right)| !right.contains(' '))?;
        Some(Self(left.to_owned(), right.to_owned()))
    }
}

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(MergeVisitor)
    }
}

struct MergeVisitor;

impl<'de> Visitor<'de> for MergeVisitor {
    type Value = Merge;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("two tokens")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Merge, E> {
        Merge::parse(text)
            .ok_or_else(|| E::custom("a merge is not two tokens with a space between"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Merge, A::Error> {
        match (list.next_element()?, list.next_element()?, list.next_element::<String>()?) {
            (Some(left), Some(right), None) => Ok(Merge(left, right)),
            _ => Err(A::Error::custom("a merge is not two tokens")),
        }
    }
}
