//! Products of matrices, and matrices that are decoded as they are multiplied.

mod blocks;
mod kernel;
mod pack;
mod product;
mod row;
mod scaling;
mod sides;
mod stored;

use std::ops::Range;

use apr_core::Result;

use blocks::BlockRows;
pub(crate) use blocks::can_multiply;
pub(crate) use kernel::{Lines, turned};
pub(crate) use product::product;
pub(crate) use scaling::{Scaling, Steps};
pub(crate) use sides::{Left, Right};
pub(crate) use stored::Matrix;

/// A matrix that is decoded by stored rows, where and when they are needed.
pub(crate) trait Rows: Sync {
    /// Number of columns of the stored rows.
    fn row_len(&self) -> usize;

    /// Rows of what is multiplied.
    fn depth(&self) -> usize;

    /// Columns of what is multiplied.
    fn width(&self) -> usize;

    /// Whether what is stored as a row is a column of what is multiplied.
    fn is_transposed(&self) -> bool;

    /// Whether reading some columns of each row costs no more than reading the rows.
    fn is_in_memory(&self) -> bool {
        true
    }

    /// All elements, where they are in memory as `f32`, in stored rows.
    fn floats(&self) -> Option<&[f32]> {
        None
    }

    /// The stored rows in blocks, where those are to be multiplied with 8-bit activations.
    fn blocks(&self) -> Option<&dyn BlockRows> {
        None
    }

    /// Appends `columns` elements from `first_column` on of each of some stored rows to `out`.
    fn decode(
        &self,
        rows: Range<usize>,
        first_column: usize,
        columns: usize,
        scratch: &mut Scratch,
        out: &mut Vec<f32>,
    ) -> Result<()>;
}

/// Elements on their way.
pub(crate) type Scratch = Vec<f32>;
