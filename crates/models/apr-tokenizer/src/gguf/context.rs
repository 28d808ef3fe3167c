//! What all kinds of tokenizers are written from, and into.

use apr_core::{Error, Escaped, Result};
use apr_gguf::{KeyValue, Value};
use serde_json::{Map, Value as Json};

use super::files::{Files, size};
use super::hugging_face::{AddedToken, TokenizerJson};
use super::tokens::Tokens;
use crate::input_names::{INPUT_NAMES, input_names, returns_token_types};

/// Options of the conversion.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct Options<'a> {
    /// `tokenizer.ggml.pre`, instead of the one that the files' splitting is found to be.
    pub pre: Option<&'a str>,
}

/// A tokenizer as key-value pairs.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Tokenizer {
    /// Under `tokenizer.`, in the order in which llama.cpp's converter writes them.
    pub key_values: Vec<KeyValue>,
    /// Differences in llama.cpp's behaviour, and omitted parts of the files.
    pub warnings: Vec<String>,
}

/// Input and output of a conversion.
pub(super) struct Context<'a> {
    /// GGUF's name of the architecture.
    pub(super) architecture: &'a str,
    pub(super) files: Files<'a>,
    pub(super) pre: Option<&'a str>,
    pub(super) rows: Option<u64>,
    pub(super) json: Option<TokenizerJson>,
    /// `tokenizer_config.json`.
    pub(super) settings: Map<String, Json>,
    /// Contents of `config.json`.
    pub(super) config: Map<String, Json>,
    written: Tokenizer,
}

impl<'a> Context<'a> {
    pub(super) fn read(
        architecture: &'a str,
        files: Files<'a>,
        rows: Option<u64>,
        options: &Options<'a>,
    ) -> Result<Self> {
        Ok(Self {
            architecture,
            files,
            pre: options.pre,
            rows,
            json: files.json("tokenizer.json")?,
            settings: files.object("tokenizer_config.json")?.unwrap_or_default(),
            config: files.object("config.json")?.unwrap_or_default(),
            written: Tokenizer::default(),
        })
    }

    pub(super) fn finish(self) -> Tokenizer {
        self.written
    }

    /// Writes `tokenizer.ggml.` + `name`; a key that is there keeps its place.
    pub(super) fn set(&mut self, name: &str, value: impl Into<Value>) {
        self.set_key(format!("tokenizer.ggml.{name}"), value.into());
    }

    pub(super) fn set_key(&mut self, key: String, value: Value) {
        match self.written.key_values.iter_mut().find(|there| there.key == key) {
            Some(there) => there.value = value,
            None => self.written.key_values.push(KeyValue { key, value }),
        }
    }

    /// Writes the inputs of a tokenizer that does not return the token types that the model has.
    pub(super) fn write_input_names(&mut self) {
        let types = self.config.get("type_vocab_size").and_then(Json::as_u64);
        let has_types = types.is_some_and(|types| types > 1);
        let returns_types = returns_token_types(Some(&self.settings), Some(&self.config));
        if has_types && !returns_types && !self.written.key_values.is_empty() {
            self.set(INPUT_NAMES, input_names(false));
        }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.written
            .key_values
            .iter()
            .any(|there| there.key.strip_prefix("tokenizer.ggml.") == Some(name))
    }

    pub(super) fn warn(&mut self, warning: impl Into<String>) {
        self.written.warnings.push(warning.into());
    }

    /// Rejects a feature that llama.cpp lacks, or only warns if the user set the pre-tokenizer.
    pub(super) fn refuse(&mut self, message: String) -> Result<()> {
        if self.pre.is_none() {
            return Err(Error::format(message).in_file("tokenizer.json"));
        }
        self.warn(message);
        Ok(())
    }

    /// Returns padding tokens for all rows of the embedding, or for all ids up to the highest.
    pub(super) fn padding(&self, file: &str, ids: impl Iterator<Item = u64>) -> Result<Tokens> {
        let (entries, highest) =
            ids.fold((0, 0), |(entries, highest), id| (entries + 1, id.max(highest)));
        if entries == 0 {
            return Err(Error::format("it holds no tokens").in_file(file));
        }
        Ok(Tokens::padding(size(file, highest, entries, self.rows)?))
    }

    /// Warns about properties of added tokens that llama.cpp does not support.
    pub(super) fn check_added(&mut self, added: &[AddedToken], dropped: usize) {
        if dropped > 0 {
            let tokens = apr_core::counted(dropped as u64, "added token");
            let have = if dropped == 1 { "has an id" } else { "have ids" };
            self.warn(format!("{tokens} {have} beyond the rows of the embedding: left out"));
        }
        let strips = |token: &&AddedToken| token.lstrip || token.rstrip || token.single_word;
        if let Some(token) = added.iter().find(strips) {
            let token = Escaped::short(&token.content);
            self.warn(format!(
                "llama.cpp does not take spaces off around added tokens such as '{token}'"
            ));
        }
    }

    /// Writes `model`, `pre` and the tokens, then what special tokens there are.
    pub(super) fn write_tokens(
        &mut self,
        model: &str,
        pre: &str,
        tokens: &mut Tokens,
        scores: bool,
    ) {
        if let Some(warning) = tokens.distinguish() {
            self.warn(warning);
        }
        self.set("model", model);
        self.set("pre", pre);
        for (name, array) in tokens.arrays(scores) {
            self.set(name, Value::Array(array));
        }
    }
}
