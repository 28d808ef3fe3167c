//! The files of Hugging Face's libraries, from a GGUF's key-value pairs.

mod keys;
mod kinds;
mod merges;
mod settings;
#[cfg(test)]
mod tests;
pub(crate) mod tokenizer_json;

use apr_core::{Error, Escaped, Result};
use apr_gguf::KeyValue;
use serde::Serialize;

use keys::TokenizerKeys;
use tokenizer_json::TokenizerFile;

/// Files by name, with their content.
pub type NamedFiles = Vec<(String, Vec<u8>)>;

/// `tokenizer.json`, `tokenizer_config.json` and `special_tokens_map.json` of a GGUF's tokenizer,
/// with what they lack.
///
/// They yield the ids that llama.cpp yields, as far as the libraries can. Where a GGUF has no
/// tokenizer there are no files.
///
/// # Errors
/// E001 where the key-value pairs contradict each other, or name a tokenizer that the libraries
/// lack.
pub fn tokenizer_files(key_values: &[KeyValue]) -> Result<(NamedFiles, Vec<String>)> {
    let Some(keys) = TokenizerKeys::read(key_values)? else { return Ok((Vec::new(), Vec::new())) };
    let (mut file, mut warnings) = file_of(&keys)?;
    warnings.extend(file.leave_out_unknown_merges());
    let (settings, map) = settings::settings(&keys, &mut warnings);
    let files = vec![
        ("tokenizer.json".to_owned(), json(&file)?),
        ("tokenizer_config.json".to_owned(), json(&settings)?),
        ("special_tokens_map.json".to_owned(), json(&map)?),
    ];
    Ok((files, warnings))
}

/// Returns the `tokenizer.json` before it is written, or `None` if a GGUF file has no tokenizer.
///
/// ```
/// use apr_core::{Array, KeyValue, Value};
/// use apr_tokenizer::gguf::{Model, tokenizer_file};
///
/// let text = |key: &str, text: &str| KeyValue {
///     key: key.into(),
///     value: Value::String(text.into()),
/// };
/// let tokens = Array::String(vec!["a".to_owned(), "b".to_owned(), "ab".to_owned()]);
/// let merges = Array::String(vec!["a b".to_owned()]);
/// let keys = [
///     text("tokenizer.ggml.model", "gpt2"),
///     text("tokenizer.ggml.pre", "llama-bpe"),
///     KeyValue { key: "tokenizer.ggml.tokens".into(), value: Value::Array(tokens) },
///     KeyValue { key: "tokenizer.ggml.merges".into(), value: Value::Array(merges) },
/// ];
/// let (file, _) = tokenizer_file(&keys)?.expect("a tokenizer");
/// assert!(matches!(file.model, Model::Bpe { merges, .. } if merges == [("a", "b")]));
/// # Ok::<(), apr_core::Error>(())
/// ```
///
/// # Errors
/// The errors of [`tokenizer_files`].
pub fn tokenizer_file(key_values: &[KeyValue]) -> Result<Option<(TokenizerFile<'_>, Vec<String>)>> {
    TokenizerKeys::read(key_values)?.map(|keys| file_of(&keys)).transpose()
}

fn file_of<'a>(keys: &TokenizerKeys<'a>) -> Result<(TokenizerFile<'a>, Vec<String>)> {
    let mut warnings = keys.warnings();
    let file = match keys.model {
        "gpt2" => kinds::bytes(keys, &mut warnings)?,
        "llama" => kinds::characters(keys, &mut warnings),
        "bert" => kinds::words(keys, &mut warnings),
        "t5" => kinds::unigram(keys, &mut warnings)?,
        other => {
            let message = format!(
                "missing tokenizer.json for llama.cpp's tokenizer '{}'",
                Escaped::short(other)
            );
            return Err(Error::format(message));
        }
    };
    Ok((file, warnings))
}

fn json(value: &impl Serialize) -> Result<Vec<u8>> {
    let mut bytes =
        apr_core::json::to_vec_pretty(value).map_err(|error| Error::format(error.to_string()))?;
    bytes.push(b'\n');
    Ok(bytes)
}
