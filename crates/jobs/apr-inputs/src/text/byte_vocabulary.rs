//! Byte-level BPE without merges: each byte of a text is a token.
//!
//! Small models for tests and demonstrations have such tokenizers. They need no library, so that
//! builds without the feature `text` run these models too.

use std::collections::BTreeMap;

use apr_core::{Error, Result};
use apr_tokenizer::Spelling;
use apr_tokenizer::gguf::TokenizerFile;
use serde_json::Value;

use super::{PairTokens, PairWindow, Piece, Windows};

/// Maximum number of tokens that are searched for at each place of a text.
const MOST_ADDED: usize = 64;

/// Tokenizer with a token for each byte, and tokens that are found in texts before.
#[derive(Debug, Clone)]
pub(super) struct ByteVocabulary {
    /// Tokens by id, as the vocabulary spells them.
    tokens: BTreeMap<i64, String>,
    /// Token of each byte.
    bytes: Vec<i64>,
    added: Vec<AddedToken>,
    /// Tokens that begin a text, and tokens that end it.
    ends: [Vec<i64>; 2],
}

/// Token that is found in a text before its bytes are.
#[derive(Debug, Clone)]
struct AddedToken {
    id: i64,
    text: String,
    is_special: bool,
}

impl ByteVocabulary {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// E001 if it is not JSON, E003 for a tokenizer of another kind.
    pub(super) fn read(json: &[u8]) -> Result<Self> {
        let file: Value = serde_json::from_slice(json)
            .map_err(|_| Error::format("the tokenizer is not valid JSON"))?;
        Self::of_json(&file).ok_or_else(other_kind)
    }

    /// Creates the tokenizer from the keys of a GGUF file.
    ///
    /// # Errors
    /// Those of [`Self::read`].
    #[expect(clippy::needless_pass_by_value, reason = "the library's tokenizer takes it")]
    pub(super) fn of(file: TokenizerFile<'_>, _: &mut Vec<String>) -> Result<Self> {
        let json = apr_core::json::to_vec(&file)
            .map_err(|_| Error::format("the keys of the tokenizer are not text"))?;
        Self::read(&json)
    }

    fn of_json(file: &Value) -> Option<Self> {
        let model = &file["model"];
        let is_off = |key: &str| matches!(model[key], Value::Null | Value::Bool(false));
        let is_plain = model["type"] == "BPE"
            && model["merges"].as_array().is_some_and(Vec::is_empty)
            && ["continuing_subword_prefix", "end_of_word_suffix", "ignore_merges", "dropout"]
                .into_iter()
                .all(is_off)
            && file["normalizer"].is_null()
            && file["decoder"]["type"] == "ByteLevel"
            && only_splits(&file["pre_tokenizer"]);
        if !is_plain {
            return None;
        }

        let vocabulary = model["vocab"].as_object()?;
        let mut tokens = BTreeMap::new();
        let mut bytes = vec![-1; 256];
        for (token, id) in vocabulary {
            let id = id.as_i64().filter(|id| *id >= 0)?;
            if let [byte] = Spelling::Letters.bytes(token)[..]
                && token.chars().count() == 1
            {
                bytes[usize::from(byte)] = id;
            }
            tokens.insert(id, token.clone());
        }
        // The library drops bytes that have no token.
        if bytes.contains(&-1) {
            return None;
        }

        let mut added = Vec::new();
        for token in file["added_tokens"].as_array().into_iter().flatten() {
            let trims = ["single_word", "lstrip", "rstrip"].map(|key| token[key] == true);
            let text = token["content"].as_str().filter(|text| !text.is_empty())?;
            if trims.contains(&true) {
                return None;
            }
            let id = token["id"].as_i64().filter(|id| *id >= 0)?;
            tokens.insert(id, text.to_owned());
            let is_special = token["special"] == true;
            added.push(AddedToken { id, text: text.to_owned(), is_special });
        }
        if added.len() > MOST_ADDED {
            return None;
        }
        let ends = ends_of(&file["post_processor"])?;
        Some(Self { tokens, bytes, added, ends })
    }

    pub(super) fn encode(&self, text: &str, ends: bool) -> Result<Vec<i64>> {
        Ok(self.pieces(text, ends)?.into_iter().map(|piece| piece.id).collect())
    }

    pub(super) fn pieces(&self, text: &str, ends: bool) -> Result<Vec<Piece>> {
        let [before, after] = &self.ends;
        let mut pieces = Vec::new();
        if ends {
            pieces.extend(before.iter().map(|id| self.piece(*id, (0, 0))));
        }
        let (mut rest, mut at) = (text, 0);
        while let Some(letter) = rest.chars().next() {
            // The longest of those that begin here.
            let found = self.added.iter().filter(|token| rest.starts_with(&token.text));
            if let Some(token) = found.max_by_key(|token| token.text.len()) {
                let end = at + token.text.chars().count();
                pieces.push(self.piece(token.id, (at, end)));
                (rest, at) = (&rest[token.text.len()..], end);
                continue;
            }
            let (bytes, others) = rest.split_at(letter.len_utf8());
            let ids = bytes.bytes().map(|byte| self.bytes[usize::from(byte)]);
            pieces.extend(ids.map(|id| self.piece(id, (at, at + 1))));
            (rest, at) = (others, at + 1);
        }
        if ends {
            pieces.extend(after.iter().map(|id| self.piece(*id, (0, 0))));
        }
        Ok(pieces)
    }

    fn piece(&self, id: i64, (start, end): (usize, usize)) -> Piece {
        let token = self.tokens.get(&id).cloned().unwrap_or_default();
        Piece { id, token, start, end, special: self.is_special(id) }
    }

    fn is_special(&self, id: i64) -> bool {
        self.added.iter().any(|token| token.id == id && token.is_special)
    }

    pub(super) fn pair(&self, _: &str, _: &str, _: Windows) -> Result<Vec<PairWindow>> {
        Err(other_kind())
    }

    pub(super) fn pair_at_most(&self, _: &str, _: &str, _: usize) -> Result<(PairTokens, usize)> {
        Err(other_kind())
    }

    pub(super) fn decode(&self, tokens: &[i64]) -> Result<String> {
        Ok(String::from_utf8_lossy(&self.decode_bytes(tokens)?).into_owned())
    }

    pub(super) fn decode_all(&self, tokens: &[i64]) -> Result<String> {
        Ok(String::from_utf8_lossy(&self.spelled(tokens.iter())).into_owned())
    }

    pub(super) fn decode_bytes(&self, tokens: &[i64]) -> Result<Vec<u8>> {
        Ok(self.spelled(tokens.iter().filter(|id| !self.is_special(**id))))
    }

    fn spelled<'t>(&self, tokens: impl Iterator<Item = &'t i64>) -> Vec<u8> {
        let tokens = tokens.filter_map(|id| self.tokens.get(id));
        tokens.flat_map(|token| Spelling::Letters.bytes(token)).collect()
    }

    pub(super) fn len(&self) -> usize {
        let last = self.tokens.last_key_value();
        last.and_then(|(id, _)| usize::try_from(*id).ok()).map_or(0, |last| last + 1)
    }

    pub(super) fn id(&self, token: &str) -> Option<i64> {
        self.tokens.iter().find(|(_, known)| *known == token).map(|(id, _)| *id)
    }

    pub(super) fn token(&self, id: i64) -> Option<String> {
        self.tokens.get(&id).cloned()
    }
}

fn other_kind() -> Error {
    Error::version("tokenizers of this kind need the feature `text`, which this build lacks")
}

/// Returns `true` for a step that only splits texts, which bytes without merges are not aware of.
fn only_splits(step: &Value) -> bool {
    match step["type"].as_str() {
        Some("ByteLevel") => step["add_prefix_space"] != true,
        Some("Digits") => true,
        Some("Split") => step["behavior"] == "Isolated",
        Some("Sequence") => {
            let steps = step["pretokenizers"].as_array();
            steps.is_some_and(|steps| steps.iter().all(only_splits))
        }
        _ => false,
    }
}

/// Returns the tokens that begin and end a text, or `None` for a step of another kind.
fn ends_of(step: &Value) -> Option<[Vec<i64>; 2]> {
    match step["type"].as_str() {
        None if step.is_null() => Some(Default::default()),
        Some("ByteLevel") => Some(Default::default()),
        Some("Sequence") => {
            let found = step["processors"].as_array()?.iter().map(ends_of);
            let found: Vec<[Vec<i64>; 2]> = found.collect::<Option<_>>()?;
            Some([0, 1].map(|end| found.iter().flat_map(|ends| ends[end].clone()).collect()))
        }
        Some("TemplateProcessing") => {
            let mut ends: [Vec<i64>; 2] = Default::default();
            let mut is_after = 0;
            for item in step["single"].as_array()? {
                if item.get("Sequence").is_some() {
                    is_after = 1;
                    continue;
                }
                let name = item["SpecialToken"]["id"].as_str()?;
                let ids = step["special_tokens"][name]["ids"].as_array()?;
                let ids = ids.iter().map(Value::as_i64).collect::<Option<Vec<_>>>()?;
                ends[is_after].extend(ids);
            }
            Some(ends)
        }
        _ => None,
    }
}

#[cfg(all(test, feature = "text"))]
mod tests {
    use apr_testkit::locate::fixture;

    use super::super::pipeline::Pipeline;
    use super::ByteVocabulary;

    /// The library reads the same file.
    #[test]
    fn tokens_are_those_of_the_library() {
        let json = std::fs::read(fixture("tiny-llama/tokenizer.json")).unwrap();
        let (own, library) = (ByteVocabulary::read(&json).unwrap(), Pipeline::read(&json).unwrap());
        assert_eq!(own.len(), library.len());
        for text in ["", "12+34=", " a\n\u{e4}\u{1f600}x ", "<s>1</s><pad><s", "\u{0}\u{7f}"] {
            for ends in [false, true] {
                assert_eq!(own.pieces(text, ends).unwrap(), library.pieces(text, ends).unwrap());
                let ids = own.encode(text, ends).unwrap();
                assert_eq!(ids, library.encode(text, ends).unwrap());
                assert_eq!(own.decode(&ids).unwrap(), library.decode(&ids).unwrap());
                assert_eq!(own.decode_all(&ids).unwrap(), library.decode_all(&ids).unwrap());
                assert_eq!(own.decode_bytes(&ids).unwrap(), library.decode_bytes(&ids).unwrap());
            }
        }
        let cut = [0xe4, 257, 0x80, 300, -1];
        assert_eq!(own.decode(&cut).unwrap(), library.decode(&cut).unwrap());
        for id in [-1, 0, 60, 256, 258, 300] {
            assert_eq!(own.token(id), library.token(id));
            let token = library.token(id).unwrap_or_default();
            assert_eq!(own.id(&token), library.id(&token));
        }
    }

    #[test]
    fn other_tokenizers_are_rejected() {
        let json = std::fs::read_to_string(fixture("tiny-llama/tokenizer.json")).unwrap();
        let whole: serde_json::Value = serde_json::from_str(&json).unwrap();
        for (key, value) in [
            ("/model/merges", serde_json::json!([["1", "2"]])),
            ("/model/type", "WordPiece".into()),
            ("/model/ignore_merges", true.into()),
            ("/normalizer", serde_json::json!({ "type": "NFC" })),
            ("/pre_tokenizer/add_prefix_space", true.into()),
            ("/decoder/type", "WordPiece".into()),
            ("/added_tokens/0/lstrip", true.into()),
            ("/post_processor/type", "BertProcessing".into()),
        ] {
            let mut other = whole.clone();
            *other.pointer_mut(key).unwrap() = value;
            let error = ByteVocabulary::read(other.to_string().as_bytes()).unwrap_err();
            assert_eq!(error.code().id(), "E003", "{key}");
        }
        assert_eq!(ByteVocabulary::read(b"{").unwrap_err().code().id(), "E001");
    }
}
