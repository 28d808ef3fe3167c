//! The elements of an array, in the order and with the bytes that a tensor has.

use apr_core::{ByteSource, Error, Result, Shape, TensorInfo};

use crate::header::Header;

/// An array in a source.
#[derive(Debug, Clone)]
pub(crate) struct Array {
    pub(crate) header: Header,
    /// Offset of the elements.
    pub(crate) offset: u64,
    /// Bytes of all elements.
    pub(crate) len: u64,
    width: u64,
}

impl Array {
    /// The array whose header was read at `start`; `available` bytes are there for all of it.
    pub(crate) fn new(header: Header, start: u64, available: u64) -> Result<Self> {
        let width = header.dtype.block_bytes();
        let len = header.shape.iter().try_fold(width, |len, &dim| len.checked_mul(dim));

        // A dimension of 0 leaves no elements, even where the product of the others is too large.
        let len = if header.shape.contains(&0) { Some(0) } else { len };
        let end = len.and_then(|len| len.checked_add(header.len));
        let Some(len) = len.filter(|_| end.is_some_and(|end| end <= available)) else {
            let message = format!(
                "an array of shape {:?} is expected, but the file is truncated",
                header.shape
            );
            return Err(Error::corrupt(message).at(start));
        };
        Ok(Self { offset: start + header.len, len, width, header })
    }

    /// Returns the description of the array as a tensor.
    pub(crate) fn info(&self, name: &str) -> TensorInfo {
        let Header { dtype, shape, .. } = &self.header;
        TensorInfo { name: name.to_owned(), dtype: *dtype, shape: Shape::from(shape.clone()) }
    }

    /// Returns `true` if the bytes are stored in the tensor's layout and byte order.
    pub(crate) fn is_flat(&self) -> bool {
        let long = self.header.shape.iter().filter(|dim| **dim > 1).count();
        !(self.header.big_endian || self.header.by_columns && long > 1)
    }

    /// Fills `buf` with the tensor's bytes from `start` on, which must be there.
    pub(crate) fn read(&self, source: &dyn ByteSource, start: u64, buf: &mut [u8]) -> Result<()> {
        if self.is_flat() {
            return source.read_at(self.offset + start, buf);
        }

        // Whole elements: the ones that are cut at either end are read beside the rest.
        let first = start / self.width;
        let skip = usize::try_from(start % self.width).unwrap_or_default();
        let count = (skip + buf.len()).div_ceil(self.bytes_of_one());
        let mut elements = vec![0; count * self.bytes_of_one()];
        // A single number has no columns, whatever its header says.
        if self.header.by_columns && !self.header.shape.is_empty() {
            self.gather(source, first, &mut elements)?;
        } else {
            source.read_at(self.offset + first * self.width, &mut elements)?;
        }

        if self.header.big_endian {
            self.swap(&mut elements);
        }

        buf.copy_from_slice(&elements[skip..skip + buf.len()]);
        Ok(())
    }

    fn bytes_of_one(&self) -> usize {
        usize::try_from(self.width).unwrap_or(1)
    }

    /// Reads elements of a column-major array in row-major order. For each position in a row, the
    /// elements of all requested rows are contiguous in the file.
    fn gather(&self, source: &dyn ByteSource, first: u64, elements: &mut [u8]) -> Result<()> {
        let one = self.bytes_of_one();
        let count = (elements.len() / one) as u64;
        let rows = self.header.shape[0];
        let row: u64 = self.header.shape[1..].iter().product();
        let (top, bottom) = (first / row, (first + count - 1) / row);
        let mut column = vec![0; usize::try_from(bottom - top + 1).unwrap_or_default() * one];
        for place in 0..row {
            // The first and the last row may be wanted in part.
            let (from, to) = (top + u64::from(top * row + place < first), bottom);
            let to = if to * row + place >= first + count { to.checked_sub(1) } else { Some(to) };
            let Some(to) = to.filter(|&to| to >= from) else { continue };
            let column = &mut column[..usize::try_from(to - from + 1).unwrap_or_default() * one];
            source
                .read_at(self.offset + (self.column(place) * rows + from) * self.width, column)?;
            for (element, at) in column.chunks_exact(one).zip(from..) {
                let index = usize::try_from(at * row + place - first).unwrap_or_default() * one;
                elements[index..index + one].copy_from_slice(element);
            }
        }

        Ok(())
    }

    /// Returns the column that holds a position in a row: the same indices, counted from the other
    /// end.
    fn column(&self, mut place: u64) -> u64 {
        let dims = &self.header.shape[1..];
        let (mut column, mut stride) = (0, dims.iter().product::<u64>());
        for &dim in dims.iter().rev() {
            stride /= dim;
            column += place % dim * stride;
            place /= dim;
        }
        column
    }

    fn swap(&self, elements: &mut [u8]) {
        // A complex number is two of half the length.
        let parts = if self.header.dtype == apr_core::DType::C64 { 2 } else { 1 };
        elements.chunks_exact_mut(self.bytes_of_one() / parts).for_each(<[u8]>::reverse);
    }
}
