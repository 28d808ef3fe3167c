//! The keys or values of a head as a matrix.

use std::ops::Range;

use apr_core::{DType, Result};

use super::{Precision, Right, Rows, Run, Scratch, StoredRows};
use crate::store::decode;

/// Rows of the tokens so far, in the order of the tokens.
pub(crate) struct HeadRows<'a> {
    pub(crate) dtype: DType,
    /// All elements, if the dtype is `F32`.
    pub(crate) floats: &'a [f32],
    /// All elements in the encoding of another dtype.
    pub(crate) bytes: &'a [u8],
    pub(crate) tokens: usize,
    /// Elements of a row, in whole blocks.
    pub(crate) size: usize,
    /// `true` if each row is a column of the multiplied matrix, as for keys.
    pub(crate) is_turned: bool,
}

impl HeadRows<'_> {
    /// Returns the rows as the right side of a product.
    pub(crate) fn right(&self) -> Right<'_> {
        Right::Stored(self)
    }

    fn row_bytes(&self) -> usize {
        self.size / self.dtype.block_len() as usize * self.dtype.block_bytes() as usize
    }

    fn stored(&self, rows: Range<usize>) -> &[u8] {
        &self.bytes[rows.start * self.row_bytes()..rows.end * self.row_bytes()]
    }
}

impl Rows for HeadRows<'_> {
    fn row_len(&self) -> usize {
        self.size
    }

    fn depth(&self) -> usize {
        if self.is_turned { self.size } else { self.tokens }
    }

    fn width(&self) -> usize {
        if self.is_turned { self.tokens } else { self.size }
    }

    fn is_transposed(&self) -> bool {
        self.is_turned
    }

    fn floats(&self) -> Option<&[f32]> {
        (self.dtype == DType::F32).then_some(self.floats)
    }

    fn as_stored(&self) -> Option<&dyn StoredRows> {
        (self.is_turned && self.dtype != DType::F32).then_some(self)
    }

    fn decode(
        &self,
        rows: Range<usize>,
        first_column: usize,
        columns: usize,
        scratch: &mut Scratch,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        decode(self.dtype, self.stored(rows), self.size, scratch)?;
        if (first_column, columns) == (0, self.size) {
            out.extend_from_slice(scratch);
            return Ok(());
        }
        let part = first_column..first_column + columns;
        scratch.chunks_exact(self.size).for_each(|row| out.extend_from_slice(&row[part.clone()]));
        Ok(())
    }

    fn decode_over(
        &self,
        rows: Range<usize>,
        first_column: usize,
        columns: usize,
        scratch: &mut Scratch,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        if (first_column, columns) == (0, self.size) {
            return decode(self.dtype, self.stored(rows), self.size, out);
        }
        out.clear();
        self.decode(rows, first_column, columns, scratch, out)
    }
}

impl StoredRows for HeadRows<'_> {
    fn dtypes(&self) -> Vec<DType> {
        vec![self.dtype]
    }

    /// Returns `None`, because queries are not converted.
    fn precision(&self) -> Option<Precision> {
        None
    }

    fn runs(&self, rows: Range<usize>, each: &mut dyn FnMut(Run<'_>)) -> Result<()> {
        let (dtype, row_bytes) = (self.dtype, self.row_bytes());
        each(Run { dtype, first: 0, bytes: self.stored(rows), row_bytes });
        Ok(())
    }
}
