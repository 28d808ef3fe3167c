//! A GGUF file with its keys in the words of Hugging Face's configurations, by which families are told and measured.

use apr::digest::Digest;
use apr::{CheckpointReader, FileInfo, FormatId, Metadata, Result, TensorInfo};
use apr_arch::Families;
use apr_core::{Companion, FileChecksum, Signed, StoredForm, StoredRange};
use serde_json::Value;

use super::described;
use crate::import::Architecture;

/// A checkpoint with other metadata.
struct Described {
    inner: Box<dyn CheckpointReader>,
    metadata: Metadata,
}

/// Adds what [`described`] tells of a GGUF file to its metadata; other checkpoints stay as they are.
#[must_use]
pub fn describe(
    reader: Box<dyn CheckpointReader>,
    families: &Families,
    architecture: &Architecture,
) -> Box<dyn CheckpointReader> {
    match described(&*reader, families, architecture) {
        Some(metadata) => Box::new(Described { inner: reader, metadata }),
        None => reader,
    }
}

impl CheckpointReader for Described {
    fn format(&self) -> FormatId {
        self.inner.format()
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensors(&self) -> &[TensorInfo] {
        self.inner.tensors()
    }

    fn stored(&self, tensor: usize) -> StoredRange {
        self.inner.stored(tensor)
    }

    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.inner.read_tensor(tensor, offset, buf)
    }

    fn tensor_slice(&self, tensor: usize) -> Option<&[u8]> {
        self.inner.tensor_slice(tensor)
    }

    fn stored_form(&self, tensor: usize) -> Option<StoredForm> {
        self.inner.stored_form(tensor)
    }

    fn read_stored(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.inner.read_stored(tensor, offset, buf)
    }

    fn read_verbatim(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.inner.read_verbatim(tensor, offset, buf)
    }

    fn is_locked(&self) -> bool {
        self.inner.is_locked()
    }

    fn is_encoded(&self, tensor: usize) -> bool {
        self.inner.is_encoded(tensor)
    }

    fn signed(&self) -> Result<Option<Signed>> {
        self.inner.signed()
    }

    fn digest(&self, tensor: usize) -> Option<Digest> {
        self.inner.digest(tensor)
    }

    fn crc32(&self, tensor: usize) -> Option<u32> {
        self.inner.crc32(tensor)
    }

    fn checksum(&self) -> Option<FileChecksum> {
        self.inner.checksum()
    }

    fn read_raw(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.inner.read_raw(offset, buf)
    }

    fn files(&self) -> &[FileInfo] {
        self.inner.files()
    }

    fn header_fields(&self) -> Value {
        self.inner.header_fields()
    }

    fn companions(&self) -> &[Companion] {
        self.inner.companions()
    }

    fn read_companion(&self, companion: usize) -> Result<Vec<u8>> {
        self.inner.read_companion(companion)
    }

    fn left_out(&self) -> &[String] {
        self.inner.left_out()
    }

    fn warnings(&self) -> &[String] {
        self.inner.warnings()
    }
}
