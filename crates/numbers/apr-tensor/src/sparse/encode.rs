//! From dense bytes to stored ones.

use alloc::vec::Vec;
use core::ops::Range;

use apr_core::{Error, Result};

use super::layout::{Matrix, Sections, SparseLayout};

/// Elements that are not zero, or blocks that have one.
///
/// # Errors
/// E001 when `dense` is not as long as the matrix, or a block has no elements.
pub fn count_entries(matrix: Matrix, layout: SparseLayout, dense: &[u8]) -> Result<u64> {
    let grid = Grid::new(matrix, layout, dense)?;
    Ok((0..grid.block_rows)
        .map(|row| {
            (0..grid.block_columns).filter(|&column| grid.is_entry(row, column)).count() as u64
        })
        .sum())
}

/// The stored bytes of a matrix.
///
/// # Errors
/// E001 when `dense` is not as long as the matrix, a block has no elements, or there are more
/// columns than `u32` counts; E008 when the result exceeds the address space.
pub fn encode(matrix: Matrix, layout: SparseLayout, dense: &[u8]) -> Result<Vec<u8>> {
    let entries = count_entries(matrix, layout, dense)?;
    let grid = Grid::new(matrix, layout, dense)?;
    if grid.block_columns as u64 > 1 << 32 {
        return Err(Error::format("the matrix has more columns than sparse layouts count"));
    }

    let len = layout.stored_len(matrix, entries).and_then(|len| usize::try_from(len).ok());
    let len = len.ok_or_else(|| Error::memory("the sparse matrix is larger than memory can be"))?;
    let mut stored = Vec::with_capacity(len);
    if let SparseLayout::Bsr { block } = layout {
        stored.extend_from_slice(&block.to_le_bytes());
        stored.extend_from_slice(&[0; 4]);
    }

    stored.extend_from_slice(&entries.to_le_bytes());
    let mut columns: Vec<u32> = Vec::new();
    stored.extend_from_slice(&0_u64.to_le_bytes());
    for row in 0..grid.block_rows {
        // Columns were found to fit.
        columns.extend(
            (0..=u32::MAX)
                .zip(0..grid.block_columns)
                .filter(|&(_, column)| grid.is_entry(row, column))
                .map(|(number, _)| number),
        );
        stored.extend_from_slice(&(columns.len() as u64).to_le_bytes());
    }

    columns.iter().for_each(|column| stored.extend_from_slice(&column.to_le_bytes()));
    let mut entry = columns.iter();
    for row in 0..grid.block_rows {
        let of_row = (0..grid.block_columns).filter(|&column| grid.is_entry(row, column));
        of_row.zip(&mut entry).for_each(|(column, _)| grid.append(row, column, &mut stored));
    }

    Ok(stored)
}

/// A dense matrix cut into blocks. It is in memory, so that all its numbers fit `usize`.
struct Grid<'a> {
    dense: &'a [u8],
    rows: usize,
    /// Bytes of a row.
    row_bytes: usize,
    /// Rows of a block.
    block: usize,
    /// Bytes of a block's row.
    strip: usize,
    block_rows: usize,
    block_columns: usize,
}

impl<'a> Grid<'a> {
    fn new(matrix: Matrix, layout: SparseLayout, dense: &'a [u8]) -> Result<Self> {
        if dense.len() as u64 != matrix.dense_len() {
            return Err(Error::format("the number of bytes does not match the matrix"));
        }

        let sections = Sections::new(matrix, layout, 0)
            .ok_or_else(|| Error::format("no block has that size"))?;
        let fit = |number: u64| {
            usize::try_from(number)
                .map_err(|_| Error::memory("the matrix is larger than memory can be"))
        };

        // Without elements there is nothing to look at, and dimensions may be anything.
        let (row_bytes, columns) =
            if dense.is_empty() { (0, 0) } else { (matrix.row_bytes(), sections.block_columns) };
        let block = layout.block();
        Ok(Self {
            dense,
            rows: fit(matrix.rows)?,
            row_bytes: fit(row_bytes)?,
            block: fit(block)?,
            strip: fit(block.saturating_mul(matrix.element))?,
            block_rows: fit(sections.block_rows)?,
            block_columns: fit(columns)?,
        })
    }

    /// Returns the bytes of each row of a block that are within the matrix.
    fn strips(&self, row: usize, column: usize) -> impl Iterator<Item = &'a [u8]> {
        let rows = row * self.block..(row + 1).saturating_mul(self.block).min(self.rows);
        let start = column * self.strip;
        let within: Range<usize> = start..start.saturating_add(self.strip).min(self.row_bytes);
        let (dense, row_bytes) = (self.dense, self.row_bytes);
        rows.map(move |row| &dense[row * row_bytes..][within.clone()])
    }

    fn is_entry(&self, row: usize, column: usize) -> bool {
        self.strips(row, column).any(|strip| strip.iter().any(|&byte| byte != 0))
    }

    /// Appends a block, padded with zeros beyond the matrix.
    fn append(&self, row: usize, column: usize, stored: &mut Vec<u8>) {
        let end = stored.len() + self.block * self.strip;
        for strip in self.strips(row, column) {
            stored.extend_from_slice(strip);
            stored.resize(stored.len() + self.strip - strip.len(), 0);
        }
        stored.resize(end, 0);
    }
}
