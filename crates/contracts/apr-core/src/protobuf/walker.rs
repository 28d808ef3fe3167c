//! Bytes of a source, through a small window.

use alloc::format;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use crate::{ByteSource, Error, Limits, Result};

/// Bytes that are read at a time.
const WINDOW: u64 = 16 << 10;

/// Longest varint: ten bytes hold 64 bits.
const MAX_VARINT: u64 = 10;

/// Bytes of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span {
    /// Offset from the start of the source, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

impl Span {
    /// Returns the offset of the first byte after the span.
    ///
    /// A span is within its source, so the sum does not overflow.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.offset.saturating_add(self.len)
    }
}

/// Reads the messages of one source, through a window of 16 KiB.
pub struct Walker<'a> {
    pub(super) source: &'a dyn ByteSource,
    window: Vec<u8>,
    /// Offset of the window in the source.
    start: u64,
    /// Bytes that may still be kept in memory.
    budget: u64,
    limits: Limits,
}

impl<'a> Walker<'a> {
    /// A walk over a source.
    #[must_use]
    pub fn new(source: &'a dyn ByteSource, limits: &Limits) -> Self {
        Self { source, window: Vec::new(), start: 0, budget: limits.max_program(), limits: *limits }
    }

    /// Counts bytes that the caller is about to keep in memory.
    ///
    /// # Errors
    /// E008 when all that was kept exceeds [`Limits::max_program`].
    pub fn keep(&mut self, bytes: u64) -> Result<()> {
        match self.budget.checked_sub(bytes) {
            Some(rest) => {
                self.budget = rest;
                Ok(())
            }
            None => Err(self.limits.beyond_program()),
        }
    }

    /// Reads a span into a new vector, which counts as kept.
    ///
    /// # Errors
    /// E002 where it is not in the source, E007 when reading fails, E008 over the limit.
    pub fn bytes(&mut self, span: Span) -> Result<Vec<u8>> {
        self.keep(span.len)?;
        let len = usize::try_from(span.len)
            .map_err(|_| Error::memory("the bytes do not fit in memory"))?;
        if span.end() > self.source.len() {
            return Err(past_the_end(span.offset, self.source.len()));
        }

        let mut bytes = vec![0; len];
        if span.len > WINDOW {
            self.source.read_at(span.offset, &mut bytes)?;
        } else if len > 0 {
            let from = self.load(span.offset, span.len)?;
            bytes.copy_from_slice(&self.window[from..from + len]);
        }

        Ok(bytes)
    }

    /// The varint at `at`, and the first byte after it; it must end before `end`.
    ///
    /// # Errors
    /// E002 where it does not, E001 where it has more than 64 bits.
    pub fn varint(&mut self, at: u64, end: u64) -> Result<(u64, u64)> {
        let available = end.saturating_sub(at).min(MAX_VARINT);
        if available == 0 {
            return Err(cut_off(at));
        }
        let from = self.load(at, available)?;
        let to = from + usize::try_from(available).unwrap_or_default();
        decode_varint(&self.window[from..to])
            .map(|(value, len)| (value, at + len))
            .ok_or_else(|| if available < MAX_VARINT { cut_off(at) } else { overlong(at) })
    }

    /// `N` bytes at `at`, which must end before `end`.
    ///
    /// # Errors
    /// E002 where they do not.
    pub fn fixed<const N: usize>(&mut self, at: u64, end: u64) -> Result<[u8; N]> {
        if end.saturating_sub(at) < N as u64 {
            return Err(cut_off(at));
        }
        let from = self.load(at, N as u64)?;
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.window[from..from + N]);
        Ok(bytes)
    }

    /// Loads `len` bytes from `at` on into the window and returns their position in it.
    ///
    /// `len` is at most [`WINDOW`].
    fn load(&mut self, at: u64, len: u64) -> Result<usize> {
        let end = at.checked_add(len).filter(|&end| end <= self.source.len());
        let end = end.ok_or_else(|| past_the_end(at, self.source.len()))?;
        if at < self.start || end > self.start + self.window.len() as u64 {
            let len = (self.source.len() - at).min(WINDOW);
            self.window.resize(usize::try_from(len).unwrap_or_default(), 0);
            self.start = at;
            self.source.read_at(at, &mut self.window).inspect_err(|_| self.window.clear())?;
        }
        Ok(usize::try_from(at - self.start).unwrap_or_default())
    }
}

impl fmt::Debug for Walker<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Walker")
            .field("len", &self.source.len())
            .field("budget", &self.budget)
            .finish_non_exhaustive()
    }
}

/// Decodes the varint at the start of the bytes, and returns it with its length.
///
/// Returns `None` if it does not end, or has more than 64 bits.
///
/// ```
/// assert_eq!(apr_core::protobuf::decode_varint(&[0x96, 0x01, 0xff]), Some((150, 2)));
/// ```
#[must_use]
pub fn decode_varint(bytes: &[u8]) -> Option<(u64, u64)> {
    let mut value = 0_u64;
    for (&byte, index) in bytes.iter().zip(0..MAX_VARINT) {
        // Of the tenth byte only the lowest bit has a place; libraries ignore the others.
        value |=
            u64::from(byte & 0x7f).checked_shl(7 * u32::try_from(index).unwrap_or_default())?;
        if byte & 0x80 == 0 {
            return Some((value, index + 1));
        }
    }
    None
}

pub(super) fn cut_off(at: u64) -> Error {
    Error::corrupt("a value ends after the message that holds it, or the file is truncated").at(at)
}

fn overlong(at: u64) -> Error {
    Error::format("a number takes more than ten bytes").at(at)
}

fn past_the_end(at: u64, len: u64) -> Error {
    Error::corrupt(format!("the file is truncated to {len} bytes")).at(at)
}
