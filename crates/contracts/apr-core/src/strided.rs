//! Which elements of a row of elements a tensor shows, and in what order.

use alloc::vec::Vec;
use alloc::{format, vec};

use crate::{Error, Result};

/// Elements at regular distances: sizes and strides, as in the arrays of NumPy and PyTorch.
///
/// For each dimension, the stride is the distance in elements between two adjacent indices. The
/// outermost dimension is first. Strides are not negative.
///
/// ```
/// use apr_core::Strided;
///
/// let mut part = Strided::contiguous(&[5, 4]);
/// part.slice(0, 2, 3)?;
/// part.transpose(&[1, 0])?;
/// assert_eq!((part.start(), part.dims(), part.strides()), (8, &[4, 3][..], &[1, 4][..]));
/// assert_eq!(part.span(), Some(12));
/// # Ok::<(), apr_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Strided {
    start: u64,
    dims: Vec<u64>,
    strides: Vec<u64>,
}

impl Strided {
    /// All elements of a tensor, in its order.
    #[must_use]
    pub fn contiguous(dims: &[u64]) -> Self {
        Self { start: 0, dims: dims.to_vec(), strides: row_major(dims) }
    }

    /// Elements from `start` on.
    ///
    /// # Errors
    /// E001 where there are not as many strides as dimensions.
    pub fn new(start: u64, dims: Vec<u64>, strides: Vec<u64>) -> Result<Self> {
        if dims.len() == strides.len() {
            return Ok(Self { start, dims, strides });
        }
        let message = format!("a shape of {dims:?} with {} strides", strides.len());
        Err(Error::format(message))
    }

    /// The first element.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Sizes of the dimensions.
    #[must_use]
    pub fn dims(&self) -> &[u64] {
        &self.dims
    }

    /// Elements between two indices of each dimension.
    #[must_use]
    pub fn strides(&self) -> &[u64] {
        &self.strides
    }

    /// Returns the number of elements, at most `u64::MAX`.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.checked_elements().unwrap_or(u64::MAX)
    }

    /// Returns the number of elements, or `None` if it does not fit in a `u64`.
    #[must_use]
    pub fn checked_elements(&self) -> Option<u64> {
        elements(&self.dims)
    }

    /// Returns the distance from the first element to the end of the last one, in elements.
    ///
    /// Returns `None` if it does not fit in a `u64`.
    #[must_use]
    pub fn span(&self) -> Option<u64> {
        if self.dims.contains(&0) {
            return Some(0);
        }
        let last = self.dims.iter().zip(&self.strides).try_fold(0_u64, |last, (dim, stride)| {
            last.checked_add((dim - 1).checked_mul(*stride)?)
        });
        last?.checked_add(1)
    }

    /// Reorders the dimensions.
    ///
    /// # Errors
    /// E001 where `order` is no order of them.
    pub fn transpose(&mut self, order: &[usize]) -> Result<()> {
        let mut sorted = order.to_vec();
        sorted.sort_unstable();
        if !sorted.iter().copied().eq(0..self.dims.len()) {
            let message =
                format!("{order:?} is not a permutation of {} dimensions", self.dims.len());
            return Err(Error::format(message));
        }
        self.dims = order.iter().map(|&axis| self.dims[axis]).collect();
        self.strides = order.iter().map(|&axis| self.strides[axis]).collect();
        Ok(())
    }

    /// Keeps `len` indices of a dimension, from `start` on.
    ///
    /// # Errors
    /// E001 where the dimension does not have them.
    pub fn slice(&mut self, axis: usize, start: u64, len: u64) -> Result<()> {
        let end = start.checked_add(len);
        if self.dims.get(axis).zip(end).is_none_or(|(&dim, end)| end > dim) {
            let dims = &self.dims;
            let message = format!("{len} from {start} on along dimension {axis} of {dims:?}");
            return Err(Error::format(message));
        }
        // Of no elements, the first is nowhere.
        let distance = start.checked_mul(self.strides[axis]);
        self.start = distance.and_then(|by| self.start.checked_add(by)).unwrap_or(self.start);
        self.dims[axis] = len;
        Ok(())
    }

    /// Changes the shape without moving elements.
    ///
    /// Returns `false` and changes nothing if the elements would have to be moved.
    ///
    /// # Errors
    /// E001 when the shape has another number of elements.
    pub fn reshape(&mut self, dims: &[u64]) -> Result<bool> {
        if self.checked_elements().is_none() || self.checked_elements() != elements(dims) {
            let message = format!("{:?} can't have the shape {dims:?}", self.dims);
            return Err(Error::format(message));
        }
        if self.strides != row_major(&self.dims) {
            return Ok(false);
        }
        self.dims = dims.to_vec();
        self.strides = row_major(dims);
        Ok(true)
    }

    /// Returns the same elements with the least number of dimensions.
    ///
    /// Dimensions of one element are removed, and dimensions whose elements follow each other are
    /// joined.
    #[must_use]
    pub fn joined(&self) -> Self {
        let mut joined = Self { start: self.start, dims: Vec::new(), strides: Vec::new() };
        // The stride of a dimension of one element says nothing.
        for (&dim, &stride) in self.dims.iter().zip(&self.strides).filter(|(dim, _)| **dim != 1) {
            match joined.dims.last_mut().zip(joined.strides.last_mut()) {
                Some((outer, distance)) if Some(*distance) == stride.checked_mul(dim) => {
                    *outer = outer.saturating_mul(dim);
                    *distance = stride;
                }
                _ => {
                    joined.dims.push(dim);
                    joined.strides.push(stride);
                }
            }
        }
        joined
    }

    /// Returns `true` if the elements are contiguous in this order.
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        self.dims.contains(&0) || matches!(self.joined().strides[..], [] | [1])
    }
}

/// Strides of a tensor whose last dimension is the innermost.
fn row_major(dims: &[u64]) -> Vec<u64> {
    let mut strides = vec![1_u64; dims.len()];
    for axis in (0..dims.len().saturating_sub(1)).rev() {
        strides[axis] = strides[axis + 1].saturating_mul(dims[axis + 1]);
    }
    strides
}

fn elements(dims: &[u64]) -> Option<u64> {
    if dims.contains(&0) {
        return Some(0);
    }
    dims.iter().try_fold(1_u64, |product, &dim| product.checked_mul(dim))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_located_as_in_numpy() {
        let mut part = Strided::contiguous(&[6, 5, 4]);
        assert!(part.is_contiguous());
        part.transpose(&[0, 2, 1]).expect("an order");
        assert_eq!((part.dims(), part.strides()), (&[6, 4, 5][..], &[20, 1, 4][..]));
        part.slice(1, 1, 2).expect("a part");
        assert_eq!((part.start(), part.elements(), part.span()), (1, 60, Some(118)));
        assert!(!part.is_contiguous());
        assert!(!part.reshape(&[60]).expect("as many"));
    }

    #[test]
    fn neighbours_that_run_on_are_joined() {
        let joined = |dims: &[u64], strides: &[u64]| {
            let joined = Strided::new(3, dims.to_vec(), strides.to_vec()).expect("a view").joined();
            assert_eq!(joined.start(), 3);
            (joined.dims().to_vec(), joined.strides().to_vec())
        };
        assert_eq!(joined(&[2, 1, 3, 4], &[12, 99, 4, 1]), (vec![24], vec![1]));
        assert_eq!(joined(&[2, 3, 4], &[24, 4, 1]), (vec![2, 12], vec![24, 1]));
        assert_eq!(joined(&[5, 4], &[0, 0]), (vec![20], vec![0]));
        assert_eq!(joined(&[1, 1], &[7, 7]), (vec![], vec![]));
    }

    #[test]
    fn operations_that_do_not_fit_the_shape_are_rejected() {
        let view = || Strided::contiguous(&[5, 4]);
        assert!(view().transpose(&[0, 0]).is_err() && view().transpose(&[1]).is_err());
        assert!(view().slice(0, 4, 2).is_err() && view().slice(2, 0, 1).is_err());
        assert!(view().slice(0, u64::MAX, 2).is_err());
        assert!(view().reshape(&[3, 7]).is_err());
        assert!(Strided::new(0, vec![2], vec![]).is_err());
    }

    #[test]
    fn numbers_that_are_too_large_do_not_panic() {
        let huge = Strided::new(0, vec![u64::MAX; 3], vec![u64::MAX; 3]).expect("three of each");
        assert_eq!((huge.span(), huge.checked_elements()), (None, None));
        assert!(!huge.is_contiguous());
        assert_eq!(Strided::contiguous(&[u64::MAX, u64::MAX, 0]).elements(), 0);
    }
}
