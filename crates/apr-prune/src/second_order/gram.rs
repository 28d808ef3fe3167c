//! Products of the columns of a layer's inputs with each other.

use apr_core::{Error, Result};
use faer::linalg::matmul::triangular::{BlockStructure, matmul};
use faer::{Accum, MatMut, MatRef, Par};

use super::{len_of, solve};
use crate::plan::Amount;

/// Sums of products of columns over all rows of inputs: the half of the Hessian of the squared
/// error of the outputs.
#[derive(Debug, Clone, PartialEq)]
pub struct Gram {
    columns: usize,
    /// Row by row; the lower triangle counts.
    pub(super) sums: Vec<f32>,
    rows: u64,
}

impl Gram {
    /// Of no rows yet.
    ///
    /// # Errors
    /// E008 where it does not fit in memory.
    pub fn new(columns: usize) -> Result<Self> {
        let mut sums = Vec::new();
        let len = len_of(columns, columns)?;
        sums.try_reserve_exact(len).map_err(|_| {
            Error::memory(format!("products of {columns} columns do not fit in memory"))
        })?;
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
            return Err(Error::format(format!("its inputs are no rows of {len} numbers")));
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

    /// Prunes a matrix with rows of this length, given row by row, and updates what stays. Returns
    /// the error of the outputs over these inputs, relative to their norm.
    ///
    /// # Errors
    /// E001 for rows of another length and for amounts that are no share of a tensor and no
    /// pattern, E002 for weights that are not finite, or products that can't be factored.
    pub fn prune(self, weights: &mut [f32], columns: usize, amount: Amount) -> Result<f64> {
        if columns != self.columns {
            let message = format!("its inputs have {} columns, its rows {columns}", self.columns);
            return Err(Error::format(message));
        }
        if let Some(odd) = weights.iter().find(|value| !value.is_finite()) {
            return Err(Error::corrupt(format!("it has the value {odd}")));
        }
        solve::solve(self.sums, weights, columns, amount)
    }
}
