//! The two ends of every pass: a checkpoint that is read, a checkpoint that is written.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use serde::Serialize;
use serde_json::Value;

use crate::digest::ChunkSums;
use crate::{Container, DType, Error, Format, Metadata, Result, Shape, Sink, Stored};

/// A tensor as its format describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TensorInfo {
    /// Name, unique in the checkpoint.
    pub name: String,
    /// Type of the stored elements.
    pub dtype: DType,
    /// Dimensions in elements, outermost first.
    pub shape: Shape,
}

impl TensorInfo {
    /// Bytes of the tensor, decoded.
    ///
    /// # Errors
    /// E001 when dtype and shape do not go together, or the length exceeds `u64`.
    pub fn byte_len(&self) -> Result<u64> {
        self.dtype.stored_len(&self.shape).ok_or_else(|| {
            Error::format(alloc::format!(
                "the shape {} is not compatible with dtype {}",
                self.shape,
                self.dtype
            ))
            .for_tensor(&self.name)
        })
    }
}

/// A file of the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileInfo {
    /// Plain name; empty for an unnamed source.
    pub name: String,
    /// Length in bytes.
    #[serde(rename = "bytes")]
    pub len: u64,
}

/// A companion file of the weights: configuration, tokenizer, model card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Companion {
    /// Plain name, `config.json` or `1_Pooling/config.json`.
    pub name: String,
    /// Length in bytes.
    #[serde(rename = "bytes")]
    pub len: u64,
}

impl Companion {
    /// Beginnings of the names of terms.
    pub const TERMS: [&'static str; 4] = ["LICENSE", "LICENCE", "NOTICE", "USE_POLICY"];

    /// Returns `true` if a file of a model's folder is a companion by its name: a configuration, a
    /// tokenizer, a chat template, a model card or a licence. Names have `/` between folders.
    ///
    /// ```
    /// use apr_core::Companion;
    ///
    /// assert!(Companion::is_name("tokenizer.json"));
    /// assert!(Companion::is_name("1_Pooling/config.json"));
    /// assert!(!Companion::is_name("model.safetensors"));
    /// ```
    #[must_use]
    pub fn is_name(name: &str) -> bool {
        const EXTENSIONS: [&str; 8] =
            ["json", "txt", "md", "model", "jinja", "tiktoken", "yaml", "yml"];
        /// Settings of Stanford's ColBERT.
        const ARTIFACT: &str = "artifact.metadata";
        let Some((folder, file)) = name.rsplit_once('/') else {
            let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
            return EXTENSIONS.contains(&extension)
                || name == ARTIFACT
                || Self::TERMS.iter().any(|prefix| name.starts_with(prefix));
        };
        // Modules of sentence-transformers (`1_Pooling/config.json`), and templates beside the one
        // that is used by default.
        file == "config.json" && !folder.contains('/')
            || folder == "additional_chat_templates" && file.ends_with(".jinja")
    }

    /// Returns the error for reading a companion at a position without one.
    #[must_use]
    pub fn absent(position: usize) -> Error {
        Error::format(alloc::format!("no companion {position}"))
    }
}

/// Something a conversion could not keep.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Loss {
    /// Tensor, metadata key or file.
    pub name: String,
    /// Description of the lost data.
    pub what: String,
    /// Reason why the target can't store it.
    pub why: String,
}

/// A checkpoint opened for reading.
///
/// Opening reads headers only; tensor bytes are fetched on demand, any range at a time, from any
/// thread.
///
/// No method has a default: a reader over another one that forgot to pass something on would
/// contradict what it does pass on, and so does not compile.
pub trait CheckpointReader: Send + Sync {
    /// The format of the bytes.
    fn format(&self) -> &'static Format;

    /// Metadata under the keys of [`keys`](crate::keys).
    fn metadata(&self) -> &Metadata;

    /// The tensors, in the order their bytes are stored.
    fn tensors(&self) -> &[TensorInfo];

    /// Returns how a tensor is stored.
    ///
    /// A reader over another one passes this on unchanged, or replaces it as a whole by
    /// [`Stored::derived`].
    fn stored(&self, tensor: usize) -> Stored<'_>;

    /// Fills `buf` with decoded bytes of a tensor, from `offset` within it on.
    ///
    /// # Errors
    /// E002 past the tensor's end or where stored bytes don't decode, E007 when reading fails.
    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// Returns all bytes of a tensor without a copy, if they are contiguous in memory.
    fn tensor_slice(&self, tensor: usize) -> Option<&[u8]>;

    /// Returns the facts that only the format provides.
    ///
    /// A reader over another one passes them on, [altered](Container::altered) if its tensors are
    /// not exactly those of the file.
    fn container(&self) -> Container<'_>;

    /// The files the checkpoint consists of.
    fn files(&self) -> &[FileInfo];

    /// Returns the companion files of the weights.
    fn companions(&self) -> &[Companion];

    /// The bytes of a companion.
    ///
    /// # Errors
    /// E007 when reading fails, E008 when it is larger than the limits allow.
    fn read_companion(&self, companion: usize) -> Result<Vec<u8>>;

    /// Names of files beside the weights that a conversion does not carry along.
    fn left_out(&self) -> &[String];

    /// Returns warnings about the file, which is readable nevertheless.
    fn warnings(&self) -> &[String];
}

/// Facts learnt during a pass, too late for the plan.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Notes {
    /// Data that could not be kept.
    pub losses: Vec<Loss>,
    /// Errors in tensors that were written anyway, as the validation reports them.
    pub violations: Vec<Value>,
    /// Quantization error above the expected one.
    ///
    /// It is added to the metadata's [`keys::QUANTIZATION`](crate::keys::QUANTIZATION).
    pub degradation: Option<Value>,
}

impl Notes {
    /// Returns `true` if there is nothing to record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.losses.is_empty() && self.violations.is_empty() && self.degradation.is_none()
    }
}

/// Place of a planned tensor in the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PlannedTensor {
    /// Position in the tensors that were handed to `plan`.
    pub source: usize,
    /// Index into [`Layout::files`].
    pub file: usize,
    /// Offset from the start of that file, in bytes.
    pub offset: u64,
    /// Length in bytes.
    #[serde(rename = "bytes")]
    pub len: u64,
}

/// Encoding of a tensor's bytes before they are written to the file. Any thread may call it.
pub trait ChunkEncoder: Send + Sync {
    /// Length of the pieces that a tensor is encoded by, in bytes; the last may be shorter. `None`:
    /// the tensor with this position in [`Layout::tensors`] is stored as it comes.
    fn piece_len(&self, planned: usize) -> Option<usize>;

    /// Returns `true` if [`learn`](Self::learn) should be called before the first piece.
    fn wants_samples(&self, planned: usize) -> bool;

    /// Chooses the encoding by samples of the tensor's bytes.
    fn learn(&self, planned: usize, samples: &[&[u8]]);

    /// Appends the encoded piece at `offset` within the tensor of `tensor_len` bytes; returns how
    /// many of its blocks failed the check that they decode to what they were made of, and were
    /// stored as they are.
    ///
    /// # Errors
    /// E008 when the piece exceeds what the encoding can hold.
    fn encode(
        &self,
        planned: usize,
        offset: u64,
        tensor_len: u64,
        piece: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<u64>;

    /// Does work that the writer has put off; threads call it before each chunk they make. The
    /// writer does itself what nobody has begun when it is due, so nothing depends on the calls but
    /// the time.
    fn help(&self) {}
}

/// A writer's plan, made from names, dtypes and shapes alone.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Layout {
    /// Files that will be written, with their lengths.
    pub files: Vec<FileInfo>,
    /// Tensors in the order they must be written.
    pub tensors: Vec<PlannedTensor>,
    /// Data that the target can't store.
    pub losses: Vec<Loss>,
}

impl Layout {
    /// Bytes of all files together.
    #[must_use]
    pub fn total_len(&self) -> u64 {
        self.files.iter().map(|file| file.len).sum()
    }
}

/// A checkpoint being written.
///
/// Made by a format's `plan`; then, in this order: `begin`, the chunks of each tensor of the
/// layout, `finish`.
pub trait CheckpointWriter: Send + Sync {
    /// Returns the layout of the planned file.
    fn layout(&self) -> &Layout;

    /// Returns `true` if chunks should come with [`ChunkSums`], which any thread may compute.
    fn wants_sums(&self) -> bool {
        false
    }

    /// Returns the encoder that any thread may use for pieces of tensors.
    ///
    /// Its output is passed to [`write_piece`](Self::write_piece). A tensor may still be passed to
    /// [`write_chunk`](Self::write_chunk), which then encodes it itself.
    fn encoder(&self) -> Option<Arc<dyn ChunkEncoder>> {
        None
    }

    /// Returns the number of blocks that have failed the check of [`ChunkEncoder::encode`] so far.
    ///
    /// Only tensors passed to [`write_chunk`](Self::write_chunk) are counted.
    fn mismatches(&self) -> u64 {
        0
    }

    /// Returns the file that lists all other files of the model, or `None` without such a file.
    ///
    /// It is returned as far as it is known before anything is written: sizes may change and
    /// checksums are zero.
    fn manifest(&self) -> Option<Vec<u8>> {
        None
    }

    /// Appends a piece to the tensor that is due: its bytes, and their encoded form.
    ///
    /// The encoded form is the output of the [`encoder`](Self::encoder). Either all pieces of a
    /// tensor are written with this method, or none.
    ///
    /// # Errors
    /// Returns the same errors as [`write_chunk`](Self::write_chunk).
    fn write_piece(&mut self, sink: &mut dyn Sink, piece: &[u8], encoded: &[u8]) -> Result<()> {
        let _ = encoded;
        self.write_chunk(sink, piece, None)
    }

    /// Writes what precedes the first tensor.
    ///
    /// # Errors
    /// E007 when writing fails.
    fn begin(&mut self, sink: &mut dyn Sink) -> Result<()>;

    /// Appends bytes to the tensor that is due; the next tensor is due when its planned length is
    /// reached. `sums` must be of these bytes, and come with all chunks of a tensor or with none.
    ///
    /// # Errors
    /// E002 when there are more bytes than planned, E007 when writing fails.
    fn write_chunk(
        &mut self,
        sink: &mut dyn Sink,
        bytes: &[u8],
        sums: Option<ChunkSums>,
    ) -> Result<()>;

    /// Writes everything behind the last tensor, and the notes if the format can store them.
    ///
    /// # Errors
    /// E002 when a tensor got fewer bytes than planned, E007 when writing fails.
    fn finish(&mut self, sink: &mut dyn Sink, notes: &Notes) -> Result<()>;
}
