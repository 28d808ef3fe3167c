//! Matrices in the checkpoint.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use apr_core::{DType, Result};

use super::{Precision, Rows, Run, Scaling, Scratch, StoredRows};
use crate::store::{Bytes, Store, decode};

/// A matrix of the checkpoint, or rows of several, read by rows.
#[derive(Clone)]
pub(crate) struct Matrix<'a> {
    store: &'a Store<'a>,
    /// Ranges of rows, one after the other.
    parts: Vec<WeightPart>,
    /// Index of the first stored column that belongs to the matrix.
    first_column: usize,
    rows: usize,
    columns: usize,
    transposed: bool,
    /// Scales of the elements, if they are integers that represent floats.
    scaling: Option<Arc<Scaling>>,
}

#[derive(Clone, Copy)]
struct WeightPart {
    tensor: usize,
    first_row: usize,
    rows: usize,
    /// Columns that are stored.
    row_len: usize,
    dtype: DType,
    /// `true` if the part is decoded from codes in memory.
    is_coded: bool,
}

impl fmt::Debug for Matrix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Matrix")
            .field("rows", &self.rows)
            .field("columns", &self.columns)
            .finish_non_exhaustive()
    }
}

impl<'a> Matrix<'a> {
    pub(crate) fn stored(store: &'a Store<'a>, tensor: usize, rows: usize, columns: usize) -> Self {
        let dtype = store.reader.tensors()[tensor].dtype;
        // Codes are in rows of the tensor's last dimension.
        let row_len = store.reader.tensors()[tensor].shape.row_len();
        let is_coded = row_len == columns as u64 && store.uses_codes(tensor);
        let part = WeightPart { tensor, first_row: 0, rows, row_len: columns, dtype, is_coded };
        Self {
            store,
            parts: vec![part],
            first_column: 0,
            rows,
            columns,
            transposed: false,
            scaling: None,
        }
    }

    /// Returns `true` if the elements are integers that single precision holds exactly, including
    /// their differences.
    pub(crate) fn has_small_integers(&self) -> bool {
        self.parts
            .iter()
            .all(|part| matches!(part.dtype, DType::I8 | DType::U8 | DType::I16 | DType::U16))
    }

    /// Adds a scale for each element of the matrix in its current orientation. Returns `None` if
    /// the scales do not fit.
    pub(crate) fn scaled(self, scaling: &Arc<Scaling>) -> Option<Self> {
        let is_whole =
            self.parts.len() == 1 && self.parts[0].first_row == 0 && self.first_column == 0;
        let scaling = if self.transposed { Arc::new(scaling.turned()) } else { scaling.clone() };
        let fits = is_whole && self.scaling.is_none() && scaling.fits(self.rows, self.columns);
        fits.then_some(Self { scaling: Some(scaling), ..self })
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
                parts.push(WeightPart { first_row: part.first_row + skipped, rows, ..*part });
            }
            skip -= skipped;
            left -= rows;
        }

        Some(Self { parts, rows: len, ..self })
    }

    /// Joins this matrix with another one along a dimension, which must be the dimension of the
    /// rows.
    pub(crate) fn joined(mut self, axis: usize, other: Self) -> Option<Self> {
        let by_rows = (axis == 0) != self.transposed;
        let other_columns = other.columns;
        // One first column counts for all parts.
        if !by_rows || other_columns != self.columns || self.first_column != 0 || self.transposed {
            return None;
        }
        self.parts.extend(other.parts);
        self.rows += other.rows;
        Some(self)
    }

    /// Whole stored rows that are next to each other in one tensor: their dtype and bytes.
    fn flat_rows(&self, first: usize, count: usize) -> Option<Result<(DType, Bytes<'_>)>> {
        let (part, row) = self.part_of(first)?;
        let is_whole = self.first_column == 0 && self.columns == part.row_len;
        if row + count > part.rows || !is_whole || part.is_coded {
            return None;
        }
        let bytes = row_bytes(part.dtype, part.row_len);
        let start = (part.first_row + row) * bytes;
        Some(self.store.bytes(part.tensor, start, count * bytes).map(|found| (part.dtype, found)))
    }

    /// Returns `true` if rows are decoded from codes in memory.
    fn is_coded(&self) -> bool {
        self.parts.iter().any(|part| part.is_coded)
    }

    /// Decodes rows of one part from codes in memory. Returns `false` if that is not possible.
    fn decode_codes(&self, rows: &Range<usize>, first_column: usize, out: &mut [f32]) -> bool {
        let Some((part, row)) = self.part_of(rows.start) else { return false };
        if !part.is_coded || row + rows.len() > part.rows {
            return false;
        }
        let first = part.first_row + row;
        let rows = first..first + rows.len();
        self.store.decode_codes(part.tensor, rows, self.first_column + first_column, out)
    }

    fn decode_piece(
        &self,
        row: usize,
        first_column: usize,
        columns: usize,
        scratch: &mut Scratch,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        if self.is_coded() {
            let end = out.len();
            out.resize(end + columns, 0.0);
            if self.decode_codes(&(row..row + 1), first_column, &mut out[end..]) {
                return Ok(());
            }
            out.truncate(end);
        }
        let Some((part, row)) = self.part_of(row) else { return Ok(()) };
        let bytes = row_bytes(part.dtype, part.row_len);
        let start = (part.first_row + row) * bytes;
        let first = self.first_column + first_column;
        let block = part.dtype.block_len() as usize;

        // A piece can be cut out at blocks; a row of `i8_row` needs the scale in front of it.
        let splits = part.dtype != DType::I8_ROW
            && first.is_multiple_of(block)
            && columns.is_multiple_of(block);
        if splits {
            let (from, len) = (row_bytes(part.dtype, first), row_bytes(part.dtype, columns));
            let piece = self.store.bytes(part.tensor, start + from, len)?;
            decode(part.dtype, piece.get(), columns, scratch)?;
            out.extend_from_slice(scratch);
            return Ok(());
        }

        let whole = self.store.bytes(part.tensor, start, bytes)?;
        decode(part.dtype, whole.get(), part.row_len, scratch)?;
        out.extend_from_slice(&scratch[first..first + columns]);
        Ok(())
    }

    /// Returns the part that contains a row, and the index of the row in that part.
    fn part_of(&self, row: usize) -> Option<(&WeightPart, usize)> {
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

impl Rows for Matrix<'_> {
    fn row_len(&self) -> usize {
        self.columns
    }

    fn depth(&self) -> usize {
        if self.transposed { self.columns } else { self.rows }
    }

    fn width(&self) -> usize {
        if self.transposed { self.rows } else { self.columns }
    }

    fn is_transposed(&self) -> bool {
        self.transposed
    }

    fn is_in_memory(&self) -> bool {
        self.parts.iter().all(|part| self.store.is_in_memory(part.tensor))
    }

    fn floats(&self) -> Option<&[f32]> {
        let [part] = self.parts[..] else { return None };
        let plain = self.scaling.is_none() && part.dtype == DType::F32;
        if !plain || self.first_column != 0 || self.columns != part.row_len {
            return None;
        }
        let start = part.first_row * part.row_len;
        self.store.floats(part.tensor)?.get(start..start + self.rows * self.columns)
    }

    fn as_stored(&self) -> Option<&dyn StoredRows> {
        let is_whole = |part: &WeightPart| part.row_len == self.columns;
        let fits = self.transposed
            && self.scaling.is_none()
            && self.first_column == 0
            && !self.is_coded()
            && self.parts.iter().all(is_whole);
        fits.then_some(self)
    }

    fn decode_over(
        &self,
        rows: Range<usize>,
        first_column: usize,
        columns: usize,
        scratch: &mut Scratch,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        if self.scaling.is_none() && self.is_coded() {
            // What `out` has is written over, and not filled before.
            out.resize(rows.len() * columns, 0.0);
            if self.decode_codes(&rows, first_column, out) {
                return Ok(());
            }
        }
        let is_plain = self.scaling.is_none() && first_column == 0 && columns == self.columns;
        match is_plain.then(|| self.flat_rows(rows.start, rows.len())).flatten() {
            Some(flat) => {
                let (dtype, bytes) = flat?;
                // What `out` has is written over, and not filled before.
                decode(dtype, bytes.get(), columns, out)
            }
            None => {
                out.clear();
                self.decode(rows, first_column, columns, scratch, out)
            }
        }
    }

    fn decode(
        &self,
        rows: Range<usize>,
        first_column: usize,
        columns: usize,
        scratch: &mut Scratch,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let start = out.len();
        let flat = if first_column == 0 && columns == self.columns {
            self.flat_rows(rows.start, rows.len())
        } else {
            None
        };
        match flat {
            Some(flat) => {
                let (dtype, bytes) = flat?;
                decode(dtype, bytes.get(), columns, scratch)?;
                if out.is_empty() {
                    // No copy is made: the two buffers change places.
                    std::mem::swap(out, scratch);
                } else {
                    out.extend_from_slice(scratch);
                }
            }
            None => {
                for row in rows.clone() {
                    self.decode_piece(row, first_column, columns, scratch, out)?;
                }
            }
        }

        if let Some(scaling) = &self.scaling {
            for (row, values) in rows.zip(out[start..].chunks_exact_mut(columns.max(1))) {
                scaling.apply(row, first_column, values);
            }
        }

        Ok(())
    }
}

impl StoredRows for Matrix<'_> {
    fn dtypes(&self) -> Vec<DType> {
        self.parts.iter().map(|part| part.dtype).collect()
    }

    fn precision(&self) -> Option<Precision> {
        let mut parts = self.parts.iter().map(|part| self.store.precision(part.tensor));
        let first = parts.next()??;
        parts.all(|other| other == Some(first)).then_some(first)
    }

    fn runs(&self, rows: Range<usize>, each: &mut dyn FnMut(Run<'_>)) -> Result<()> {
        let mut next = rows.start;
        while next < rows.end {
            let Some((part, row)) = self.part_of(next) else { break };
            let count = (part.rows - row).min(rows.end - next);
            let row_bytes = row_bytes(part.dtype, part.row_len);
            let start = (part.first_row + row) * row_bytes;
            let bytes = self.store.bytes(part.tensor, start, count * row_bytes)?;
            let (dtype, bytes) = (part.dtype, bytes.get());
            each(Run { dtype, first: next - rows.start, bytes, row_bytes });
            next += count;
        }
        Ok(())
    }
}

/// Bytes of a number of elements of a row.
fn row_bytes(dtype: DType, elements: usize) -> usize {
    match dtype {
        DType::I8_ROW => 4 + elements,
        _ => elements / dtype.block_len() as usize * dtype.block_bytes() as usize,
    }
}
