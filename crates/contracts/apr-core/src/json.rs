//! JSON texts that lie in a file: objects read strictly, errors that point at the byte, and maps
//! written in the order of their keys.

mod python;
mod sorted;

use alloc::format;
use core::fmt;
use core::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};

use crate::{Error, Escaped, Result};

pub use python::{INFINITY, from_python, of_python, to_python};
pub use sorted::{Sorted, entries, text, to_string, to_string_pretty, to_vec, to_vec_pretty};

/// A `T` written as an object; derived implementations alone would accept an array of the fields as
/// well.
///
/// ```
/// use apr_core::json::Object;
///
/// #[derive(serde::Deserialize)]
/// struct Entry {
///     shape: Vec<u64>,
/// }
///
/// assert!(serde_json::from_str::<Entry>("[[2, 3]]").is_ok());
/// assert!(serde_json::from_str::<Object<Entry>>("[[2, 3]]").is_err());
/// let Object(entry): Object<Entry> = serde_json::from_str(r#"{"shape": [2, 3]}"#)?;
/// assert_eq!(entry.shape, [2, 3]);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug)]
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = Object<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Object)
    }
}

/// The text of `what`, which starts at byte `start` of its file.
///
/// # Errors
/// E001 at the first byte that is not UTF-8.
pub fn utf8<'a>(bytes: &'a [u8], what: &str, start: u64) -> Result<&'a str> {
    core::str::from_utf8(bytes).map_err(|error| {
        Error::format(format!("{what} is not UTF-8")).at(start + error.valid_up_to() as u64)
    })
}

/// Returns an E001 error at the byte of `text` where the parser failed.
///
/// `what` describes the text, which starts at byte `start` of its file.
#[must_use]
pub fn error(error: &serde_json::Error, what: &str, text: &str, start: u64) -> Error {
    let (line, column) = (error.line(), error.column());
    let message = crate::foreign(&error);
    let message =
        message.strip_suffix(&format!(" at line {line} column {column}")).unwrap_or(&message);
    // The message may repeat a value of the file, which can be as long as the file.
    let located = Error::format(format!("{what}: {}", Escaped::short(message)));
    match line_start(text, line) {
        Some(line_start) => located.at(start + (line_start + column).saturating_sub(1) as u64),
        None => located,
    }
}

/// Offset of a line, counted from 1.
fn line_start(text: &str, line: usize) -> Option<usize> {
    match line {
        0 => None,
        1 => Some(0),
        _ => text.match_indices('\n').nth(line - 2).map(|(newline, _)| newline + 1),
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn errors_point_at_the_byte() {
        for (text, at) in [("[1, x]", 4), ("[1,\n\n 2, x]", 9), ("[1", 1), ("[\"ä\", x]", 7)] {
            let source =
                serde_json::from_str::<Vec<serde_json::Value>>(text).expect_err("not JSON");
            let error = error(&source, "the header", text, 8);
            assert_eq!(error.offset(), Some(8 + at), "{text}: {error}");
            assert!(!error.message().contains("line"), "{error}");
        }
    }
}
