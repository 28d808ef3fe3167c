//! The product of one row with a matrix: every element of the matrix is used once, so memory decides.

use apr_core::{DType, Result};

use super::{Matrix, Right};
use crate::workers::{Workers, try_in_pieces};

/// Columns of the result that one piece of work makes.
const PIECE: usize = 256;
/// Sums that are kept apart, so that additions need not wait for each other.
const LANES: usize = 16;

pub(super) fn product(x: &[f32], right: Right<'_>, out: &mut [f32], workers: &dyn Workers) -> Result<()> {
    let depth = x.len();
    try_in_pieces(workers, out, PIECE, |number, out| {
        let first = number * PIECE;
        match right {
            Right::Rows(values, width) => {
                let rows = values[first..].chunks(width);
                rows.zip(x).for_each(|(row, x)| add(*x, row, out));
                Ok(())
            }
            Right::Columns(values, _) => {
                let rows = values[first * depth..].chunks_exact(depth);
                out.iter_mut().zip(rows).for_each(|(out, row)| *out += dot(x, row));
                Ok(())
            }
            Right::Stored(matrix) if matrix.is_transposed() => by_rows(x, matrix, first, out),
            Right::Stored(matrix) => by_columns(x, matrix, first, out),
        }
    })
}

/// Stored rows are columns of the matrix.
fn by_rows(x: &[f32], matrix: &Matrix<'_>, first: usize, out: &mut [f32]) -> Result<()> {
    if let Some(flat) = matrix.flat_rows(first, out.len()) {
        let (dtype, bytes) = flat?;
        if dtype == DType::F32 {
            let rows = bytes.get().chunks_exact(x.len() * 4);
            out.iter_mut().zip(rows).for_each(|(out, row)| *out += dot_bytes(x, row.as_chunks().0));
            return Ok(());
        }
    }
    let (mut scratch, mut decoded) = (Vec::new(), Vec::new());
    for (number, out) in out.chunks_mut(16).enumerate() {
        let start = first + number * 16;
        decoded.clear();
        matrix.decode(start..start + out.len(), 0, matrix.row_len(), &mut scratch, &mut decoded)?;
        out.iter_mut().zip(decoded.chunks_exact(x.len())).for_each(|(out, row)| *out += dot(x, row));
    }
    Ok(())
}

/// Stored rows are rows of the matrix.
fn by_columns(x: &[f32], matrix: &Matrix<'_>, first: usize, out: &mut [f32]) -> Result<()> {
    let (mut scratch, mut decoded) = (Vec::new(), Vec::new());
    for (number, x) in x.chunks(16).enumerate() {
        let start = number * 16;
        decoded.clear();
        matrix.decode(start..start + x.len(), first, out.len(), &mut scratch, &mut decoded)?;
        decoded.chunks_exact(out.len()).zip(x).for_each(|(row, x)| add(*x, row, out));
    }
    Ok(())
}

fn add(x: f32, row: &[f32], out: &mut [f32]) {
    out.iter_mut().zip(row).for_each(|(out, value)| *out += x * value);
}

pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0_f32; LANES];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}

fn dot_bytes(a: &[f32], b: &[[u8; 4]]) -> f32 {
    let mut sums = [0.0_f32; LANES];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * f32::from_le_bytes(b[lane]);
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * f32::from_le_bytes(*b)).sum();
    sums.iter().sum::<f32>() + rest
}
