//! A tokenizer as GGUF keeps it, from the files that travel with a model, and back.
//!
//! GGUF names one of llama.cpp's tokenizers and gives it tables; the files of Hugging Face's
//! `tokenizers` library spell a pipeline out step by step. A pipeline is written as the tokenizer
//! that yields the same ids:
//!
//! | `tokenizer.json`                             | `tokenizer.model` | llama.cpp's `tokenizer.ggml.model`          |
//! |----------------------------------------------|-------------------|---------------------------------------------|
//! | BPE on bytes (GPT-2, Llama 3, Qwen)          |                   | `gpt2`, its splitting named by `pre`        |
//! | BPE on characters, bytes as fallback (Llama) | BPE               | `llama`, a token's score its rank of merges |
//! | WordPiece (BERT)                             |                   | `bert`                                      |
//! | Unigram (T5, XLM-R)                          | Unigram           | `t5`                                        |
//! | what a list of ranks comes to (`tekken.json`) |                  | `gpt2`, its splitting named by `pre`        |
//!
//! Keys, their order and their types are those llama.cpp's converter writes. Where a pipeline does
//! what llama.cpp can't, a warning says which texts get other ids; where hardly any text would get
//! the same, it is refused.

mod bpe;
mod context;
mod files;
pub(crate) mod hugging_face;
mod pieces;
mod pre;
mod rebuild;
mod scores;
mod special;
mod spm;
mod tokens;
mod unigram;
mod wordpiece;

#[cfg(test)]
mod tests;

use apr_core::{Error, Result};

use context::Context;
use files::Files;
use hugging_face::TokenizerJson;

use crate::ranks::tokenizer_of_ranks;

pub use context::{Options, Tokenizer};
pub use files::sentencepiece_file;
pub(crate) use pre::{LLAMA3, QWEN2};
pub use rebuild::tokenizer_json::{Added, Ids, Model, OwnedIds, TokenizerFile, unknown_merges};
pub use rebuild::{NamedFiles, tokenizer_file, tokenizer_files};

/// The tokenizer of a model, from its companions by name and content.
///
/// `architecture` is GGUF's name, as `llama`. `rows` is the number of rows of the token embedding:
/// ids up to it that no file mentions become tokens `[PADn]`. Without any tokenizer file there are
/// no key-value pairs.
///
/// # Errors
/// E001 where a file can't be understood, contradicts itself or `rows`, or describes a tokenizer
/// that llama.cpp lacks.
pub fn tokenizer_key_values(
    architecture: &str,
    files: &[(String, Vec<u8>)],
    rows: Option<u64>,
    options: &Options<'_>,
) -> Result<Tokenizer> {
    let mut context = Context::read(architecture, Files(files), rows, options)?;
    if let Some(bytes) = context.files.sentencepiece() {
        spm::from_sentencepiece(&mut context, bytes)?;
    } else if let Some(json) = context.json.take() {
        from_tokenizer_json(&mut context, &json)?;
    } else if context.files.bytes("vocab.txt").is_some() {
        wordpiece::from_vocab_txt(&mut context)?;
    } else if context.files.bytes("vocab.json").is_some() {
        bpe::from_vocab_json(&mut context)?;
    } else if let Some(json) = tokenizer_of_ranks(files)? {
        let json = std::str::from_utf8(&json).map_err(|error| Error::format(error.to_string()))?;
        from_tokenizer_json(&mut context, &files::parse("the list of ranks", json)?)?;
    } else {
        context.warn(
            "no tokenizer among the files: llama.cpp refuses to load a GGUF file without one",
        );
    }

    context.write_input_names();
    Ok(context.finish())
}

fn from_tokenizer_json(context: &mut Context<'_>, json: &TokenizerJson) -> Result<()> {
    match json.model.kind() {
        "BPE" if json.model.byte_fallback => spm::from_tokenizer_json(context, json),
        "BPE" => bpe::from_tokenizer_json(context, json),
        "WordPiece" => wordpiece::from_tokenizer_json(context, json),
        "Unigram" => unigram::from_tokenizer_json(context, json),
        other => {
            let message = format!(
                "llama.cpp does not support tokenizers of the type {other}, only BPE, WordPiece \
                 and Unigram"
            );
            Err(Error::format(message).in_file("tokenizer.json"))
        }
    }
}
