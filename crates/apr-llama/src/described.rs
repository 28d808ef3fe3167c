//! A GGUF file with its keys in the words of Hugging Face's configurations, by which families are
//! told and measured.

use apr_arch::Families;
use apr_core::pass_on;
use apr_registry::{CheckpointReader, Metadata};
use apr_source::Architecture;

use super::described;

/// A checkpoint with other metadata.
struct Described {
    inner: Box<dyn CheckpointReader>,
    metadata: Metadata,
}

/// Adds what [`described`] tells of a GGUF file to its metadata; other checkpoints stay as they
/// are.
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
    pass_on!(inner: format, tensors, stored, read_tensor, tensor_slice, container, files,
        companions, read_companion, left_out, warnings);

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}
