//! The elements of a tensor, in the order and with the bytes that it has.

use std::sync::Arc;

use apr_core::{Error, Result, SharedSource, StoredRange, TensorDecoder};

use super::numbers::Numbers;
use super::sparse::Sparse;
use super::turned::{Blocks, Turned};

/// Bytes of packed elements that are unpacked at a time.
const UNPACKED_AT_ONCE: usize = 4096;

/// A tensor's elements, as the checkpoint gives them.
#[derive(Debug)]
pub(crate) struct Content {
    packed: Packed,
    /// Integers of fewer than 8 bits, which become bytes.
    narrow: Option<Narrow>,
    /// A matrix whose rows and columns are exchanged.
    turned: Option<Turned>,
    /// Bytes of all elements.
    pub(crate) len: u64,
}

/// A tensor whose elements are not bytes of a file as they are.
pub(crate) struct Decoder {
    pub(crate) content: Content,
    /// Blocks of all matrices of the model.
    pub(crate) blocks: Arc<Blocks>,
    /// Number of the matrix in the blocks.
    pub(crate) tensor: usize,
}

impl TensorDecoder for Decoder {
    fn range(&self) -> StoredRange {
        self.content.near()
    }

    fn read(&self, sources: &[SharedSource], offset: u64, buf: &mut [u8]) -> Result<()> {
        self.content.read(sources, (&self.blocks, self.tensor), offset, buf)
    }
}

/// Elements packed as `raw_data` has them.
#[derive(Debug)]
pub(crate) enum Packed {
    /// Elements stored unchanged in a range of a file.
    Flat(StoredRange),
    /// Elements stored as numbers of the schema.
    Numbers(Numbers),
    /// Non-zero elements and their positions.
    Sparse(Box<Sparse>),
}

/// Integers of less than a byte, from the lowest bits up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Narrow {
    pub(crate) bits: u32,
    pub(crate) is_signed: bool,
}

impl Content {
    /// Elements that are bytes of their own.
    pub(crate) fn whole(packed: Packed, len: u64) -> Self {
        Self { packed, narrow: None, turned: None, len }
    }

    /// `count` integers of less than a byte.
    pub(crate) fn narrow(packed: Packed, narrow: Narrow, count: u64) -> Self {
        Self { packed, narrow: Some(narrow), turned: None, len: count }
    }

    /// The range of a file that the tensor's bytes are.
    pub(crate) fn flat(&self) -> Option<StoredRange> {
        match (&self.packed, self.narrow, self.turned) {
            (Packed::Flat(range), None, None) => Some(*range),
            _ => None,
        }
    }

    /// The range of a file that holds the elements, if in another order or packed, and how they are
    /// packed there.
    pub(crate) fn stored_flat(&self) -> Option<(StoredRange, Option<Narrow>)> {
        match &self.packed {
            Packed::Flat(range) => Some((*range, self.narrow)),
            Packed::Numbers(_) | Packed::Sparse(_) => None,
        }
    }

    /// Exchanges rows and columns of a matrix of elements of `width` bytes, which has `rows` and
    /// `columns` in the file.
    pub(crate) fn turn(&mut self, [rows, columns]: [u64; 2], width: u64) {
        self.turned = (rows > 0 && columns > 0).then_some(Turned { rows, columns, width });
    }

    /// Returns `true` if the elements are wider here than in the file.
    pub(crate) fn is_narrow(&self) -> bool {
        self.narrow.is_some()
    }

    /// Returns the range of flat data, or an empty range at the start of the model's file.
    pub(crate) fn near(&self) -> StoredRange {
        match &self.packed {
            Packed::Flat(range) => *range,
            Packed::Numbers(_) | Packed::Sparse(_) => StoredRange { file: 0, offset: 0, len: 0 },
        }
    }

    /// Fills `buf` with the tensor's bytes from `start` on, which must be there.
    ///
    /// `blocks` are those of the reader, which knows the content as `tensor`.
    pub(crate) fn read(
        &self,
        files: &[SharedSource],
        blocks: (&Blocks, usize),
        start: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        if let Some(turned) = self.turned {
            let stored = |start: u64, buf: &mut [u8]| self.read_stored(files, start, buf);
            return turned.read(blocks, start, buf, &stored);
        }
        self.read_stored(files, start, buf)
    }

    /// Bytes in the order that the file has them.
    pub(crate) fn read_stored(
        &self,
        files: &[SharedSource],
        start: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        let Some(narrow) = self.narrow else { return self.packed.read(files, start, buf) };
        let per_byte = u64::from(8 / narrow.bits);
        let mut packed = [0; UNPACKED_AT_ONCE];
        let mut filled = 0;
        while filled < buf.len() {
            // An element becomes a byte, so a place in bytes is one in elements.
            let element = start + filled as u64;
            let first = element / per_byte;
            let left = (self.len - element).min((buf.len() - filled) as u64);
            let bytes = (element + left).div_ceil(per_byte) - first;
            let bytes = usize::try_from(bytes).unwrap_or(UNPACKED_AT_ONCE).min(UNPACKED_AT_ONCE);
            self.packed.read(files, first, &mut packed[..bytes])?;
            let skip = usize::try_from(element % per_byte).unwrap_or_default();
            let elements =
                packed[..bytes].iter().flat_map(|&byte| narrow.elements(byte)).skip(skip);
            let mut count = 0;
            for (slot, element) in buf[filled..].iter_mut().zip(elements) {
                *slot = element;
                count += 1;
            }

            filled += count;
        }

        Ok(())
    }
}

impl Narrow {
    /// Returns the number of bytes of `count` packed elements.
    pub(crate) fn packed_len(self, count: u64) -> u64 {
        let per_byte = u64::from(8 / self.bits);
        count.div_ceil(per_byte)
    }

    /// Returns the bits of an element, or `None` if its value does not fit.
    pub(crate) fn pack(self, element: u8) -> Option<u8> {
        let bits = element & (0xff >> (8 - self.bits));
        (self.elements(bits).next() == Some(element)).then_some(bits)
    }

    fn elements(self, byte: u8) -> impl Iterator<Item = u8> {
        let shift = 8 - self.bits;
        (0..8 / self.bits).map(move |at| {
            // The element's bits at the top, then down again with its sign.
            let top = byte << (shift - at * self.bits);
            if self.is_signed { (top.cast_signed() >> shift).cast_unsigned() } else { top >> shift }
        })
    }
}

impl Packed {
    pub(crate) fn read(&self, files: &[SharedSource], start: u64, buf: &mut [u8]) -> Result<()> {
        if buf.is_empty() {
            return Ok(());
        }
        match self {
            Self::Flat(range) => files[range.file].read_at(range.offset + start, buf),
            Self::Numbers(numbers) => numbers.read(&files[0], start, buf),
            Self::Sparse(sparse) => sparse.read(files, start, buf),
        }
    }

    /// Checks the number of stored bytes, if it is known without reading them.
    pub(crate) fn check_len(&self, expected: u64) -> Result<()> {
        let (len, at) = match self {
            Self::Flat(range) => (range.len, range.offset),
            Self::Numbers(numbers) => (numbers.len(), 0),
            Self::Sparse(_) => return Ok(()),
        };
        if len == expected {
            return Ok(());
        }
        Err(Error::corrupt(format!(
            "its type and shape require {expected} bytes, but its data have {len}"
        ))
        .at(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_bits_come_first() {
        let unsigned = Narrow { bits: 4, is_signed: false };
        assert_eq!(unsigned.elements(0xf2).collect::<Vec<_>>(), [2, 15]);
        let signed = Narrow { bits: 4, is_signed: true };
        assert_eq!(signed.elements(0xf2).map(u8::cast_signed).collect::<Vec<_>>(), [2, -1]);
        let pairs = Narrow { bits: 2, is_signed: true };
        assert_eq!(
            pairs.elements(0b1101_1000).map(u8::cast_signed).collect::<Vec<_>>(),
            [0, -2, 1, -1]
        );
    }

    #[test]
    fn elements_that_fit_are_packed_and_others_refused() {
        for bits in [2, 4] {
            for is_signed in [false, true] {
                let narrow = Narrow { bits, is_signed };
                let fitting = (0..=u8::MAX).filter(|&element| narrow.pack(element).is_some());
                let mut expected: Vec<u8> = (0..1 << bits)
                    .map(|value: u8| narrow.elements(value).next().expect("an element"))
                    .collect();
                expected.sort_unstable();
                assert_eq!(fitting.collect::<Vec<_>>(), expected);
            }
        }
        assert_eq!(Narrow { bits: 4, is_signed: true }.pack((-8_i8).cast_unsigned()), Some(8));
        assert_eq!(Narrow { bits: 4, is_signed: true }.pack(8), None);
    }
}
