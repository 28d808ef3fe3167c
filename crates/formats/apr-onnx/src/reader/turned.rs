//! Matrices whose rows and columns are exchanged as they are read.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use apr_core::Result;

/// Bytes that are read of a file's rows at a time.
const SCRATCH: u64 = 1 << 20;

/// Blocks that are kept, of at most [`BLOCK`] bytes each: those of some threads.
const KEPT: usize = 8;
const BLOCK: u64 = SCRATCH / 4;

/// The blocks of a reader's matrices that were read last.
///
/// Who turns a matrix back, such as a conversion to ONNX, asks for some rows of a column of the
/// file, and then for the same rows of the next one. Without blocks of several columns, each
/// element would be a read of its own.
#[derive(Debug, Default)]
pub(crate) struct Blocks(Mutex<Vec<Arc<Block>>>);

/// Some columns of some rows of the file's matrix.
#[derive(Debug)]
struct Block {
    tensor: usize,
    rows: Range<u64>,
    columns: Range<u64>,
    bytes: Vec<u8>,
}

impl Blocks {
    fn find(&self, tensor: usize, rows: &Range<u64>, column: u64) -> Option<Arc<Block>> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = |block: &&Arc<Block>| {
            block.tensor == tensor && block.rows == *rows && block.columns.contains(&column)
        };
        kept.iter().find(is_it).map(Arc::clone)
    }

    fn keep(&self, block: Block) -> Arc<Block> {
        let block = Arc::new(block);
        // One column is of no use to another.
        if block.columns.end - block.columns.start > 1 {
            let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if kept.len() == KEPT {
                kept.remove(0);
            }
            kept.push(Arc::clone(&block));
        }
        block
    }
}

/// A matrix as the file has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Turned {
    pub(crate) rows: u64,
    pub(crate) columns: u64,
    /// Bytes of an element.
    pub(crate) width: u64,
}

/// Reads bytes of the matrix as the file has it.
type ReadStored<'r> = &'r dyn Fn(u64, &mut [u8]) -> Result<()>;

impl Turned {
    /// Fills `buf` with bytes of the transpose from `start` on.
    ///
    /// Reads bands of rows of the file: whole rows if all columns are needed, else only the needed
    /// columns.
    ///
    /// `blocks` are those of the reader, which knows the matrix as `tensor`.
    pub(crate) fn read(
        self,
        (blocks, tensor): (&Blocks, usize),
        start: u64,
        buf: &mut [u8],
        stored: ReadStored<'_>,
    ) -> Result<()> {
        if buf.is_empty() {
            return Ok(());
        }
        let width = usize::try_from(self.width).unwrap_or(1);
        let first = start / self.width;
        let end = (start + buf.len() as u64).div_ceil(self.width);
        let skip = usize::try_from(start % self.width).unwrap_or_default();
        let read = |out: &mut [u8]| match first / self.rows == (end - 1) / self.rows {
            true => self.read_column((blocks, tensor), first..end, out, stored),
            false => self.read_elements(first, end, out, stored),
        };
        if skip == 0 && buf.len().is_multiple_of(width) {
            return read(buf);
        }
        // Elements that are cut at either end are read whole.
        let mut whole = vec![0; usize::try_from((end - first) * self.width).unwrap_or_default()];
        read(&mut whole)?;
        buf.copy_from_slice(&whole[skip..skip + buf.len()]);
        Ok(())
    }

    /// Elements of one row of the transpose, which is a column of the file.
    fn read_column(
        self,
        (blocks, tensor): (&Blocks, usize),
        elements: Range<u64>,
        out: &mut [u8],
        stored: ReadStored<'_>,
    ) -> Result<()> {
        let Self { columns, width, .. } = self;
        let (column, row) = (elements.start / self.rows, elements.start % self.rows);
        let rows = row..row + (elements.end - elements.start);
        let block = match blocks.find(tensor, &rows, column) {
            Some(block) => block,
            None => {
                let count = rows.end - rows.start;
                let taken = (BLOCK / count.saturating_mul(width)).clamp(1, columns - column);
                let mut bytes = vec![0; usize_of(count * taken * width)];
                self.read_band(row, column, taken, &mut bytes, stored)?;
                blocks.keep(Block { tensor, rows, columns: column..column + taken, bytes })
            }
        };
        let (one, at) = (usize_of(width), usize_of((column - block.columns.start) * width));
        let apart = usize_of((block.columns.end - block.columns.start) * width);
        for (slot, row) in out.chunks_exact_mut(one).zip(block.bytes.chunks_exact(apart)) {
            slot.copy_from_slice(&row[at..at + one]);
        }
        Ok(())
    }

    /// Elements `first..end` of the transpose, whose rows are the columns of the file.
    fn read_elements(
        self,
        first: u64,
        end: u64,
        out: &mut [u8],
        stored: ReadStored<'_>,
    ) -> Result<()> {
        let Self { rows, width, .. } = self;
        let (top, bottom) = (first / rows, (end - 1) / rows);
        let taken = bottom - top + 1;
        let band = (SCRATCH / (taken * width)).clamp(1, rows);
        let mut scratch = vec![0; usize::try_from(band * taken * width).unwrap_or_default()];
        let one = usize::try_from(width).unwrap_or(1);
        for row in (0..rows).step_by(usize::try_from(band).unwrap_or(usize::MAX)) {
            let count = band.min(rows - row);
            let bytes = usize::try_from(count * taken * width).unwrap_or_default();
            self.read_band(row, top, taken, &mut scratch[..bytes], stored)?;

            // Row by row of the output, so that what is written lies side by side.
            for column in 0..taken {
                let base = (top + column) * rows + row;
                for at in 0..count {
                    let Some(to) = (base + at).checked_sub(first).filter(|to| *to < end - first)
                    else {
                        continue;
                    };
                    let (to, from) = (usize_of(to) * one, usize_of(at * taken + column) * one);
                    out[to..to + one].copy_from_slice(&scratch[from..from + one]);
                }
            }
        }

        Ok(())
    }

    /// Reads the elements of `taken` columns from consecutive rows of the file.
    fn read_band(
        self,
        row: u64,
        column: u64,
        taken: u64,
        out: &mut [u8],
        stored: ReadStored<'_>,
    ) -> Result<()> {
        let Self { columns, width, .. } = self;

        // Whole rows lie side by side, so one read is enough.
        if taken == columns {
            return stored(row * columns * width, out);
        }
        for (part, row) in out.chunks_exact_mut(usize_of(taken * width)).zip(row..) {
            stored((row * columns + column) * width, part)?;
        }
        Ok(())
    }
}

fn usize_of(value: u64) -> usize {
    usize::try_from(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_range_of_the_transpose_is_the_one_of_the_whole() {
        let (rows, columns, width) = (5, 3, 2);
        let matrix: Vec<u8> =
            (0..rows * columns * width).map(|byte| u8::try_from(byte).expect("a byte")).collect();
        let mut expected = Vec::new();
        for column in 0..columns {
            for row in 0..rows {
                let at = usize_of((row * columns + column) * width);
                expected.extend_from_slice(&matrix[at..at + 2]);
            }
        }
        let stored = |start: u64, buf: &mut [u8]| {
            buf.copy_from_slice(&matrix[usize_of(start)..usize_of(start) + buf.len()]);
            Ok(())
        };
        let turned = Turned { rows, columns, width };
        for start in 0..expected.len() {
            for end in start + 1..=expected.len() {
                let mut buf = vec![0; end - start];
                let blocks = (&Blocks::default(), 0);
                turned.read(blocks, start as u64, &mut buf, &stored).expect("it is there");
                assert_eq!(buf, expected[start..end], "{start}..{end}");
            }
        }
    }

    #[test]
    fn a_matrix_that_is_turned_back_is_not_read_element_by_element() {
        let (rows, columns, width) = (600_u64, 500_u64, 4_u64);
        let matrix: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
        let reads = std::cell::Cell::new(0);
        let stored = |start: u64, buf: &mut [u8]| {
            reads.set(reads.get() + 1);
            buf.copy_from_slice(&matrix[usize_of(start)..usize_of(start) + buf.len()]);
            Ok(())
        };
        let turned = Turned { rows, columns, width };
        let blocks = Blocks::default();
        // Windows of 150 rows, of which one column after the other is asked for.
        for first in (0..rows).step_by(150) {
            for column in 0..columns {
                let mut buf = vec![0; 600];
                let start = (column * rows + first) * width;
                turned.read((&blocks, 0), start, &mut buf, &stored).expect("it is there");
                for (row, element) in (first..).zip(buf.chunks_exact(4)) {
                    let at = usize_of((row * columns + column) * width);
                    assert_eq!(element, &matrix[at..at + 4], "{row}, {column}");
                }
            }
        }
        assert_eq!(reads.get(), 1200, "436 columns of 150 rows fit into a block");
        let kept: usize =
            blocks.0.lock().expect("no panic").iter().map(|block| block.bytes.len()).sum();
        assert!(kept as u64 <= KEPT as u64 * BLOCK, "{kept}");
    }
}
