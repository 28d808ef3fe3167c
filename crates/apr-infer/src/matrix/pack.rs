//! Matrices rearranged for the kernels: strips of rows or columns, one position along the sum after the other.

use super::kernel::{Kernel, Lines};

/// Packs `rows` x `depth` elements at `a[row * row_step + at * depth_step]` into strips of `strip` rows; rows that are
/// missing are 0.
pub(super) fn rows(
    kernel: Kernel,
    a: &[f32],
    (rows, depth): (usize, usize),
    (row_step, depth_step): (usize, usize),
    strip: usize,
    out: &mut Vec<f32>,
) {
    resize(out, rows.div_ceil(strip) * strip * depth);
    for (number, packed) in out.chunks_mut((strip * depth).max(1)).enumerate() {
        let first = number * strip;
        let lanes = strip.min(rows - first);
        if lanes < strip {
            packed.fill(0.0);
        }
        if depth_step == 1 {
            let lines = Lines { values: &a[first * row_step..], count: lanes, step: row_step, depth };
            (kernel.turn)(lines, strip, packed);
            continue;
        }
        for lane in 0..lanes {
            let values = a[(first + lane) * row_step..].iter().step_by(depth_step);
            packed[lane..].iter_mut().step_by(strip).zip(values).for_each(|(packed, value)| *packed = *value);
        }
    }
}

/// Packs columns that lie together along each row: `depth` rows of `columns` elements, rows `row_step` apart.
pub(super) fn columns(b: &[f32], (depth, columns): (usize, usize), row_step: usize, strip: usize, out: &mut Vec<f32>) {
    resize(out, columns.div_ceil(strip) * strip * depth);
    // Row by row: rows are far apart, and each is brought into the cache once.
    for at in 0..depth {
        let row = &b[at * row_step..][..columns];
        for (number, part) in row.chunks(strip).enumerate() {
            let packed = &mut out[(number * depth + at) * strip..][..strip];
            packed[..part.len()].copy_from_slice(part);
            packed[part.len()..].fill(0.0);
        }
    }
}

/// Makes room for elements that are all written afterwards.
fn resize(out: &mut Vec<f32>, len: usize) {
    if out.len() > len {
        out.truncate(len);
    } else {
        out.resize(len, 0.0);
    }
}
