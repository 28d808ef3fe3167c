//! Products of the columns of a layer's inputs with each other.

use apr_core::{Error, Result};
use faer::linalg::matmul::triangular::{BlockStructure, matmul};
use faer::{Accum, MatMut, MatRef, Par};

use super::solve::{self, Change};

/// Sums of products of columns over all rows of inputs: the half of the Hessian of the squared
/// error of the outputs.
#[derive(Debug, Clone, PartialEq)]
pub struct Gram {
    columns: usize,
    /// Row by row; the lower triangle counts.
    sums: Vec<f32>,
    rows: u64,
}

impl Gram {
    /// Creates products without rows.
    ///
    /// # Errors
    /// E008 if they do not fit in memory.
    pub fn new(columns: usize) -> Result<Self> {
        let mut sums = Vec::new();
        let too_many =
            || Error::memory(format!("products of {columns} columns do not fit in memory"));
        let len = columns.checked_mul(columns).ok_or_else(too_many)?;
        sums.try_reserve_exact(len).map_err(|_| too_many())?;
        sums.resize(len, 0.0);
        Ok(Self { columns, sums, rows: 0 })
    }

    /// Length of a row of inputs.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Rows that were added.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Adds rows of inputs, one after another.
    ///
    /// # Errors
    /// E001 for NaN and infinity, and for rows of another length.
    pub fn add(&mut self, inputs: &[f32]) -> Result<()> {
        if self.columns == 0 || !inputs.len().is_multiple_of(self.columns) {
            let len = self.columns;
            return Err(Error::format(format!("its inputs must be rows of {len} numbers")));
        }
        if let Some(odd) = inputs.iter().find(|value| !value.is_finite()) {
            return Err(Error::format(format!("its inputs have the value {odd}")));
        }
        let rows = inputs.len() / self.columns;
        let inputs = MatRef::from_row_major_slice(inputs, rows, self.columns);
        matmul(
            MatMut::from_row_major_slice_mut(&mut self.sums, self.columns, self.columns),
            BlockStructure::TriangularLower,
            Accum::Add,
            inputs.transpose(),
            BlockStructure::Rectangular,
            inputs,
            BlockStructure::Rectangular,
            1.0,
            Par::Seq,
        );
        self.rows += rows as u64;
        Ok(())
    }

    /// Returns the mean square of each column's inputs, which weights the errors of the column's
    /// weights.
    #[must_use]
    pub fn mean_squares(&self) -> Vec<f32> {
        let rows = self.rows.max(1) as f32;
        let diagonal = self.sums.iter().step_by(self.columns + 1);
        diagonal.map(|square| square / rows).collect()
    }

    /// Checks the row length of a matrix.
    ///
    /// # Errors
    /// E001 if it differs from the number of inputs.
    pub(super) fn check_columns(&self, columns: usize) -> Result<()> {
        if columns == self.columns {
            return Ok(());
        }
        let message = format!("its inputs have {} columns, its rows {columns}", self.columns);
        Err(Error::format(message))
    }

    /// Returns the columns, sorted by the size of their inputs, largest first.
    pub(super) fn largest_first(&self) -> Vec<usize> {
        let square = |column: &usize| self.sums[column * (self.columns + 1)];
        let mut order: Vec<usize> = (0..self.columns).collect();
        order.sort_by(|a, b| square(b).total_cmp(&square(a)));
        order
    }

    /// Returns the products with the columns in another order.
    ///
    /// # Errors
    /// E008 where both do not fit in memory.
    pub(super) fn reordered(self, order: &[usize]) -> Result<Self> {
        let mut made = Self { rows: self.rows, ..Self::new(self.columns)? };
        for (row, a) in order.iter().enumerate() {
            for (column, b) in order[..=row].iter().enumerate() {
                made.sums[row * self.columns + column] =
                    self.sums[a.max(b) * self.columns + a.min(b)];
            }
        }
        Ok(made)
    }

    /// Changes a matrix of rows of this length, and updates the later columns after each change.
    ///
    /// The matrix is given row by row. Returns the error of the outputs over these inputs, relative
    /// to their norm.
    ///
    /// # Errors
    /// E001 for rows of another length, E002 for weights that are not finite, or products that
    /// can't be factored.
    pub fn rewrite(
        self,
        weights: &mut [f32],
        columns: usize,
        change: &mut dyn Change,
    ) -> Result<f64> {
        self.check_columns(columns)?;
        if let Some(odd) = weights.iter().find(|value| !value.is_finite()) {
            return Err(Error::corrupt(format!("it has the value {odd}")));
        }
        solve::solve(self.sums, weights, columns, change)
    }
}
