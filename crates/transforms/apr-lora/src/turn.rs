//! Adapters that multiply a weight by a matrix instead of adding one: HRA, OFT, and the form of
//! MiSS that does both.

use apr_core::{CheckpointReader, Error, Result, TensorInfo};

use crate::configuration::Method;
use crate::form::rows_and_columns;
use crate::matrix::Matrix;

/// A matrix by which the rows of a weight are multiplied.
#[derive(Debug)]
pub(crate) enum Turn {
    /// HRA (arXiv 2405.17484): reflections, one after the other, each by a unit vector.
    Reflections(Matrix),
    /// OFT (arXiv 2306.07280): a matrix for each block of columns, or one for all.
    Blocks(Vec<Matrix>),
    /// MiSS (arXiv 2409.15371), its form `bat`: a matrix for each block of rows, which is added to
    /// its product with each block of columns, and to the weight.
    Products(Vec<Matrix>),
}

/// Returns an error unless a tensor makes a matrix for a weight of this shape.
///
/// # Errors
/// E001.
pub(crate) fn check(info: &TensorInfo, weight: &TensorInfo, method: Method) -> Result<()> {
    let dims = info.shape.dims();
    let fits = |(rows, columns): (u64, u64)| match (method, dims) {
        (Method::Hra { .. }, &[length, count]) => length == columns && count > 0,
        (Method::Oft { .. }, &[count, elements]) => block_size(elements).is_some_and(|size| {
            columns.is_multiple_of(size) && [1, columns / size].contains(&count)
        }),
        (Method::Miss, &[count, size, other]) => {
            size == other
                && size > 0
                && columns.is_multiple_of(size)
                && size.checked_mul(count) == Some(rows)
        }
        _ => false,
    };
    if rows_and_columns(&weight.shape).is_some_and(fits) {
        return Ok(());
    }
    let message = format!("{} of the adapter does not fit the base's {}", info.shape, weight.shape);
    Err(Error::format(message).for_tensor(&info.name))
}

/// The rows of a skew-symmetric matrix with this number of elements above the diagonal.
fn block_size(elements: u64) -> Option<u64> {
    let size = elements.checked_mul(8)?.checked_add(1)?.isqrt().checked_add(1)? / 2;
    (size > 1 && size * (size - 1) / 2 == elements).then_some(size)
}

impl Turn {
    /// Reads a tensor that was [checked](check).
    ///
    /// # Errors
    /// Those of [`Matrix::read`], and E002 for a matrix that can't be inverted.
    pub(crate) fn load(
        reader: &dyn CheckpointReader,
        tensor: usize,
        method: Method,
    ) -> Result<Self> {
        let info = &reader.tensors()[tensor];
        let matrix = Matrix::read(reader, tensor)?;
        let found = match method {
            Method::Hra { is_orthogonal } => {
                reflections(matrix, is_orthogonal).map(Self::Reflections)
            }
            Method::Oft { terms, bound } => {
                let count = matrix.rows;
                let blocks = matrix.values.chunks_exact(matrix.columns.max(1));
                let bound = bound.map(|bound| bound / (count as f64).sqrt());
                let made: Option<Vec<Matrix>> =
                    blocks.map(|block| orthogonal(&skew(block, bound), terms)).collect();
                made.map(Self::Blocks)
            }
            _ => {
                let size = info.shape.row_len().max(1);
                let size = usize::try_from(size).unwrap_or(usize::MAX);
                let blocks = matrix.values.chunks_exact(size.saturating_mul(size).max(1));
                let square =
                    |values: &[f32]| Matrix { rows: size, columns: size, values: values.to_vec() };
                Some(Self::Products(blocks.map(square).collect()))
            }
        };
        found.ok_or_else(|| Error::corrupt("its matrix can't be computed").for_tensor(&info.name))
    }

    /// Changes a whole row of the weight.
    pub(crate) fn apply(&self, row: usize, values: &mut [f32]) {
        match self {
            Self::Reflections(vectors) => {
                for vector in vectors.values.chunks_exact(vectors.columns.max(1)) {
                    let along: f32 = values.iter().zip(vector).map(|(a, b)| a * b).sum();
                    values.iter_mut().zip(vector).for_each(|(a, b)| *a -= 2.0 * along * b);
                }
            }
            Self::Blocks(blocks) => {
                let size = blocks.first().map_or(1, |block| block.columns.max(1));
                let blocks = blocks.iter().cycle();
                for (values, block) in values.chunks_exact_mut(size).zip(blocks) {
                    let before = values.to_vec();
                    for (value, of_block) in values.iter_mut().zip(block.values.chunks_exact(size))
                    {
                        *value = of_block.iter().zip(&before).map(|(a, b)| a * b).sum();
                    }
                }
            }
            Self::Products(blocks) => {
                let size = blocks.first().map_or(1, |block| block.columns.max(1));
                let Some(block) = blocks.get(row / size) else { return };
                let own = &block.values[row % size * size..][..size];
                for values in values.chunks_exact_mut(size) {
                    let before = values.to_vec();
                    values.iter_mut().zip(own).for_each(|(value, more)| *value += more);
                    for (factor, of_block) in before.iter().zip(block.values.chunks_exact(size)) {
                        values.iter_mut().zip(of_block).for_each(|(value, b)| *value += factor * b);
                    }
                }
            }
        }
    }
}

/// The columns of a matrix as rows of length 1, at right angles to each other if wanted.
fn reflections(columns: Matrix, is_orthogonal: bool) -> Option<Matrix> {
    let mut vectors = columns.transposed();
    let width = vectors.columns;
    for at in 0..vectors.rows {
        let (before, rest) = vectors.values.split_at_mut(at * width);
        let vector = &mut rest[..width];
        for other in before.chunks_exact(width.max(1)).filter(|_| is_orthogonal) {
            let along: f32 = vector.iter().zip(other).map(|(a, b)| a * b).sum();
            vector.iter_mut().zip(other).for_each(|(a, b)| *a -= along * b);
        }
        let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
        if length == 0.0 {
            return None;
        }
        vector.iter_mut().for_each(|value| *value /= length);
    }
    Some(vectors)
}

/// The skew-symmetric matrix with these elements above the diagonal, shortened to a norm.
fn skew(above: &[f32], most: Option<f64>) -> Matrix {
    let size = block_size(above.len() as u64).and_then(|size| usize::try_from(size).ok());
    let size = size.unwrap_or(1);
    let mut matrix = Matrix { rows: size, columns: size, values: vec![0.0; size * size] };
    let places = (0..size).flat_map(|row| (row + 1..size).map(move |column| (row, column)));
    for ((row, column), value) in places.zip(above) {
        matrix.values[row * size + column] = *value;
        matrix.values[column * size + row] = -value;
    }
    if let Some(most) = most {
        #[expect(clippy::cast_possible_truncation, reason = "PEFT computes in single precision")]
        let most = most as f32;
        let norm = matrix.values.iter().map(|value| value * value).sum::<f32>().sqrt();
        if norm > most {
            matrix.values.iter_mut().for_each(|value| *value = most * (*value / norm));
        }
    }
    matrix
}

/// The orthogonal matrix of a skew-symmetric one, by Cayley's transform: exact, or by some terms of
/// its series.
///
/// Returns `None` if the matrix can't be inverted.
fn orthogonal(skew: &Matrix, terms: Option<u64>) -> Option<Matrix> {
    let size = skew.rows;
    let identity = Matrix {
        rows: size,
        columns: size,
        values: (0..size * size).map(|at| f32::from(u8::from(at % (size + 1) == 0))).collect(),
    };
    let added = |sum: &mut Matrix, other: &Matrix, factor: f32| {
        sum.values.iter_mut().zip(&other.values).for_each(|(a, b)| *a += factor * b);
    };
    let Some(terms) = terms else {
        let (mut sum, mut difference) = (identity.clone(), identity);
        added(&mut sum, skew, 1.0);
        added(&mut difference, skew, -1.0);
        // X (I + Q) = I - Q, turned: (I + Q)^T X^T = (I - Q)^T.
        return solved(&sum.transposed(), &difference.transposed()).map(Matrix::transposed);
    };
    let mut made = identity;
    if terms > 1 {
        added(&mut made, skew, 2.0);
    }
    if terms > 2 {
        let mut power = skew.times(skew);
        added(&mut made, &power, 2.0);
        for _ in 3..terms.saturating_sub(1) {
            power = power.times(skew);
            added(&mut made, &power, 2.0);
        }
        power = power.times(skew);
        added(&mut made, &power, 1.0);
    }
    Some(made)
}

/// Returns X of `left` X = `right`, by elimination with row exchanges in double precision.
fn solved(left: &Matrix, right: &Matrix) -> Option<Matrix> {
    let (size, width) = (left.rows, right.columns);
    let row = |at: usize| {
        let values =
            left.values[at * size..][..size].iter().chain(&right.values[at * width..][..width]);
        values.map(|value| f64::from(*value)).collect::<Vec<f64>>()
    };
    let mut rows: Vec<Vec<f64>> = (0..size).map(row).collect();
    for pivot in 0..size {
        let magnitude = |at: &usize| rows[*at][pivot].abs();
        let best = (pivot..size).max_by(|a, b| magnitude(a).total_cmp(&magnitude(b)))?;
        rows.swap(pivot, best);
        let divisor = rows[pivot][pivot];
        if divisor == 0.0 || !divisor.is_finite() {
            return None;
        }
        rows[pivot].iter_mut().for_each(|value| *value /= divisor);
        let of_pivot = rows[pivot].clone();
        for (_, row) in rows.iter_mut().enumerate().filter(|(at, _)| *at != pivot) {
            let factor = row[pivot];
            if factor != 0.0 {
                row.iter_mut().zip(&of_pivot).for_each(|(value, p)| *value -= factor * p);
            }
        }
    }
    #[expect(clippy::cast_possible_truncation, reason = "PEFT computes in single precision")]
    let values =
        rows.iter().flat_map(|row| row[size..].iter().map(|value| *value as f32)).collect();
    Some(Matrix { rows: size, columns: width, values })
}
