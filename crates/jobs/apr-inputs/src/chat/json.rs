//! JSON in templates, as `json.dumps` of Python writes it.

use std::fmt::Write;

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};

use super::filters::Generator;
use super::{DEPTH, MAX_CHAT, refused};

/// Layout of JSON.
struct Layout {
    /// Indentation of a level; `None` for one line.
    indent: Option<String>,
    /// Between entries, and between a key and its value.
    separators: [String; 2],
    is_ascii: bool,
    sorts_keys: bool,
}

/// The filter `tojson`, with the arguments of transformers' own.
#[expect(clippy::needless_pass_by_value, reason = "filters get their options so")]
pub(super) fn to_json(
    value: &Value,
    is_ascii: Option<bool>,
    options: Kwargs,
) -> Result<String, Error> {
    let indent: Option<Value> = options.get("indent")?;
    let indent = match indent.filter(|indent| !indent.is_none()) {
        None => None,
        Some(indent) => Some(match (indent.as_str(), indent.as_i64()) {
            (Some(text), _) if text.len() <= 256 => text.to_owned(),
            (None, Some(count)) => " ".repeat(usize::try_from(count).unwrap_or(0).min(256)),
            _ => return Err(refused("the indent of tojson must be a number or a short text")),
        }),
    };
    let separators: Option<Value> = options.get("separators")?;
    let separators = match separators.filter(|separators| !separators.is_none()) {
        None => [if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()],
        Some(pair) => {
            let texts: Vec<String> = pair.try_iter()?.map(|text| text.to_string()).collect();
            texts.try_into().map_err(|_| refused("the separators of tojson must be two texts"))?
        }
    };
    let named: Option<bool> = options.get("ensure_ascii")?;
    let is_ascii = named.or(is_ascii).unwrap_or(false);
    let sorts_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    let mut text = String::new();
    Layout { indent, separators, is_ascii, sorts_keys }.write(&mut text, value, 0)?;
    Ok(text)
}

impl Layout {
    fn write(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEPTH || out.len() > MAX_CHAT {
            return Err(refused("the value is too large for JSON"));
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => number(out, value),
            ValueKind::String => self.text(out, value.as_str().unwrap_or_default()),
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sorts_keys {
                    keys.sort();
                }
                self.entries(out, ['{', '}'], keys, depth, |out, key| {
                    let name = match (key.kind(), key.as_str()) {
                        (_, Some(name)) => name.to_owned(),
                        (ValueKind::Bool, _) => key.is_true().to_string(),
                        (ValueKind::None, _) => "null".to_owned(),
                        _ => key.to_string(),
                    };
                    self.text(out, &name);
                    out.push_str(&self.separators[1]);
                    self.write(out, &value.get_item(&key)?, depth + 1)
                })?;
            }
            ValueKind::Iterable if value.downcast_object_ref::<Generator>().is_some() => {
                return Err(refused("a generator can't be JSON"));
            }
            ValueKind::Seq | ValueKind::Iterable => {
                self.entries(out, ['[', ']'], value.try_iter()?, depth, |out, item| {
                    self.write(out, &item, depth + 1)
                })?;
            }
            kind => {
                let message = format!("a value that is {kind} can't be JSON");
                return Err(Error::new(ErrorKind::BadSerialization, message));
            }
        }
        Ok(())
    }

    fn entries(
        &self,
        out: &mut String,
        [open, close]: [char; 2],
        entries: impl IntoIterator<Item = Value>,
        depth: usize,
        mut write: impl FnMut(&mut String, Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        let mut is_empty = true;
        for entry in entries {
            if !is_empty {
                out.push_str(&self.separators[0]);
            }
            self.begin_line(out, depth + 1);
            write(out, entry)?;
            is_empty = false;
        }
        if !is_empty {
            self.begin_line(out, depth);
        }
        out.push(close);
        Ok(())
    }

    /// Begins a line if JSON is indented.
    fn begin_line(&self, out: &mut String, depth: usize) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    }

    fn text(&self, out: &mut String, text: &str) {
        out.push('"');
        for letter in text.chars() {
            match letter {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                letter if letter < ' ' || (self.is_ascii && !letter.is_ascii()) => {
                    for unit in letter.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                // Python escapes it among ASCII alone.
                letter => out.push(letter),
            }
        }
        out.push('"');
    }
}

/// A number as Python writes it.
fn number(out: &mut String, value: &Value) {
    match f64::try_from(value.clone()).ok().filter(|_| !value.is_integer()) {
        None => out.push_str(&value.to_string()),
        Some(number) => out.push_str(&float(number)),
    }
}

/// A float as Python's `repr` writes it: the shortest digits, with an exponent below 1e-4 and from
/// 1e16 on.
pub(super) fn float(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let size = number.abs();
    if size != 0.0 && !(1e-4..1e16).contains(&size) {
        let text = format!("{number:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let exponent: i32 = exponent.parse().unwrap_or(0);
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    format!("{number:?}")
}
