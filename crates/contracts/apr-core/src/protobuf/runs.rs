//! Repeated scalars that are not read: where they lie, and how to read any of them later.

use alloc::vec::Vec;

use super::{Field, Span, Value, Walker};
use crate::{Error, Result};

/// Encoding of a repeated scalar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    /// Values of 4 bytes each.
    Fixed32,
    /// Values of 8 bytes each.
    Fixed64,
    /// 1 to 10 bytes each.
    Varint,
}

impl Element {
    /// Returns the size in bytes of each scalar, or `None` if it varies.
    #[must_use]
    pub const fn width(self) -> Option<u64> {
        match self {
            Self::Fixed32 => Some(4),
            Self::Fixed64 => Some(8),
            Self::Varint => None,
        }
    }
}

/// Scalars stored one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Span of the scalars, including the keys between them if there are any.
    pub span: Span,
    /// Bytes of the key before each scalar; 0 if they are packed.
    pub key_len: u64,
}

/// All values of one repeated scalar field, in order, packed or not.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Runs {
    runs: Vec<Run>,
}

impl Runs {
    /// Adds a field of this repeated scalar.
    ///
    /// # Errors
    /// E001 for a field of a type that is neither the scalar's nor packed, E008 over the limit.
    pub fn add(&mut self, walker: &mut Walker<'_>, field: &Field, element: Element) -> Result<()> {
        let own = match (field.value, element) {
            (Value::Bytes(span), _) => {
                return if span.len == 0 {
                    Ok(())
                } else {
                    self.push(walker, Run { span, key_len: 0 })
                };
            }
            (Value::Varint(_), Element::Varint) => None,
            (Value::Fixed32(_), Element::Fixed32) | (Value::Fixed64(_), Element::Fixed64) => {
                element.width()
            }
            _ => {
                return Err(Error::format("the type of a repeated number is not the format's")
                    .at(field.span.offset));
            }
        };

        // Keys are mostly of one length; one that is written longer than needed starts another run.
        let key_len = own.map_or_else(|| key_len(field.number), |width| field.span.len - width);
        let span = field.span;
        match self.runs.last_mut() {
            Some(last) if last.key_len == key_len && last.span.end() == span.offset => {
                last.span.len += span.len;
                Ok(())
            }
            _ => self.push(walker, Run { span, key_len }),
        }
    }

    fn push(&mut self, walker: &mut Walker<'_>, run: Run) -> Result<()> {
        walker.keep(size_of::<Run>() as u64)?;
        self.runs.push(run);
        Ok(())
    }

    /// The runs, in order.
    #[must_use]
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Returns `true` if there is no value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Returns the span of the only run if it is packed: its bytes are the numbers, side by side.
    #[must_use]
    pub fn packed(&self) -> Option<Span> {
        match self.runs.as_slice() {
            [Run { span, key_len: 0 }] => Some(*span),
            _ => None,
        }
    }
}

fn key_len(number: u32) -> u64 {
    let bits = u64::from(u32::BITS - (number << 3).leading_zeros());
    bits.div_ceil(7)
}
