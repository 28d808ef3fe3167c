//! The two ends of every pass: a checkpoint that is read, a checkpoint that is written.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use serde::Serialize;
use serde_json::Value;

use crate::digest::{ChunkSums, Digest};
use crate::{DType, Error, FormatId, Metadata, Result, Shape, Sink};

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
            Error::format(alloc::format!("the shape {} does not go with dtype {}", self.shape, self.dtype))
                .for_tensor(&self.name)
        })
    }
}

/// Where a tensor lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct StoredRange {
    /// Index into [`CheckpointReader::files`].
    pub file: usize,
    /// From the start of that file, in bytes.
    pub offset: u64,
    /// Bytes stored; less than the decoded length for compressed tensors.
    pub len: u64,
}

/// A file of the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileInfo {
    /// Plain name; empty for an unnamed source.
    pub name: String,
    /// Length in bytes.
    pub len: u64,
}

/// A file that travels with the weights: configuration, tokenizer, model card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Companion {
    /// Plain name, `config.json` or `1_Pooling/config.json`.
    pub name: String,
    /// Length in bytes.
    pub len: u64,
}

/// What a part of a file is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtentKind {
    /// Header, metadata, index, trailer.
    Structure,
    /// Bytes of the tensor with this position in [`CheckpointReader::tensors`].
    Tensor(usize),
    /// Bytes of the companion with this position in [`CheckpointReader::companions`].
    Companion(usize),
    /// Bytes that align what follows; zero in a well-made file.
    Padding,
}

/// A part of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// What it is for.
    pub kind: ExtentKind,
    /// From the start of the file, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

/// A checksum over a file, and the parts that make up what it covers, in order and without gaps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileChecksum {
    /// CRC-32 (IEEE) that the file states.
    pub crc32: u32,
    /// Everything the checksum covers.
    pub extents: Vec<Extent>,
}

impl FileChecksum {
    /// Of the file up to the byte `end`, whose `parts` are given in any order: what is between them is padding.
    ///
    /// ```
    /// use apr_core::{Extent, ExtentKind, FileChecksum};
    ///
    /// let tensor = Extent { kind: ExtentKind::Tensor(0), offset: 64, len: 8 };
    /// let header = Extent { kind: ExtentKind::Structure, offset: 0, len: 40 };
    /// let padding = Extent { kind: ExtentKind::Padding, offset: 40, len: 24 };
    /// assert_eq!(FileChecksum::over(1, vec![tensor, header], 72).extents, [header, padding, tensor]);
    /// ```
    #[must_use]
    pub fn over(crc32: u32, mut parts: Vec<Extent>, end: u64) -> Self {
        parts.sort_by_key(|part| (part.offset, part.len));
        let mut extents = Vec::with_capacity(2 * parts.len() + 1);
        let mut position = 0;
        for mut part in parts {
            if part.offset > position {
                extents.push(Extent { kind: ExtentKind::Padding, offset: position, len: part.offset - position });
            }
            // Only an empty tensor can start inside another part, and it covers nothing wherever it is.
            part.offset = part.offset.max(position);
            position = part.offset + part.len;
            extents.push(part);
        }
        if end > position {
            extents.push(Extent { kind: ExtentKind::Padding, offset: position, len: end - position });
        }
        Self { crc32, extents }
    }
}

/// How the native container stores a tensor whose bytes do not lie there plainly (`spec/apr2.md`, "Per-tensor flags").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct StoredForm {
    /// Codec, filter and layout, in the bits of the index entry's flags.
    pub flags: u32,
    /// Bytes after decoding; of a sparse tensor, those of its layout.
    pub raw_len: u64,
    /// Bytes before encryption.
    pub len: u64,
}

/// The signatures over a checkpoint, and what they sign; blocks are whole, with head and padding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signed {
    /// BLAKE3-256 of everything that is signed.
    pub digest: Digest,
    /// The SIGN block, where there is one.
    pub signatures: Option<Vec<u8>>,
    /// The LICN block, where there is one.
    pub licence: Option<Vec<u8>>,
}

/// Something a conversion could not keep.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Loss {
    /// Tensor, metadata key or file.
    pub name: String,
    /// What is gone.
    pub what: String,
    /// Why the target can't hold it.
    pub why: String,
}

/// A checkpoint opened for reading.
///
/// Opening reads headers only; tensor bytes are fetched on demand, any range at a time, from any thread.
pub trait CheckpointReader: Send + Sync {
    /// The format of the bytes.
    fn format(&self) -> FormatId;

    /// Metadata under the keys of [`keys`](crate::keys).
    fn metadata(&self) -> &Metadata;

    /// The tensors, in the order their bytes are stored.
    fn tensors(&self) -> &[TensorInfo];

    /// Where a tensor lies.
    fn stored(&self, tensor: usize) -> StoredRange;

    /// Fills `buf` with decoded bytes of a tensor, from `offset` within it on.
    ///
    /// # Errors
    /// E002 past the tensor's end or where stored bytes don't decode, E007 when reading fails.
    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// How the tensor is stored, where its bytes went through a codec or a sparse layout.
    fn stored_form(&self, tensor: usize) -> Option<StoredForm> {
        let _ = tensor;
        None
    }

    /// Fills `buf` with the tensor's bytes in their [`stored_form`](Self::stored_form), decrypted but not decoded, from
    /// `offset` within them on.
    ///
    /// # Errors
    /// Those of [`read_tensor`](Self::read_tensor).
    fn read_stored(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read_tensor(tensor, offset, buf)
    }

    /// Fills `buf` with the tensor's bytes as they lie in the file, from `offset` within [`stored`](Self::stored) on.
    ///
    /// # Errors
    /// Those of [`read_tensor`](Self::read_tensor).
    fn read_verbatim(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read_tensor(tensor, offset, buf)
    }

    /// Whether the bytes in the file are other ones than [`read_tensor`](Self::read_tensor) gives: compressed, sparse or
    /// encrypted. Checksums and digests are of the bytes in the file.
    fn is_encoded(&self, tensor: usize) -> bool {
        self.stored_form(tensor).is_some()
    }

    /// Whether tensors are encrypted and nothing was given that opens them: reading them is E005.
    fn is_locked(&self) -> bool {
        false
    }

    /// The signatures that the file carries, and what they would sign; nothing is verified. `None` where the format has
    /// no signatures, or nothing that they could be of.
    ///
    /// # Errors
    /// E007 when reading fails.
    fn signed(&self) -> Result<Option<Signed>> {
        Ok(None)
    }

    /// All bytes of a tensor without a copy, where they lie flat in memory.
    fn tensor_slice(&self, tensor: usize) -> Option<&[u8]> {
        let _ = tensor;
        None
    }

    /// The digest the file gives for the tensor's stored bytes.
    fn digest(&self, tensor: usize) -> Option<Digest> {
        let _ = tensor;
        None
    }

    /// The CRC-32 that the file gives for the tensor's bytes, where it gives no digest.
    fn crc32(&self, tensor: usize) -> Option<u32> {
        let _ = tensor;
        None
    }

    /// The checksum over the file, where the format has one.
    fn checksum(&self) -> Option<FileChecksum> {
        None
    }

    /// Reads bytes of the main file that belong to no tensor; only formats with a [`checksum`](Self::checksum) need it.
    ///
    /// # Errors
    /// E002 past the end of the file, E007 when reading fails.
    fn read_raw(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let _ = buf;
        Err(Error::corrupt("this format has no raw parts").at(offset))
    }

    /// Number of files that are checkpoints of their own, each with a [`checksum`](Self::checksum); 0 where the format has
    /// no such.
    fn shard_count(&self) -> usize {
        0
    }

    /// One of them, opened, with its own part of the tensors.
    ///
    /// # Errors
    /// E007 when it is absent, E002 and E004 when it is not the one that belongs here, otherwise as opening it.
    fn shard(&self, shard: usize) -> Result<&dyn CheckpointReader> {
        Err(Error::format(alloc::format!("there is no shard {shard}")))
    }

    /// The files the checkpoint consists of.
    fn files(&self) -> &[FileInfo];

    /// Header fields that only this format has, as an object for display; null where there are none.
    fn header_fields(&self) -> Value {
        Value::Null
    }

    /// Files that travel with the weights.
    fn companions(&self) -> &[Companion] {
        &[]
    }

    /// The bytes of a companion.
    ///
    /// # Errors
    /// E007 when reading fails, E008 when it is larger than the limits allow.
    fn read_companion(&self, companion: usize) -> Result<Vec<u8>> {
        let _ = companion;
        Ok(Vec::new())
    }

    /// Names of files beside the weights that a conversion does not carry along.
    fn left_out(&self) -> &[String] {
        &[]
    }

    /// What is odd about the file without making it unreadable.
    fn warnings(&self) -> &[String] {
        &[]
    }
}

/// What a pass learns on the way, too late for the plan.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Notes {
    /// What could not be kept.
    pub losses: Vec<Loss>,
    /// What is wrong with tensors that were written all the same, as the validation reports it.
    pub violations: Vec<Value>,
}

impl Notes {
    /// Whether there is nothing to write down.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.losses.is_empty() && self.violations.is_empty()
    }
}

/// Where a planned tensor will lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PlannedTensor {
    /// Position in the tensors that were handed to `plan`.
    pub source: usize,
    /// Index into [`Layout::files`].
    pub file: usize,
    /// From the start of that file, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

/// What a tensor's bytes go through on their way into the file; any thread may call it.
pub trait ChunkEncoder: Send + Sync {
    /// Length of the pieces that a tensor is encoded by, in bytes; the last may be shorter. `None`: the tensor with this
    /// position in [`Layout::tensors`] is stored as it comes.
    fn piece_len(&self, planned: usize) -> Option<usize>;

    /// Whether [`learn`](Self::learn) should be called before the first piece.
    fn wants_samples(&self, planned: usize) -> bool;

    /// Chooses the encoding by samples of the tensor's bytes.
    fn learn(&self, planned: usize, samples: &[&[u8]]);

    /// Appends the encoded piece at `offset` within the tensor of `tensor_len` bytes; returns how many of its blocks
    /// failed the check that they decode to what they were made of, and were stored as they are.
    ///
    /// # Errors
    /// E008 when the piece exceeds what the encoding can hold.
    fn encode(&self, planned: usize, offset: u64, tensor_len: u64, piece: &[u8], out: &mut Vec<u8>) -> Result<u64>;
}

/// A writer's plan, made from names, dtypes and shapes alone.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Layout {
    /// Files that will be written, with their lengths.
    pub files: Vec<FileInfo>,
    /// Tensors in the order they must be written.
    pub tensors: Vec<PlannedTensor>,
    /// What the target can't hold.
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
/// Made by a format's `plan`; then, in this order: `begin`, the chunks of each tensor of the layout, `finish`.
pub trait CheckpointWriter: Send + Sync {
    /// The plan.
    fn layout(&self) -> &Layout;

    /// Whether chunks should come with [`ChunkSums`], which any thread may compute beforehand.
    fn wants_sums(&self) -> bool {
        false
    }

    /// What any thread may do to the pieces of tensors before [`write_piece`](Self::write_piece) gets them. A tensor may
    /// come through [`write_chunk`](Self::write_chunk) all the same, which then does that work itself.
    fn encoder(&self) -> Option<Arc<dyn ChunkEncoder>> {
        None
    }

    /// Appends a piece to the tensor that is due: its bytes, and what the [`encoder`](Self::encoder) made of them. All
    /// pieces of a tensor come so, or none.
    ///
    /// # Errors
    /// Those of [`write_chunk`](Self::write_chunk).
    fn write_piece(&mut self, sink: &mut dyn Sink, piece: &[u8], encoded: &[u8]) -> Result<()> {
        let _ = encoded;
        self.write_chunk(sink, piece, None)
    }

    /// Writes what precedes the first tensor.
    ///
    /// # Errors
    /// E007 when writing fails.
    fn begin(&mut self, sink: &mut dyn Sink) -> Result<()>;

    /// Appends bytes to the tensor that is due; the next tensor is due when its planned length is reached.
    /// `sums` must be of these bytes, and come with all chunks of a tensor or with none.
    ///
    /// # Errors
    /// E002 when there are more bytes than planned, E007 when writing fails.
    fn write_chunk(&mut self, sink: &mut dyn Sink, bytes: &[u8], sums: Option<ChunkSums>) -> Result<()>;

    /// Writes what follows the last tensor, and what was learnt on the way where the format has room for it.
    ///
    /// # Errors
    /// E002 when a tensor got fewer bytes than planned, E007 when writing fails.
    fn finish(&mut self, sink: &mut dyn Sink, notes: &Notes) -> Result<()>;
}
