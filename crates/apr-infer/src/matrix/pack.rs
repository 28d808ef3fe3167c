//! Matrices rearranged for the kernels: strips of rows or columns, one position along the sum after the other.

/// Packs `rows` x `depth` elements at `a[row * row_step + at * depth_step]` into strips of `strip` rows; rows that are
/// missing are 0.
pub(super) fn rows(
    a: &[f32],
    (rows, depth): (usize, usize),
    (row_step, depth_step): (usize, usize),
    strip: usize,
    out: &mut Vec<f32>,
) {
    out.clear();
    out.resize(rows.div_ceil(strip) * strip * depth, 0.0);
    for (number, packed) in out.chunks_mut((strip * depth).max(1)).enumerate() {
        let first = number * strip;
        for lane in 0..strip.min(rows - first) {
            let from = (first + lane) * row_step;
            let lanes = packed[lane..].iter_mut().step_by(strip);
            if depth_step == 1 {
                lanes.zip(&a[from..from + depth]).for_each(|(packed, value)| *packed = *value);
            } else {
                lanes.zip(a[from..].iter().step_by(depth_step)).for_each(|(packed, value)| *packed = *value);
            }
        }
    }
}

/// Packs columns that lie together along each row: `depth` rows of `columns` elements, rows `row_step` apart.
pub(super) fn columns(b: &[f32], (depth, columns): (usize, usize), row_step: usize, strip: usize, out: &mut Vec<f32>) {
    out.clear();
    out.resize(columns.div_ceil(strip) * strip * depth, 0.0);
    // Row by row: rows are far apart, and each is brought into the cache once.
    for at in 0..depth {
        let row = &b[at * row_step..][..columns];
        for (number, part) in row.chunks(strip).enumerate() {
            out[(number * depth + at) * strip..][..part.len()].copy_from_slice(part);
        }
    }
}
