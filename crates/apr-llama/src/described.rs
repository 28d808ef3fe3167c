//! A GGUF file with its keys in the words of Hugging Face's configurations, by which families are
//! told and measured.

use apr_arch::Families;
use apr_core::pass_on;
use apr_registry::{CheckpointReader, Metadata};
use apr_source::Architecture;
use apr_view::Coded;

use super::described;

/// A checkpoint with other metadata.
struct Described {
    inner: Box<dyn CheckpointReader>,
    metadata: Metadata,
}

/// A model as commands see it: with what [`described`] tells of a GGUF file in its metadata, and
/// with weights in place of the codes and scales that they are stored in ([`Coded`]). Everything
/// that reads a model, and does not only copy its file, opens it through here.
#[must_use]
pub fn describe(
    reader: Box<dyn CheckpointReader>,
    families: &Families,
    architecture: &Architecture,
) -> Box<dyn CheckpointReader> {
    let reader = Coded::over(reader);
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
