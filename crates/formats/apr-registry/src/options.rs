//! How a model is opened, and how its output is laid out.

use apr_core::{Error, Format, Limits, Result, Target};
use apr_format::apr2::{self, Keys};

/// Options for opening a model: limits, hints and keys.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// Limits for the sizes that a file declares.
    pub limits: Limits,
    /// Family of a legacy GGML file, which does not contain it, if detection fails.
    pub family: Option<String>,
    /// Full names of classes, as `__main__.Net`, whose pickled instances are read for their
    /// parameters. Nothing of the class runs.
    pub pickle_classes: Vec<String>,
    /// `true` to read every entry of a PyTorch checkpoint under its full path, for jobs that select
    /// entries by prefix.
    ///
    /// Otherwise only the weights of a training checkpoint are read.
    pub all_entries: bool,
    /// `true` to open a sharded model of which shards are absent or damaged, for reports on the
    /// others. Reading its tensors fails.
    ///
    /// Sharded `.apr` models open without this, because their manifest describes all tensors.
    pub absent_shards: bool,
    /// Keys for an encrypted model.
    pub keys: Keys,
}

impl From<&Limits> for OpenOptions {
    fn from(limits: &Limits) -> Self {
        Self { limits: *limits, ..Self::default() }
    }
}

impl From<&Self> for OpenOptions {
    fn from(options: &Self) -> Self {
        options.clone()
    }
}

impl OpenOptions {
    /// Limits the memory to `max_memory` bytes ([`Limits::within`]).
    ///
    /// The limit applies to headers, graphs and companions that are read, and to deriving the key
    /// from a password.
    ///
    /// ```
    /// use apr_registry::{Code, OpenOptions};
    ///
    /// let options = OpenOptions::default().within(64 << 20);
    /// assert!(options.limits.check_tensors(10_000).is_ok());
    /// assert_eq!(options.limits.check_tensors(1_000_000).unwrap_err().code(), Code::Memory);
    /// assert_eq!(options.keys.max_memory, 64 << 20);
    /// ```
    #[must_use]
    pub fn within(self, max_memory: u64) -> Self {
        let keys = Keys { max_memory: self.keys.max_memory.min(max_memory), ..self.keys };
        Self { limits: self.limits.within(max_memory), keys, ..self }
    }

    /// The keys as typed models take them: one password, one private key.
    #[cfg(all(feature = "typed", feature = "encryption"))]
    pub(crate) fn aprn(&self) -> apr_format::aprn::LoadOptions {
        use apr_format::crypto::Unlock;
        let mut options = apr_format::aprn::LoadOptions::default();
        for key in &self.keys.unlock {
            match key {
                Unlock::Password(password) => options.password = Some(password.as_slice().into()),
                Unlock::Identity(key) => options.identity = Some((*key.secret_bytes()).into()),
            }
        }
        options
    }

    #[cfg(all(feature = "typed", not(feature = "encryption")))]
    #[allow(clippy::unused_self, reason = "as with the feature")]
    pub(crate) fn aprn(&self) -> apr_format::aprn::LoadOptions {
        apr_format::aprn::LoadOptions::default()
    }

    #[cfg(feature = "pytorch")]
    pub(crate) fn pytorch(&self) -> apr_pytorch::OpenOptions {
        apr_pytorch::OpenOptions {
            classes: self.pickle_classes.clone(),
            prefix: self.all_entries.then(String::new),
        }
    }
}

/// Options for the layout of the output.
#[derive(Debug, Clone)]
pub struct PlanOptions {
    /// The format, which must be one that is written.
    pub format: &'static Format,
    /// Name of the file. Names of shards and of the index are derived from it.
    pub file_name: String,
    /// Write a folder: named files, companions beside the weights.
    pub folder: bool,
    /// Maximum number of bytes of tensors in a shard.
    pub shard_size: Option<u64>,
    /// Write only this one of the shards, counted from 0; of APR2 output. `None` for all of them.
    pub shard: Option<usize>,
    /// Alignment of tensors in bytes. `None` uses the format's own choice: 64 in APR2, the source's
    /// or 32 in GGUF.
    pub alignment: Option<u32>,
    /// Storage of APR2 tensors; alignment, order and `file_name` are taken from the fields of this
    /// type.
    pub apr2: apr2::WriteOptions,
    /// `true` if the tensors are in the order of their first use, which the file then declares.
    pub streaming: bool,
    /// Sort safetensors entries as its library does instead of keeping the source's order.
    pub canonical: bool,
    /// Graphs of the model, for formats that store them: one file for each, in a folder if there
    /// are several.
    #[cfg(feature = "onnx")]
    pub models: Vec<apr_onnx::write::Model>,
    /// Location of an ONNX model's tensor data.
    #[cfg(feature = "onnx")]
    pub external_data: apr_onnx::write::ExternalData,
}

impl PlanOptions {
    /// A single file with the format's defaults.
    #[must_use]
    pub fn new(format: &'static Format, file_name: impl Into<String>) -> Self {
        let file_name = file_name.into();
        Self {
            format,
            file_name,
            folder: false,
            shard_size: None,
            shard: None,
            alignment: None,
            apr2: apr2::WriteOptions::default(),
            streaming: false,
            canonical: false,
            #[cfg(feature = "onnx")]
            models: Vec::new(),
            #[cfg(feature = "onnx")]
            external_data: apr_onnx::write::ExternalData::Auto,
        }
    }

    /// Returns the capabilities of the format's writer.
    ///
    /// # Errors
    /// E001 for a format that is only read.
    pub fn target(&self) -> Result<&'static Target> {
        let Format { name, target, .. } = self.format;
        target
            .as_ref()
            .ok_or_else(|| Error::format(format!("{name} is read-only: writing is not supported")))
    }
}
