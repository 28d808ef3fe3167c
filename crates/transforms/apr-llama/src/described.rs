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

/// Returns a model in the form that commands use. Its metadata have the facts that [`described`]
/// reads from a GGUF file, and its codes and scales are presented as weights ([`Coded`]).
///
/// All code that reads a model, instead of only copying its file, opens it through this function.
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
