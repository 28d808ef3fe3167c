//! The product of two matrices of any kind.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Mutex;

use apr_core::Result;

use super::kernel::{self, Kernel, Tile};
use super::{Rows, Scratch, pack, row};
use crate::workers::{Workers, try_each};

/// Positions along the sum that are multiplied at a time: a strip of columns stays in the first-level cache.
const DEPTH: usize = 256;
/// Most columns that are packed at a time.
const COLUMNS: usize = 256;
/// Most elements of the right matrix that are packed at a time, unless a strip has more.
const PANEL: usize = 1 << 20;
/// Most elements of the left matrix that are packed at a time, unless a strip has more.
const BLOCK: usize = 3 << 20;
/// Columns of the right matrix from which on packing the left one costs little.
const WIDE: usize = 128;
/// Columns of a matrix that is read in pieces, of which [`DEPTH`] rows are in memory at a time.
const STREAMED: usize = 1 << 14;
/// Products of fewer multiplications than this are not worth a thread.
const WORTH: usize = 1 << 18;

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
    Stored(&'a dyn Rows),
}

impl<'a> Right<'a> {
    /// The same without decoding, where its elements are in memory.
    fn in_memory(self) -> Self {
        let Self::Stored(matrix) = self else { return self };
        match matrix.floats() {
            Some(values) if matrix.is_transposed() => Self::Columns(values, matrix.width()),
            Some(values) => Self::Rows(values, matrix.width()),
            None => self,
        }
    }

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
    let (width, right) = (right.width(), right.in_memory());
    if left.rows == 0 || width == 0 || left.depth == 0 {
        return Ok(());
    }
    match right {
        Right::Stored(matrix) if !matrix.is_transposed() && !matrix.is_in_memory() => {
            streamed(left, matrix, out, workers)
        }
        _ if left.rows == 1 && left.depth_step == 1 => row::product(&left.values[..left.depth], right, out, workers),
        _ => by_panels(left, right, out, workers),
    }
}

/// The product with panels of columns, on several threads where that is worth it.
fn by_panels(left: Left<'_>, right: Right<'_>, out: &mut [f32], workers: &dyn Workers) -> Result<()> {
    let (width, kernel) = (right.width(), kernel::best());
    let size = panel_columns(left.depth, width, kernel);
    let panels = width.div_ceil(size);
    let columns = |panel: usize| panel * size..width.min((panel + 1) * size);
    if workers.count() == 1 || panels == 1 || left.rows * left.depth * width < WORTH {
        return Buffers::with(|buffers| {
            (0..panels).map(columns).try_for_each(|columns| {
                buffers.pack(right, left.depth, columns.start, columns.len(), kernel)?;
                buffers.multiply(left, columns.len(), kernel, &mut out[columns.start..], width);
                Ok(())
            })
        });
    }
    let shared = Mutex::new(out);
    try_each(workers, panels, |panel| {
        let columns = columns(panel);
        let mut own = vec![0.0; left.rows * columns.len()];
        Buffers::with(|buffers| {
            buffers.pack(right, left.depth, columns.start, columns.len(), kernel)?;
            buffers.multiply(left, columns.len(), kernel, &mut own, columns.len());
            Ok(())
        })?;
        // Copying takes a small part of the time of multiplying: threads rarely wait for each other here.
        if let Ok(mut out) = shared.lock() {
            add_columns(&mut out, width, &own, columns);
        }
        Ok(())
    })
}

/// Adds a matrix to some columns of one that has `width`.
fn add_columns(out: &mut [f32], width: usize, own: &[f32], columns: Range<usize>) {
    for (out, own) in out.chunks_mut(width).zip(own.chunks(columns.len())) {
        out[columns.clone()].iter_mut().zip(own).for_each(|(out, own)| *out += own);
    }
}

/// The product with a matrix that is read from front to back, rows at a time. Sums are added up in the order of
/// [`Packed::multiply`], so that the result is the same as with the matrix in memory.
fn streamed(left: Left<'_>, matrix: &dyn Rows, out: &mut [f32], workers: &dyn Workers) -> Result<()> {
    let (mut scratch, mut decoded, mut own) = (Scratch::new(), Vec::new(), Vec::new());
    let width = matrix.width();
    for start in (0..left.depth).step_by(DEPTH) {
        let depth = DEPTH.min(left.depth - start);
        let values = &left.values[start * left.depth_step..];
        for first in (0..width).step_by(STREAMED) {
            let columns = STREAMED.min(width - first);
            decoded.clear();
            matrix.decode(start..start + depth, first, columns, &mut scratch, &mut decoded)?;
            let (left, right) = (Left { values, depth, ..left }, Right::Rows(&decoded, columns));
            if columns == width {
                product(left, right, out, workers)?;
                continue;
            }
            own.clear();
            own.resize(left.rows * columns, 0.0);
            product(left, right, &mut own, workers)?;
            add_columns(out, width, &own, first..first + columns);
        }
    }
    Ok(())
}

/// Columns of a panel: whole strips, panels of nearly the same size, and no more than fit the caches. It does not depend on
/// the number of threads.
fn panel_columns(depth: usize, width: usize, kernel: Kernel) -> usize {
    let most = (PANEL / depth).clamp(kernel.columns, COLUMNS);
    if width <= WIDE.min(most) {
        return width.next_multiple_of(kernel.columns);
    }
    let even = width.div_ceil(width.div_ceil(most).next_multiple_of(2));
    even.next_multiple_of(kernel.columns)
}

/// Rows of the left matrix that are packed at a time: whole strips.
fn block_rows(depth: usize, kernel: Kernel) -> usize {
    (BLOCK / depth / kernel.rows).max(1) * kernel.rows
}

/// Buffers of a thread.
#[derive(Default)]
struct Buffers {
    /// Rows of the left matrix.
    left: Vec<f32>,
    /// Whether those are all of its rows, for the panels to come.
    has_left: bool,
    /// A panel of the right matrix.
    right: Vec<f32>,
    decoded: Vec<f32>,
    scratch: Scratch,
}

thread_local! {
    /// Fresh memory costs more than what is done with it where products are small.
    static BUFFERS: RefCell<Buffers> = RefCell::default();
}

impl Buffers {
    /// Lends the buffers of this thread.
    fn with(work: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        BUFFERS.with(|buffers| match buffers.try_borrow_mut() {
            Ok(mut buffers) => {
                buffers.has_left = false;
                work(&mut buffers)
            }
            // Decoding a weight may multiply.
            Err(_) => work(&mut Self::default()),
        })
    }

    /// Packs a panel of columns of the right matrix.
    fn pack(&mut self, right: Right<'_>, depth: usize, first: usize, columns: usize, kernel: Kernel) -> Result<()> {
        let (strip, packed) = (kernel.columns, &mut self.right);
        match right {
            Right::Rows(values, width) => {
                pack::columns(&values[first..], (depth, columns), width, strip, packed);
            }
            Right::Columns(values, _) => {
                pack::rows(kernel, &values[first * depth..], (columns, depth), (depth, 1), strip, packed);
            }
            Right::Stored(matrix) if matrix.is_transposed() => {
                self.decoded.clear();
                matrix.decode(first..first + columns, 0, depth, &mut self.scratch, &mut self.decoded)?;
                pack::rows(kernel, &self.decoded, (columns, depth), (depth, 1), strip, packed);
            }
            Right::Stored(matrix) => {
                self.decoded.clear();
                matrix.decode(0..depth, first, columns, &mut self.scratch, &mut self.decoded)?;
                pack::columns(&self.decoded, (depth, columns), columns, strip, packed);
            }
        }
        Ok(())
    }

    /// Multiplies the packed panel with all rows, some of which are packed at a time.
    fn multiply(&mut self, left: Left<'_>, columns: usize, kernel: Kernel, out: &mut [f32], stride: usize) {
        let (step, depth) = (left.row_step, left.depth);
        let block = block_rows(depth, kernel);
        // Where each element is used a few times only, whole strips are read as they lie.
        let is_direct = kernel.direct.is_some() && left.depth_step == 1 && !self.has_left && stride <= WIDE;
        let direct = if is_direct { left.rows / kernel.rows * kernel.rows } else { 0 };
        if direct > 0 {
            let packed = Packed { left: left.values, right: &self.right, rows: direct, depth, columns };
            packed.multiply(kernel, Some(step), out, stride);
        }
        for first in (direct..left.rows).step_by(block) {
            let rows = block.min(left.rows - first);
            let values = &left.values[first * step..];
            if !self.has_left {
                pack::rows(kernel, values, (rows, depth), (step, left.depth_step), kernel.rows, &mut self.left);
            }
            let packed = Packed { left: &self.left, right: &self.right, rows, depth, columns };
            packed.multiply(kernel, None, &mut out[first * stride..], stride);
        }
        self.has_left = direct == 0 && left.rows <= block;
    }
}

/// Two packed matrices, the left one only as far as it is.
struct Packed<'a> {
    left: &'a [f32],
    right: &'a [f32],
    rows: usize,
    depth: usize,
    columns: usize,
}

impl Packed<'_> {
    /// `step` is that of the left matrix's rows where it is not packed.
    fn multiply(&self, kernel: Kernel, step: Option<usize>, out: &mut [f32], stride: usize) {
        let Self { left, right, rows, depth, columns } = *self;
        for start in (0..depth).step_by(DEPTH) {
            let len = DEPTH.min(depth - start);
            for top in (0..rows).step_by(kernel.rows) {
                let a = match step {
                    Some(step) => &left[top * step + start..],
                    None => &left[top * depth + start * kernel.rows..][..len * kernel.rows],
                };
                for first in (0..columns).step_by(kernel.columns) {
                    let b = &right[first * depth + start * kernel.columns..][..len * kernel.columns];
                    let (height, width) = (kernel.rows.min(rows - top), kernel.columns.min(columns - first));
                    let out = &mut out[top * stride + first..];
                    let tile = Tile { out, stride, height, width };
                    match (step, kernel.direct) {
                        (Some(step), Some(direct)) => direct(a, step, b, tile),
                        _ => (kernel.tile)(a, b, tile),
                    }
                }
            }
        }
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
        for (rows, depth, width) in [
            (1, 5, 3),
            (2, 1, 1),
            (7, 300, 33),
            (13, 257, 130),
            (25, 8, 260),
            (40, 300, 64),
            (30, 20_000, 100),
            (3, 0, 2),
        ] {
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
