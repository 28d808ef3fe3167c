//! Truncated singular value decompositions of matrices in memory.

#[cfg_attr(not(feature = "linalg"), path = "absent.rs")]
mod decompose;

pub use self::decompose::{check_available, memory, product_svd, truncated_svd};

/// Part of a matrix's decomposition to compute.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Extent {
    /// Number of singular values; all of them if the matrix has fewer.
    Rank(usize),
    /// Share of the sum of squares, from 0 to 1, that the values must have, up to a maximum rank.
    Energy {
        /// Share of the sum of squares.
        share: f64,
        /// The largest rank that is looked for.
        most: usize,
    },
}

/// The largest singular values of a matrix, and their vectors.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Svd {
    /// Singular vectors of the rows: `rows` times `rank`, row by row.
    pub left: Vec<f32>,
    /// Singular values, the largest first.
    pub values: Vec<f32>,
    /// Singular vectors of the columns: `rank` times `columns`, row by row.
    pub right: Vec<f32>,
    /// Sum of squares of the matrix, which equals the sum of squares of all its singular values.
    pub energy: f64,
}

impl Svd {
    /// Returns the number of singular values.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.values.len()
    }

    /// The share of the energy that these singular values have; 1 for a matrix of zeros.
    #[must_use]
    pub fn share(&self) -> f64 {
        let kept: f64 = self.values.iter().map(|value| f64::from(*value).powi(2)).sum();
        if self.energy > 0.0 { (kept / self.energy).min(1.0) } else { 1.0 }
    }

    /// Returns two factors whose product is the matrix of these singular values: the vectors of the
    /// rows, and those of the `columns` columns, each times the roots of the values, so that both
    /// are of one size and lose the same when they are rounded.
    #[must_use]
    pub fn into_factors(self, columns: usize) -> [Vec<f32>; 2] {
        let Self { mut left, values, mut right, .. } = self;
        for row in left.chunks_exact_mut(values.len().max(1)) {
            row.iter_mut().zip(&values).for_each(|(element, value)| *element *= value.sqrt());
        }
        for (row, value) in right.chunks_exact_mut(columns.max(1)).zip(&values) {
            row.iter_mut().for_each(|element| *element *= value.sqrt());
        }
        [left, right]
    }
}
