//! Tokens from the tokenizer files of the Hugging Face libraries.
//!
//! A `tokenizer.json` has tens of megabytes, most of them merges: it is read without a tree of it
//! in memory.

use std::fmt;

use apr_core::json::of_python;
use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::tokenizer::{MAX_TOKENS, Tokenizer};

/// A token beside the trained ones.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct AddedToken {
    /// Position in the embedding.
    #[serde(default)]
    pub(super) id: u64,
    content: String,
    #[serde(default)]
    special: bool,
}

impl AddedToken {
    pub(super) fn add_to(self, tokenizer: &mut Tokenizer) {
        if self.special {
            tokenizer.add_special(self.id, &self.content);
        } else {
            tokenizer.add(self.id, self.content);
        }
    }
}

/// Parser of the tokens that were added to the trained ones.
pub(super) type ParseAdded = fn(&[u8]) -> Result<Vec<AddedToken>, String>;

#[derive(Deserialize)]
struct TokenizerJson {
    model: Model,
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
}

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type")]
    model_type: Option<String>,
    vocab: Entries,
    unk_token: Option<String>,
    unk_id: Option<u64>,
    merges: Option<IgnoredAny>,
    max_input_chars_per_word: Option<IgnoredAny>,
}

/// Tokens with their ids, from a map of text to id or from a list of text and score.
struct Entries {
    tokens: Vec<(String, u64)>,
    listed: bool,
}

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(EntriesVisitor)
    }
}

struct EntriesVisitor;

impl<'de> Visitor<'de> for EntriesVisitor {
    type Value = Entries;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of tokens to ids, or a list of tokens with scores")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
        let mut tokens = Vec::new();
        while let Some(entry) = map.next_entry()? {
            push(&mut tokens, entry)?;
        }
        Ok(Entries { tokens, listed: false })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Entries, A::Error> {
        let mut tokens = Vec::new();
        while let Some((text, _score)) = list.next_element::<(String, IgnoredAny)>()? {
            let id = tokens.len() as u64;
            push(&mut tokens, (text, id))?;
        }
        Ok(Entries { tokens, listed: true })
    }
}

/// Stops at the limit, not after a file of it is in memory.
fn push<E: Error>(tokens: &mut Vec<(String, u64)>, token: (String, u64)) -> Result<(), E> {
    if tokens.len() == MAX_TOKENS {
        return Err(E::custom("too many tokens"));
    }
    tokens.push(token);
    Ok(())
}

/// `model.vocab` (a map for BPE, WordPiece and WordLevel, pairs of text and score for Unigram) and
/// `added_tokens`.
pub(super) fn from_tokenizer_json(bytes: &[u8]) -> Result<Tokenizer, String> {
    let TokenizerJson { model, added_tokens } = parse(bytes)?;
    let mut tokenizer = Tokenizer::default();
    if let Some(unk) = model.unk_token {
        let trained = model.vocab.tokens.iter().find(|(text, _)| *text == unk).map(|(_, id)| *id);
        let added = || added_tokens.iter().find(|added| added.content == unk).map(|added| added.id);
        tokenizer.roles.extend(trained.or_else(added).map(|id| ("unk", id)));
    }

    tokenizer.roles.extend(model.unk_id.map(|id| ("unk", id)));
    tokenizer.model_type = Some(model.model_type.unwrap_or_else(|| {
        // Files from before 2020 leave it to the fields.
        let guess = match (&model.merges, &model.max_input_chars_per_word) {
            (Some(_), _) => "BPE",
            (None, Some(_)) => "WordPiece",
            (None, None) if model.vocab.listed => "Unigram",
            (None, None) => "WordLevel",
        };
        guess.to_owned()
    }));
    for (text, id) in model.vocab.tokens {
        tokenizer.add(id, text);
    }

    for added in added_tokens {
        added.add_to(&mut tokenizer);
    }

    Ok(tokenizer)
}

pub(super) fn from_vocab_json(bytes: &[u8]) -> Result<Tokenizer, String> {
    let mut tokenizer = Tokenizer::default();
    for (text, id) in parse::<Entries>(bytes)?.tokens {
        tokenizer.add(id, text);
    }
    Ok(tokenizer)
}

/// One token a line, its id the line's number.
pub(super) fn from_vocab_txt(bytes: &[u8]) -> Result<Tokenizer, String> {
    let text = std::str::from_utf8(bytes).map_err(|error| format!("not UTF-8: {error}"))?;
    let mut tokenizer = Tokenizer::default();
    // One more than the limit, so that the check of the whole refuses it.
    for (id, line) in (0..).zip(text.lines().take(MAX_TOKENS + 1)) {
        tokenizer.add(id, line.to_owned());
    }
    if tokenizer.tokens.values().any(|token| token.starts_with("##")) {
        tokenizer.model_type = Some("WordPiece".to_owned());
    }
    Ok(tokenizer)
}

/// `added_tokens.json`: text to id.
pub(super) fn from_added_tokens(bytes: &[u8]) -> Result<Vec<AddedToken>, String> {
    let entries: Entries = parse(bytes)?;
    Ok(entries
        .tokens
        .into_iter()
        .map(|(content, id)| AddedToken { id, content, special: false })
        .collect())
}

/// `added_tokens_decoder` of `tokenizer_config.json`: id to token.
pub(super) fn from_added_tokens_decoder(bytes: &[u8]) -> Result<Vec<AddedToken>, String> {
    #[derive(Deserialize)]
    struct TokenizerConfig {
        #[serde(default)]
        added_tokens_decoder: std::collections::BTreeMap<u64, AddedToken>,
    }
    let config: TokenizerConfig = parse(&of_python(bytes))?;
    Ok(config
        .added_tokens_decoder
        .into_iter()
        .map(|(id, token)| AddedToken { id, ..token })
        .collect())
}

fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(bytes).map_err(|error| wrong_json(&error))
}

/// Returns the reason why a `tokenizer.json`, or a file beside it, can't be read. Every reader of
/// these files gives this reason.
#[must_use]
pub fn wrong_json(error: &serde_json::Error) -> String {
    let reason = apr_core::foreign(error);
    match error.classify() {
        serde_json::error::Category::Data => reason,
        _ => format!("not valid JSON: {reason}"),
    }
}
