//! The tokens of a model, from the tokenizer files that travel with it.

mod files;
mod hugging_face;
mod sentencepiece;
mod spelling;
mod tiktoken;
mod tokenizer;

use std::borrow::Cow;
use std::collections::BTreeMap;

use apr_core::{CheckpointReader, Result};
use serde::Serialize;

pub use files::{read_tokenizer, warning};
pub use hugging_face::wrong_json;
pub(crate) use sentencepiece::{Piece, SentencePiece};
pub use spelling::Spelling;
pub(crate) use tiktoken::{alphabet, decode_base64, encode_base64, is_ranks, read_ranks};
pub(crate) use tokenizer::MAX_TOKENS;
pub use tokenizer::Tokenizer;

/// The report of `apr inspect --vocab`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Vocabulary {
    /// Source of the tokens: `tokenizer.json`, `tokenizer.model`, `vocab.txt`, metadata.
    pub source: String,
    /// Number of tokens.
    pub size: usize,
    /// The first tokens by id, up to the requested number.
    pub tokens: Vec<Token>,
    /// Spelling of all tokens.
    #[serde(skip)]
    pub spelling: Spelling,
}

impl Vocabulary {
    /// Returns a token by its id, if it is among the requested ones.
    #[must_use]
    pub fn token(&self, id: u64) -> Option<&Token> {
        let found = self.tokens.binary_search_by_key(&id, |token| token.id).ok()?;
        self.tokens.get(found)
    }

    /// The text of a token so that spaces, new lines and single bytes can be seen.
    #[must_use]
    pub fn readable(&self, token: &Token) -> String {
        self.spelling.readable(&token.text)
    }
}

/// A token and its id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Token {
    /// Position in the embedding.
    pub id: u64,
    /// Text, as the tokenizer stores it.
    pub text: String,
}

/// Returns the first `at_most` tokens of the vocabulary.
///
/// Returns `None` if the checkpoint has no supported tokenizer.
///
/// # Errors
/// E007 and E008 when a tokenizer file can't be read.
pub fn vocabulary(reader: &dyn CheckpointReader, at_most: usize) -> Result<Option<Vocabulary>> {
    let names: Vec<_> =
        reader.companions().iter().map(|companion| companion.name.as_str()).collect();
    let (found, _) =
        read_tokenizer(&names, &mut |file| reader.read_companion(file).map(Cow::Owned))?;
    if let Some(Tokenizer { file, tokens, .. }) = found {
        return Ok(Some(first(&file, &tokens, at_most)));
    }

    let metadata = reader.metadata();
    let listed =
        ["tokenizer.vocabulary", "vocab"].iter().find_map(|key| metadata.get(key)?.as_array());
    if let Some(texts) = listed {
        // An id without a token is null.
        let tokens =
            texts.iter().zip(0..).filter_map(|(text, id)| Some((id, text.as_str()?.to_owned())));
        return Ok(Some(first("metadata", &tokens.collect(), at_most)));
    }

    let pairs = metadata.key_values().ok().flatten().unwrap_or_default();
    let texts = pairs.find(GGUF_TOKENS).and_then(|pair| pair.texts());
    Ok(texts
        .map(|texts| first(GGUF_TOKENS, &(0..).zip(texts.map(str::to_owned)).collect(), at_most)))
}

/// Returns warnings about the tokenizer files that can't be read.
///
/// # Errors
/// E007 and E008 when a tokenizer file can't be read.
pub fn unreadable_vocabulary(reader: &dyn CheckpointReader) -> Result<Vec<String>> {
    let names: Vec<_> =
        reader.companions().iter().map(|companion| companion.name.as_str()).collect();
    let (_, warnings) =
        read_tokenizer(&names, &mut |file| reader.read_companion(file).map(Cow::Owned))?;
    Ok(warnings)
}

/// Key of a GGUF file's tokens, and the source of a [`Vocabulary`] that is made of them.
pub const GGUF_TOKENS: &str = "tokenizer.ggml.tokens";

fn first(source: &str, tokens: &BTreeMap<u64, String>, at_most: usize) -> Vocabulary {
    let shown = tokens.iter().take(at_most).map(|(&id, text)| Token { id, text: text.clone() });
    Vocabulary {
        source: source.to_owned(),
        size: tokens.len(),
        tokens: shown.collect(),
        spelling: Spelling::of(tokens.values().map(String::as_str)),
    }
}

#[cfg(test)]
mod tests {
    use apr_registry::Limits;
    use apr_testkit::{FolderInMemory, locate};

    use super::*;

    fn of<const N: usize>(files: [(&str, Vec<u8>); N]) -> Option<Vocabulary> {
        let mut folder = FolderInMemory::from(files);
        let weights = std::fs::read(locate::fixture("tiny-llama/model.safetensors")).unwrap();
        folder.0.insert("model.safetensors".to_owned(), weights);
        vocabulary(&apr_registry::open_folder(&folder, &Limits::default()).unwrap(), 2).unwrap()
    }

    #[test]
    fn every_kind_of_tokenizer_file_is_read() {
        let pieces = || std::fs::read(locate::fixture("sentencepiece/bpe.model")).unwrap();
        let ranks = || b"IQ== 0\nIg== 1\n".to_vec();
        let json =
            br#"{"model": {"type": "BPE", "vocab": {"a": 1, "b": 0}, "merges": []}}"#.to_vec();
        for (source, bytes, size, first_token) in [
            ("tokenizer.json", json, 2, "b"),
            ("vocab.json", br#"{"a": 0}"#.to_vec(), 1, "a"),
            ("vocab.txt", b"[PAD]\n##s\n".to_vec(), 2, "[PAD]"),
            ("tokenizer.model", pieces(), 380, "<unk>"),
            ("spiece.model", pieces(), 380, "<unk>"),
            ("tokenizer.model", ranks(), 2, "!"),
            ("gpt2.tiktoken", ranks(), 2, "!"),
        ] {
            let found = of([(source, bytes)]).expect(source);
            assert_eq!(
                (found.source.as_str(), found.size, found.tokens[0].text.as_str()),
                (source, size, first_token)
            );
        }
    }

    #[test]
    fn the_next_file_is_tried_where_one_is_not_understood() {
        let found = of([("tokenizer.json", b"{".to_vec()), ("vocab.txt", b"a\n".to_vec())]);
        assert_eq!(found.map(|found| found.source), Some("vocab.txt".to_owned()));
        assert_eq!(of([("tokenizer.json", b"{".to_vec())]), None);
        assert_eq!(
            of([("a.tiktoken", b"IQ== 0\n".to_vec()), ("b.tiktoken", b"IQ== 0\n".to_vec())]),
            None
        );
    }
}
