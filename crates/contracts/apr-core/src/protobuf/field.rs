//! Messages and their fields.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::walker::{Span, Walker, cut_off};
use crate::{Error, Result};

/// Maximum depth of nested messages. It is the limit of protobuf's own libraries.
pub const MAX_DEPTH: u32 = 100;

/// A message that is being walked over.
#[derive(Debug, Clone, Copy)]
pub struct Message {
    at: u64,
    end: u64,
    depth: u32,
}

impl Walker<'_> {
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
}

impl Message {
    pub(super) fn new(span: Span, depth: u32) -> Self {
        Self { at: span.offset, end: span.end(), depth }
    }

    /// The next field, `None` after the last. Values that are delimited by a length are skipped.
    ///
    /// # Errors
    /// E001 for what is no field, E002 where the field does not end within the message, E007 when
    /// reading fails.
    #[allow(clippy::should_implement_trait, reason = "an iterator has no place for the walker")]
    pub fn next(&mut self, walker: &mut Walker<'_>) -> Result<Option<Field>> {
        if self.at >= self.end {
            return Ok(None);
        }

        let start = self.at;
        let (key, at) = walker.varint(start, self.end)?;
        let number = u32::try_from(key >> 3).ok().filter(|number| (1..1 << 29).contains(number));
        let number = number
            .ok_or_else(|| Error::format("this is not a field of a protobuf message").at(start))?;
        let (value, end) = match key & 7 {
            0 => {
                let (value, end) = walker.varint(at, self.end)?;
                (Value::Varint(value), end)
            }
            1 => (Value::Fixed64(u64::from_le_bytes(walker.fixed(at, self.end)?)), at + 8),
            2 => {
                let (len, offset) = walker.varint(at, self.end)?;
                if len > self.end - offset {
                    return Err(cut_off(start));
                }
                let span = Span { offset, len };
                (Value::Bytes(span), span.end())
            }
            5 => (Value::Fixed32(u32::from_le_bytes(walker.fixed(at, self.end)?)), at + 4),
            other => {
                let message =
                    format!("a field has the wire type {other}, which no model format uses");
                return Err(Error::format(message).at(start));
            }
        };

        self.at = end;
        Ok(Some(Field {
            number,
            value,
            span: Span { offset: start, len: end - start },
            depth: self.depth,
        }))
    }
}

/// The value of a field, as far as it is known without a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    /// An integer, a bool or an enumeration.
    Varint(u64),
    /// Eight bytes: `fixed64`, `double`.
    Fixed64(u64),
    /// Four bytes: `fixed32`, `float`.
    Fixed32(u32),
    /// Text, bytes, a message, or packed scalars: not read.
    Bytes(Span),
}

/// A field of a message.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// Number of the field in the schema.
    pub number: u32,
    /// Value of the field.
    pub value: Value,
    /// The whole field, key and length included.
    pub span: Span,
    depth: u32,
}

impl Field {
    /// The message that the field holds.
    ///
    /// # Errors
    /// E001 for a field of another type, and for messages nested deeper than [`MAX_DEPTH`].
    pub fn message(&self) -> Result<Message> {
        let span = self.range()?;
        if self.depth >= MAX_DEPTH {
            let message = format!("messages are nested deeper than {MAX_DEPTH} levels");
            return Err(Error::format(message).at(self.span.offset));
        }
        Ok(Message::new(span, self.depth + 1))
    }

    /// Returns the span of the value, for a length-delimited field.
    ///
    /// # Errors
    /// E001 for a field of another type.
    pub fn range(&self) -> Result<Span> {
        match self.value {
            Value::Bytes(span) => Ok(span),
            _ => Err(self.unexpected("bytes")),
        }
    }

    /// The integer. Signed ones are in two's complement.
    ///
    /// # Errors
    /// E001 for a field of another type.
    pub fn integer(&self) -> Result<u64> {
        match self.value {
            Value::Varint(value) => Ok(value),
            _ => Err(self.unexpected("an integer")),
        }
    }

    /// The signed integer, of 32 or 64 bits.
    ///
    /// # Errors
    /// E001 for a field of another type.
    pub fn signed(&self) -> Result<i64> {
        self.integer().map(u64::cast_signed)
    }

    /// The single-precision float.
    ///
    /// # Errors
    /// E001 for a field of another type.
    pub fn float(&self) -> Result<f32> {
        match self.value {
            Value::Fixed32(bits) => Ok(f32::from_bits(bits)),
            _ => Err(self.unexpected("a float")),
        }
    }

    /// The bytes, read.
    ///
    /// # Errors
    /// E001 for a field of another type, E007 when reading fails, E008 over the limit.
    pub fn bytes(&self, walker: &mut Walker<'_>) -> Result<Vec<u8>> {
        walker.bytes(self.range()?)
    }

    /// The text, read.
    ///
    /// # Errors
    /// E001 for a field of another type or what is not UTF-8, E007 when reading fails, E008 over
    /// the limit.
    pub fn text(&self, walker: &mut Walker<'_>) -> Result<String> {
        let bytes = self.bytes(walker)?;
        String::from_utf8(bytes)
            .map_err(|_| Error::format("a name or text is not UTF-8").at(self.span.offset))
    }

    /// Appends integers, packed or one to a field.
    ///
    /// # Errors
    /// E001 for a field of another type, E002 where the packed ones end amid a number, E008 over
    /// the limit.
    pub fn integers(&self, walker: &mut Walker<'_>, to: &mut Vec<i64>) -> Result<()> {
        if let Value::Varint(value) = self.value {
            walker.keep(8)?;
            to.push(value.cast_signed());
            return Ok(());
        }

        let span = self.range()?;
        let mut at = span.offset;
        while at < span.end() {
            let (value, next) = walker.varint(at, span.end())?;
            walker.keep(8)?;
            to.push(value.cast_signed());
            at = next;
        }

        Ok(())
    }

    /// Appends single-precision floats, packed or one to a field.
    ///
    /// # Errors
    /// E001 for a field of another type, E002 where the packed ones end amid a number, E008 over
    /// the limit.
    pub fn floats(&self, walker: &mut Walker<'_>, to: &mut Vec<f32>) -> Result<()> {
        if let Value::Fixed32(bits) = self.value {
            walker.keep(4)?;
            to.push(f32::from_bits(bits));
            return Ok(());
        }

        let span = self.range()?;
        if !span.len.is_multiple_of(4) {
            return Err(cut_off(span.offset));
        }

        let bytes = walker.bytes(span)?;
        let floats = bytes
            .chunks_exact(4)
            .map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
        to.extend(floats);
        Ok(())
    }

    fn unexpected(&self, expected: &str) -> Error {
        let message = format!("the type of field {} is not the format's: {expected}", self.number);
        Error::format(message).at(self.span.offset)
    }
}
