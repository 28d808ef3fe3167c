//! MessagePack, walked over: what is delimited by a length is skipped, and known by its place.

use std::ops::Range;

use apr_core::{ByteSource, Error, Limits, Result, read_vec};

/// Bytes that are read at a time.
const WINDOW: u64 = 64 << 10;

/// A value; texts, bytes and extensions are ranges of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    /// A map with this number of pairs, which follow.
    Map(u64),
    /// A list with this number of values, which follow.
    List(u64),
    /// Text in UTF-8.
    Text(Range<u64>),
    Bytes(Range<u64>),
    /// Bytes with a type of the program's own.
    Extension(i8, Range<u64>),
    Integer(i128),
    Bool(bool),
    /// A float or nil.
    Other(&'static str),
}

/// Reads values one after the other.
pub(crate) struct Cursor<'a> {
    source: &'a dyn ByteSource,
    window: Vec<u8>,
    /// Offset of the window in the file.
    start: u64,
    at: u64,
    end: u64,
    limits: &'a Limits,
    /// Bytes that were kept.
    kept: u64,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(source: &'a dyn ByteSource, limits: &'a Limits) -> Self {
        let end = source.len();
        Self { source, window: Vec::new(), start: 0, at: 0, end, limits, kept: 0 }
    }

    /// Returns the offset of the next value.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// Moves to a range inside the readable bytes, and limits reading to it. Returns the previous
    /// limit.
    pub(crate) fn go(&mut self, range: &Range<u64>) -> u64 {
        self.at = range.start;
        std::mem::replace(&mut self.end, range.end)
    }

    /// Moves to the end of a range, and restores the limit that [`go`](Self::go) returned.
    pub(crate) fn leave(&mut self, range: &Range<u64>, end: u64) {
        (self.at, self.end) = (range.end, end);
    }

    /// Counts bytes that are kept in memory.
    ///
    /// # Errors
    /// E008 over the limit of an index.
    pub(crate) fn keep(&mut self, bytes: u64) -> Result<()> {
        self.kept = self.kept.saturating_add(bytes);
        self.limits.check_index(self.kept)
    }

    /// The text of a range.
    ///
    /// # Errors
    /// E001 for what is no UTF-8, E007 when reading fails, E008 over the limit.
    pub(crate) fn text(&mut self, range: &Range<u64>) -> Result<String> {
        self.keep(range.end - range.start)?;
        let bytes = read_vec(self.source, range.start, range.end - range.start)?;
        let text = String::from_utf8(bytes);
        text.map_err(|_| Error::format("a name is not UTF-8").at(range.start))
    }

    /// The next value.
    ///
    /// # Errors
    /// E001 for what is none, E002 where the file ends before it does, E007 when reading fails.
    pub(crate) fn next(&mut self) -> Result<Value> {
        let at = self.at;
        let marker = self.unsigned(1)?;
        let low = |mask: u64| marker & mask;
        Ok(match u8::try_from(marker).unwrap_or_default() {
            0..=0x7f => Value::Integer(marker.into()),
            0x80..=0x8f => Value::Map(low(15)),
            0x90..=0x9f => Value::List(low(15)),
            0xa0..=0xbf => Value::Text(self.skip(low(31))?),
            0xc0 => Value::Other("nothing"),
            0xc1 => return Err(Error::format("not a MessagePack value").at(at)),
            0xc2 => Value::Bool(false),
            0xc3 => Value::Bool(true),
            marker @ 0xc4..=0xc6 => {
                let len = self.unsigned(1 << (marker - 0xc4))?;
                Value::Bytes(self.skip(len)?)
            }
            marker @ 0xc7..=0xc9 => {
                let len = self.unsigned(1 << (marker - 0xc7))?;
                self.extension(len)?
            }
            0xca => {
                self.skip(4)?;
                Value::Other("a float")
            }
            0xcb => {
                self.skip(8)?;
                Value::Other("a float")
            }
            marker @ 0xcc..=0xcf => Value::Integer(self.unsigned(1 << (marker - 0xcc))?.into()),
            marker @ 0xd0..=0xd3 => {
                let width = 1_u32 << (marker - 0xd0);
                let shift = 64 - 8 * width;
                let value = (self.unsigned(width.into())? << shift).cast_signed() >> shift;
                Value::Integer(value.into())
            }
            marker @ 0xd4..=0xd8 => self.extension(1 << (marker - 0xd4))?,
            marker @ 0xd9..=0xdb => {
                let len = self.unsigned(1 << (marker - 0xd9))?;
                Value::Text(self.skip(len)?)
            }
            marker @ (0xdc | 0xdd) => Value::List(self.unsigned(2 << (marker - 0xdc))?),
            marker @ (0xde | 0xdf) => Value::Map(self.unsigned(2 << (marker - 0xde))?),
            0xe0..=0xff => Value::Integer(i128::from(marker) - 256),
        })
    }

    fn extension(&mut self, len: u64) -> Result<Value> {
        let kind = u8::try_from(self.unsigned(1)?).unwrap_or_default().cast_signed();
        Ok(Value::Extension(kind, self.skip(len)?))
    }

    /// Skips the next `len` bytes, and returns their range.
    fn skip(&mut self, len: u64) -> Result<Range<u64>> {
        let start = self.at;
        let end = start.checked_add(len).filter(|&end| end <= self.end);
        self.at = end.ok_or_else(|| self.cut_off(start, len))?;
        Ok(start..self.at)
    }

    /// Reads a big-endian integer of up to eight bytes.
    fn unsigned(&mut self, width: u64) -> Result<u64> {
        let at = self.at;
        let range = self.skip(width)?;
        if at < self.start || range.end > self.start + self.window.len() as u64 {
            let len = (self.source.len() - at).min(WINDOW);
            self.window = read_vec(self.source, at, len)?;
            self.start = at;
        }
        let from = usize::try_from(at - self.start).unwrap_or_default();
        let to = from + usize::try_from(width).unwrap_or_default();
        let bytes = self.window.get(from..to).ok_or_else(|| self.cut_off(at, width))?;
        Ok(bytes.iter().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    }

    fn cut_off(&self, at: u64, len: u64) -> Error {
        Error::corrupt(format!(
            "a value of {len} bytes ends after its container, or the file is truncated: it has \
             {} bytes",
            self.source.len()
        ))
        .at(at)
    }
}
