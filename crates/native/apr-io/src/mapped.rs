#![allow(
    unsafe_code,
    reason = "mapping a file is the one thing here that the compiler can't check"
)]

use std::path::Path;

use apr_core::{ByteSource, Result};
use memmap2::Mmap;

use crate::{FileSource, io_error};

/// A file mapped into memory. Tensors are borrowed in place, without a copy.
///
/// The file must not be truncated while it is mapped. Callers that need to survive that read
/// through [`FileSource`].
#[derive(Debug)]
pub struct MappedFile(Mmap);

impl MappedFile {
    /// Maps a regular file.
    ///
    /// # Errors
    /// E007.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let source = FileSource::open(path)?;
        // SAFETY: the map is read-only and handed out as bytes, for which every value is valid.
        // That nobody truncates the file is the caller's part, as documented.
        let map = unsafe { Mmap::map(&*source.file) };
        map.map(Self).map_err(|error| io_error(&error, path))
    }
}

impl ByteSource for MappedFile {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.0[..].read_at(offset, buf)
    }

    fn slice_at(&self, offset: u64, len: u64) -> Option<&[u8]> {
        self.0[..].slice_at(offset, len)
    }
}
