//! `tokenizer.json` as it is written. Fields are called as in the file.

use apr_core::counted;
use hashbrown::HashSet;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::Value;

/// `tokenizer.json`.
#[derive(Debug, Serialize)]
pub struct TokenizerFile<'a> {
    /// Always `1.0`.
    pub version: &'static str,
    /// Always `null`.
    pub truncation: Value,
    /// Always `null`.
    pub padding: Value,
    /// Tokens that are found before anything else.
    pub added_tokens: Vec<Added<'a>>,
    /// Normalizer of texts, or `null`.
    pub normalizer: Value,
    /// Pre-tokenizer that splits texts, or `null`.
    pub pre_tokenizer: Value,
    /// Post-processor that adds special tokens, or `null`.
    pub post_processor: Value,
    /// Decoder that turns tokens into text.
    pub decoder: Value,
    /// The tokenizer proper.
    pub model: Model<'a>,
}

impl TokenizerFile<'_> {
    /// Removes merges of texts that are not tokens, which the libraries reject.
    ///
    /// Returns a warning with the number of removed merges, if any.
    pub fn leave_out_unknown_merges(&mut self) -> Option<String> {
        let Model::Bpe { vocab, merges, .. } = &mut self.model else { return None };
        let texts: HashSet<&str> = vocab.0.iter().map(|(text, _)| *text).collect();
        let before = merges.len();
        let mut joint = String::new();
        merges.retain(|(left, right)| {
            joint.clear();
            joint.push_str(left);
            joint.push_str(right);
            texts.contains(left) && texts.contains(right) && texts.contains(joint.as_str())
        });
        unknown_merges(before - merges.len())
    }
}

/// Returns the warning about merges of texts that are not tokens, if there are any.
#[must_use]
pub fn unknown_merges(count: usize) -> Option<String> {
    (count > 0).then(|| format!("{} of unknown tokens: left out", counted(count as u64, "merge")))
}

/// A token that is found before anything else.
#[derive(Debug, Serialize)]
pub struct Added<'a> {
    /// Id in the vocabulary.
    pub id: usize,
    /// Text of the token.
    pub content: &'a str,
    /// `true` if the token is not found next to letters.
    pub single_word: bool,
    /// `true` if the token includes the spaces before it.
    pub lstrip: bool,
    /// `true` if the token includes the spaces after it.
    pub rstrip: bool,
    /// `true` if the token is searched in the normalized text.
    pub normalized: bool,
    /// `true` if the token does not represent text.
    pub special: bool,
}

/// The tokenizer proper.
#[derive(Debug, Serialize)]
#[expect(clippy::large_enum_variant, reason = "there is one of them")]
#[serde(tag = "type")]
pub enum Model<'a> {
    /// Pairs of tokens become one, by rank.
    #[serde(rename = "BPE")]
    Bpe {
        /// Always `null`.
        dropout: Value,
        /// Token for characters that no token has.
        unk_token: Option<&'a str>,
        /// Always `null`.
        continuing_subword_prefix: Value,
        /// Always `null`.
        end_of_word_suffix: Value,
        /// `true` if several unknown characters become one token.
        fuse_unk: bool,
        /// `true` if unknown characters become tokens of their bytes.
        byte_fallback: bool,
        /// `true` if a word that is a token is not merged from parts.
        ignore_merges: bool,
        /// Ids of the tokens, by text.
        vocab: Ids<'a>,
        /// Merges by rank.
        ///
        /// They include merges of texts that are not tokens, until
        /// [`TokenizerFile::leave_out_unknown_merges`] removes them.
        merges: Vec<(&'a str, &'a str)>,
    },
    /// The longest pieces of a word, from its beginning on.
    WordPiece {
        /// Token for a word that cannot be composed of pieces.
        unk_token: &'a str,
        /// Prefix of pieces that continue a word.
        continuing_subword_prefix: &'static str,
        /// Letters of a word beyond which it is unknown.
        max_input_chars_per_word: usize,
        /// Ids of the tokens, by text.
        vocab: OwnedIds,
    },
    /// The likeliest tokens.
    Unigram {
        /// Id of the token for characters that no token has.
        unk_id: Option<usize>,
        /// Texts and their log probabilities, by id.
        vocab: Vec<(&'a str, f32)>,
        /// `true` if unknown characters become tokens of their bytes.
        byte_fallback: bool,
    },
}

/// A map of tokens to ids, in the order of the ids.
#[derive(Debug)]
pub struct Ids<'a>(
    /// Texts of the tokens, with their ids.
    pub Vec<(&'a str, usize)>,
);

impl Serialize for Ids<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Without a length, the order stays (`apr_core::json::Sorted`).
        let mut map = serializer.serialize_map(None)?;
        for (text, id) in &self.0 {
            map.serialize_entry(text, id)?;
        }
        map.end()
    }
}

/// A map of texts that were put together to ids, in the order of the ids.
#[derive(Debug)]
pub struct OwnedIds(
    /// Texts of the tokens, with their ids.
    pub Vec<(String, usize)>,
);

impl Serialize for OwnedIds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Ids(self.0.iter().map(|(text, id)| (text.as_str(), *id)).collect()).serialize(serializer)
    }
}
