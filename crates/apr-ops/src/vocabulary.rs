//! The tokens of a model, from the tokenizer files that travel with it.

use std::collections::BTreeMap;

use apr::{CheckpointReader, Result};
use serde::Serialize;
use serde_json::Value;

/// The report of `apr inspect --vocab`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Vocabulary {
    /// Where the tokens come from: `tokenizer.json`, `vocab.txt`, metadata.
    pub source: String,
    /// Number of tokens.
    pub size: usize,
    /// Tokens by id, from the first on, as many as asked for.
    pub tokens: Vec<Token>,
}

/// A token and its id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Token {
    /// Position in the embedding.
    pub id: u64,
    /// Text, as the tokenizer stores it.
    pub text: String,
}

/// The first `at_most` tokens of the vocabulary; `None` where the checkpoint carries no tokenizer that is understood.
///
/// # Errors
/// E007 and E008 when a tokenizer file can't be read.
pub fn vocabulary(reader: &dyn CheckpointReader, at_most: usize) -> Result<Option<Vocabulary>> {
    for (name, parse) in PARSERS {
        let Some(position) = reader.companions().iter().position(|companion| companion.name == name) else { continue };
        let tokens = parse(&reader.read_companion(position)?);
        if let Some(tokens) = tokens.filter(|tokens| !tokens.is_empty()) {
            return Ok(Some(first(name, &tokens, at_most)));
        }
    }
    let listed = ["tokenizer.vocabulary", "vocab"].iter().find_map(|key| reader.metadata().get(key)?.as_array());
    Ok(listed.map(|texts| {
        let tokens = texts.iter().zip(0..).map(|(text, id)| (id, text.as_str().unwrap_or_default().to_owned()));
        first("metadata", &tokens.collect(), at_most)
    }))
}

type Tokens = BTreeMap<u64, String>;
type Parse = fn(&[u8]) -> Option<Tokens>;

/// Files by preference: the first one there that yields tokens wins.
const PARSERS: [(&str, Parse); 3] =
    [("tokenizer.json", from_tokenizer_json), ("vocab.json", from_vocab_json), ("vocab.txt", from_vocab_txt)];

fn first(source: &str, tokens: &Tokens, at_most: usize) -> Vocabulary {
    let shown = tokens.iter().take(at_most).map(|(&id, text)| Token { id, text: text.clone() });
    Vocabulary { source: source.to_owned(), size: tokens.len(), tokens: shown.collect() }
}

/// `model.vocab` (a map for BPE, WordPiece and WordLevel, pairs of text and score for Unigram) and `added_tokens`.
fn from_tokenizer_json(bytes: &[u8]) -> Option<Tokens> {
    let json: Value = serde_json::from_slice(bytes).ok()?;
    let vocab = json.get("model")?.get("vocab")?;
    let mut tokens: Tokens = match vocab {
        Value::Array(pairs) => {
            pairs.iter().zip(0..).filter_map(|(pair, id)| Some((id, pair.get(0)?.as_str()?.to_owned()))).collect()
        }
        vocab => by_id(vocab)?,
    };
    for added in json.get("added_tokens").and_then(Value::as_array).into_iter().flatten() {
        if let (Some(id), Some(text)) = (added["id"].as_u64(), added["content"].as_str()) {
            tokens.insert(id, text.to_owned());
        }
    }
    Some(tokens)
}

fn from_vocab_json(bytes: &[u8]) -> Option<Tokens> {
    by_id(&serde_json::from_slice(bytes).ok()?)
}

fn by_id(vocab: &Value) -> Option<Tokens> {
    Some(vocab.as_object()?.iter().filter_map(|(text, id)| Some((id.as_u64()?, text.clone()))).collect())
}

fn from_vocab_txt(bytes: &[u8]) -> Option<Tokens> {
    Some((0..).zip(std::str::from_utf8(bytes).ok()?.lines().map(str::to_owned)).collect())
}
