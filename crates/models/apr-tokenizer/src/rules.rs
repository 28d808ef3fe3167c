//! What turns a text into the ids of a vocabulary and back, beside the vocabulary itself.

use std::collections::BTreeMap;

use apr_core::{CheckpointReader, Result};
use serde_json::Value;

use crate::gguf::hugging_face::{AddedToken, Merge, TokenizerJson, Vocab};

/// Bytes of a tokenizer file; the largest in use have half of it.
const MAX_FILE: usize = 64 << 20;

/// The key-value pairs of a GGUF file that decide which ids a text gets, without the tokens.
const PAIRS: [&str; 8] = [
    "tokenizer.ggml.model",
    "tokenizer.ggml.pre",
    "tokenizer.ggml.scores",
    "tokenizer.ggml.token_type",
    "tokenizer.ggml.add_bos_token",
    "tokenizer.ggml.add_eos_token",
    "tokenizer.ggml.add_space_prefix",
    "tokenizer.ggml.remove_extra_whitespaces",
];

/// Rules by which a tokenizer splits texts and joins tokens, for comparisons without a text.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Rules {
    /// Merges as `left right`, in the order of their ranks; `None` if the tokenizer has no merges.
    pub merges: Option<Vec<String>>,
    /// Further rules by their names in the file.
    ///
    /// Examples are `normalizer` of a `tokenizer.json` and `tokenizer.ggml.pre` of a GGUF file. Two
    /// tokenizers are comparable where both have a name.
    pub others: BTreeMap<&'static str, Value>,
}

/// Returns how the tokenizer of a checkpoint splits texts: of `tokenizer.json` or `merges.txt`, or
/// else of a GGUF file's key-value pairs. A file that can't be understood has no rules.
///
/// # Errors
/// E007 and E008 when a tokenizer file can't be read.
pub fn rules(reader: &dyn CheckpointReader) -> Result<Rules> {
    if let Some(bytes) = companion(reader, "tokenizer.json")? {
        return Ok(serde_json::from_slice(&bytes).map(of_json).unwrap_or_default());
    }
    if let Some(bytes) = companion(reader, "merges.txt")? {
        let text = String::from_utf8_lossy(&bytes);
        let lines = text.lines().enumerate();
        // Only the first line may be the version; elsewhere a `#` begins a token.
        let lines = lines.filter(|(at, line)| *at > 0 || !line.starts_with('#'));
        let merges = lines.filter_map(|(_, line)| Merge::parse(line.trim_end()));
        return Ok(Rules { merges: Some(merges.map(spelled).collect()), ..Rules::default() });
    }

    let pairs = reader.metadata().key_values().ok().flatten().unwrap_or_default();
    let merges = pairs.find("tokenizer.ggml.merges").and_then(|pair| pair.texts());
    let others = PAIRS.into_iter().filter_map(|key| {
        let value = pairs.find(key)?.unpack().to_json();
        Some((key, value.get("value")?.clone()))
    });
    Ok(Rules {
        merges: merges.map(|texts| texts.map(str::to_owned).collect()),
        others: others.collect(),
    })
}

fn companion(reader: &dyn CheckpointReader, name: &str) -> Result<Option<Vec<u8>>> {
    let Some(at) = reader.companions().iter().position(|companion| companion.name == name) else {
        return Ok(None);
    };
    let bytes = reader.read_companion(at)?;
    Ok(Some(bytes).filter(|bytes| bytes.len() <= MAX_FILE))
}

fn of_json(file: TokenizerJson) -> Rules {
    let model = file.model;
    let mut others = BTreeMap::from([
        ("type", model.kind().into()),
        ("normalizer", file.normalizer),
        ("pre_tokenizer", file.pre_tokenizer),
        ("post_processor", file.post_processor),
        ("decoder", file.decoder),
        ("added_tokens", added_tokens(file.added_tokens)),
        ("byte_fallback", model.byte_fallback.into()),
        ("ignore_merges", model.ignore_merges.into()),
    ]);
    if let Vocab::Scores(tokens) = &model.vocab {
        others.insert("scores", tokens.iter().map(|(_, score)| Value::from(*score)).collect());
    }
    let merges = model.merges.into_iter().map(spelled).collect::<Vec<_>>();
    Rules { merges: Some(merges).filter(|merges| !merges.is_empty()), others }
}

/// Returns the added tokens with the properties that they have, in the order of their texts.
fn added_tokens(mut tokens: Vec<AddedToken>) -> Value {
    tokens.sort_by(|one, other| one.content.cmp(&other.content));
    let described = |token: AddedToken| {
        let AddedToken { content, special, lstrip, rstrip, single_word, .. } = token;
        let all = [
            ("special", special),
            ("lstrip", lstrip),
            ("rstrip", rstrip),
            ("single_word", single_word),
        ];
        let own: Vec<&str> = all.iter().filter(|(_, has)| *has).map(|(name, _)| *name).collect();
        Value::from(format!("{content} ({})", own.join(", ")))
    };
    tokens.into_iter().map(described).collect()
}

/// Returns a merge as GGUF stores it, with a letter in place of each space.
fn spelled(Merge(left, right): Merge) -> String {
    let letters = |token: &str| token.replace(' ', "\u{120}");
    format!("{} {}", letters(&left), letters(&right))
}

#[cfg(test)]
mod tests {
    use apr_registry::Limits;
    use apr_testkit::{FolderInMemory, locate};

    use super::*;

    fn of(name: &str, bytes: &[u8]) -> Rules {
        let mut folder = FolderInMemory::from([(name, bytes.to_vec())]);
        let weights = std::fs::read(locate::fixture("tiny-llama/model.safetensors")).unwrap();
        folder.0.insert("model.safetensors".to_owned(), weights);
        rules(&apr_registry::open_folder(&folder, &Limits::default()).unwrap()).unwrap()
    }

    #[test]
    fn both_spellings_of_merges_are_the_same_rules() {
        let json = |merges: &str| {
            let vocab = r#"{"a": 0, "b": 1, "ab": 2}"#;
            let model = format!(r#"{{"type": "BPE", "vocab": {vocab}, "merges": [{merges}]}}"#);
            of("tokenizer.json", format!(r#"{{"model": {model}}}"#).as_bytes())
        };
        let merges = Some(vec!["a b".to_owned()]);
        assert_eq!((&json(r#""a b""#).merges, &json(r#"["a", "b"]"#).merges), (&merges, &merges));
        assert_eq!(json("").merges, None);
        assert_eq!(of("merges.txt", b"#version: 0.2\na b\n").merges, merges);
    }

    #[test]
    fn scores_and_normalizers_are_rules() {
        let found = of(
            "tokenizer.json",
            br#"{"normalizer": {"type": "NFC"}, "model": {"unk_id": 0, "vocab": [["a", -1.5]]}}"#,
        );
        assert_eq!(found.others["normalizer"], serde_json::json!({"type": "NFC"}));
        assert_eq!(found.others["scores"], serde_json::json!([-1.5]));
        assert_eq!(found.others["type"], "Unigram");
    }

    #[test]
    fn decoders_and_added_tokens_are_rules() {
        let found = of(
            "tokenizer.json",
            br#"{"decoder": {"type": "ByteLevel"}, "model": {"vocab": {"a": 0}}, "added_tokens": [
                {"id": 2, "content": "<b>"}, {"id": 1, "content": "<a>", "special": true}]}"#,
        );
        assert_eq!(found.others["decoder"], serde_json::json!({"type": "ByteLevel"}));
        assert_eq!(found.others["added_tokens"], serde_json::json!(["<a> (special)", "<b> ()"]));
    }

    #[test]
    fn a_file_that_is_not_a_tokenizer_has_no_rules() {
        assert_eq!(of("tokenizer.json", b"{"), Rules::default());
        assert_eq!(of("vocab.txt", b"a\n"), Rules::default());
    }
}
