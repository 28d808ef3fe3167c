//! Reading from front to back through a small window, so that skipped data is never fetched.

use apr_core::{ByteSource, Error, Result};

/// Window after a skip, in bytes: a tensor's header fits.
const FIRST_WINDOW: usize = 512;
/// Largest window, in bytes; also the maximum that [`Cursor::take`] returns in one call.
pub(super) const LAST_WINDOW: usize = 64 << 10;

/// A place in a source. It grows its window while reading on, and starts small again after a skip.
pub(super) struct Cursor<'a> {
    source: &'a dyn ByteSource,
    len: u64,
    at: u64,
    window: Vec<u8>,
    window_start: u64,
    next_window: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(source: &'a dyn ByteSource, len: u64) -> Self {
        Self { source, len, at: 0, window: Vec::new(), window_start: 0, next_window: FIRST_WINDOW }
    }

    /// Returns the offset of the next byte in the file.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Bytes up to the end of the file.
    pub(super) fn left(&self) -> u64 {
        self.len - self.at
    }

    /// Returns the next bytes, at most 64 KiB; `what` names them in the error if the file ends
    /// before.
    pub(super) fn take(&mut self, count: usize, what: &str) -> Result<&[u8]> {
        self.check(count as u64, what)?;
        let inside = self.inside().filter(|&start| count <= self.window.len() - start);
        let start = if let Some(start) = inside { start } else { self.fill(count)? };
        self.at += count as u64;
        Ok(&self.window[start..start + count])
    }

    pub(super) fn i32(&mut self, what: &str) -> Result<i32> {
        self.array(what).map(i32::from_le_bytes)
    }

    pub(super) fn f32(&mut self, what: &str) -> Result<f32> {
        self.array(what).map(f32::from_le_bytes)
    }

    /// Skips bytes, after checking that the file has them.
    pub(super) fn skip(&mut self, count: u64, what: &str) -> Result<()> {
        self.check(count, what)?;
        self.at += count;
        Ok(())
    }

    fn array(&mut self, what: &str) -> Result<[u8; 4]> {
        let mut word = [0; 4];
        word.copy_from_slice(self.take(4, what)?);
        Ok(word)
    }

    fn check(&self, count: u64, what: &str) -> Result<()> {
        if count <= self.left() {
            return Ok(());
        }
        let message =
            format!("{what} takes {count} bytes, but the file is truncated to {} bytes", self.len);
        Err(Error::corrupt(message).at(self.at))
    }

    /// Returns the position of the next byte in the window.
    fn inside(&self) -> Option<usize> {
        let start = usize::try_from(self.at.checked_sub(self.window_start)?).ok()?;
        (start <= self.window.len()).then_some(start)
    }

    fn fill(&mut self, count: usize) -> Result<usize> {
        let reading_on = self.inside().is_some();
        self.next_window =
            if reading_on { (self.next_window * 2).min(LAST_WINDOW) } else { FIRST_WINDOW };
        let left = usize::try_from(self.left()).unwrap_or(usize::MAX);
        self.window.resize(self.next_window.max(count).min(left), 0);
        self.window_start = self.at;
        self.source.read_at(self.at, &mut self.window)?;
        Ok(0)
    }
}
