//! Small matrices, and those of which much is wanted, are decomposed exactly. Of others, a subspace
//! is found that holds their largest singular vectors, by products with a few random vectors that
//! are repeated and orthogonalized (Halko, Martinsson and Tropp 2011, arXiv:0909.4061, algorithm
//! 4.4), which costs a few passes over the matrix. The random numbers are of a fixed seed.

use apr_core::{Error, Result};
use faer::linalg::svd::{ComputeSvdVectors, svd_scratch};
use faer::prelude::default;
use faer::{Mat, MatRef, Par};

use super::{Extent, Svd};

/// Maximum smaller side of matrices that are always decomposed exactly.
const SMALL: usize = 384;

/// Inverse of the maximum share of a larger matrix's dimensions that the subspace can have.
const SHARE: usize = 3;

/// Products with the matrix and its transpose that turn the subspace to the largest singular
/// vectors. With so many, the error of a matrix of noise, where they differ least, is 0.1 % above
/// the smallest.
const ROUNDS: usize = 8;

/// The first vectors that are looked at for a share of the energy.
const FIRST: usize = 64;

/// Checks that this build decomposes matrices.
///
/// # Errors
/// E003 without the feature `linalg`.
pub fn check_available() -> Result<()> {
    Ok(())
}

/// Bytes that [`truncated_svd`] needs beside the matrix, about.
#[must_use]
pub fn memory(rows: usize, columns: usize, extent: Extent) -> u64 {
    let least = rows.min(columns);
    let elements = |count: usize| (count as u64).saturating_mul(4);
    let sides = rows.saturating_add(columns);
    match extent {
        Extent::Rank(rank) if is_exact(rank, least) => exact_memory(rows, columns),
        // The subspace, its image, and what orthogonalizing them takes.
        Extent::Rank(rank) => elements(sides.saturating_mul(4 * dimensions(rank))),
        Extent::Energy { .. } => exact_memory(rows, columns),
    }
}

fn exact_memory(rows: usize, columns: usize) -> u64 {
    let thin = ComputeSvdVectors::Thin;
    let scratch = svd_scratch::<f32>(rows, columns, thin, thin, Par::Seq, default());
    let vectors = rows.saturating_add(columns).saturating_mul(rows.min(columns));
    (scratch.size_bytes() as u64).saturating_add((vectors as u64).saturating_mul(4))
}

fn is_exact(rank: usize, least: usize) -> bool {
    least <= SMALL || dimensions(rank).saturating_mul(SHARE) > least
}

/// Returns the dimensions of the subspace for `rank` singular vectors.
///
/// The subspace has additional dimensions, so that the last singular vectors are also exact.
fn dimensions(rank: usize) -> usize {
    rank.saturating_add(rank / 2).saturating_add(16)
}

/// Decomposes a matrix, which is given row by row.
///
/// # Errors
/// E001 where the matrix is of another size, has NaN or infinity, or the decomposition does not
/// converge.
pub fn truncated_svd(matrix: &[f32], rows: usize, columns: usize, extent: Extent) -> Result<Svd> {
    if rows.checked_mul(columns) != Some(matrix.len()) || matrix.is_empty() {
        return Err(Error::format("the number of values does not match the matrix"));
    }
    let energy = matrix.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>();
    if !energy.is_finite() {
        return Err(Error::format("it has NaN or infinity"));
    }

    let least = rows.min(columns);
    let matrix = MatRef::from_row_major_slice(matrix, rows, columns);
    let found = match extent {
        Extent::Rank(rank) if is_exact(rank, least) => exact(matrix)?.first(rank),
        Extent::Rank(rank) => subspace(matrix, dimensions(rank))?.first(rank),
        Extent::Energy { share, most } => by_energy(matrix, energy, (share, most))?,
    };
    let Triplets { left, values, right } = found;
    Ok(Svd { left: by_rows(left.as_ref()), right: by_rows(right.transpose()), values, energy })
}

/// Decomposes the product of two matrices without forming it, exactly.
///
/// `left` is `rows` times `inner` and `right` is `inner` times `columns`, both row by row; `sizes`
/// are the three.
///
/// # Errors
/// E001 where a matrix is of another size, has NaN or infinity, or the decomposition does not
/// converge.
pub fn product_svd(
    left: &[f32],
    right: &[f32],
    sizes @ [rows, inner, columns]: [usize; 3],
    extent: Extent,
) -> Result<Svd> {
    let is_of = |matrix: &[f32], a: usize, b: usize| a.checked_mul(b) == Some(matrix.len());
    if !is_of(left, rows, inner) || !is_of(right, inner, columns) || sizes.contains(&0) {
        return Err(Error::format("the number of values does not match the matrices"));
    }
    if !left.iter().chain(right).all(|value| value.is_finite()) {
        return Err(Error::format("it has NaN or infinity"));
    }
    // Both are an orthogonal matrix times a small one; the products of the small ones have the
    // singular values.
    let left = MatRef::from_row_major_slice(left, rows, inner).qr();
    let right = MatRef::from_row_major_slice(right, inner, columns).transpose().qr();
    let core = left.thin_R() * right.thin_R().transpose();
    let all = exact(core.as_ref())?;
    let energy = all.values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>();
    let found = match extent {
        Extent::Rank(rank) => all.first(rank),
        Extent::Energy { share, most } if share >= 1.0 => all.first(most),
        Extent::Energy { share, most } => {
            let rank = all.rank_of(share * energy).unwrap_or(all.values.len());
            all.first(rank.min(most))
        }
    };
    let of_rows = left.compute_thin_Q() * &found.left;
    let of_columns = right.compute_thin_Q() * &found.right;
    Ok(Svd {
        left: by_rows(of_rows.as_ref()),
        right: by_rows(of_columns.transpose()),
        values: found.values,
        energy,
    })
}

/// Returns the elements of a matrix, row by row.
fn by_rows(matrix: MatRef<'_, f32>) -> Vec<f32> {
    matrix.row_iter().flat_map(|row| row.iter().copied().collect::<Vec<_>>()).collect()
}

/// Computes the singular values that have a share of the energy.
fn by_energy(
    matrix: MatRef<'_, f32>,
    energy: f64,
    (share, most): (f64, usize),
) -> Result<Triplets> {
    let least = matrix.nrows().min(matrix.ncols());
    if share >= 1.0 {
        // Rounded sums would reach all of it before the last.
        return Ok(exact(matrix)?.first(most));
    }

    let mut count = FIRST;
    while !is_exact(count, least) {
        let found = subspace(matrix, dimensions(count))?.first(count);
        let rank = found.rank_of(share * energy).filter(|rank| *rank < count);
        if let Some(rank) = rank.or((count > most).then_some(most)) {
            return Ok(found.first(rank.min(most)));
        }
        count *= 2;
    }

    let found = exact(matrix)?;
    let rank = found.rank_of(share * energy).unwrap_or(least);
    Ok(found.first(rank.min(most)))
}

/// Singular values with their vectors as columns.
struct Triplets {
    left: Mat<f32>,
    values: Vec<f32>,
    right: Mat<f32>,
}

impl Triplets {
    fn first(self, count: usize) -> Self {
        let count = count.min(self.values.len());
        Self {
            left: self.left.subcols(0, count).to_owned(),
            right: self.right.subcols(0, count).to_owned(),
            values: self.values[..count].to_vec(),
        }
    }

    /// Returns the number of values with this sum of squares, at least one.
    fn rank_of(&self, wanted: f64) -> Option<usize> {
        let mut sum = 0.0;
        let reached = self.values.iter().position(|value| {
            sum += f64::from(*value).powi(2);
            sum >= wanted
        });
        reached.map(|before| before + 1)
    }
}

fn exact(matrix: MatRef<'_, f32>) -> Result<Triplets> {
    let svd = matrix
        .thin_svd()
        .map_err(|_| Error::format("its singular value decomposition does not converge"))?;
    Ok(Triplets {
        left: svd.U().to_owned(),
        values: svd.S().column_vector().iter().copied().collect(),
        right: svd.V().to_owned(),
    })
}

/// Computes the largest singular values from a subspace with this number of dimensions.
fn subspace(matrix: MatRef<'_, f32>, dimensions: usize) -> Result<Triplets> {
    let transposed = matrix.transpose();
    let random = Mat::from_fn(matrix.ncols(), dimensions, |row, column| {
        uniform((row * dimensions + column) as u64)
    });
    let mut basis = orthogonal(&(matrix * &random));
    for _ in 0..ROUNDS {
        let image = orthogonal(&(transposed * &basis));
        basis = orthogonal(&(matrix * &image));
    }
    // Of what the matrix is within the subspace, whose vectors are those of the matrix but for a
    // turn by the basis.
    let within = exact((transposed * &basis).as_ref())?;
    Ok(Triplets { left: &basis * &within.right, values: within.values, right: within.left })
}

fn orthogonal(columns: &Mat<f32>) -> Mat<f32> {
    columns.qr().compute_thin_Q()
}

/// The random number of a position, between -1 and 1 (SplitMix64).
fn uniform(position: u64) -> f32 {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut bits = position.wrapping_add(1).wrapping_mul(STEP);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    // 24 bits are a number of single precision, exactly.
    ((bits ^ (bits >> 31)) >> 40) as f32 / (1 << 23) as f32 - 1.0
}
