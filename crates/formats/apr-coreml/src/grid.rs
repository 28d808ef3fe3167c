//! Blocks of a tensor: which scale, or which lookup table, an element has.

use apr_core::{Error, Result};

/// Divides a tensor into blocks, the same number of elements along each dimension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Grid {
    /// Size and number of blocks of each dimension. Adjacent dimensions are merged if possible.
    dims: Vec<(u64, u64)>,
}

impl Grid {
    /// Creates a grid from the number of blocks along each dimension.
    ///
    /// # Errors
    /// E002 if the blocks do not divide a dimension evenly.
    pub(crate) fn new(dims: &[u64], blocks: &[u64]) -> Result<Self> {
        let divides = |(dim, count): (&u64, &u64)| *count > 0 && dim.is_multiple_of(*count);
        if dims.len() != blocks.len() || !dims.iter().zip(blocks).all(divides) {
            let message = format!("{blocks:?} blocks do not divide a tensor of shape {dims:?}");
            return Err(Error::corrupt(message));
        }
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for (&dim, &count) in dims.iter().zip(blocks) {
            match merged.last_mut() {
                // A block goes on to the end of this dimension, or has one element of both.
                Some((outer, outer_count))
                    if count == 1 || (*outer == *outer_count && dim == count) =>
                {
                    *outer = outer.saturating_mul(dim);
                    *outer_count = outer_count.saturating_mul(count);
                }
                _ => merged.push((dim, count)),
            }
        }
        Ok(Self { dims: merged })
    }

    /// Puts the block of each element from `first` on, in row-major order, into `out`.
    pub(crate) fn blocks(&self, first: u64, out: &mut [usize]) {
        let Some((&(last, last_count), outer)) = self.dims.split_last() else {
            out.fill(0);
            return;
        };
        let (mut at, mut rest) = (first, out);
        while !rest.is_empty() && last > 0 {
            let (row, column) = (at / last, at % last);
            let mut base = 0;
            let (mut left, mut stride) = (row, last_count);
            for &(dim, count) in outer.iter().rev() {
                base += (left % dim) / (dim / count) * stride;
                left /= dim;
                stride *= count;
            }
            let len = usize::try_from(last - column).unwrap_or(usize::MAX).min(rest.len());
            let (run, others) = rest.split_at_mut(len);
            let block = last / last_count;
            for (column, out) in (column..).zip(run) {
                *out = usize::try_from(base + column / block).unwrap_or(usize::MAX);
            }
            at += len as u64;
            rest = others;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The block of each element, one dimension after the other.
    fn expected(dims: &[u64], blocks: &[u64]) -> Vec<usize> {
        let elements: u64 = dims.iter().product();
        let block_of = |element: u64| {
            let (mut left, mut stride, mut block) = (element, 1, 0);
            for (&dim, &count) in dims.iter().zip(blocks).rev() {
                block += (left % dim) / (dim / count) * stride;
                left /= dim;
                stride *= count;
            }
            usize::try_from(block).expect("few")
        };
        (0..elements).map(block_of).collect()
    }

    #[test]
    fn blocks_match_the_blocks_of_each_dimension() {
        for (dims, blocks) in [
            (&[6, 4][..], &[3, 2][..]),
            (&[6, 4], &[6, 1]),
            (&[6, 4], &[6, 4]),
            (&[6, 4], &[1, 4]),
            (&[2, 3, 4, 5], &[2, 1, 1, 1]),
            (&[2, 3, 4, 5], &[1, 3, 2, 1]),
            (&[2, 3, 4, 5], &[2, 3, 1, 5]),
            (&[7], &[1]),
            (&[], &[]),
        ] {
            let grid = Grid::new(dims, blocks).expect("even");
            let expected = expected(dims, blocks);
            for first in 0..expected.len() {
                let mut found = vec![0; expected.len() - first];
                grid.blocks(first as u64, &mut found);
                assert_eq!(found, expected[first..], "{dims:?} {blocks:?} from {first}");
            }
        }
        for (dims, blocks) in [(&[6][..], &[4][..]), (&[6], &[0]), (&[6], &[1, 1])] {
            assert!(Grid::new(dims, blocks).is_err());
        }
    }
}
