//! Reports as JSON, in which nothing hides.

use std::io;

use apr_core::is_hidden;
use apr_core::json::Sorted;
use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, PrettyFormatter, Serializer};

/// A report with the two keys that every document begins with.
#[derive(Debug, Clone, Serialize)]
pub struct Headed<'r, R> {
    /// The kind of report, and the version of its keys: `apr.inspect/1`.
    schema: String,
    /// The words of the command.
    command: &'r str,
    #[serde(flatten)]
    report: &'r R,
}

impl<'r, R> Headed<'r, R> {
    /// Puts the keys before a report of this kind, whose keys have this version.
    pub fn new(kind: &str, version: u32, command: &'r str, report: &'r R) -> Self {
        Self { schema: format!("apr.{kind}/{version}"), command, report }
    }

    /// Puts the same keys before another report.
    pub fn around<S>(self, report: &'r S) -> Headed<'r, S> {
        Headed { schema: self.schema, command: self.command, report }
    }
}

/// Writes a report as an indented JSON document.
///
/// The texts are those of the report. Characters that could control a terminal or mislead a reader
/// are written as `\u` escapes, including characters that JSON allows unescaped.
///
/// ```
/// let mut text = Vec::new();
/// apr_ops::document::write_json(&mut text, &"a\u{9b}b\u{202e}c")?;
/// assert_eq!(text, br#""a\u009bb\u202ec""#);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// Returns the errors of the writer.
pub fn write_json(out: &mut dyn io::Write, report: &impl Serialize) -> io::Result<()> {
    let mut serializer = Serializer::with_formatter(out, Visible(PrettyFormatter::new()));
    Ok(Sorted(report).serialize(&mut serializer)?)
}

/// Writes a report as [`write_json`] does, on one line without its end.
///
/// # Errors
/// What the writer says.
pub fn write_json_line(out: &mut dyn io::Write, report: &impl Serialize) -> io::Result<()> {
    let mut serializer = Serializer::with_formatter(out, Visible(CompactFormatter));
    Ok(Sorted(report).serialize(&mut serializer)?)
}

/// A JSON formatter that escapes invisible characters.
struct Visible<F>(F);

impl<F: Formatter> Formatter for Visible<F> {
    fn write_string_fragment<W: io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(at) = rest.find(is_hidden) {
            let (before, from) = rest.split_at(at);
            writer.write_all(before.as_bytes())?;
            let mut chars = from.chars();
            let hidden = chars.next().unwrap_or_default();

            // Characters above U+FFFF are two escapes (RFC 8259, section 7).
            for unit in hidden.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
            rest = chars.as_str();
        }
        writer.write_all(rest.as_bytes())
    }

    fn begin_array<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_array(writer)
    }

    fn end_array<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_array(writer)
    }

    fn begin_array_value<W: io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.0.begin_array_value(writer, first)
    }

    fn end_array_value<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_array_value(writer)
    }

    fn begin_object<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object(writer)
    }

    fn end_object<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object(writer)
    }

    fn begin_object_key<W: io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.0.begin_object_key(writer, first)
    }

    fn begin_object_value<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object_value(writer)
    }

    fn end_object_value<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object_value(writer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_hidden_characters_differ_and_texts_are_the_same() {
        let report = serde_json::json!({
            "größe\u{85}": [
                "\u{1b}[2K\r\n", "\u{9b}31m", "\u{202e}x\u{2066}", "\u{e0041}\u{feff}\u{7f}",
                "plain \u{1f600}",
            ],
            "number": 1.5, "nothing": null, "empty": [], "object": {},
        });
        let mut text = Vec::new();
        write_json(&mut text, &report).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(!text.chars().any(|c| c != '\n' && is_hidden(c)), "{text}");
        assert!(
            text.contains("\\udb40\\udc41") && text.contains("größe") && text.contains('\u{1f600}'),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), report);
        let plain = serde_json::json!({ "a": [1, { "b": "c" }], "d": [], "e": {} });
        let mut text = Vec::new();
        write_json(&mut text, &plain).unwrap();
        assert_eq!(String::from_utf8(text).unwrap(), serde_json::to_string_pretty(&plain).unwrap());
    }
}
