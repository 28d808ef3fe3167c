//! An archive's file with its compressed entries decoded after its end.

use std::fmt;

use apr_core::{ByteSource, Error, Result};

use crate::inflate::Inflated;

/// The bytes of a file, and after them the decoded bytes of entries of it.
pub struct Decoded<S> {
    file: S,
    /// Decoded entries in order, each with its offset; they follow each other without gaps.
    entries: Vec<(u64, Inflated<S>)>,
    len: u64,
}

impl<S: ByteSource> Decoded<S> {
    /// Creates a file without decoded entries.
    pub(crate) fn new(file: S) -> Self {
        let len = file.len();
        Self { file, entries: Vec::new(), len }
    }

    /// Adds an entry's bytes at the end, and returns their offset.
    pub(crate) fn push(&mut self, entry: Inflated<S>) -> Result<u64> {
        let at = self.len;
        let len = at.checked_add(entry.len());
        self.len =
            len.ok_or_else(|| Error::corrupt("the archive's entries take over 2^64 bytes"))?;
        self.entries.push((at, entry));
        Ok(at)
    }

    /// Returns the length of the file itself, in bytes.
    #[must_use]
    pub fn file_len(&self) -> u64 {
        self.file.len()
    }

    /// Returns the entry that holds this offset, and its start.
    fn entry(&self, offset: u64) -> Option<&(u64, Inflated<S>)> {
        let at = self.entries.partition_point(|(start, _)| *start <= offset);
        self.entries.get(at.checked_sub(1)?)
    }
}

impl<S: ByteSource> ByteSource for Decoded<S> {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        match self.entry(offset).filter(|_| offset >= self.file.len()) {
            Some((start, entry)) => entry.read_at(offset - start, buf),
            None => self.file.read_at(offset, buf),
        }
    }

    fn slice_at(&self, offset: u64, len: u64) -> Option<&[u8]> {
        // Decoded bytes lie past the end of the file, where it has no slice to give.
        self.file.slice_at(offset, len)
    }
}

impl<S> fmt::Debug for Decoded<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decoded")
            .field("entries", &self.entries)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
