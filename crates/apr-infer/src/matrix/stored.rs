//! Matrices in the checkpoint.

use std::fmt;

use apr_core::{CheckpointReader, DType, Result};

use crate::weight::{Bytes, decode};

/// A matrix of the checkpoint, or rows of several, read by rows.
#[derive(Clone)]
pub(crate) struct Matrix<'a> {
    reader: &'a dyn CheckpointReader,
    /// Ranges of rows, one after the other.
    parts: Vec<Part>,
    /// First column that counts, of those that are stored.
    first_column: usize,
    rows: usize,
    columns: usize,
    transposed: bool,
}

#[derive(Clone, Copy)]
struct Part {
    tensor: usize,
    first_row: usize,
    rows: usize,
    /// Columns that are stored.
    row_len: usize,
    dtype: DType,
}

impl fmt::Debug for Matrix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Matrix").field("rows", &self.rows).field("columns", &self.columns).finish_non_exhaustive()
    }
}

impl<'a> Matrix<'a> {
    pub(crate) fn stored(reader: &'a dyn CheckpointReader, tensor: usize, rows: usize, columns: usize) -> Self {
        let dtype = reader.tensors()[tensor].dtype;
        let part = Part { tensor, first_row: 0, rows, row_len: columns, dtype };
        Self { reader, parts: vec![part], first_column: 0, rows, columns, transposed: false }
    }

    pub(crate) fn transposed(self) -> Self {
        Self { transposed: !self.transposed, ..self }
    }

    /// A range of rows (axis 0) or columns (axis 1).
    pub(crate) fn part(mut self, axis: usize, start: usize, len: usize) -> Option<Self> {
        let by_rows = (axis == 0) != self.transposed;
        let size = if by_rows { self.rows } else { self.columns };
        if axis > 1 || start.checked_add(len)? > size {
            return None;
        }
        if !by_rows {
            self.first_column += start;
            self.columns = len;
            return Some(self);
        }
        let (mut skip, mut left) = (start, len);
        let mut parts = Vec::new();
        for part in &self.parts {
            let skipped = skip.min(part.rows);
            let rows = (part.rows - skipped).min(left);
            if rows > 0 {
                parts.push(Part { first_row: part.first_row + skipped, rows, ..*part });
            }
            skip -= skipped;
            left -= rows;
        }
        Some(Self { parts, rows: len, ..self })
    }

    /// This one, then another, along a dimension; only along the stored rows.
    pub(crate) fn joined(mut self, axis: usize, other: Self) -> Option<Self> {
        let by_rows = (axis == 0) != self.transposed;
        let other_columns = other.columns;
        if !by_rows || other_columns != self.columns || self.first_column != 0 || self.transposed {
            return None;
        }
        self.parts.extend(other.parts);
        self.rows += other.rows;
        Some(self)
    }

    /// Rows of what is multiplied.
    pub(crate) fn depth(&self) -> usize {
        if self.transposed { self.columns } else { self.rows }
    }

    /// Columns of what is multiplied.
    pub(crate) fn width(&self) -> usize {
        if self.transposed { self.rows } else { self.columns }
    }

    /// Whether what is stored as a row is a column of what is multiplied.
    pub(crate) fn is_transposed(&self) -> bool {
        self.transposed
    }

    /// Number of columns of the rows as they are read.
    pub(crate) fn row_len(&self) -> usize {
        self.columns
    }

    /// Stored rows from `first` on, where they are next to each other in one tensor: their dtype and bytes, when whole rows
    /// count.
    pub(crate) fn flat_rows(&self, first: usize, count: usize) -> Option<Result<(DType, Bytes<'_>)>> {
        let (part, row) = self.part_of(first)?;
        if row + count > part.rows || self.first_column != 0 || self.columns != part.row_len {
            return None;
        }
        let bytes = row_bytes(part.dtype, part.row_len);
        let range = (part.first_row + row) * bytes;
        Some(Bytes::of(self.reader, part.tensor, range, count * bytes).map(|found| (part.dtype, found)))
    }

    /// Appends a piece of each of several stored rows to `out`, as `f32`.
    pub(crate) fn decode(
        &self,
        rows: std::ops::Range<usize>,
        first_column: usize,
        columns: usize,
        scratch: &mut Vec<f32>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        if first_column == 0
            && columns == self.columns
            && let Some(flat) = self.flat_rows(rows.start, rows.len())
        {
            let (dtype, bytes) = flat?;
            decode(dtype, bytes.get(), columns, scratch)?;
            out.extend_from_slice(scratch);
            return Ok(());
        }
        rows.into_iter().try_for_each(|row| self.decode_piece(row, first_column, columns, scratch, out))
    }

    fn decode_piece(
        &self,
        row: usize,
        first_column: usize,
        columns: usize,
        scratch: &mut Vec<f32>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let Some((part, row)) = self.part_of(row) else { return Ok(()) };
        let bytes = row_bytes(part.dtype, part.row_len);
        let start = (part.first_row + row) * bytes;
        let first = self.first_column + first_column;
        let block = part.dtype.block_len() as usize;
        let splits = part.dtype != DType::I8_ROW && first.is_multiple_of(block) && columns.is_multiple_of(block);
        if splits {
            let (from, len) = (row_bytes(part.dtype, first), row_bytes(part.dtype, columns));
            let piece = Bytes::of(self.reader, part.tensor, start + from, len)?;
            decode(part.dtype, piece.get(), columns, scratch)?;
            out.extend_from_slice(scratch);
            return Ok(());
        }
        let whole = Bytes::of(self.reader, part.tensor, start, bytes)?;
        decode(part.dtype, whole.get(), part.row_len, scratch)?;
        out.extend_from_slice(&scratch[first..first + columns]);
        Ok(())
    }

    /// The part that a row lies in, and the row within it.
    fn part_of(&self, row: usize) -> Option<(&Part, usize)> {
        let mut row = row;
        for part in &self.parts {
            if row < part.rows {
                return Some((part, row));
            }
            row -= part.rows;
        }
        None
    }
}

/// Bytes of a number of elements of a row.
fn row_bytes(dtype: DType, elements: usize) -> usize {
    match dtype {
        DType::I8_ROW => 4 + elements,
        _ => elements / dtype.block_len() as usize * dtype.block_bytes() as usize,
    }
}
