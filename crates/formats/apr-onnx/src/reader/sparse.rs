//! Sparse tensors, which are given as dense ones.

use std::sync::OnceLock;

use apr_core::{Error, Result, SharedSource};

use super::content::Content;

/// Bytes of indices that are read at a time.
const INDICES_AT_ONCE: u64 = 16 << 10;

/// The non-zero elements of a sparse tensor, and their positions.
#[derive(Debug)]
pub(crate) struct Sparse {
    pub(crate) values: Content,
    /// 64-bit integers: positions in the whole, or one for each dimension.
    pub(crate) indices: Content,
    /// Dimensions of the whole.
    pub(crate) shape: Vec<u64>,
    /// Integers of each position: 1, or one for each dimension.
    pub(crate) per_position: u64,
    /// Bytes of an element.
    pub(crate) width: u64,
    /// Positions in the whole, ascending. Read with the first element.
    pub(crate) positions: OnceLock<Vec<u64>>,
}

impl Sparse {
    /// Fills `buf` with bytes of the whole from `start` on, which must be there.
    pub(crate) fn read(&self, files: &[SharedSource], start: u64, buf: &mut [u8]) -> Result<()> {
        let positions = match self.positions.get() {
            Some(positions) => positions,
            None => {
                let read = self.read_positions(files)?;
                self.positions.get_or_init(|| read)
            }
        };

        buf.fill(0);
        let end = start + buf.len() as u64;

        // Positions are below the number of elements, whose bytes were counted: no sum overflows.
        let first = positions.partition_point(|&position| (position + 1) * self.width <= start);
        let last = positions.partition_point(|&position| position * self.width < end);
        let mut element = [0; 16];
        let element = &mut element[..usize::try_from(self.width).unwrap_or_default()];
        for (&position, index) in positions[first..last].iter().zip(first as u64..) {
            self.values.read_stored(files, index * self.width, element)?;
            for (byte, at) in element.iter().zip(position * self.width..) {
                if let Some(slot) =
                    at.checked_sub(start).and_then(|at| buf.get_mut(usize::try_from(at).ok()?))
                {
                    *slot = *byte;
                }
            }
        }

        Ok(())
    }

    fn read_positions(&self, files: &[SharedSource]) -> Result<Vec<u64>> {
        let elements: u64 = self.shape.iter().product();
        let one = 8 * self.per_position;
        // A position of thousands of dimensions is longer than what is read at a time.
        let piece = (INDICES_AT_ONCE / one).max(1) * one;
        let mut positions = Vec::new();
        let mut bytes = Vec::new();
        let mut at = 0;
        while at < self.indices.len {
            let len = piece.min(self.indices.len - at);
            bytes.resize(usize::try_from(len).unwrap_or_default(), 0);
            self.indices.read_stored(files, at, &mut bytes)?;
            for index in bytes.chunks_exact(usize::try_from(one).unwrap_or(1)) {
                let position = self.position(index).filter(|&position| position < elements);
                let position = position
                    .ok_or_else(|| Error::corrupt("one of its elements is outside its shape"))?;
                // ONNX demands this order, and `read` searches by halves.
                if positions.last().is_some_and(|&last| last >= position) {
                    return Err(Error::corrupt("its elements are not in ascending order"));
                }
                positions.push(position);
            }
            at += len;
        }

        Ok(positions)
    }

    /// Returns the linear position of an index, or `None` if it is out of range.
    fn position(&self, index: &[u8]) -> Option<u64> {
        let (words, _) = index.as_chunks::<8>();
        let mut indices = words.iter().map(|word| u64::try_from(i64::from_le_bytes(*word)).ok());
        if self.per_position == 1 && self.shape.len() != 1 {
            return indices.next()?;
        }
        let mut position = 0_u64;
        for (index, &dim) in indices.zip(&self.shape) {
            let index = index.filter(|&index| index < dim)?;
            position = position.checked_mul(dim)?.checked_add(index)?;
        }
        Some(position)
    }
}
