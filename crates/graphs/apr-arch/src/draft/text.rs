//! TOML that is safe to print: what a file calls its tensors may contain anything.

use std::fmt::Write;

use crate::kind::TensorKind;

/// Characters of a line of a comment.
const MAX_COMMENT: usize = 96;

/// A basic string of TOML, of printable ASCII alone.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            ' '..='~' => out.push(character),
            _ => {
                let _ = write!(out, "\\U{:08X}", u32::from(character));
            }
        }
    }
    out.push('"');
    out
}

/// An array of strings.
pub(super) fn list(texts: &[impl AsRef<str>]) -> String {
    let quoted: Vec<String> = texts.iter().map(|text| quoted(text.as_ref())).collect();
    format!("[{}]", quoted.join(", "))
}

/// A comment of one line, cut where it is long.
pub(super) fn comment(text: &str) -> String {
    let mut out = String::from("#");
    out.push(' ');
    for (at, character) in text.chars().enumerate() {
        if at == MAX_COMMENT {
            out.push_str("...");
            break;
        }
        match character {
            ' '..='~' => out.push(character),
            _ => out.extend(character.escape_unicode()),
        }
    }
    out
}

/// A kind, as tables have it.
pub(super) fn of_kind(kind: TensorKind) -> String {
    serde_json::to_value(kind).map_or_else(|_| String::new(), |kind| kind.to_string())
}
