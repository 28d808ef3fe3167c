//! Little-endian fields, one after the other.

use alloc::format;
use alloc::vec::Vec;

use apr_core::{ByteSource, Error, Result, read_vec};

/// Reads the first bytes of a file, up to `len`.
///
/// # Errors
/// E002 when the file ends before, E007 when reading fails.
pub(crate) fn read_front(source: &dyn ByteSource, len: u64) -> Result<Vec<u8>> {
    if source.len() < len {
        return Err(
            Error::corrupt("the file is truncated: it ends inside the header").at(source.len())
        );
    }
    read_vec(source, 0, len)
}

/// A part of a file, read from its start on.
#[derive(Debug, Clone)]
pub(crate) struct Fields<'a> {
    bytes: &'a [u8],
    /// Offset of the part in the file.
    base: u64,
    at: usize,
}

impl<'a> Fields<'a> {
    pub(crate) fn new(bytes: &'a [u8], base: u64) -> Self {
        Self { bytes, base, at: 0 }
    }

    /// Returns the offset of the next field in the file.
    pub(crate) fn position(&self) -> u64 {
        self.base + self.at as u64
    }

    /// Bytes that are left.
    pub(crate) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Returns the next `len` bytes; `what` names them in errors.
    ///
    /// # Errors
    /// E002 when fewer are left.
    pub(crate) fn take(&mut self, len: usize, what: &str) -> Result<&'a [u8]> {
        let end = self.at.checked_add(len);
        let Some((taken, end)) = end.and_then(|end| Some((self.bytes.get(self.at..end)?, end)))
        else {
            let message = format!("{what} takes {len} bytes, but {} are left", self.left());
            return Err(Error::corrupt(message).at(self.position()));
        };
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        let at = self.position();
        let bytes = self.take(N, what)?;
        bytes.try_into().map_err(|_| Error::corrupt(format!("{what} is cut")).at(at))
    }

    pub(crate) fn u8(&mut self, what: &str) -> Result<u8> {
        self.array(what).map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self, what: &str) -> Result<u16> {
        self.array(what).map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self, what: &str) -> Result<u32> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self, what: &str) -> Result<u64> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// Bytes after the last field that was read.
    pub(crate) fn rest(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }
}
