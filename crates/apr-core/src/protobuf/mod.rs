//! Protocol Buffers, walked over and not decoded.
//!
//! The weights of a model in ONNX, TensorFlow or Core ML lie inside one message of up to 2 GB. A decoder that fills
//! structs would hold the model in memory. A [`Walker`] reads field keys through a small window and skips what is
//! delimited by a length: a tensor costs the reading of its key, and its bytes are a [`Span`] to be read later.
//!
//! ```text
//! message  := field*
//! field    := key value            key: varint, number << 3 | wire type
//! value    := varint               type 0
//!           | 8 bytes              type 1, little-endian
//!           | length bytes         type 2: text, bytes, a message, or packed scalars
//!           | 4 bytes              type 5, little-endian
//! ```
//!
//! Every length is checked against the message that encloses it, messages nest [`MAX_DEPTH`] deep, and what a walk
//! keeps in memory counts against [`Limits::max_index`]. Groups (types 3 and 4) are refused: no model format has them.
//!
//! ```
//! use apr_core::Limits;
//! use apr_core::protobuf::Walker;
//!
//! // Field 1: the number 150. Field 2: the text "apr".
//! let bytes: &[u8] = b"\x08\x96\x01\x12\x03apr";
//! let mut walker = Walker::new(&bytes, &Limits::default());
//! let mut message = walker.message();
//! let number = message.next(&mut walker)?.expect("a field");
//! assert_eq!((number.number, number.integer()?), (1, 150));
//! let text = message.next(&mut walker)?.expect("a field");
//! assert_eq!(text.text(&mut walker)?, "apr");
//! assert!(message.next(&mut walker)?.is_none());
//! # Ok::<(), apr_core::Error>(())
//! ```

mod field;
mod runs;

use alloc::format;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

pub use field::{Field, Message, Value};
pub use runs::{Element, Run, Runs};

use crate::{ByteSource, Error, Limits, Result};

/// Most messages inside each other; protobuf's own libraries stop here too.
pub const MAX_DEPTH: u32 = 100;

/// Bytes that are read at a time.
const WINDOW: u64 = 16 << 10;

/// Longest varint: ten bytes hold 64 bits.
const MAX_VARINT: u64 = 10;

/// Bytes of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span {
    /// From the start of the source, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

impl Span {
    /// The first byte after it. A span lies within its source, so the sum does not overflow.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.offset.saturating_add(self.len)
    }
}

/// Reads the messages of one source, through a window of 16 KiB.
pub struct Walker<'a> {
    source: &'a dyn ByteSource,
    window: Vec<u8>,
    /// Where the window starts in the source.
    start: u64,
    /// Bytes that may still be kept in memory.
    budget: u64,
    limits: Limits,
}

impl<'a> Walker<'a> {
    /// A walk over a source.
    #[must_use]
    pub fn new(source: &'a dyn ByteSource, limits: &Limits) -> Self {
        Self { source, window: Vec::new(), start: 0, budget: limits.max_index, limits: *limits }
    }

    /// The message that the whole source is.
    #[must_use]
    pub fn message(&self) -> Message {
        Message::new(Span { offset: 0, len: self.source.len() }, 0)
    }

    /// The message in a span that was met before. It counts as one of the outermost.
    #[must_use]
    pub fn message_in(&self, span: Span) -> Message {
        Message::new(span, 0)
    }

    /// Counts bytes that the caller is about to keep in memory.
    ///
    /// # Errors
    /// E008 when all that was kept exceeds [`Limits::max_index`].
    pub fn keep(&mut self, bytes: u64) -> Result<()> {
        match self.budget.checked_sub(bytes) {
            Some(rest) => {
                self.budget = rest;
                Ok(())
            }
            None => {
                let limit = self.limits.max_index;
                Err(Error::memory(format!("what describes the model takes more than the limit of {limit} bytes")))
            }
        }
    }

    /// Reads a span into a new vector, which counts as kept.
    ///
    /// # Errors
    /// E002 where it is not in the source, E007 when reading fails, E008 over the limit.
    pub fn bytes(&mut self, span: Span) -> Result<Vec<u8>> {
        self.keep(span.len)?;
        let len = usize::try_from(span.len).map_err(|_| Error::memory("the bytes do not fit in memory"))?;
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

    /// Makes the window hold `len` bytes from `at` on, at most [`WINDOW`]; returns where in it they start.
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
        f.debug_struct("Walker").field("len", &self.source.len()).field("budget", &self.budget).finish_non_exhaustive()
    }
}

/// The varint that the bytes start with, and its length; `None` where it does not end, or has more than 64 bits.
///
/// ```
/// assert_eq!(apr_core::protobuf::decode_varint(&[0x96, 0x01, 0xff]), Some((150, 2)));
/// ```
#[must_use]
pub fn decode_varint(bytes: &[u8]) -> Option<(u64, u64)> {
    let mut value = 0_u64;
    for (&byte, index) in bytes.iter().zip(0..MAX_VARINT) {
        // Of the tenth byte only the lowest bit has a place; libraries ignore the others.
        value |= u64::from(byte & 0x7f).checked_shl(7 * u32::try_from(index).unwrap_or_default())?;
        if byte & 0x80 == 0 {
            return Some((value, index + 1));
        }
    }
    None
}

fn cut_off(at: u64) -> Error {
    Error::corrupt("a value ends after the message that holds it, or the file is truncated").at(at)
}

fn overlong(at: u64) -> Error {
    Error::format("a number takes more than ten bytes").at(at)
}

fn past_the_end(at: u64, len: u64) -> Error {
    Error::corrupt(format!("the file is truncated: it ends at byte {len}")).at(at)
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::Code;

    fn walk(bytes: &[u8]) -> Result<Vec<Field>> {
        let mut walker = Walker::new(&bytes, &Limits::default());
        let mut message = walker.message();
        let mut fields = Vec::new();
        while let Some(field) = message.next(&mut walker)? {
            fields.push(field);
        }
        Ok(fields)
    }

    #[test]
    fn a_length_may_not_exceed_the_message_around() {
        // Field 1 is a message of two bytes, whose field 2 claims four.
        let bytes: &[u8] = b"\x0a\x02\x12\x04\x08\x01\x08\x01";
        let outer = walk(bytes).expect("the outer message is sound")[0];
        let mut walker = Walker::new(&bytes, &Limits::default());
        let error = outer.message().and_then(|mut inner| inner.next(&mut walker)).expect_err("too long");
        assert_eq!((error.code(), error.offset()), (Code::Corrupt, Some(2)));
        for cut in [&b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f"[..], b"\x08", b"\x08\x80", b"\x0d\0\0\0", b"\x09\0"] {
            assert_eq!(walk(cut).expect_err("cut off").code(), Code::Corrupt, "{cut:?}");
        }
        for wrong in [&b"\x00\x00"[..], b"\x0b", b"\x0f", b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"] {
            assert_eq!(walk(wrong).expect_err("no field").code(), Code::Format, "{wrong:?}");
        }
    }

    #[test]
    fn repeated_numbers_are_read_packed_and_one_by_one() {
        let bytes: &[u8] = b"\x08\x01\x0a\x02\x02\x03\x08\x04";
        let mut walker = Walker::new(&bytes, &Limits::default());
        let (mut numbers, mut runs) = (Vec::new(), Runs::default());
        for field in walk(bytes).expect("three fields") {
            field.integers(&mut walker, &mut numbers).expect("numbers");
            runs.add(&mut walker, &field, Element::Varint).expect("numbers");
        }
        assert_eq!(numbers, [1, 2, 3, 4]);
        let found: Vec<_> = runs.runs().iter().map(|run| (run.span.offset, run.span.len, run.key_len)).collect();
        assert_eq!(found, [(0, 2, 1), (4, 2, 0), (6, 2, 1)]);
    }

    #[test]
    fn what_is_kept_is_counted() {
        let limits = Limits { max_index: 10, ..Limits::default() };
        let bytes: &[u8] = b"\x0a\x06abcdef";
        let mut walker = Walker::new(&bytes, &limits);
        let field = walk(bytes).expect("a field")[0];
        assert_eq!(field.text(&mut walker).expect("it fits"), "abcdef");
        assert_eq!(field.text(&mut walker).expect_err("twice does not").code(), Code::Memory);
    }
}
