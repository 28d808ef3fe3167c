//! What is learnt of the companions.

use apr_core::TensorInfo;
use apr_tokenizer::warning;
use serde_json::{Value, json};

/// Maximum length of a value in bytes of JSON; larger ones stay in their file.
pub(super) const MAX_INLINE: usize = 1 << 20;

/// Facts about the model from its companion files, as metadata and tensors of the container.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct Learnt {
    /// Keys, each once, and their values.
    pub metadata: Vec<(String, Value)>,
    /// Data that is too large for JSON.
    pub tensors: Vec<LearntTensor>,
    /// Values that are invalid or contradictory: the file's name, a colon, and the reason.
    pub warnings: Vec<String>,
    /// Those of the warnings that are about configurations and templates that can't be read, so
    /// that nothing in them is used.
    pub unreadable: Vec<String>,
}

/// A tensor of the container that no weights file has.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct LearntTensor {
    /// Name, dtype and shape.
    pub info: TensorInfo,
    /// Elements, little-endian, as many as the shape requires.
    pub bytes: Vec<u8>,
}

impl Learnt {
    pub(super) fn set(&mut self, key: impl Into<String>, value: impl Into<Value>) {
        let key = key.into();
        if !self.metadata.iter().any(|(there, _)| *there == key) {
            self.metadata.push((key, value.into()));
        }
    }

    /// Sets `key` to a value in `file`, or to the file's name if the value is large.
    pub(super) fn set_bounded(&mut self, key: &str, value: impl Into<Value>, file: &str) {
        let value = value.into();
        let fits = apr_core::json::to_vec(&value).is_ok_and(|json| json.len() <= MAX_INLINE);
        if fits {
            self.set(key, value);
        } else {
            self.set_by_file(key, file);
        }
    }

    /// Sets `key` to the name of the file that holds its value.
    pub(super) fn set_by_file(&mut self, key: &str, file: &str) {
        self.set(key, json!({ "file": file }));
    }

    /// Adds a warning about a file of which nothing is used.
    pub(super) fn warn_unreadable(&mut self, file: &str, why: &str) {
        self.warn(file, why);
        self.unreadable.push(warning(file, why));
    }

    pub(super) fn warn(&mut self, file: &str, why: &str) {
        let warning = warning(file, why);
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }
}
