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
pub fn check_available() -> Result<()> {
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

/// Refuses every product.
///
/// # Errors
/// E003.
pub fn product_svd(
    _left: &[f32],
    _right: &[f32],
    _sizes: [usize; 3],
    _extent: Extent,
) -> Result<Svd> {
    Err(absent())
}
