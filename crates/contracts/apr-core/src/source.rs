//! Where bytes come from.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use crate::{Error, IoCause, Result};

/// Random access to a known number of bytes: a slice, a file, a browser `File`, an HTTP range.
///
/// There is no cursor, so one source serves many readers at once.
pub trait ByteSource: Send + Sync {
    /// Length in bytes.
    fn len(&self) -> u64;

    /// Fills `buf` with the bytes from `offset` on.
    ///
    /// # Errors
    /// E002 when the range ends past the source, E007 when reading fails.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// Returns the bytes if they are already in memory, or `None` if not or if out of range.
    fn slice_at(&self, offset: u64, len: u64) -> Option<&[u8]> {
        let _ = (offset, len);
        None
    }

    /// Returns `true` if there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A source that several readers share.
pub type SharedSource = Arc<dyn ByteSource>;

/// Reads a range into a new vector. The range is checked against the source before anything is
/// allocated.
///
/// # Errors
/// E002 when the range ends past the source, E007 when reading fails, E008 when it exceeds the
/// address space.
pub fn read_vec(source: &dyn ByteSource, offset: u64, len: u64) -> Result<Vec<u8>> {
    if offset.checked_add(len).is_none_or(|end| end > source.len()) {
        return Err(past_the_end(offset, len, source.len()));
    }
    let len = usize::try_from(len)
        .map_err(|_| Error::memory(format!("{len} bytes do not fit in memory")))?;
    let mut bytes = vec![0; len];
    source.read_at(offset, &mut bytes)?;
    Ok(bytes)
}

fn past_the_end(offset: u64, len: u64, source_len: u64) -> Error {
    Error::corrupt(format!(
        "{len} bytes are expected here, but the file is truncated to {source_len} bytes"
    ))
    .at(offset)
}

impl ByteSource for [u8] {
    fn len(&self) -> u64 {
        <[u8]>::len(self) as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let len = buf.len() as u64;
        let bytes = self
            .slice_at(offset, len)
            .ok_or_else(|| past_the_end(offset, len, ByteSource::len(self)))?;
        buf.copy_from_slice(bytes);
        Ok(())
    }

    fn slice_at(&self, offset: u64, len: u64) -> Option<&[u8]> {
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(usize::try_from(len).ok()?)?;
        self.get(start..end)
    }
}

impl ByteSource for Vec<u8> {
    fn len(&self) -> u64 {
        self.as_slice().len() as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.as_slice().read_at(offset, buf)
    }

    fn slice_at(&self, offset: u64, len: u64) -> Option<&[u8]> {
        self.as_slice().slice_at(offset, len)
    }
}

macro_rules! forward {
    ($($pointer:ty),*) => {$(
        impl<S: ByteSource + ?Sized> ByteSource for $pointer {
            fn len(&self) -> u64 {
                (**self).len()
            }

            fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
                (**self).read_at(offset, buf)
            }

            fn slice_at(&self, offset: u64, len: u64) -> Option<&[u8]> {
                (**self).slice_at(offset, len)
            }
        }
    )*};
}

forward!(&S, Box<S>, Arc<S>);

/// Checks that at least `len` bytes are available from `offset` on.
///
/// # Errors
/// E002.
pub fn check_range(offset: u64, len: usize, available: u64) -> Result<()> {
    match offset.checked_add(len as u64) {
        Some(end) if end <= available => Ok(()),
        _ => Err(Error::corrupt(format!("{len} bytes at {offset} end past its {available} bytes"))),
    }
}

/// Fills `buf` from `offset` on with bytes that are in several pieces, one after the other.
///
/// `lens` are the lengths of all pieces. `read` fills a buffer with bytes of a piece, from an
/// offset within it on. Only pieces with such bytes are read.
///
/// # Errors
/// Those of `read`.
pub fn read_pieces(
    lens: impl IntoIterator<Item = u64>,
    offset: u64,
    buf: &mut [u8],
    mut read: impl FnMut(usize, u64, &mut [u8]) -> Result<()>,
) -> Result<()> {
    let (mut start, mut at, mut rest) = (0_u64, offset, buf);
    for (piece, len) in lens.into_iter().enumerate() {
        if rest.is_empty() {
            break;
        }
        let end = start.saturating_add(len);
        if at < end {
            let count = usize::try_from(end - at).unwrap_or(usize::MAX).min(rest.len());
            let (head, tail) = rest.split_at_mut(count);
            read(piece, at - start, head)?;
            at += count as u64;
            rest = tail;
        }
        start = end;
    }
    Ok(())
}

/// The files of a model that spans several: shards, an index, companions.
///
/// Names are plain: relative, inside the model's folder. Implementations refuse absolute names,
/// `..`, and links that lead out.
pub trait SourceSet: Send + Sync {
    /// Opens a file of the model's folder.
    ///
    /// # Errors
    /// E001 for a name that leads out of the folder, E007 when it can't be opened.
    fn open(&self, name: &str) -> Result<Box<dyn ByteSource>>;

    /// Returns `true` if the folder has a file of this name, even if it can't be opened.
    fn has(&self, name: &str) -> bool {
        !self.open(name).is_err_and(|error| error.cause() == Some(IoCause::NotFound))
    }

    /// Names of the files in the folder and one level below (`1_Pooling/config.json`), sorted.
    ///
    /// # Errors
    /// E007 when the folder can't be read.
    fn list(&self) -> Result<Vec<String>>;
}
