//! The product of one row with a matrix: every element of the matrix is used once, so memory
//! decides.
#![allow(
    unsafe_code,
    reason = "multiversion calls the version for a processor's features after detecting them"
)]

use std::cell::RefCell;
use std::ops::Range;

use apr_core::Result;
use apr_tensor::block;

use super::pack::LINE;
use super::sides::Right;
use super::{Rows, Scratch, StoredRows, halves};
use crate::targets::for_several_targets;
use crate::workers::{Workers, try_in_pieces};

/// Columns of the result that one piece of work makes.
const COLUMNS_AT_ONCE: usize = 512;
/// Number of elements that are decoded at a time, unless eight rows have more. They stay in the
/// first-level cache.
const DECODED: usize = 1 << 13;

/// Adds the product to `out`.
pub(super) fn add_product(
    x: &[f32],
    right: Right<'_>,
    out: &mut [f32],
    workers: &dyn Workers,
) -> Result<()> {
    let depth = x.len();
    try_in_pieces(workers, out, COLUMNS_AT_ONCE, |number, out| {
        let first = number * COLUMNS_AT_ONCE;
        match right {
            Right::Rows(values, width) => {
                add_rows(x, &values[first..], width, out);
                Ok(())
            }
            Right::Columns(values, _) => {
                dots(x, &values[first * depth..], out);
                Ok(())
            }
            Right::Stored(matrix) if matrix.is_transposed() => by_rows(x, matrix, first, out),
            Right::Stored(matrix) => by_columns(x, matrix, first, out),
        }
    })
}

/// Stored rows are columns of the matrix.
fn by_rows(x: &[f32], matrix: &dyn Rows, first: usize, out: &mut [f32]) -> Result<()> {
    if let Some(rows) = matrix.as_stored()
        && rows.dtypes().into_iter().all(|dtype| halves::can_dot(dtype) || block::can_dot(dtype))
    {
        return as_they_lie(x, rows, first, out);
    }

    let depth = matrix.row_len();
    let rows = (DECODED / depth.max(1)).next_multiple_of(TOGETHER).max(TOGETHER);
    Decoded::with(|Decoded { scratch, decoded }| {
        for (number, out) in out.chunks_mut(rows).enumerate() {
            let start = first + number * rows;
            matrix.decode_over(start..start + out.len(), 0, depth, scratch, decoded)?;
            dots(x, decoded, out);
        }
        Ok(())
    })
}

/// Rows of 16-bit floats or of blocks, which are decoded in registers or block by block.
fn as_they_lie(x: &[f32], rows: &dyn StoredRows, first: usize, out: &mut [f32]) -> Result<()> {
    rows.runs(first..first + out.len(), &mut |run| {
        let out = &mut out[run.first..][..run.bytes.len() / run.row_bytes.max(1)];
        if halves::can_dot(run.dtype) {
            halves::dots(run.dtype, x, run.bytes, out);
        } else {
            block::dots(run.dtype, run.bytes, x, out);
        }
    })
}

/// Buffers of a thread: fresh memory would be filled with zeros first.
#[derive(Default)]
struct Decoded {
    scratch: Scratch,
    decoded: Vec<f32>,
}

thread_local! {
    static BUFFERS: RefCell<Decoded> = RefCell::default();
}

impl Decoded {
    /// Lends the buffers of this thread.
    fn with(work: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        BUFFERS.with(|buffers| match buffers.try_borrow_mut() {
            Ok(mut buffers) => work(&mut buffers),
            // Decoding a weight may multiply.
            Err(_) => work(&mut Self::default()),
        })
    }
}

/// Stored rows are rows of the matrix.
fn by_columns(x: &[f32], matrix: &dyn Rows, first: usize, out: &mut [f32]) -> Result<()> {
    Decoded::with(|Decoded { scratch, decoded }| {
        for (number, x) in x.chunks(ADDED).enumerate() {
            let start = number * ADDED;
            matrix.decode_over(start..start + x.len(), first, out.len(), scratch, decoded)?;
            add_rows(x, decoded, out.len(), out);
        }
        Ok(())
    })
}

/// Prefetches `len` elements from `place` on, which are needed soon. Each element is read from
/// memory once, and processors stop prefetching at the end of each page.
#[inline(always)]
fn fetch(values: &[f32], place: usize, len: usize) {
    #[cfg(all(feature = "simd", target_arch = "x86_64"))]
    for line in (0..len).step_by(LINE) {
        let place = values.as_ptr().wrapping_add(place + line);
        // SAFETY: asking for memory reads nothing, wherever the place is.
        unsafe {
            core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(place.cast());
        };
    }
    #[cfg(not(all(feature = "simd", target_arch = "x86_64")))]
    let _ = (values, place, len, LINE);
}

/// Rows that are added up together, while the next ones are fetched.
const ADDED: usize = 16;
/// Number of columns of these rows whose sums stay in registers.
const COLUMNS: usize = 32;

for_several_targets! {
    /// Adds rows, each times an element of `x`; they are `step` apart.
    fn add_rows(x: &[f32], rows: &[f32], step: usize, out: &mut [f32]) {
        let (groups, rest) = x.as_chunks::<ADDED>();
        for (number, x) in groups.iter().enumerate() {
            add_group(x, &rows[number * ADDED * step..], step, out);
        }
        if !rest.is_empty() {
            add_group(rest, &rows[groups.len() * ADDED * step..], step, out);
        }
    }
}

/// Adds as many rows as `x` has elements.
#[inline(always)]
fn add_group(x: &[f32], rows: &[f32], step: usize, out: &mut [f32]) {
    let (blocks, rest) = out.as_chunks_mut::<COLUMNS>();
    let done = blocks.len() * COLUMNS;
    for (block, out) in blocks.iter_mut().enumerate() {
        let mut sums = [0.0_f32; COLUMNS];
        for (number, x) in x.iter().enumerate() {
            let place = number * step + block * COLUMNS;
            fetch(rows, place + ADDED * step, COLUMNS);
            let row = &rows[place..][..COLUMNS];
            for column in 0..COLUMNS {
                sums[column] += x * row[column];
            }
        }
        for column in 0..COLUMNS {
            out[column] += sums[column];
        }
    }

    for (column, out) in rest.iter_mut().enumerate() {
        let products =
            x.iter().enumerate().map(|(number, x)| x * rows[number * step + done + column]);
        *out += products.sum::<f32>();
    }
}

/// Number of rows whose sums are computed together, so that this many places of memory are read at
/// a time.
const TOGETHER: usize = 8;
/// Lengths of rows that are read one after the other. Reading several places within a page runs at
/// half the speed of one. For shorter rows, adding up the sums one by one would take as long as the
/// products.
const ONE_BY_ONE: Range<usize> = 256..2048;
/// Sums of a row that are kept apart, so that additions need not wait for each other.
const LANES: usize = 16;
/// Prefetch distance in elements: 16 KiB, measured on rows of 128 to 4096 elements.
const AHEAD: usize = 4096;

for_several_targets! {
    /// Adds the products of `x` with rows that are as long.
    fn dots(x: &[f32], rows: &[f32], out: &mut [f32]) {
        let is_one_by_one = ONE_BY_ONE.contains(&x.len());
        let together = if is_one_by_one { 0 } else { out.len() / TOGETHER * TOGETHER };
        let (groups, rest) = out.split_at_mut(together);
        for (number, out) in groups.as_chunks_mut::<TOGETHER>().0.iter_mut().enumerate() {
            dots_of(x, &rows[number * TOGETHER * x.len()..], out);
        }
        for (number, out) in rest.iter_mut().enumerate() {
            dots_of(x, &rows[(together + number) * x.len()..], std::array::from_mut(out));
        }
    }
}

/// Adds the products of `x` with some rows. Each sum is made in the same order, however many there
/// are.
#[inline(always)]
fn dots_of<const COUNT: usize>(x: &[f32], rows: &[f32], out: &mut [f32; COUNT]) {
    let depth = x.len();
    let mut sums = [[0.0_f32; LANES]; COUNT];
    let (groups, rest) = x.as_chunks::<LANES>();
    for (group, x) in groups.iter().enumerate() {
        for (number, sums) in sums.iter_mut().enumerate() {
            let place = number * depth + group * LANES;
            fetch(rows, place + AHEAD, LANES);
            let row = &rows[place..][..LANES];
            for lane in 0..LANES {
                sums[lane] += x[lane] * row[lane];
            }
        }
    }

    for ((number, sums), out) in sums.iter_mut().enumerate().zip(out) {
        let row = &rows[number * depth + groups.len() * LANES..];
        for lane in 0..rest.len() {
            sums[lane] += rest[lane] * row[lane];
        }
        // In halves, which are vectors too.
        let mut width = LANES / 2;
        while width > 0 {
            for lane in 0..width {
                sums[lane] += sums[lane + width];
            }
            width /= 2;
        }
        *out += sums[0];
    }
}

#[cfg(test)]
mod tests {
    use apr_core::DType;

    use super::*;
    use crate::matrix::HeadRows;
    use crate::workers::Alone;

    #[test]
    fn rows_read_in_place_give_the_same_bits_as_decoded_rows() {
        let (size, tokens) = (512, 11);
        let x: Vec<f32> = (0..size).map(|at| (at as f32).sin()).collect();
        for &dtype in DType::ALL.iter().filter(|dtype| block::can_dot(**dtype)) {
            let row_bytes = size / dtype.block_len() as usize * dtype.block_bytes() as usize;
            let bytes: Vec<u8> =
                (0..tokens * row_bytes).map(|at| (at * at / 7 + at) as u8 & 0x3b).collect();
            let rows =
                HeadRows { dtype, floats: &[], bytes: &bytes, tokens, size, is_turned: true };
            let mut decoded = Vec::new();
            crate::store::decode(dtype, &bytes, size, &mut decoded).unwrap();

            let (mut found, mut expected) = (vec![1.0; tokens], vec![1.0; tokens]);
            add_product(&x, rows.right(), &mut found, &Alone).unwrap();
            add_product(&x, Right::Columns(&decoded, tokens), &mut expected, &Alone).unwrap();
            assert!(expected.iter().all(|sum| sum.is_finite()), "{dtype}");
            assert_eq!(found, expected, "{dtype}");
        }
    }
}
