//! What an adapter adds to one tensor, as matrices in memory.

use std::ops::Range;

use apr_core::{CheckpointReader, DType, Error, Result};
use apr_tensor::element::widen_f32;
use apr_view::values;

/// Rows of the right matrix that are added in one pass over a row of the result.
const AT_ONCE: usize = 4;

/// A matrix in memory, by rows.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Matrix {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) values: Vec<f32>,
}

impl Matrix {
    /// A tensor of an adapter; dimensions after the first are one.
    ///
    /// # Errors
    /// E001 for what is no matrix of numbers, E002 where a value is not finite, E008 when it does
    /// not fit in memory.
    pub(crate) fn read(reader: &dyn CheckpointReader, tensor: usize) -> Result<Self> {
        let info = &reader.tensors()[tensor];
        let named = |error: Error| error.for_tensor(&info.name);
        let large = || named(Error::memory("the matrix does not fit in memory"));
        let elements = info.shape.elements().ok_or_else(large)?;
        let rows = info.shape.dims().first().copied().unwrap_or(1);
        let columns = elements.checked_div(rows).unwrap_or_default();
        let values = read(reader, tensor, 0..elements).map_err(named)?;
        if let Some(at) = values.iter().position(|value| !value.is_finite()) {
            return Err(named(Error::corrupt(format!("element {at} is {}", values[at]))));
        }
        let size = |dimension: u64| usize::try_from(dimension).map_err(|_| large());
        Ok(Self { rows: size(rows)?, columns: size(columns)?, values })
    }

    pub(crate) fn transposed(self) -> Self {
        let mut values = Vec::with_capacity(self.values.len());
        for column in 0..self.columns {
            values.extend((0..self.rows).map(|row| self.values[row * self.columns + column]));
        }
        Self { rows: self.columns, columns: self.rows, values }
    }

    /// The first columns.
    pub(crate) fn cut(self, columns: u64) -> Self {
        let columns = usize::try_from(columns).unwrap_or(usize::MAX).min(self.columns);
        let rows = self.values.chunks_exact(self.columns.max(1));
        let values = rows.flat_map(|row| &row[..columns]).copied().collect();
        Self { rows: self.rows, columns, values }
    }

    /// Some of the rows.
    pub(crate) fn chosen(&self, rows: impl Iterator<Item = usize>) -> Self {
        let values: Vec<f32> = rows.flat_map(|row| self.row(row)).copied().collect();
        let rows = values.len().checked_div(self.columns).unwrap_or_default();
        Self { rows, columns: self.columns, values }
    }

    /// The product with another matrix, whose rows are as many as the columns of this one.
    pub(crate) fn times(&self, other: &Self) -> Self {
        Product { left: self.clone(), right: other.clone() }.whole()
    }

    /// Returns the core of a kernel, whose columns are `[right, height, width]`, times a matrix in
    /// the place of its second dimension: rows of `[columns of the matrix, height, width]`. `None`
    /// if the sizes do not match.
    pub(crate) fn contracted(&self, right: &Self) -> Option<Self> {
        let size = self.columns.checked_div(right.rows)?;
        if size == 0 || size * right.rows != self.columns {
            return None;
        }
        let columns = right.columns.checked_mul(size)?;
        let mut values = vec![0.0; self.rows.checked_mul(columns)?];
        for (row, out) in values.chunks_exact_mut(columns.max(1)).enumerate() {
            for (inner, kernel) in self.row(row).chunks_exact(size).enumerate() {
                for (factor, out) in right.row(inner).iter().zip(out.chunks_exact_mut(size)) {
                    out.iter_mut().zip(kernel).for_each(|(out, value)| *out += factor * value);
                }
            }
        }
        Some(Self { rows: self.rows, columns, values })
    }

    /// Multiplies each row by a factor.
    pub(crate) fn scale_rows(&mut self, factors: &[f32]) {
        for (row, factor) in self.values.chunks_exact_mut(self.columns.max(1)).zip(factors) {
            row.iter_mut().for_each(|value| *value *= factor);
        }
    }

    pub(crate) fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.columns..][..self.columns]
    }
}

/// Elements of a tensor, in single precision.
pub(crate) fn read(
    reader: &dyn CheckpointReader,
    tensor: usize,
    range: Range<u64>,
) -> Result<Vec<f32>> {
    let info = &reader.tensors()[tensor];
    let is_plain = matches!(info.dtype, DType::F32 | DType::F16 | DType::BF16);
    if !is_plain {
        let values = values::read(reader, tensor, range)?;
        #[expect(clippy::cast_possible_truncation, reason = "PEFT computes in single precision")]
        return Ok(values.into_iter().map(|value| value as f32).collect());
    }
    let width = info.dtype.block_bytes();
    let large = |_| Error::memory("the range does not fit in memory");
    let len = usize::try_from((range.end - range.start) * width).map_err(large)?;
    let (mut bytes, mut values) = (vec![0; len], Vec::new());
    reader.read_tensor(tensor, range.start * width, &mut bytes)?;
    widen_f32(info.dtype, &bytes, &mut values);
    Ok(values)
}

/// The product of two matrices, which is not formed as a whole.
#[derive(Debug)]
pub(crate) struct Product {
    pub(crate) left: Matrix,
    pub(crate) right: Matrix,
}

impl Product {
    /// Creates the product of two matrices, or returns `None` if their shapes do not fit.
    pub(crate) fn new(left: Matrix, right: Matrix) -> Option<Self> {
        (left.columns == right.rows).then_some(Self { left, right })
    }

    pub(crate) fn whole(&self) -> Matrix {
        let (rows, columns) = self.shape();
        let mut values = vec![0.0; rows * columns];
        // A matrix without columns has no rows to fill.
        for (row, out) in values.chunks_exact_mut(columns.max(1)).enumerate() {
            self.add_row(row, 0..columns, out);
        }
        Matrix { rows, columns, values }
    }

    fn shape(&self) -> (usize, usize) {
        (self.left.rows, self.right.columns)
    }

    /// Adds elements of a row to `out`.
    fn add_row(&self, row: usize, columns: Range<usize>, out: &mut [f32]) {
        let right = |k: usize| &self.right.row(k)[columns.clone()];
        let factors = self.left.row(row);
        let groups = factors.chunks_exact(AT_ONCE);
        for (at, &factor) in groups.remainder().iter().enumerate() {
            let at = factors.len() - groups.remainder().len() + at;
            out.iter_mut().zip(right(at)).for_each(|(out, value)| *out += factor * value);
        }
        for (group, factors) in groups.enumerate() {
            let [a, b, c, d] = [0, 1, 2, 3].map(|at| right(group * AT_ONCE + at));
            let [fa, fb, fc, fd] = [factors[0], factors[1], factors[2], factors[3]];
            for (out, (((a, b), c), d)) in out.iter_mut().zip(a.iter().zip(b).zip(c).zip(d)) {
                *out += (fa * a + fb * b) + (fc * c + fd * d);
            }
        }
    }
}

/// Change of a tensor before scaling.
#[derive(Debug)]
pub(crate) enum Delta {
    /// LoRA (arXiv 2106.09685): the product of two matrices.
    Product(Product),
    /// LoHa (arXiv 2108.06098): two products, multiplied element by element.
    Hadamard(Product, Product),
    /// LoKr (arXiv 2212.10650): the Kronecker product of two matrices.
    Kronecker(Matrix, Matrix),
    /// LoRA of a stack of weights: a product for each.
    Experts(Vec<Product>),
    /// MiSS (arXiv 2409.15371): the columns of a matrix as rows, over and over.
    Repeated(Matrix),
}

impl Delta {
    /// Replaces the content of `out` by elements of a row.
    pub(crate) fn row(&self, row: usize, columns: Range<usize>, out: &mut Vec<f32>) {
        out.clear();
        out.resize(columns.len(), 0.0);
        match self {
            Self::Product(product) => product.add_row(row, columns, out),
            Self::Hadamard(first, second) => {
                let mut other = vec![0.0; columns.len()];
                first.add_row(row, columns.clone(), out);
                second.add_row(row, columns, &mut other);
                out.iter_mut().zip(&other).for_each(|(out, value)| *out *= value);
            }
            Self::Experts(products) => {
                let rows = products.first().map_or(1, |product| product.left.rows.max(1));
                if let Some(product) = products.get(row / rows) {
                    product.add_row(row % rows, columns, out);
                }
            }
            Self::Repeated(block) => {
                let of_row = row % block.columns;
                for (out, column) in out.iter_mut().zip(columns) {
                    *out = block.row(column % block.rows)[of_row];
                }
            }
            Self::Kronecker(first, second) => {
                let (large, small) = (first.row(row / second.rows), second.row(row % second.rows));
                for (out, column) in out.iter_mut().zip(columns) {
                    *out = large[column / second.columns] * small[column % second.columns];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(rows: usize, columns: usize, seed: f32) -> Matrix {
        let values = (0..rows * columns).map(|at| (at as f32).mul_add(seed, 1.0) % 7.0).collect();
        Matrix { rows, columns, values }
    }

    #[test]
    fn parts_of_rows_match_the_whole_product() {
        for rank in [1, 3, 4, 6, 9] {
            let (left, right) = (matrix(5, rank, 2.0), matrix(rank, 7, 3.0));
            let product = Product::new(left.clone(), right.clone()).expect("they fit");
            let delta = Delta::Product(product);
            for row in 0..5 {
                let expected: Vec<f32> = (0..7)
                    .map(|column| {
                        let term =
                            |k: usize| left.values[row * rank + k] * right.values[k * 7 + column];
                        (0..rank).map(term).sum()
                    })
                    .collect();
                let (mut whole, mut part) = (Vec::new(), Vec::new());
                delta.row(row, 0..7, &mut whole);
                assert_eq!(whole, expected, "rank {rank}");
                delta.row(row, 2..5, &mut part);
                assert_eq!(part, expected[2..5]);
            }
        }
    }

    #[test]
    fn kronecker_products_repeat_the_second_matrix() {
        let first = Matrix { rows: 1, columns: 2, values: vec![1.0, 10.0] };
        let second = Matrix { rows: 2, columns: 2, values: vec![1.0, 2.0, 3.0, 4.0] };
        let delta = Delta::Kronecker(first, second);
        let mut row = Vec::new();
        delta.row(1, 1..4, &mut row);
        assert_eq!(row, [4.0, 30.0, 40.0]);
    }

    #[test]
    fn transposing_twice_restores_the_matrix() {
        let before = matrix(3, 4, 5.0);
        assert_eq!(before.clone().transposed().transposed(), before);
        assert_eq!(before.clone().transposed().values[1], before.values[4]);
    }
}
