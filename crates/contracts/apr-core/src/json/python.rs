//! JSON as Python reads and writes it, with `Infinity`, `NaN`, byte order marks and UTF-16.

use alloc::borrow::Cow;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::to_string_pretty;

/// The number that represents `Infinity` in the JSON value of a Python text. JSON has no infinity.
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

/// Parses a JSON text as Python does, with [`INFINITY`] for `Infinity` and null for `NaN`.
///
/// # Errors
/// Those of [`serde_json::from_slice`].
///
/// ```
/// use apr_core::json::{from_python, to_python};
///
/// let config: serde_json::Value = from_python(b"\xef\xbb\xbf{\"limit\": [0.0, Infinity]}")?;
/// assert_eq!(to_python(&config), b"{\n  \"limit\": [\n    0.0,\n    Infinity\n  ]\n}\n");
/// # Ok::<(), serde_json::Error>(())
/// ```
pub fn from_python<T: DeserializeOwned>(bytes: &[u8]) -> serde_json::Result<T> {
    serde_json::from_slice(&of_python(bytes))
}

/// Returns the text of a configuration for Python: indented, with a newline at its end and
/// `Infinity` for [`INFINITY`].
///
/// # Panics
/// Never for values of JSON, whose keys are strings.
#[must_use]
pub fn to_python<T: Serialize + ?Sized>(value: &T) -> Vec<u8> {
    let text = to_string_pretty(value)
        .unwrap_or_else(|_| unreachable!("a JSON value with string keys always serializes"));
    let infinity = serde_json::Value::from(INFINITY).to_string();
    (text.replace(&infinity, "Infinity") + "\n").into_bytes()
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
}
