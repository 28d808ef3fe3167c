//! Tensor shapes, row-major, outermost dimension first.

use alloc::vec::Vec;
use core::fmt;

use serde::Serialize;

/// Dimensions of a tensor in elements, outermost first. No dimension: a scalar.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize)]
#[serde(transparent)]
pub struct Shape(Vec<u64>);

impl Shape {
    /// Maximum number of dimensions in an APR2 index entry (`docs/format/apr2.md`, "Index").
    pub const MAX_DIMS: usize = 8;

    /// The dimensions.
    #[must_use]
    pub fn dims(&self) -> &[u64] {
        &self.0
    }

    /// Number of elements, 1 for a scalar; `None` when it exceeds `u64`.
    #[must_use]
    pub fn elements(&self) -> Option<u64> {
        // A zero anywhere makes the tensor empty, however large the rest claims to be.
        if self.0.contains(&0) {
            return Some(0);
        }
        self.0.iter().try_fold(1_u64, |product, &dim| product.checked_mul(dim))
    }

    /// Length of a row: the innermost dimension, 1 for a scalar.
    #[must_use]
    pub fn row_len(&self) -> u64 {
        self.0.last().copied().unwrap_or(1)
    }

    /// Number of rows: the product of all dimensions but the innermost; `None` when it exceeds
    /// `u64`.
    #[must_use]
    pub fn rows(&self) -> Option<u64> {
        let outer = self.0.split_last().map_or(&[][..], |(_, outer)| outer);
        Self(outer.to_vec()).elements()
    }
}

impl From<Vec<u64>> for Shape {
    fn from(dims: Vec<u64>) -> Self {
        Self(dims)
    }
}

impl<const N: usize> From<[u64; N]> for Shape {
    fn from(dims: [u64; N]) -> Self {
        Self(dims.to_vec())
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, dim) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{dim}")?;
        }
        f.write_str("]")
    }
}
