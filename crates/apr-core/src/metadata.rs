//! Metadata of a checkpoint: one JSON object (seed 001 §3.4).

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::{Error, Result};

/// Keys this project reads and writes.
pub mod keys {
    /// Version of the container, required: `"2.0.0"`.
    pub const APR_VERSION: &str = "apr_version";
    /// Model family, required: `"whisper"`, `"llama"`.
    pub const MODEL_TYPE: &str = "model_type";
    /// Hyperparameters, required, may be empty.
    pub const ARCHITECTURE: &str = "architecture";
    /// Where the checkpoint came from: `format`, `file`, `tool`.
    pub const SOURCE: &str = "source";
    /// What a conversion could not keep.
    pub const LOSS: &str = "loss";
    /// What was wrong with tensors that an import took all the same.
    pub const VIOLATIONS: &str = "violations";
    /// Names of tensors stored once and used twice: tensor to tensor.
    pub const TIED: &str = "tied";
    /// The mel filterbank that an import added: `{"tensor": NAME}` (seed 001 §5.3).
    pub const MEL_FILTERBANK: &str = "mel_filterbank";
    /// The tensor it is in (seed 001 §5.3).
    pub const MEL_FILTERBANK_TENSOR: &str = "audio.mel_filterbank";
    /// Companion files: name to text, or to `{"tensor": NAME}` where the bytes are.
    pub const FILES: &str = "files";
    /// Name of the tensor that an encrypted file's other metadata are in.
    pub const HIDDEN_TENSOR: &str = "__metadata__";
    /// What only the safetensors header knows: `metadata` is its `__metadata__`.
    pub const SAFETENSORS: &str = "safetensors";
    /// What only a GGUF header knows: `version`, `alignment`, `endian`, and all key-value pairs, typed and in order, as `kv`.
    pub const GGUF: &str = "gguf";
    /// What an APRN file says beside its payload: header fields, metadata, values that are no tensors.
    pub const APRN: &str = "aprn";
}

/// A JSON object with sorted keys.
///
/// ```
/// use apr_core::Metadata;
///
/// let metadata = Metadata::parse(br#"{"model_type": "llama"}"#)?;
/// assert_eq!(metadata.text("model_type"), Some("llama"));
/// # Ok::<(), apr_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(transparent)]
pub struct Metadata(Map<String, Value>);

impl Metadata {
    /// An empty object.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Parses a JSON object.
    ///
    /// # Errors
    /// E001 when the bytes are not UTF-8, not JSON, nested deeper than 128 levels, or not an object.
    pub fn parse(json: &[u8]) -> Result<Self> {
        match serde_json::from_slice(json) {
            Ok(Value::Object(map)) => Ok(Self(map)),
            Ok(_) => Err(Error::format("the metadata is JSON, but not an object")),
            Err(error) => Err(Error::format(format!("the metadata is not valid JSON: {error}"))),
        }
    }

    /// Compact JSON.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(&self.0).unwrap_or_else(|_| unreachable!("a JSON map with string keys always serializes"))
    }

    /// The value under `key`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key)
    }

    /// The text under `key`.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<&str> {
        self.get(key).and_then(Value::as_str)
    }

    /// The object under `key`.
    #[must_use]
    pub fn object(&self, key: &str) -> Option<&Map<String, Value>> {
        self.get(key).and_then(Value::as_object)
    }

    /// Name of the tensor that is no weight of the model but data an import added: its mel filterbank.
    ///
    /// Only by the name that imports give it: metadata must not declare a weight to be dispensable.
    #[must_use]
    pub fn auxiliary_tensor(&self) -> Option<&str> {
        let name = self.object(keys::MEL_FILTERBANK)?.get("tensor")?.as_str()?;
        (name == keys::MEL_FILTERBANK_TENSOR).then_some(name)
    }

    /// Sets `key`, replacing what was there.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.0.insert(key.into(), value.into());
    }

    /// Sets `key` unless it is there.
    pub fn set_default(&mut self, key: &str, value: impl Into<Value>) {
        if !self.0.contains_key(key) {
            self.set(key, value);
        }
    }

    /// Takes `key` out.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        self.0.remove(key)
    }

    /// Keeps the keys that `wanted` says yes to.
    pub fn retain(&mut self, wanted: impl Fn(&str) -> bool) {
        self.0.retain(|key, _| wanted(key));
    }

    /// Keys and values, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Whether there is nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<Map<String, Value>> for Metadata {
    fn from(map: Map<String, Value>) -> Self {
        Self(map)
    }
}
