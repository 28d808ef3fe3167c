//! Little-endian integers of a structure, one after the other.

use apr_core::{Error, Result};

/// Bytes of a structure that are taken from the front.
#[derive(Debug, Clone)]
pub(crate) struct Bytes<'a> {
    rest: &'a [u8],
    /// End offset of the structure in the file, for error messages.
    end: u64,
    /// Bytes of an address.
    offset_size: u8,
    /// Bytes of a length.
    length_size: u8,
}

impl<'a> Bytes<'a> {
    pub(crate) fn new(bytes: &'a [u8], at: u64, sizes: (u8, u8)) -> Self {
        let end = at.saturating_add(bytes.len() as u64);
        Self { rest: bytes, end, offset_size: sizes.0, length_size: sizes.1 }
    }

    /// Returns the offset of the next byte in the file.
    pub(crate) fn at(&self) -> u64 {
        self.end.saturating_sub(self.rest.len() as u64)
    }

    pub(crate) fn len(&self) -> usize {
        self.rest.len()
    }

    /// Bytes of addresses and of lengths.
    pub(crate) fn sizes(&self) -> (u8, u8) {
        (self.offset_size, self.length_size)
    }

    /// The next `len` bytes.
    ///
    /// # Errors
    /// E002 where the structure ends before.
    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or_else(|| {
            Error::corrupt("an HDF5 structure ends before its last field").at(self.at())
        })?;
        self.rest = rest;
        Ok(taken)
    }

    /// The next `len` bytes as a structure of their own.
    pub(crate) fn part(&mut self, len: usize) -> Result<Self> {
        let at = self.at();
        let sizes = self.sizes();
        Ok(Self::new(self.take(len)?, at, sizes))
    }

    pub(crate) fn skip(&mut self, len: usize) -> Result<()> {
        self.take(len).map(drop)
    }

    /// An unsigned integer of up to eight bytes.
    pub(crate) fn integer(&mut self, size: usize) -> Result<u64> {
        let bytes = self.take(size)?;
        Ok(bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    }

    pub(crate) fn u8(&mut self) -> Result<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    pub(crate) fn u16(&mut self) -> Result<u16> {
        self.take(2).map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]))
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        self.take(4).map(|bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    /// An address; `None` for the one that is undefined, all of whose bits are set.
    pub(crate) fn address(&mut self) -> Result<Option<u64>> {
        let size = self.offset_size;
        let value = self.integer(size.into())?;
        let undefined = u64::MAX >> (64 - 8 * u32::from(size));
        Ok((value != undefined).then_some(value))
    }

    pub(crate) fn length(&mut self) -> Result<u64> {
        self.integer(self.length_size.into())
    }

    /// Checks the signature that a structure begins with.
    pub(crate) fn signature(&mut self, expected: &[u8; 4]) -> Result<()> {
        let at = self.at();
        if self.take(4)? != expected {
            let name = String::from_utf8_lossy(expected);
            return Err(Error::corrupt(format!("the signature {name} is missing")).at(at));
        }
        Ok(())
    }

    /// Takes the bytes up to a NUL, which is skipped, or all remaining bytes if there is none.
    pub(crate) fn until_nul(&mut self) -> &'a [u8] {
        let len = self.rest.iter().position(|&byte| byte == 0);
        let text = &self.rest[..len.unwrap_or(self.rest.len())];
        self.rest = &self.rest[len.map_or(self.rest.len(), |len| len + 1)..];
        text
    }
}
