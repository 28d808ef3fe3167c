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

/// Matrix whose stored rows are decoded on demand.
pub(crate) trait Rows: Sync {
    /// Number of columns of the stored rows.
    fn row_len(&self) -> usize;

    /// Returns the number of rows of the multiplied matrix.
    fn depth(&self) -> usize;

    /// Returns the number of columns of the multiplied matrix.
    fn width(&self) -> usize;

    /// Returns `true` if a stored row is a column of the multiplied matrix.
    fn is_transposed(&self) -> bool;

    /// Returns `true` if reading some columns of each row costs no more than reading the rows.
    fn is_in_memory(&self) -> bool {
        true
    }

    /// Returns all elements in stored rows, if they are in memory as `f32`.
    fn floats(&self) -> Option<&[f32]> {
        None
    }

    /// Returns the rows in stored form, if they are whole columns of the multiplied matrix.
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

    /// Decodes rows like [`decode`](Self::decode), but overwrites the contents of `out`.
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

/// Precision to which activations are converted before a product, as in ggml for each type of
/// weights.
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

    /// Returns the precision to which activations are converted before a product, or `None` if they
    /// are unchanged.
    fn precision(&self) -> Option<Precision>;

    /// Calls with runs of stored rows, in order.
    fn runs(&self, rows: Range<usize>, each: &mut dyn FnMut(Run<'_>)) -> Result<()>;
}

/// Rows of weights in their stored form.
pub(crate) struct Run<'a> {
    pub(crate) dtype: DType,
    /// Index of the first row, counted from the first requested row.
    pub(crate) first: usize,
    pub(crate) bytes: &'a [u8],
    /// Bytes of a row.
    pub(crate) row_bytes: usize,
}

/// Elements on their way.
pub(crate) type Scratch = Vec<f32>;
