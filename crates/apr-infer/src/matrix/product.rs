//! The product of two matrices of any kind.

use std::sync::Mutex;

use apr_core::Result;

use super::kernel::{self, Kernel, Tile};
use super::{Matrix, pack, row};
use crate::workers::{Workers, try_each};

/// Positions along the sum that are multiplied at a time: a strip of columns stays in the first-level cache.
const DEPTH: usize = 384;
/// Columns that are packed at a time.
const COLUMNS: usize = 256;

/// The left matrix: element `(row, at)` is `values[row * row_step + at * depth_step]`.
#[derive(Clone, Copy)]
pub(crate) struct Left<'a> {
    pub(crate) values: &'a [f32],
    pub(crate) rows: usize,
    pub(crate) depth: usize,
    pub(crate) row_step: usize,
    pub(crate) depth_step: usize,
}

impl<'a> Left<'a> {
    /// A matrix in rows.
    pub(crate) fn in_rows(values: &'a [f32], rows: usize, depth: usize) -> Self {
        Self { values, rows, depth, row_step: depth, depth_step: 1 }
    }
}

/// The right matrix.
#[derive(Clone, Copy)]
pub(crate) enum Right<'a> {
    /// In memory, in rows of `width`.
    Rows(&'a [f32], usize),
    /// In memory, in columns as long as the sum: the transposed matrix in rows.
    Columns(&'a [f32], usize),
    /// In the checkpoint.
    Stored(&'a Matrix<'a>),
}

impl Right<'_> {
    /// Number of columns.
    pub(crate) fn width(&self) -> usize {
        match self {
            Self::Rows(_, width) | Self::Columns(_, width) => *width,
            Self::Stored(matrix) => matrix.width(),
        }
    }
}

/// Adds the product to `out`, which is in rows.
pub(crate) fn product(left: Left<'_>, right: Right<'_>, out: &mut [f32], workers: &dyn Workers) -> Result<()> {
    let width = right.width();
    if left.rows == 0 || width == 0 || left.depth == 0 {
        return Ok(());
    }
    if left.rows == 1 && left.depth_step == 1 {
        return row::product(&left.values[..left.depth], right, out, workers);
    }
    let kernel = kernel::best();
    let mut a = Vec::new();
    pack::rows(left.values, (left.rows, left.depth), (left.row_step, left.depth_step), kernel.rows, &mut a);
    let panels = width.div_ceil(COLUMNS);
    let work = left.rows * left.depth * width;
    let alone = workers.count() == 1 || panels == 1 || work < 1 << 18;
    let size = (left.rows, left.depth);
    if alone {
        let mut scratch = Scratch::default();
        return (0..panels).try_for_each(|panel| {
            let first = panel * COLUMNS;
            let columns = COLUMNS.min(width - first);
            scratch.pack(right, left.depth, first, columns, kernel)?;
            multiply(&a, &scratch.packed, size, columns, kernel, &mut out[first..], width);
            Ok(())
        });
    }
    let shared = Mutex::new(out);
    try_each(workers, panels, |panel| {
        let first = panel * COLUMNS;
        let columns = COLUMNS.min(width - first);
        let mut scratch = Scratch::default();
        scratch.pack(right, left.depth, first, columns, kernel)?;
        let mut own = vec![0.0; left.rows * columns];
        multiply(&a, &scratch.packed, size, columns, kernel, &mut own, columns);
        // Copying takes a small part of the time of multiplying: threads rarely wait for each other here.
        if let Ok(mut out) = shared.lock() {
            for (out, own) in out.chunks_mut(width).zip(own.chunks(columns)) {
                out[first..first + columns].iter_mut().zip(own).for_each(|(out, own)| *out += own);
            }
        }
        Ok(())
    })
}

/// Multiplies packed rows with a packed panel.
fn multiply(
    a: &[f32],
    b: &[f32],
    (rows, depth): (usize, usize),
    columns: usize,
    kernel: Kernel,
    out: &mut [f32],
    stride: usize,
) {
    for start in (0..depth).step_by(DEPTH) {
        let len = DEPTH.min(depth - start);
        for top in (0..rows).step_by(kernel.rows) {
            let a = &a[top * depth + start * kernel.rows..][..len * kernel.rows];
            for first in (0..columns).step_by(kernel.columns) {
                let b = &b[first * depth + start * kernel.columns..][..len * kernel.columns];
                let (height, width) = (kernel.rows.min(rows - top), kernel.columns.min(columns - first));
                let out = &mut out[top * stride + first..];
                (kernel.tile)(a, b, Tile { out, stride, height, width });
            }
        }
    }
}

/// Buffers of a panel.
#[derive(Default)]
struct Scratch {
    packed: Vec<f32>,
    decoded: Vec<f32>,
    piece: Vec<f32>,
}

impl Scratch {
    /// Packs a panel of columns of the right matrix.
    fn pack(&mut self, right: Right<'_>, depth: usize, first: usize, columns: usize, kernel: Kernel) -> Result<()> {
        let strip = kernel.columns;
        match right {
            Right::Rows(values, width) => {
                pack::columns(&values[first..], (depth, columns), width, strip, &mut self.packed);
            }
            Right::Columns(values, _) => {
                pack::rows(&values[first * depth..], (columns, depth), (depth, 1), strip, &mut self.packed);
            }
            Right::Stored(matrix) if matrix.is_transposed() => {
                self.decoded.clear();
                matrix.decode(first..first + columns, 0, depth, &mut self.piece, &mut self.decoded)?;
                pack::rows(&self.decoded, (columns, depth), (depth, 1), strip, &mut self.packed);
            }
            Right::Stored(matrix) => {
                self.decoded.clear();
                matrix.decode(0..depth, first, columns, &mut self.piece, &mut self.decoded)?;
                pack::columns(&self.decoded, (depth, columns), columns, strip, &mut self.packed);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workers::Alone;

    /// Runs pieces in reverse, so that order would show.
    struct Backwards;

    impl Workers for Backwards {
        fn count(&self) -> usize {
            2
        }

        fn run(&self, pieces: usize, work: &(dyn Fn(usize) + Sync)) {
            (0..pieces).rev().for_each(work);
        }
    }

    fn values(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|n| ((n * 7 + seed) % 11) as f32 - 5.0).collect()
    }

    #[test]
    fn sizes_around_the_tiles_give_the_exact_product_of_small_integers() {
        for (rows, depth, width) in [(1, 5, 3), (2, 1, 1), (7, 300, 33), (13, 257, 130), (25, 8, 260), (3, 0, 2)] {
            let (a, b) = (values(rows * depth, 1), values(depth * width, 2));
            let mut expected = vec![0.0; rows * width];
            for row in 0..rows {
                for at in 0..depth {
                    for column in 0..width {
                        expected[row * width + column] += a[row * depth + at] * b[at * width + column];
                    }
                }
            }
            let mut turned = vec![0.0; b.len()];
            for at in 0..depth {
                (0..width).for_each(|column| turned[column * depth + at] = b[at * width + column]);
            }
            for right in [Right::Rows(&b, width), Right::Columns(&turned, width)] {
                for workers in [&Alone as &dyn Workers, &Backwards] {
                    let mut out = vec![0.0; rows * width];
                    product(Left::in_rows(&a, rows, depth), right, &mut out, workers).unwrap();
                    assert_eq!(out, expected, "{rows} x {depth} x {width}");
                }
            }
        }
    }
}
