//! The files of Hugging Face's libraries, from a GGUF's key-value pairs.

mod keys;
mod kinds;
mod merges;
mod settings;

use apr_core::{Error, Escaped, Result};
use apr_gguf::KeyValue;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::Value;

use super::NamedFiles;
use keys::TokenizerKeys;

/// `tokenizer.json`, `tokenizer_config.json` and `special_tokens_map.json` of a GGUF's tokenizer, with what they lack.
///
/// They yield the ids that llama.cpp yields, as far as the libraries can. Where a GGUF has no tokenizer there are no files.
///
/// # Errors
/// E001 where the key-value pairs contradict each other, or name a tokenizer that the libraries
/// lack.
pub fn tokenizer_files(key_values: &[KeyValue]) -> Result<(NamedFiles, Vec<String>)> {
    let Some(keys) = TokenizerKeys::read(key_values)? else { return Ok((Vec::new(), Vec::new())) };
    let mut warnings = keys.warnings();
    let file = match keys.model {
        "gpt2" => kinds::bytes(&keys, &mut warnings)?,
        "llama" => kinds::characters(&keys, &mut warnings),
        "bert" => kinds::words(&keys, &mut warnings),
        "t5" => kinds::unigram(&keys, &mut warnings)?,
        other => {
            let message = format!("there is no tokenizer.json for llama.cpp's tokenizer '{}'", Escaped::short(other));
            return Err(Error::format(message));
        }
    };
    let (settings, map) = settings::settings(&keys, &mut warnings);
    let files = vec![
        ("tokenizer.json".to_owned(), json(&file)?),
        ("tokenizer_config.json".to_owned(), json(&settings)?),
        ("special_tokens_map.json".to_owned(), json(&map)?),
    ];
    Ok((files, warnings))
}

fn json(value: &impl Serialize) -> Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec_pretty(value).map_err(|error| Error::format(error.to_string()))?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// `tokenizer.json`.
#[derive(Serialize)]
struct TokenizerFile<'a> {
    version: &'static str,
    truncation: Value,
    padding: Value,
    added_tokens: Vec<Added<'a>>,
    normalizer: Value,
    pre_tokenizer: Value,
    post_processor: Value,
    decoder: Value,
    model: Model<'a>,
}

#[derive(Serialize)]
struct Added<'a> {
    id: usize,
    content: &'a str,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: bool,
    special: bool,
}

#[derive(Serialize)]
#[serde(tag = "type")]
enum Model<'a> {
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
struct Ids<'a>(Vec<(&'a str, usize)>);

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
struct OwnedIds(Vec<(String, usize)>);

impl Serialize for OwnedIds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Ids(self.0.iter().map(|(text, id)| (text.as_str(), *id)).collect()).serialize(serializer)
    }
}
