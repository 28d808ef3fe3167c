//! A GGUF file with its keys in the words of Hugging Face's configurations, by which families are told and measured.

use apr_arch::Families;
use apr_core::{Companion, Container, Stored};
use apr_registry::{CheckpointReader, FileInfo, Format, Metadata, Result, TensorInfo};
use apr_source::Architecture;

use super::described;

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
    fn format(&self) -> &'static Format {
        self.inner.format()
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensors(&self) -> &[TensorInfo] {
        self.inner.tensors()
    }

    fn stored(&self, tensor: usize) -> Stored<'_> {
        self.inner.stored(tensor)
    }

    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.inner.read_tensor(tensor, offset, buf)
    }

    fn tensor_slice(&self, tensor: usize) -> Option<&[u8]> {
        self.inner.tensor_slice(tensor)
    }

    fn container(&self) -> Container<'_> {
        self.inner.container()
    }

    fn files(&self) -> &[FileInfo] {
        self.inner.files()
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
