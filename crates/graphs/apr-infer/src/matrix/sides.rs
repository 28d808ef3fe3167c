//! The two matrices of a product.

use super::Rows;

/// The left matrix: element `(row, at)` is `values[row * row_step + at * depth_step]`.
#[derive(Clone, Copy)]
pub(crate) struct Left<'a> {
    pub(crate) values: &'a [f32],
    pub(crate) rows: usize,
    pub(crate) depth: usize,
    pub(crate) row_step: usize,
    pub(crate) depth_step: usize,
}

impl<'a> Left<'a> {
    /// A matrix in rows.
    pub(crate) fn in_rows(values: &'a [f32], rows: usize, depth: usize) -> Self {
        Self { values, rows, depth, row_step: depth, depth_step: 1 }
    }

    /// Returns the elements rounded, or `None` if one is too large for that.
    pub(super) fn rounded(&self, round: impl Fn(f32) -> f32) -> Option<Vec<f32>> {
        let values = self.values.iter().map(|value| round(*value));
        values.map(|value| value.is_finite().then_some(value)).collect()
    }
}

/// The right matrix.
#[derive(Clone, Copy)]
pub(crate) enum Right<'a> {
    /// Elements in memory, in rows of `width`.
    Rows(&'a [f32], usize),
    /// Elements in memory, in columns as long as the sum: the transposed matrix in rows.
    Columns(&'a [f32], usize),
    /// Matrix in the checkpoint.
    Stored(&'a dyn Rows),
}

impl<'a> Right<'a> {
    /// Returns the elements without decoding, if they are in memory. Otherwise, returns the matrix
    /// unchanged.
    pub(super) fn in_memory(self) -> Self {
        let Self::Stored(matrix) = self else { return self };
        match matrix.floats() {
            Some(values) if matrix.is_transposed() => Self::Columns(values, matrix.width()),
            Some(values) => Self::Rows(values, matrix.width()),
            None => self,
        }
    }

    /// Number of columns.
    pub(crate) fn width(&self) -> usize {
        match self {
            Self::Rows(_, width) | Self::Columns(_, width) => *width,
            Self::Stored(matrix) => matrix.width(),
        }
    }
}
