//! Without the feature `linalg`, no matrix is decomposed.

use apr_core::{Error, Result};

use super::{Extent, Svd};

/// Returns 0, since this build does not decompose matrices.
#[must_use]
pub fn memory(_rows: usize, _columns: usize, _extent: Extent) -> u64 {
    0
}

/// Refuses to decompose anything.
///
/// # Errors
/// E003.
pub(crate) fn check_available() -> Result<()> {
    Err(absent())
}

fn absent() -> Error {
    Error::version("this build has no linear algebra (feature `linalg`)")
}

/// Refuses every matrix.
///
/// # Errors
/// E003.
pub fn truncated_svd(
    _matrix: &[f32],
    _rows: usize,
    _columns: usize,
    _extent: Extent,
) -> Result<Svd> {
    Err(absent())
}
