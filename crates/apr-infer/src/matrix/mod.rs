//! Products of matrices, and matrices that are decoded as they are multiplied.

mod blocks;
mod halves;
mod heads;
mod kernel;
mod pack;
mod product;
mod row;
mod scaling;
mod sides;
mod stored;

use std::ops::Range;

use apr_core::{DType, Result};

pub(crate) use blocks::{can_multiply, push_q8_0};
pub(crate) use heads::HeadRows;
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

    /// The stored rows as they lie, where those are whole columns of what is multiplied.
    fn as_stored(&self) -> Option<&dyn StoredRows> {
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

    /// The same in the place of what is in `out`.
    fn decode_over(
        &self,
        rows: Range<usize>,
        first_column: usize,
        columns: usize,
        scratch: &mut Scratch,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        out.clear();
        self.decode(rows, first_column, columns, scratch, out)
    }
}

/// What activations become before a product, as ggml has them for each type of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Precision {
    /// Blocks of 8-bit integers.
    Blocks,
    /// Half precision.
    F16,
    /// The upper half of single precision.
    Bf16,
}

/// A matrix whose stored rows are its columns.
pub(crate) trait StoredRows: Sync {
    /// Dtypes of its rows.
    fn dtypes(&self) -> Vec<DType>;

    /// What activations become before they are multiplied; `None` where they stay as they are.
    fn precision(&self) -> Option<Precision>;

    /// Calls with runs of stored rows, in order.
    fn runs(&self, rows: Range<usize>, each: &mut dyn FnMut(Run<'_>)) -> Result<()>;
}

/// Rows of weights as they are stored.
pub(crate) struct Run<'a> {
    pub(crate) dtype: DType,
    /// Where its first row is, counted from the first that was asked for.
    pub(crate) first: usize,
    pub(crate) bytes: &'a [u8],
    /// Bytes of a row.
    pub(crate) row_bytes: usize,
}

/// Elements on their way.
pub(crate) type Scratch = Vec<f32>;
