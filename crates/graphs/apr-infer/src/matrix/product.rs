//! The product of two matrices of any kind.

use std::cell::RefCell;
use std::ops::Range;

use apr_core::Result;
use apr_tensor::half_float::{round_to_bf16, round_to_f16};

use super::kernel::{self, Kernel, Tile};
use super::pack::Packed;
use super::sides::{Left, Right};
use super::{Precision, Rows, Scratch, StoredRows, blocks, pack, row};
use crate::workers::{Alone, Workers, in_pieces, try_with_each};

/// Number of positions along the sum that are multiplied at a time, so that a strip of columns
/// stays in the first-level cache.
const DEPTH: usize = 256;
/// Maximum number of columns that are packed at a time.
const COLUMNS: usize = 256;
/// Maximum number of elements of the right matrix that are packed at a time, unless a strip has
/// more.
const PANEL: usize = 1 << 20;
/// Maximum number of elements of the left matrix that are packed at a time, unless a strip has
/// more.
const BLOCK: usize = 3 << 20;
/// Columns of the right matrix from which on packing the left one costs little.
const WIDE: usize = 128;
/// Columns of a matrix that is read in pieces, of which [`DEPTH`] rows are in memory at a time.
const STREAMED: usize = 1 << 14;
/// Products of fewer multiplications than this are not worth a thread.
const WORTH: usize = 1 << 18;

/// Writes the product over what is in `out`, which is in rows.
pub(crate) fn product(
    left: Left<'_>,
    right: Right<'_>,
    out: &mut [f32],
    workers: &dyn Workers,
) -> Result<()> {
    put(left, right, out, false, workers)
}

/// Adds the product to the contents of `out`, or overwrites them.
fn put(
    left: Left<'_>,
    right: Right<'_>,
    out: &mut [f32],
    adds: bool,
    workers: &dyn Workers,
) -> Result<()> {
    let (width, right) = (right.width(), right.in_memory());
    if left.rows == 0 || width == 0 || left.depth == 0 {
        // A sum of no products is 0, and rows of no elements can't be cut into panels.
        clear_unless(adds, out);
        return Ok(());
    }

    let stored = match right {
        Right::Stored(matrix) => matrix.as_stored(),
        _ => None,
    };
    let precision = stored.and_then(StoredRows::precision);
    if let (Some(rows), Some(Precision::Blocks)) = (stored, precision)
        && !adds
        && blocks::product(left, rows, width, out, workers)?
    {
        return Ok(());
    }

    let rounded = match precision {
        Some(Precision::F16) => left.rounded(round_to_f16),
        Some(Precision::Bf16) => left.rounded(round_to_bf16),
        _ => None,
    };
    let left = rounded.as_deref().map_or(left, |values| Left { values, ..left });

    match right {
        Right::Stored(matrix) if !matrix.is_transposed() && !matrix.is_in_memory() => {
            streamed(left, matrix, out, adds, workers)
        }
        _ if left.rows == 1 && left.depth_step == 1 => {
            clear_unless(adds, out);
            row::add_product(&left.values[..left.depth], right, out, workers)
        }
        _ => by_panels(left, right, out, adds, workers),
    }
}

fn clear_unless(adds: bool, out: &mut [f32]) {
    if !adds {
        out.fill(0.0);
    }
}

/// Computes the product in panels of columns, on several threads if that is worth it.
fn by_panels(
    left: Left<'_>,
    right: Right<'_>,
    out: &mut [f32],
    adds: bool,
    workers: &dyn Workers,
) -> Result<()> {
    let (width, kernel) = (right.width(), kernel::best());
    let size = panel_columns(left.depth, width, kernel);
    let panels = width.div_ceil(size);
    let is_worth_threads = panels > 1 && left.rows * left.depth * width >= WORTH;
    let workers = if is_worth_threads { workers } else { &Alone };

    // For each panel its columns of each row.
    let mut parts: Vec<_> = (0..panels).map(|_| Vec::with_capacity(left.rows)).collect();
    for row in out.chunks_mut(width) {
        row.chunks_mut(size).zip(&mut parts).for_each(|(piece, part)| part.push(piece));
    }

    let rows = LeftRows::new(left, width, kernel, workers);
    let result = try_with_each(workers, parts, |panel, mut part| {
        let (first, columns) = (panel * size, size.min(width - panel * size));
        Buffers::with(|buffers| {
            buffers.pack(right, left.depth, first, columns, kernel)?;
            buffers.multiply(&rows, kernel, columns, &mut part, adds);
            Ok(())
        })
    });

    rows.finish();
    result
}

/// Puts a matrix into some columns of one that has `width`.
fn put_columns(out: &mut [f32], width: usize, own: &[f32], columns: Range<usize>, adds: bool) {
    for (out, own) in out.chunks_mut(width).zip(own.chunks(columns.len())) {
        let out = &mut out[columns.clone()];
        if adds {
            out.iter_mut().zip(own).for_each(|(out, own)| *out += own);
        } else {
            out.copy_from_slice(own);
        }
    }
}

/// The product with a matrix that is read from front to back, rows at a time. Sums are added up in
/// the order of [`Panel::multiply`], so that the result is the same as with the matrix in memory.
fn streamed(
    left: Left<'_>,
    matrix: &dyn Rows,
    out: &mut [f32],
    adds: bool,
    workers: &dyn Workers,
) -> Result<()> {
    let (mut scratch, mut decoded, mut own) = (Scratch::new(), Vec::new(), Packed::default());
    let width = matrix.width();
    for start in (0..left.depth).step_by(DEPTH) {
        let depth = DEPTH.min(left.depth - start);
        let values = &left.values[start * left.depth_step..];
        let adds = adds || start > 0;
        for first in (0..width).step_by(STREAMED) {
            let columns = STREAMED.min(width - first);
            decoded.clear();
            matrix.decode(start..start + depth, first, columns, &mut scratch, &mut decoded)?;
            let (left, right) = (Left { values, depth, ..left }, Right::Rows(&decoded, columns));
            if columns == width {
                put(left, right, out, adds, workers)?;
                continue;
            }

            // A part of the columns does not lie together in `out`, so that it is made beside it.
            let own = own.room(left.rows * columns);
            put(left, right, own, false, workers)?;
            put_columns(out, width, own, first..first + columns, adds);
        }
    }

    Ok(())
}

/// Columns of a panel: whole strips, panels of nearly the same size, and no more than fit the
/// caches. It does not depend on the number of threads.
fn panel_columns(depth: usize, width: usize, kernel: Kernel) -> usize {
    let most = (PANEL / depth).clamp(kernel.columns, COLUMNS);
    if width <= WIDE.min(most) {
        return width.next_multiple_of(kernel.columns);
    }
    let even = width.div_ceil(width.div_ceil(most).next_multiple_of(2));
    even.next_multiple_of(kernel.columns)
}

/// The rows of the left matrix, as the panels need them.
struct LeftRows<'a> {
    left: Left<'a>,
    /// Number of rows that are read in place: whole strips, if each element is used only a few
    /// times.
    direct: usize,
    /// All other rows in packed form, if they fit a cache.
    packed: Option<Packed>,
}

thread_local! {
    /// Memory of the last packed rows. For small products, fresh memory costs more than the
    /// computation.
    static ROWS: RefCell<Packed> = RefCell::default();
}

impl<'a> LeftRows<'a> {
    fn new(left: Left<'a>, width: usize, kernel: Kernel, workers: &dyn Workers) -> Self {
        let is_direct = kernel.direct.is_some() && left.depth_step == 1 && width <= WIDE;
        let direct = if is_direct { left.rows - left.rows % kernel.rows } else { 0 };
        let rows = left.rows - direct;
        let packed = (rows <= block_rows(left.depth, kernel)).then(|| {
            let mut packed = ROWS
                .with(|rows| rows.try_borrow_mut().map(|mut rows| std::mem::take(&mut *rows)))
                .unwrap_or_default();
            let strip = kernel.rows * left.depth;
            let room = packed.room(rows.div_ceil(kernel.rows) * strip);
            // A few strips at a time are worth a thread.
            let strips = (WORTH / strip).max(1);
            in_pieces(workers, room, strips * strip, |number, out| {
                let first = direct + number * strips * kernel.rows;
                left.pack(first..left.rows.min(first + strips * kernel.rows), kernel, out);
            });
            packed
        });

        Self { left, direct, packed }
    }

    /// Keeps the memory for the next product.
    fn finish(self) {
        if let Some(packed) = self.packed {
            ROWS.with(|rows| rows.try_borrow_mut().map(|mut rows| *rows = packed))
                .unwrap_or_default();
        }
    }
}

/// Rows of the left matrix that are packed at a time: whole strips.
fn block_rows(depth: usize, kernel: Kernel) -> usize {
    (BLOCK / depth / kernel.rows).max(1) * kernel.rows
}

/// Buffers of a thread.
#[derive(Default)]
struct Buffers {
    /// Some rows of a left matrix that is too large to be packed as a whole.
    left: Packed,
    /// A panel of the right matrix.
    right: Packed,
    decoded: Vec<f32>,
    scratch: Scratch,
}

thread_local! {
    static BUFFERS: RefCell<Buffers> = RefCell::default();
}

impl Buffers {
    /// Lends the buffers of this thread.
    fn with(work: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        BUFFERS.with(|buffers| match buffers.try_borrow_mut() {
            Ok(mut buffers) => work(&mut buffers),
            // Decoding a weight may multiply.
            Err(_) => work(&mut Self::default()),
        })
    }

    /// Packs a panel of columns of the right matrix.
    fn pack(
        &mut self,
        right: Right<'_>,
        depth: usize,
        first: usize,
        columns: usize,
        kernel: Kernel,
    ) -> Result<()> {
        let (strip, packed) = (kernel.columns, &mut self.right);
        match right {
            Right::Rows(values, width) => {
                pack::columns(&values[first..], (depth, columns), width, strip, packed);
            }
            Right::Columns(values, _) => {
                let packed = packed.room(columns.div_ceil(strip) * strip * depth);
                pack::rows(
                    kernel,
                    &values[first * depth..],
                    (columns, depth),
                    (depth, 1),
                    strip,
                    packed,
                );
            }
            Right::Stored(matrix) if matrix.is_transposed() => {
                let packed = packed.room(columns.div_ceil(strip) * strip * depth);
                // A strip at a time, so that what is decoded is still in the cache when it is
                // packed.
                for (number, packed) in packed.chunks_mut(strip * depth).enumerate() {
                    let (start, count) =
                        (first + number * strip, strip.min(columns - number * strip));
                    matrix.decode_over(
                        start..start + count,
                        0,
                        depth,
                        &mut self.scratch,
                        &mut self.decoded,
                    )?;
                    pack::rows(kernel, &self.decoded, (count, depth), (depth, 1), strip, packed);
                }
            }
            Right::Stored(matrix) => {
                matrix.decode_over(
                    0..depth,
                    first,
                    columns,
                    &mut self.scratch,
                    &mut self.decoded,
                )?;
                pack::columns(&self.decoded, (depth, columns), columns, strip, packed);
            }
        }

        Ok(())
    }

    /// Multiplies the packed panel with all rows.
    fn multiply(
        &mut self,
        rows: &LeftRows<'_>,
        kernel: Kernel,
        columns: usize,
        out: &mut [&mut [f32]],
        adds: bool,
    ) {
        let LeftRows { left, direct, packed } = rows;
        let panel = Panel { right: self.right.elements(), depth: left.depth, columns, adds };
        let (as_they_lie, others) = out.split_at_mut(*direct);
        panel.multiply(kernel, left.values, Some(left.row_step), as_they_lie);
        if let Some(packed) = packed {
            return panel.multiply(kernel, packed.elements(), None, others);
        }

        let block = block_rows(left.depth, kernel);
        for (number, out) in others.chunks_mut(block).enumerate() {
            let first = direct + number * block;
            let packed = self.left.room(out.len().div_ceil(kernel.rows) * kernel.rows * left.depth);
            left.pack(first..first + out.len(), kernel, packed);
            panel.multiply(kernel, packed, None, out);
        }
    }
}

impl Left<'_> {
    /// Packs some rows into strips.
    fn pack(&self, rows: Range<usize>, kernel: Kernel, out: &mut [f32]) {
        let (values, steps) =
            (&self.values[rows.start * self.row_step..], (self.row_step, self.depth_step));
        pack::rows(kernel, values, (rows.len(), self.depth), steps, kernel.rows, out);
    }
}

/// Packed panel of the right matrix, and the mode of its products (add or overwrite).
#[derive(Clone, Copy)]
struct Panel<'a> {
    right: &'a [f32],
    depth: usize,
    columns: usize,
    /// `true` if products are added to the existing values.
    adds: bool,
}

impl Panel<'_> {
    /// `left` are packed strips, or rows that are `step` apart.
    fn multiply(&self, kernel: Kernel, left: &[f32], step: Option<usize>, out: &mut [&mut [f32]]) {
        let Self { right, depth, columns, adds } = *self;
        for start in (0..depth).step_by(DEPTH) {
            let len = DEPTH.min(depth - start);
            for (number, rows) in out.chunks_mut(kernel.rows).enumerate() {
                let top = number * kernel.rows;
                let a = match step {
                    Some(step) => &left[top * step + start..],
                    None => &left[top * depth + start * kernel.rows..][..len * kernel.rows],
                };
                for first in (0..columns).step_by(kernel.columns) {
                    let b =
                        &right[first * depth + start * kernel.columns..][..len * kernel.columns];
                    let width = kernel.columns.min(columns - first);

                    // The first stretch of the depth may set what the others add to.
                    let tile = Tile { rows: &mut *rows, first, width, adds: adds || start > 0 };
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
                        expected[row * width + column] +=
                            a[row * depth + at] * b[at * width + column];
                    }
                }
            }
            let mut turned = vec![0.0; b.len()];
            for at in 0..depth {
                (0..width).for_each(|column| turned[column * depth + at] = b[at * width + column]);
            }
            for right in [Right::Rows(&b, width), Right::Columns(&turned, width)] {
                for workers in [&Alone as &dyn Workers, &Backwards] {
                    let mut out = vec![f32::NAN; rows * width];
                    product(Left::in_rows(&a, rows, depth), right, &mut out, workers).unwrap();
                    assert_eq!(out, expected, "{rows} x {depth} x {width}");
                }
            }
        }
    }

    /// A matrix that is read from front to back.
    struct OnDisk<'a> {
        values: &'a [f32],
        width: usize,
    }

    impl Rows for OnDisk<'_> {
        fn row_len(&self) -> usize {
            self.width
        }

        fn depth(&self) -> usize {
            self.values.len() / self.width
        }

        fn width(&self) -> usize {
            self.width
        }

        fn is_transposed(&self) -> bool {
            false
        }

        fn is_in_memory(&self) -> bool {
            false
        }

        fn decode(
            &self,
            rows: Range<usize>,
            first_column: usize,
            columns: usize,
            _: &mut Scratch,
            out: &mut Vec<f32>,
        ) -> Result<()> {
            rows.for_each(|row| {
                out.extend(&self.values[row * self.width + first_column..][..columns]);
            });
            Ok(())
        }
    }

    #[test]
    fn a_matrix_that_is_read_in_pieces_gives_the_bits_of_one_in_memory() {
        // The second is wider than what is read of a row at a time; both have more rows than are in
        // memory at a time.
        for (rows, depth, width) in [(3, DEPTH + 9, 40), (2, DEPTH + 1, STREAMED + 5)] {
            let fraction = |value: &f32| value / 7.0;
            let a: Vec<_> = values(rows * depth, 1).iter().map(fraction).collect();
            let b: Vec<_> = values(depth * width, 2).iter().map(fraction).collect();
            let left = Left::in_rows(&a, rows, depth);
            let (mut expected, mut out) =
                (vec![f32::NAN; rows * width], vec![f32::NAN; rows * width]);
            product(left, Right::Rows(&b, width), &mut expected, &Alone).unwrap();
            let matrix = OnDisk { values: &b, width };
            product(left, Right::Stored(&matrix), &mut out, &Alone).unwrap();
            assert!(out == expected, "{rows} x {depth} x {width}");
        }
    }

    #[test]
    fn rows_that_are_too_many_to_be_packed_at_once_give_the_exact_product() {
        let (rows, depth, width) = (300, BLOCK / 256, 2);
        // In columns, so that no row can be read as it lies.
        let (a, b) = (values(rows * depth, 1), values(depth * width, 2));
        let left = Left { values: &a, rows, depth, row_step: 1, depth_step: rows };
        let mut out = vec![f32::NAN; rows * width];
        product(left, Right::Rows(&b, width), &mut out, &Alone).unwrap();
        for row in [0, 1, 255, 256, 299] {
            for column in 0..width {
                let sum: f32 =
                    (0..depth).map(|at| a[at * rows + row] * b[at * width + column]).sum();
                assert_eq!(out[row * width + column], sum, "{row}, {column}");
            }
        }
    }
}
