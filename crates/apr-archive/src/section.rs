//! A part of a source as a source of its own.

use apr_core::{ByteSource, Error, Result};

/// Some bytes of a source, counted from their own start.
pub struct Section<S> {
    source: S,
    start: u64,
    len: u64,
}

impl<S: ByteSource> Section<S> {
    /// The `len` bytes from `start` on.
    ///
    /// # Errors
    /// E002 when the source ends before.
    pub fn new(source: S, start: u64, len: u64) -> Result<Self> {
        if start.checked_add(len).is_none_or(|end| end > source.len()) {
            return Err(Error::corrupt("this part reaches past the end of the file").at(start));
        }
        Ok(Self { source, start, len })
    }
}

impl<S: ByteSource> ByteSource for Section<S> {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > self.len) {
            let message = format!(
                "{} bytes are expected here, but the part of the file ends before",
                buf.len()
            );
            return Err(Error::corrupt(message).at(self.start.saturating_add(offset)));
        }
        self.source.read_at(self.start + offset, buf)
    }

    fn slice_at(&self, offset: u64, len: u64) -> Option<&[u8]> {
        offset.checked_add(len).filter(|&end| end <= self.len)?;
        self.source.slice_at(self.start + offset, len)
    }
}

impl<S> std::fmt::Debug for Section<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Section")
            .field("start", &self.start)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
