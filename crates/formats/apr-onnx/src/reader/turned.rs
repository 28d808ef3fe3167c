//! Matrices whose rows and columns are exchanged as they are read.

use apr_core::Result;

/// Bytes that are read of a file's rows at a time.
const SCRATCH: u64 = 1 << 20;

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
    pub(crate) fn read(self, start: u64, buf: &mut [u8], stored: ReadStored<'_>) -> Result<()> {
        let width = usize::try_from(self.width).unwrap_or(1);
        let first = start / self.width;
        let end = (start + buf.len() as u64).div_ceil(self.width);
        let skip = usize::try_from(start % self.width).unwrap_or_default();
        if skip == 0 && buf.len().is_multiple_of(width) {
            return self.read_elements(first, end, buf, stored);
        }
        // Elements that are cut at either end are read whole.
        let mut whole = vec![0; usize::try_from((end - first) * self.width).unwrap_or_default()];
        self.read_elements(first, end, &mut whole, stored)?;
        buf.copy_from_slice(&whole[skip..skip + buf.len()]);
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
                turned.read(start as u64, &mut buf, &stored).expect("it is there");
                assert_eq!(buf, expected[start..end], "{start}..{end}");
            }
        }
    }
}
