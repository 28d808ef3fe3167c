//! The product of one row with a matrix: every element of the matrix is used once, so memory decides.
#![allow(unsafe_code, reason = "multiversion calls the version for a processor's features after detecting them")]

use apr_core::Result;

use super::{Right, Rows};
use crate::ops::for_several_targets;
use crate::workers::{Workers, try_in_pieces};

/// Columns of the result that one piece of work makes.
const PIECE: usize = 512;
/// Sums that are kept apart, so that additions need not wait for each other.
const LANES: usize = 64;
/// Rows that are added up together, and that are decoded at a time.
const ROWS: usize = 4;
const DECODED: usize = 16;

/// Adds the product to `out`.
pub(super) fn add_product(x: &[f32], right: Right<'_>, out: &mut [f32], workers: &dyn Workers) -> Result<()> {
    let depth = x.len();
    try_in_pieces(workers, out, PIECE, |number, out| {
        let first = number * PIECE;
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
    let (mut scratch, mut decoded) = (Vec::new(), Vec::new());
    for (number, out) in out.chunks_mut(DECODED).enumerate() {
        let start = first + number * DECODED;
        decoded.clear();
        matrix.decode(start..start + out.len(), 0, matrix.row_len(), &mut scratch, &mut decoded)?;
        dots(x, &decoded, out);
    }
    Ok(())
}

/// Stored rows are rows of the matrix.
fn by_columns(x: &[f32], matrix: &dyn Rows, first: usize, out: &mut [f32]) -> Result<()> {
    let (mut scratch, mut decoded) = (Vec::new(), Vec::new());
    for (number, x) in x.chunks(DECODED).enumerate() {
        let start = number * DECODED;
        decoded.clear();
        matrix.decode(start..start + x.len(), first, out.len(), &mut scratch, &mut decoded)?;
        add_rows(x, &decoded, out.len(), out);
    }
    Ok(())
}

/// Elements ahead of those that are used, which are brought into the cache meanwhile: rows come from memory once, and
/// processors stop looking ahead at the end of each page.
const AHEAD: usize = 256;
/// Elements of a line of the cache.
const LINE: usize = 16;

/// Asks for the [`LANES`] elements that are [`AHEAD`] of a place.
#[inline(always)]
fn fetch_ahead(values: &[f32], at: usize) {
    #[cfg(all(feature = "std", target_arch = "x86_64"))]
    for line in (0..LANES).step_by(LINE) {
        let place = values.as_ptr().wrapping_add(at + AHEAD + line);
        // SAFETY: asking for memory reads nothing, wherever the place is.
        unsafe { core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(place.cast()) };
    }
    #[cfg(not(all(feature = "std", target_arch = "x86_64")))]
    let _ = (values, at, AHEAD, LINE);
}

for_several_targets! {
    /// Adds rows, each times an element of `x`; they are `step` apart.
    fn add_rows(x: &[f32], rows: &[f32], step: usize, out: &mut [f32]) {
        let len = out.len();
        let (groups, rest) = x.as_chunks::<ROWS>();
        for (number, x) in groups.iter().enumerate() {
            let row = |at: usize| &rows[(number * ROWS + at) * step..][..len];
            let [a, b, c, d] = [row(0), row(1), row(2), row(3)];
            for (piece, out) in out.chunks_mut(LANES).enumerate() {
                let places = piece * LANES..piece * LANES + out.len();
                [a, b, c, d].iter().for_each(|row| fetch_ahead(row, places.start));
                let [a, b, c, d] = [&a[places.clone()], &b[places.clone()], &c[places.clone()], &d[places]];
                for at in 0..out.len() {
                    out[at] += (x[0] * a[at] + x[1] * b[at]) + (x[2] * c[at] + x[3] * d[at]);
                }
            }
        }
        for (number, x) in rest.iter().enumerate() {
            let row = &rows[(groups.len() * ROWS + number) * step..][..len];
            for at in 0..len {
                out[at] += x * row[at];
            }
        }
    }
}

for_several_targets! {
    /// Adds the products of `x` with rows that are as long.
    fn dots(x: &[f32], rows: &[f32], out: &mut [f32]) {
        let depth = x.len();
        for (number, out) in out.iter_mut().enumerate() {
            let row = &rows[number * depth..][..depth];
            let mut sums = [0.0_f32; LANES];
            let ((a, a_rest), (b, b_rest)) = (x.as_chunks::<LANES>(), row.as_chunks::<LANES>());
            for at in 0..a.len() {
                fetch_ahead(row, at * LANES);
                for lane in 0..LANES {
                    sums[lane] += a[at][lane] * b[at][lane];
                }
            }
            for at in 0..a_rest.len() {
                sums[at] += a_rest[at] * b_rest[at];
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
}
