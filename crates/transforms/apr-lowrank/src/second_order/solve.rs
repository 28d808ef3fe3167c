//! The algorithm: one factorization, then the columns block by block.
//!
//! With `H` the products of the inputs' columns, and `U` the upper triangle for which `UᵀU` is the
//! inverse of `H`, a weight of column `j` that moves by `d` costs `d² / U[j,j]²`, and the columns
//! after it take up `d / U[j,j] · U[j,·]`. `U` is the inverse of the upper triangle `M` of `H =
//! MMᵀ`, which is the ordinary factor of `H` read from behind: one factorization instead of three.

use apr_core::{Error, Result};
use faer::dyn_stack::{MemBuffer, MemStack};
use faer::linalg::cholesky::llt::factor::{
    LltRegularization, cholesky_in_place, cholesky_in_place_scratch,
};
use faer::linalg::matmul::triangular::BlockStructure;
use faer::linalg::matmul::{matmul, triangular};
use faer::linalg::triangular_inverse::invert_lower_triangular;
use faer::prelude::default;
use faer::{Accum, MatMut, MatRef, Par};

/// Columns after which the rest of the matrix is updated, as in the papers.
pub const BLOCK: usize = 128;

/// Share of the mean of the diagonal that is added to it.
const DAMPING: f64 = 0.01;

/// Change of a matrix's weights.
pub trait Change {
    /// Columns of a block: those after it are updated when all rows of it are done.
    fn columns(&self) -> usize {
        BLOCK
    }

    /// Begins a block, with the current values of all weights of the matrix.
    fn begin(&mut self, block: &Block<'_>, weights: &[f32]);

    /// The new value of weight `at` of a block's `row`, whose weights are these now. Columns are
    /// asked in order.
    fn value(&mut self, block: &Block<'_>, row: (usize, &[f32]), at: usize) -> f32;
}

/// Changes a matrix by the lower triangle of the products of its inputs; returns the relative error
/// of the outputs.
pub(super) fn solve(
    mut products: Vec<f32>,
    weights: &mut [f32],
    columns: usize,
    change: &mut dyn Change,
) -> Result<f64> {
    let rows = weights.len() / columns.max(1);
    if rows == 0 || columns == 0 {
        return Ok(0.0);
    }
    drop_dead(&mut products, weights, columns);
    damp(&mut products, columns);
    let before = energy(&products, weights, columns);
    let inverse = inverse_factor(products, columns)?;
    let lost = walk(&inverse, weights, columns, change);
    Ok(if before > 0.0 { (lost / before).sqrt() } else { 0.0 })
}

/// Sets the weights of columns to zero whose inputs are always zero, since they do not affect
/// outputs.
fn drop_dead(products: &mut [f32], weights: &mut [f32], columns: usize) {
    for column in 0..columns {
        let diagonal = &mut products[column * columns + column];
        if *diagonal == 0.0 {
            *diagonal = 1.0;
            weights.iter_mut().skip(column).step_by(columns).for_each(|weight| *weight = 0.0);
        }
    }
}

fn damp(products: &mut [f32], columns: usize) {
    let diagonal = || (0..columns).map(|at| at * columns + at);
    let sum: f64 = diagonal().map(|at| f64::from(products[at])).sum();
    #[expect(clippy::cast_possible_truncation, reason = "products have single precision")]
    let damping = (DAMPING * sum / columns as f64) as f32;
    diagonal().for_each(|at| products[at] += damping);
}

/// The squared norm of the outputs, by the lower triangle of the products.
fn energy(products: &[f32], weights: &[f32], columns: usize) -> f64 {
    /// Rows whose outputs are computed at a time.
    const ROWS: usize = 64;

    let products = MatRef::from_row_major_slice(products, columns, columns);
    let mut buffer = vec![0.0_f32; ROWS * columns];
    let mut energy = 0.0;
    for weights in weights.chunks(ROWS * columns) {
        let rows = weights.len() / columns;
        let buffer = &mut buffer[..weights.len()];
        // Of a symmetric matrix, twice the lower triangle less the diagonal.
        triangular::matmul(
            MatMut::from_row_major_slice_mut(buffer, rows, columns),
            BlockStructure::Rectangular,
            Accum::Replace,
            MatRef::from_row_major_slice(weights, rows, columns),
            BlockStructure::Rectangular,
            products,
            BlockStructure::TriangularLower,
            1.0,
            Par::Seq,
        );
        for (at, (product, weight)) in buffer.iter().zip(weights).enumerate() {
            let column = at % columns;
            let (weight, product) = (f64::from(*weight), f64::from(*product));
            energy += weight * (2.0 * product - weight * f64::from(products[(column, column)]));
        }
    }
    energy
}

/// The upper triangle `U`, row by row, for which `UᵀU` is the inverse of a matrix, of which the
/// lower triangle is given.
fn inverse_factor(mut products: Vec<f32>, columns: usize) -> Result<Vec<f32>> {
    // Read from behind, a symmetric matrix has its lower triangle where its upper one was.
    for row in 0..columns {
        for column in row + 1..columns {
            products[row * columns + column] = products[column * columns + row];
        }
    }
    products.reverse();
    let mut factor = MatMut::from_row_major_slice_mut(&mut products, columns, columns);
    let scratch = cholesky_in_place_scratch::<f32>(columns, Par::Seq, default());
    let mut memory = MemBuffer::try_new(scratch)
        .map_err(|_| Error::memory("a factorization does not fit in memory"))?;
    let stack = MemStack::new(&mut memory);
    let regularization = LltRegularization::default();
    cholesky_in_place(factor.as_mut(), regularization, Par::Seq, stack, default())
        .map_err(|_| Error::corrupt("the products of its inputs can't be factored"))?;
    let mut inverse = vec![0.0_f32; products.len()];
    invert_lower_triangular(
        MatMut::from_row_major_slice_mut(&mut inverse, columns, columns),
        MatRef::from_row_major_slice(&products, columns, columns),
        Par::Seq,
    );
    inverse.reverse();
    Ok(inverse)
}

/// Changes the matrix column by column, and returns the squared error of the outputs.
fn walk(inverse: &[f32], weights: &mut [f32], columns: usize, change: &mut dyn Change) -> f64 {
    let rows = weights.len() / columns;
    let step = change.columns().max(1);
    let mut lost = 0.0;
    let mut errors = vec![0.0_f32; rows * step];
    for first in (0..columns).step_by(step) {
        let end = (first + step).min(columns);
        let width = end - first;
        let block = Block { inverse, columns, first, end };
        change.begin(&block, weights);
        let errors = &mut errors[..rows * width];
        let lines = weights.chunks_mut(columns).zip(errors.chunks_mut(width));
        for (at, (row, errors)) in lines.enumerate() {
            lost += block.change((at, &mut row[first..end]), change, errors);
        }
        if end < columns {
            let rest = MatMut::from_row_major_slice_mut(weights, rows, columns);
            let factor = MatRef::from_row_major_slice(inverse, columns, columns);
            matmul(
                rest.subcols_mut(end, columns - end),
                Accum::Add,
                MatRef::from_row_major_slice(errors, rows, width),
                factor.submatrix(first, end, width, columns - end),
                -1.0,
                Par::Seq,
            );
        }
    }
    lost
}

/// Columns that are worked on.
#[derive(Debug)]
pub struct Block<'b> {
    /// The upper triangle.
    inverse: &'b [f32],
    columns: usize,
    first: usize,
    end: usize,
}

impl Block<'_> {
    /// The columns of the matrix that it has.
    #[must_use]
    pub fn range(&self) -> std::ops::Range<usize> {
        self.first..self.end
    }

    /// All columns of the matrix.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Returns the cost of changing a weight of a column by `moved`.
    #[must_use]
    pub fn cost(&self, moved: f32, column: usize) -> f32 {
        let scaled = moved / self.diagonal(column);
        scaled * scaled
    }

    fn diagonal(&self, column: usize) -> f32 {
        self.inverse[(self.first + column) * self.columns + self.first + column]
    }

    /// Changes the columns of a row and returns the squared error.
    ///
    /// `errors` receives the error of each column, for the columns after the block.
    fn change(
        &self,
        (number, row): (usize, &mut [f32]),
        change: &mut dyn Change,
        errors: &mut [f32],
    ) -> f64 {
        let mut lost = 0.0;
        for at in 0..row.len() {
            let value = change.value(self, (number, row), at);
            let error = (row[at] - value) / self.diagonal(at);
            row[at] = value;
            errors[at] = error;
            if error == 0.0 {
                continue;
            }
            lost += f64::from(error) * f64::from(error);
            let line = &self.inverse[(self.first + at) * self.columns + self.first..];
            for (weight, factor) in row[at + 1..].iter_mut().zip(&line[at + 1..]) {
                *weight -= error * factor;
            }
        }
        lost
    }
}
