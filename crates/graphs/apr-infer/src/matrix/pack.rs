//! Matrices rearranged for the kernels: strips of rows or columns, one position along the sum after
//! the other.

use super::kernel::{Kernel, Lines};

/// Packs `rows` x `depth` elements at `a[row * row_step + at * depth_step]` into strips of `strip`
/// rows; rows that are missing are 0.
pub(super) fn rows(
    kernel: Kernel,
    a: &[f32],
    (rows, depth): (usize, usize),
    (row_step, depth_step): (usize, usize),
    strip: usize,
    out: &mut [f32],
) {
    for (number, packed) in out.chunks_mut((strip * depth).max(1)).enumerate() {
        let first = number * strip;
        let lanes = strip.min(rows - first);
        if lanes < strip {
            packed.fill(0.0);
        }

        if depth_step == 1 {
            let lines =
                Lines { values: &a[first * row_step..], count: lanes, step: row_step, depth };
            (kernel.turn)(lines, strip, packed);
            continue;
        }

        for lane in 0..lanes {
            let values = a[(first + lane) * row_step..].iter().step_by(depth_step);
            packed[lane..]
                .iter_mut()
                .step_by(strip)
                .zip(values)
                .for_each(|(packed, value)| *packed = *value);
        }
    }
}

/// Packs columns whose elements are adjacent along each row: `depth` rows of `columns` elements,
/// rows `row_step` apart.
pub(super) fn columns(
    b: &[f32],
    size: (usize, usize),
    row_step: usize,
    strip: usize,
    out: &mut Packed,
) {
    match strip {
        32 => strips::<32>(b, size, row_step, out),
        16 => strips::<16>(b, size, row_step, out),
        _ => strips::<8>(b, size, row_step, out),
    }
}

fn strips<const STRIP: usize>(
    b: &[f32],
    (depth, columns): (usize, usize),
    row_step: usize,
    out: &mut Packed,
) {
    let out = out.room(columns.div_ceil(STRIP) * STRIP * depth);
    let packed = out.as_chunks_mut::<STRIP>().0;

    // Row by row: rows are far apart, and each is brought into the cache once.
    for at in 0..depth {
        let (whole, rest) = b[at * row_step..][..columns].as_chunks::<STRIP>();
        for number in 0..whole.len() {
            packed[number * depth + at] = whole[number];
        }
        if !rest.is_empty() {
            let last = &mut packed[whole.len() * depth + at];
            last.fill(0.0);
            last[..rest.len()].copy_from_slice(rest);
        }
    }
}

/// Memory for packed elements. It begins at a cache line, so that no vector that a kernel loads
/// crosses two lines.
#[derive(Default)]
pub(super) struct Packed {
    /// Elements with one spare cache line, because the first line may begin up to a line later.
    values: Vec<f32>,
}

/// Bytes of a line of the cache.
const LINE_BYTES: usize = 64;
/// Elements of one.
pub(super) const LINE: usize = LINE_BYTES / size_of::<f32>();

impl Packed {
    fn start(&self) -> usize {
        // `align_offset` may answer `usize::MAX`, and one line is all that is to spare.
        self.values.as_ptr().align_offset(LINE_BYTES).min(LINE)
    }

    /// Room for elements that are all written afterwards.
    pub(super) fn room(&mut self, len: usize) -> &mut [f32] {
        if self.values.len() < len + LINE {
            self.values.resize(len + LINE, 0.0);
        }
        let start = self.start();
        &mut self.values[start..][..len]
    }

    /// Returns the packed elements, followed by remains of earlier ones.
    pub(super) fn elements(&self) -> &[f32] {
        self.values.get(self.start()..).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_elements_begin_at_a_line_of_the_cache() {
        let mut packed = Packed::default();
        assert!(packed.elements().is_empty());
        for len in [1, 31, 4096, 100_000, 7] {
            packed.room(len).fill(len as f32);
            let elements = packed.elements();
            assert_eq!(elements.as_ptr() as usize % LINE_BYTES, 0);
            assert!(
                elements.len() >= len && elements[..len].iter().all(|value| *value == len as f32)
            );
        }
    }
}
