//! How a tensor is stored: one value, which readers over other readers pass on or replace as a whole.

use core::fmt;

use serde::Serialize;

use crate::Result;
use crate::digest::Digest;

/// Where a tensor lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct StoredRange {
    /// Index into [`CheckpointReader::files`](crate::CheckpointReader::files).
    pub file: usize,
    /// From the start of that file, in bytes.
    pub offset: u64,
    /// Bytes stored; less than the decoded length for compressed tensors.
    pub len: u64,
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

/// How a tensor is stored: where, in which bytes, and what the file states about these bytes.
///
/// Digest and CRC are of the bytes in the file. Where those are not the tensor's own, [`encoded`](Self::encoded) reads
/// them; where nothing can read them, nothing is stated about them either.
#[derive(Debug, Clone, Copy)]
pub struct Stored<'a> {
    /// Where the bytes lie.
    pub range: StoredRange,
    digest: Option<Digest>,
    crc32: Option<u32>,
    encoded: Option<Encoded<'a>>,
}

impl<'a> Stored<'a> {
    /// The bytes in the file are those that [`read_tensor`](crate::CheckpointReader::read_tensor) gives.
    #[must_use]
    pub fn plain(range: StoredRange) -> Self {
        Self { range, digest: None, crc32: None, encoded: None }
    }

    /// The bytes in the file are others, which `encoded` reads.
    #[must_use]
    pub fn encoded_as(range: StoredRange, encoded: Encoded<'a>) -> Self {
        Self { encoded: Some(encoded), ..Self::plain(range) }
    }

    /// The tensor is made here, of bytes that lie about there: nothing is known of them.
    #[must_use]
    pub fn derived(range: StoredRange) -> Self {
        Self::plain(range)
    }

    /// With the digest that the file gives for these bytes, where it gives one.
    #[must_use]
    pub fn with_digest(self, digest: Option<Digest>) -> Self {
        Self { digest, ..self }
    }

    /// With the CRC-32 that the file gives for these bytes, where it gives one.
    #[must_use]
    pub fn with_crc32(self, crc32: Option<u32>) -> Self {
        Self { crc32, ..self }
    }

    /// In the file at another position of [`CheckpointReader::files`](crate::CheckpointReader::files).
    #[must_use]
    pub fn in_file(self, file: usize) -> Self {
        Self { range: StoredRange { file, ..self.range }, ..self }
    }

    /// The BLAKE3-256 that the file gives for the bytes in it.
    #[must_use]
    pub fn digest(&self) -> Option<Digest> {
        self.digest
    }

    /// The CRC-32 that the file gives for the bytes in it.
    #[must_use]
    pub fn crc32(&self) -> Option<u32> {
        self.crc32
    }

    /// The bytes in the file, where they are others than the tensor's: compressed, sparse or encrypted.
    #[must_use]
    pub fn encoded(&self) -> Option<Encoded<'a>> {
        self.encoded
    }

    /// Whether the bytes in the file are others than the tensor's, and can be read.
    #[must_use]
    pub fn is_encoded(&self) -> bool {
        self.encoded.is_some()
    }

    /// The stored form, where the bytes went through a codec or a sparse layout.
    #[must_use]
    pub fn form(&self) -> Option<StoredForm> {
        self.encoded?.form
    }
}

/// What reads the bytes of encoded tensors; readers of formats that have such implement it.
pub trait ReadEncoded: Send + Sync {
    /// Fills `buf` with the tensor's bytes in their [`StoredForm`], decrypted but not decoded, from `offset` within them on.
    ///
    /// # Errors
    /// E002 past their end, E005 when they can't be decrypted, E007 when reading fails.
    fn read_form(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// Fills `buf` with the tensor's bytes as they lie in the file, from `offset` within them on.
    ///
    /// # Errors
    /// E002 past their end, E007 when reading fails.
    fn read_verbatim(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()>;
}

/// The bytes of a tensor in the file, which are others than those it is read as.
#[derive(Clone, Copy)]
pub struct Encoded<'a> {
    reader: &'a dyn ReadEncoded,
    tensor: usize,
    form: Option<StoredForm>,
}

impl<'a> Encoded<'a> {
    /// The tensor with this position in `reader`; without a form it is encrypted and nothing else.
    #[must_use]
    pub fn new(reader: &'a dyn ReadEncoded, tensor: usize, form: Option<StoredForm>) -> Self {
        Self { reader, tensor, form }
    }

    /// Fills `buf` with bytes of the stored form, decrypted but not decoded, from `offset` within them on.
    ///
    /// # Errors
    /// Those of [`ReadEncoded::read_form`].
    pub fn read_form(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.reader.read_form(self.tensor, offset, buf)
    }

    /// Fills `buf` with bytes as they lie in the file, from `offset` within [`Stored::range`] on.
    ///
    /// # Errors
    /// Those of [`ReadEncoded::read_verbatim`].
    pub fn read_verbatim(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.reader.read_verbatim(self.tensor, offset, buf)
    }
}

impl fmt::Debug for Encoded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encoded").field("tensor", &self.tensor).field("form", &self.form).finish_non_exhaustive()
    }
}
