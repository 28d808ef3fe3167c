//! JSON texts that lie in a file: objects read strictly, errors that point at the byte, and maps
//! written in the order of their keys.

mod sorted;

use alloc::borrow::Cow;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};

use crate::{Error, Escaped, Result};

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

/// The number that replaces `Infinity` in JSON written by Python. JSON has no infinity.
pub const INFINITY: f64 = f64::MAX;

/// Returns a JSON text of Python as one that others read: without the mark of its byte order, in
/// UTF-8 where it is in UTF-16, with [`INFINITY`] for `Infinity` and null for `NaN`.
///
/// ```
/// use apr_core::json::of_python;
///
/// let text = of_python(b"{\"limit\": [0.0, Infinity], \"of\": \"Infinity\"}");
/// let value: serde_json::Value = serde_json::from_slice(&text)?;
/// assert_eq!(value["limit"][1], f64::MAX);
/// assert_eq!(value["of"], "Infinity");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[must_use]
pub fn of_python(bytes: &[u8]) -> Cow<'_, [u8]> {
    let text = match bytes {
        [0xef, 0xbb, 0xbf, text @ ..] => Cow::Borrowed(text),
        [0xff, 0xfe, text @ ..] => of_utf16(text, u16::from_le_bytes),
        [0xfe, 0xff, text @ ..] => of_utf16(text, u16::from_be_bytes),
        // JSON begins with a character of ASCII.
        [0, ascii, ..] if *ascii > 0 => of_utf16(bytes, u16::from_be_bytes),
        [ascii, 0, next, ..] if *ascii > 0 && *next > 0 => of_utf16(bytes, u16::from_le_bytes),
        _ => Cow::Borrowed(bytes),
    };
    let (mut out, mut copied, mut at) = (Vec::new(), 0, 0);
    let mut is_text = false;
    while let Some(&byte) = text.get(at) {
        let rest = &text[at..];
        let other = match byte {
            b'\\' if is_text => {
                at += 2;
                continue;
            }
            b'"' => {
                is_text = !is_text;
                None
            }
            b'I' if !is_text && rest.starts_with(b"Infinity") => {
                Some((8, &b"1.7976931348623157e308"[..]))
            }
            b'N' if !is_text && rest.starts_with(b"NaN") => Some((3, &b"null"[..])),
            _ => None,
        };
        at += 1;
        if let Some((len, instead)) = other {
            out.extend_from_slice(&text[copied..at - 1]);
            out.extend_from_slice(instead);
            at += len - 1;
            copied = at;
        }
    }
    if copied == 0 {
        return text;
    }
    out.extend_from_slice(&text[copied..]);
    Cow::Owned(out)
}

fn of_utf16(text: &[u8], unit: fn([u8; 2]) -> u16) -> Cow<'static, [u8]> {
    let units = text.as_chunks::<2>().0.iter().copied().map(unit);
    let chars = char::decode_utf16(units).map(|it| it.unwrap_or(char::REPLACEMENT_CHARACTER));
    Cow::Owned(chars.collect::<String>().into_bytes())
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
    let message = error.to_string();
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
    fn texts_of_python_become_json() {
        // Written by `json.dumps`, in four encodings.
        let text = r#"{"a": [Infinity, -Infinity, NaN], "b\\": "é \"NaN\\", "Infinity": 1}"#;
        let expected = r#"{"a": [1.7976931348623157e308, -1.7976931348623157e308, null],
            "b\\": "é \"NaN\\", "Infinity": 1}"#;
        let expected: serde_json::Value = serde_json::from_str(expected).expect("JSON");
        let units = || text.encode_utf16();
        let little: Vec<u8> = units().flat_map(u16::to_le_bytes).collect();
        let big: Vec<u8> = units().flat_map(u16::to_be_bytes).collect();
        let utf8 = text.as_bytes().to_vec();
        for (mark, rest) in [
            (&b""[..], &utf8),
            (b"\xef\xbb\xbf", &utf8),
            (b"", &little),
            (b"\xff\xfe", &little),
            (b"", &big),
            (b"\xfe\xff", &big),
        ] {
            let bytes = [mark, rest].concat();
            let found = serde_json::from_slice::<serde_json::Value>(&of_python(&bytes));
            assert_eq!(found.expect("JSON"), expected, "{mark:?}");
        }
        for plain in [&b""[..], b"{}", b"[\"", b"\"\\", b"x", b"{\0"] {
            assert!(of_python(plain).len() <= plain.len(), "{plain:?}");
        }
    }

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
