//! The small entries that models, graphs and functions list.

use apr_core::Result;
use apr_core::protobuf::{Message, Span, Walker};

use super::walk::each;

/// A set of operators: `OperatorSetIdProto`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct OperatorSet {
    /// Domain of the operators; empty for the operators of ONNX itself.
    pub domain: String,
    /// Version of the set.
    pub version: i64,
}

/// A key and a value: `StringStringEntryProto`. Values may be long, such as the stack trace of a
/// node, and are not read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Property {
    /// Key of the property.
    pub key: String,
    /// Location of the value in the file.
    pub value: Span,
}

impl OperatorSet {
    pub(crate) fn read(walker: &mut Walker<'_>, message: Message) -> Result<Self> {
        let mut set = Self::default();
        each(walker, message, |walker, field| {
            match field.number {
                1 => set.domain = field.text(walker)?,
                2 => set.version = field.signed()?,
                _ => {}
            }
            Ok(())
        })?;
        Ok(set)
    }
}

impl Property {
    pub(crate) fn read(walker: &mut Walker<'_>, message: Message) -> Result<Self> {
        let mut property = Self::default();
        each(walker, message, |walker, field| {
            match field.number {
                1 => property.key = field.text(walker)?,
                2 => property.value = field.range()?,
                _ => {}
            }
            Ok(())
        })?;
        Ok(property)
    }

    /// Reads the value as text and replaces invalid UTF-8.
    ///
    /// # Errors
    /// E007 when reading fails, E008 over the limits.
    pub fn text(&self, walker: &mut Walker<'_>) -> Result<String> {
        Ok(String::from_utf8_lossy(&walker.bytes(self.value)?).into_owned())
    }
}
