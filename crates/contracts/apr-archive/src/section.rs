//! A part of a source as a source of its own.

use apr_core::{ByteSource, Error, Result};

/// A part of a source, with offsets from its own start.
pub struct Section<S> {
    source: S,
    start: u64,
    len: u64,
}

impl<S: ByteSource> Section<S> {
    /// Creates a source of the `len` bytes from `start` on.
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

#[cfg(test)]
mod tests {
    use apr_core::Code;

    use super::*;

    #[test]
    fn a_section_has_its_own_bytes_and_none_beyond() {
        let section = Section::new(vec![1_u8, 2, 3, 4, 5], 1, 3).unwrap();
        assert_eq!(section.len(), 3);
        let mut bytes = [0; 2];
        section.read_at(1, &mut bytes).unwrap();
        assert_eq!(bytes, [3, 4]);
        assert_eq!(section.slice_at(0, 3), Some(&[2, 3, 4][..]));
        assert_eq!(section.slice_at(2, 2), None);
        // The error names the place in the whole file.
        let error = section.read_at(2, &mut bytes).unwrap_err();
        assert_eq!((error.code(), error.offset()), (Code::Corrupt, Some(3)));
        assert_eq!(format!("{section:?}"), "Section { start: 1, len: 3, .. }");
        assert_eq!(Section::new(vec![0_u8; 4], 2, 3).unwrap_err().code(), Code::Corrupt);
    }
}
