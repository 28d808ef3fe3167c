//! Reading a file from front to back through a window.

use apr_core::{ByteSource, Error, Result};

/// Number of bytes read at a time; the first read has `FIRST_WINDOW` bytes.
const WINDOW: u64 = 1 << 18;
const FIRST_WINDOW: u64 = 1 << 10;

/// Bytes of the longest word.
const MAX_WORD: u64 = 65_535;

/// A place in a source.
pub(crate) struct Cursor<'a> {
    source: &'a dyn ByteSource,
    window: Vec<u8>,
    /// Offset of the window in the source.
    start: u64,
    pub(crate) at: u64,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(source: &'a dyn ByteSource, at: u64) -> Self {
        Self { source, window: Vec::new(), start: at, at }
    }

    /// Bytes between this place and the end of the source.
    pub(crate) fn left(&self) -> u64 {
        self.source.len().saturating_sub(self.at)
    }

    /// Returns the bytes of the window from this position on; empty at the end of the source.
    fn windowed(&mut self) -> Result<&[u8]> {
        let end = self.start + self.window.len() as u64;
        if self.at < self.start || self.at >= end {
            let wanted = (2 * self.window.len() as u64).clamp(FIRST_WINDOW, WINDOW);
            let len = wanted.min(self.left());
            self.window.resize(usize::try_from(len).unwrap_or_default(), 0);
            self.start = self.at;
            self.source.read_at(self.at, &mut self.window)?;
        }
        let from = usize::try_from(self.at - self.start).unwrap_or_default();
        Ok(self.window.get(from..).unwrap_or_default())
    }

    pub(crate) fn byte(&mut self) -> Result<u8> {
        let byte = self.windowed()?.first().copied();
        self.at += 1;
        byte.ok_or_else(|| Error::corrupt("the file is truncated").at(self.at - 1))
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        for byte in &mut bytes {
            *byte = self.byte()?;
        }
        Ok(bytes)
    }

    pub(crate) fn i32(&mut self) -> Result<i32> {
        Ok(i32::from_le_bytes(self.array()?))
    }

    pub(crate) fn i64(&mut self) -> Result<i64> {
        Ok(i64::from_le_bytes(self.array()?))
    }

    /// Skips `len` bytes, which must exist.
    pub(crate) fn skip(&mut self, len: u64) -> Result<()> {
        if len > self.left() {
            let message = format!("{len} bytes are expected here, but the file is truncated");
            return Err(Error::corrupt(message).at(self.at));
        }
        self.at += len;
        Ok(())
    }

    /// Skips a word and the byte that ends it, and adds the word to `text`. Returns the length of
    /// the word in bytes.
    pub(crate) fn word(&mut self, end: u8, mut text: Option<&mut Vec<u8>>) -> Result<u64> {
        let from = self.at;
        loop {
            let bytes = self.windowed()?;
            let len = bytes.iter().position(|&byte| byte == end);
            let word = &bytes[..len.unwrap_or(bytes.len())];
            if let Some(text) = text.as_deref_mut() {
                text.extend(word);
            }
            let (read, is_end) = (word.len() as u64, bytes.is_empty());
            self.at += read + u64::from(len.is_some());
            let word_len = self.at - from - u64::from(len.is_some());
            if word_len > MAX_WORD || is_end {
                let message = format!("a word is longer than {MAX_WORD} bytes, or cut off");
                return Err(Error::corrupt(message).at(from));
            }
            if len.is_some() {
                return Ok(word_len);
            }
        }
    }

    /// Fills `buf` with the bytes from this place on.
    pub(crate) fn read(&mut self, mut buf: &mut [u8]) -> Result<()> {
        while !buf.is_empty() {
            let at = self.at;
            let bytes = self.windowed()?;
            if bytes.is_empty() {
                return Err(Error::corrupt("the file is truncated").at(at));
            }
            let len = bytes.len().min(buf.len());
            let (head, tail) = buf.split_at_mut(len);
            head.copy_from_slice(&bytes[..len]);
            self.at += len as u64;
            buf = tail;
        }
        Ok(())
    }
}
