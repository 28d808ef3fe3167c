//! Truncated singular value decompositions of matrices in memory.

#[cfg_attr(not(feature = "linalg"), path = "absent.rs")]
mod decompose;

pub(crate) use self::decompose::check_available;
pub use self::decompose::{memory, truncated_svd};

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
}
