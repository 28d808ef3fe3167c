//! From stored bytes to any range of the dense ones.

use alloc::vec;
use core::ops::Range;

use apr_core::{Error, Result};

use super::layout::{Matrix, Sections, SparseLayout};

/// Row pointers and columns that are read at a time.
const BATCH: usize = 1024;

/// Bytes of values that are read at a time; blocks that are larger are read strip by strip, without
/// a buffer.
const VALUES: usize = 1 << 16;

/// A sparse matrix in a source with random access.
///
/// Every method takes `read_at(offset, buf)`, which fills `buf` with stored bytes from `offset` on.
/// At most 80 KiB are held at once, whatever the file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SparseReader {
    matrix: Matrix,
    layout: SparseLayout,
    entries: u64,
    sections: Sections,
}

impl SparseReader {
    /// A matrix in CSR of `stored_len` bytes.
    ///
    /// # Errors
    /// E002 when the header asks for another length, or the row pointers don't begin at 0 and end
    /// at its count; what `read_at` says.
    pub fn open_csr(
        matrix: Matrix,
        stored_len: u64,
        read_at: impl Fn(u64, &mut [u8]) -> Result<()>,
    ) -> Result<Self> {
        Self::open(matrix, SparseLayout::Csr, stored_len, read_at)
    }

    /// A matrix in BSR, whose header states the size of its blocks.
    ///
    /// # Errors
    /// As [`open_csr`](Self::open_csr).
    pub fn open_bsr(
        matrix: Matrix,
        stored_len: u64,
        read_at: impl Fn(u64, &mut [u8]) -> Result<()>,
    ) -> Result<Self> {
        if stored_len < 8 {
            return Err(Error::corrupt("the sparse matrix has no header").at(0));
        }
        let mut head = [0; 8];
        read_at(0, &mut head)?;
        let [b0, b1, b2, b3, reserved @ ..] = head;
        let block = u32::from_le_bytes([b0, b1, b2, b3]);
        if block == 0 || reserved != [0; 4] {
            return Err(
                Error::corrupt("missing block size in the header of the sparse matrix").at(0)
            );
        }
        Self::open(matrix, SparseLayout::Bsr { block }, stored_len, read_at)
    }

    fn open(
        matrix: Matrix,
        layout: SparseLayout,
        stored_len: u64,
        read_at: impl Fn(u64, &mut [u8]) -> Result<()>,
    ) -> Result<Self> {
        let header = layout.header_len();
        if stored_len < header {
            return Err(Error::corrupt("the sparse matrix has no header").at(0));
        }

        let entries = read_u64(header - 8, &read_at)?;
        let sections =
            Sections::new(matrix, layout, entries).filter(|sections| sections.end == stored_len);
        let sections = sections.ok_or_else(|| {
            let message = alloc::format!(
                "{entries} entries of the sparse matrix do not take {stored_len} bytes"
            );
            Error::corrupt(message).at(header - 8)
        })?;
        let places = sections.block_rows.checked_mul(sections.block_columns);
        if places.is_some_and(|places| entries > places) {
            return Err(
                Error::corrupt("the sparse matrix has more entries than places").at(header - 8)
            );
        }

        let last = sections.row_ptr + 8 * sections.block_rows;
        let (first, end) = (read_u64(sections.row_ptr, &read_at)?, read_u64(last, &read_at)?);
        if first != 0 || end != entries {
            let message = alloc::format!(
                "the rows of the sparse matrix have entries {first} to {end}, not 0 to {entries}"
            );
            return Err(Error::corrupt(message).at(last));
        }

        Ok(Self { matrix, layout, entries, sections })
    }

    /// Returns the layout of the stored entries.
    #[must_use]
    pub const fn layout(&self) -> SparseLayout {
        self.layout
    }

    /// Elements or blocks that are stored.
    #[must_use]
    pub const fn entries(&self) -> u64 {
        self.entries
    }

    /// Fills `buf` with bytes of the dense matrix, from `offset` on. The rows that the range
    /// touches are checked as a whole.
    ///
    /// # Errors
    /// E002 past the matrix's end, for row pointers that fall or exceed the entries, and for
    /// columns that don't ascend or lie outside of the matrix; what `read_at` says.
    pub fn read(
        &self,
        offset: u64,
        buf: &mut [u8],
        read_at: impl Fn(u64, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let end =
            offset.checked_add(buf.len() as u64).filter(|&end| end <= self.matrix.dense_len());
        let end = end.ok_or_else(|| Error::corrupt("the read ends past the tensor").at(offset))?;
        buf.fill(0);
        if buf.is_empty() {
            return Ok(());
        }
        let height = self.matrix.row_bytes().saturating_mul(self.layout.block());
        let rows = offset / height..end.div_ceil(height);
        let mut window =
            Window { reader: self, range: offset..end, buf, scratch: alloc::vec::Vec::new() };
        self.walk(rows, &read_at, |row, entry, columns| window.fill(row, entry, columns, &read_at))
    }

    /// Checks every row pointer and column; values can't be wrong.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn check(&self, read_at: impl Fn(u64, &mut [u8]) -> Result<()>) -> Result<()> {
        self.walk(0..self.sections.block_rows, &read_at, |_, _, _| Ok(()))
    }

    /// Visits the entries of rows of blocks, some at a time: their row, the number of the first,
    /// their columns.
    fn walk(
        &self,
        rows: Range<u64>,
        read_at: &impl Fn(u64, &mut [u8]) -> Result<()>,
        mut visit: impl FnMut(u64, u64, &[[u8; 4]]) -> Result<()>,
    ) -> Result<()> {
        let mut pointers = vec![0; 8 * (BATCH + 1)];
        let mut columns = vec![0; 4 * BATCH];
        let mut row = rows.start;
        while row < rows.end {
            let count = usize::try_from(rows.end - row).map_or(BATCH, |left| left.min(BATCH));
            let at = self.sections.row_ptr + 8 * row;
            let pointers = &mut pointers[..8 * (count + 1)];
            read_at(at, pointers)?;
            let pairs = pointers.as_chunks::<8>().0.windows(2);
            for (row, pair) in (row..).zip(pairs) {
                let (start, end) = (u64::from_le_bytes(pair[0]), u64::from_le_bytes(pair[1]));
                if start > end || end > self.entries {
                    let message = alloc::format!(
                        "row {row} of the sparse matrix has entries {start} to {end}"
                    );
                    return Err(Error::corrupt(message).at(self.sections.row_ptr + 8 * row));
                }
                self.walk_row(row, start..end, (&mut columns, read_at), &mut visit)?;
            }

            row += count as u64;
        }

        Ok(())
    }

    fn walk_row(
        &self,
        row: u64,
        entries: Range<u64>,
        (columns, read_at): (&mut [u8], &impl Fn(u64, &mut [u8]) -> Result<()>),
        visit: &mut impl FnMut(u64, u64, &[[u8; 4]]) -> Result<()>,
    ) -> Result<()> {
        // The least that the next column may be.
        let mut least = 0_u64;
        let mut entry = entries.start;
        while entry < entries.end {
            let count = usize::try_from(entries.end - entry).map_or(BATCH, |left| left.min(BATCH));
            let at = self.sections.columns + 4 * entry;
            let bytes = &mut columns[..4 * count];
            read_at(at, bytes)?;
            let (columns, _) = bytes.as_chunks::<4>();
            for (column, entry) in columns.iter().zip(entry..) {
                let column = u64::from(u32::from_le_bytes(*column));
                if column < least || column >= self.sections.block_columns {
                    let why = if column < least { "does not ascend" } else { "is outside it" };
                    let message =
                        alloc::format!("column {column} in row {row} of the sparse matrix {why}");
                    return Err(Error::corrupt(message).at(self.sections.columns + 4 * entry));
                }
                least = column + 1;
            }

            visit(row, entry, columns)?;
            entry += count as u64;
        }

        Ok(())
    }
}

fn read_u64(offset: u64, read_at: &impl Fn(u64, &mut [u8]) -> Result<()>) -> Result<u64> {
    let mut bytes = [0; 8];
    read_at(offset, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// A range of the dense bytes that is being filled.
struct Window<'a> {
    reader: &'a SparseReader,
    range: Range<u64>,
    buf: &'a mut [u8],
    scratch: alloc::vec::Vec<u8>,
}

impl Window<'_> {
    /// Puts in the entries from number `entry` on, which have these columns in a row of blocks.
    fn fill(
        &mut self,
        row: u64,
        entry: u64,
        columns: &[[u8; 4]],
        read_at: &impl Fn(u64, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let block_bytes = self.reader.sections.block_bytes;
        let at = self.reader.sections.values + entry * block_bytes;
        let at_once = usize::try_from(block_bytes).map_or(0, |bytes| VALUES / bytes);
        if at_once == 0 {
            // The parts of a large block go straight to where they belong.
            for (column, at) in columns.iter().zip((0..).map(|block| at + block * block_bytes)) {
                self.place(row, *column, |offset, target| read_at(at + offset, target))?;
            }
            return Ok(());
        }

        let mut at = at;
        for columns in columns.chunks(at_once) {
            let block_len = usize_of(block_bytes);
            self.scratch.resize(columns.len() * block_len, 0);
            let mut values = core::mem::take(&mut self.scratch);
            read_at(at, &mut values)?;
            at += values.len() as u64;
            for (column, block) in columns.iter().zip(values.chunks_exact(block_len)) {
                self.place(row, *column, |offset, target| {
                    target.copy_from_slice(&block[usize_of(offset)..][..target.len()]);
                    Ok(())
                })?;
            }
            self.scratch = values;
        }

        Ok(())
    }

    /// Calls `copy` for each row of a block that overlaps the window.
    ///
    /// It passes the offset of the overlap in the block's bytes, and the buffer to fill.
    fn place(
        &mut self,
        row: u64,
        column: [u8; 4],
        mut copy: impl FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let SparseReader { matrix, layout, .. } = *self.reader;
        let (block, row_bytes) = (layout.block(), matrix.row_bytes());
        let strip = block * matrix.element;
        let left = u64::from(u32::from_le_bytes(column)) * strip;
        let right = left.saturating_add(strip).min(row_bytes);

        // Rows of the matrix that both the block and the window have.
        let first = row * block;
        let rows = first.max(self.range.start / row_bytes)
            ..first.saturating_add(block).min(matrix.rows).min(self.range.end.div_ceil(row_bytes));
        for row in rows {
            let start = (row * row_bytes + left).max(self.range.start);
            let end = (row * row_bytes + right).min(self.range.end);
            if start >= end {
                continue;
            }
            let target = usize_of(start - self.range.start)..usize_of(end - self.range.start);
            let within = (row - first) * strip + (start - row * row_bytes - left);
            copy(within, &mut self.buf[target])?;
        }

        Ok(())
    }
}

/// Lengths within a buffer that exists.
fn usize_of(len: u64) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}
