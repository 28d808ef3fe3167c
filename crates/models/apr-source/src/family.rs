//! Which family a checkpoint belongs to.

use std::sync::Arc;

use apr_arch::{Families, FamilyModel, TensorNameMapper};
use apr_core::{CheckpointReader, Metadata, Result, TensorInfo};
use apr_view::SCALES_FILE;

use crate::adapter::is_adapter;

/// Family of a checkpoint.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Architecture {
    /// The family that the metadata or the tensor names indicate.
    #[default]
    Auto,
    /// The family of this name.
    Named(String),
    /// A mapper of the caller instead of a family.
    Custom(Arc<dyn TensorNameMapper>),
}

impl std::fmt::Debug for Architecture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Auto => f.write_str("Auto"),
            Self::Named(name) => write!(f, "Named({name:?})"),
            Self::Custom(_) => f.write_str("Custom"),
        }
    }
}

/// Finds the family of a checkpoint, unless one is given. Integers and scales that a quantized
/// model was exported as have none: their names are a family's, their shapes and values are not.
///
/// # Errors
/// E001 when the family asked for is not known.
pub fn family_of<'a>(
    reader: &'a dyn CheckpointReader,
    families: &'a Families,
    architecture: &Architecture,
) -> Result<Option<FamilyModel<'a>>> {
    if is_unpacked(reader, architecture) {
        return Ok(None);
    }
    family_in(reader.tensors(), reader.metadata(), families, architecture)
}

/// Returns `true` if a checkpoint holds a quantized model as integers and scales
/// ([`Unpacked`](apr_view::Unpacked)), unless the family is given.
#[must_use]
pub fn is_unpacked(reader: &dyn CheckpointReader, architecture: &Architecture) -> bool {
    let is_described = reader.companions().iter().any(|companion| companion.name == SCALES_FILE);
    is_described && matches!(architecture, Architecture::Auto)
}

/// Finds the family of these tensors by other metadata than their checkpoint's, unless one is
/// given.
///
/// # Errors
/// E001 when the family asked for is not known.
pub fn family_in<'a>(
    tensors: &'a [TensorInfo],
    metadata: &'a Metadata,
    families: &'a Families,
    architecture: &Architecture,
) -> Result<Option<FamilyModel<'a>>> {
    match architecture {
        // An adapter has the names of what it changes, and is none of it.
        Architecture::Auto if is_adapter(tensors) => Ok(None),
        Architecture::Auto => Ok(families.identify(tensors, metadata)),
        Architecture::Named(name) => families.apply(name, tensors, metadata).map(Some),
        Architecture::Custom(_) => Ok(None),
    }
}
