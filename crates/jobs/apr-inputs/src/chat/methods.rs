//! Python's methods of texts, lists and dictionaries, as templates call them.

use minijinja::value::{Kwargs, Tuple, Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat;

use super::refused;

/// Runs a method. One that makes a longer text pays for it first.
pub(super) fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    state.consume_fuel(price(value, name, arguments)? / 64 + 1)?;
    let own = match (value.as_str(), value.kind()) {
        (Some(text), _) => of_text(text, name, arguments)?,
        (None, ValueKind::Seq) => of_list(value, name, arguments)?,
        (None, ValueKind::Map) if name == "copy" => Some(value.clone()),
        _ => None,
    };
    match own {
        Some(made) => Ok(made),
        None => pycompat::unknown_method_callback(state, value, name, arguments),
    }
}

/// Bytes that a method writes at most.
fn price(value: &Value, name: &str, arguments: &[Value]) -> Result<u64, Error> {
    let length =
        |value: &Value| value.as_str().map_or_else(|| value.len().unwrap_or(1), str::len) as u64;
    let longest = || arguments.iter().map(length).max().unwrap_or(0);
    Ok(match (name, value.as_str()) {
        ("replace", Some(text)) => {
            let old = arguments.first().and_then(Value::as_str);
            let count = old.map_or(0, |old| text.matches(old).count());
            (count as u64).saturating_mul(longest())
        }
        ("ljust" | "rjust" | "center" | "zfill", Some(_)) => {
            let width = arguments.first().and_then(Value::as_i64).unwrap_or(0);
            u64::try_from(width).unwrap_or(0).saturating_mul(4)
        }
        // A width would make any length.
        ("format", Some(text)) if text.contains(':') => u64::MAX,
        ("format", Some(text)) => (text.matches('{').count() as u64).saturating_mul(longest()),
        ("join", Some(text)) => {
            let items = arguments.first().map(Value::try_iter).transpose()?;
            items.into_iter().flatten().map(|item| length(&item) + text.len() as u64).sum()
        }
        _ => length(value),
    })
}

/// Returns `true` for characters that Python treats as blank: Unicode's white space, and four
/// separators of ASCII.
fn is_blank(letter: char) -> bool {
    letter.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&letter)
}

/// Letters that Python ends lines at.
fn ends_line(letter: char) -> bool {
    matches!(
        letter,
        '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
    )
}

/// A method of a text; `None` for one of which the engine's own is as Python's.
fn of_text(text: &str, name: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match name {
        "strip" | "lstrip" | "rstrip" => {
            let (letters,): (Option<Value>,) = from_args(arguments)?;
            let letters = letters.filter(|letters| !letters.is_none());
            let letters: Option<Vec<char>> = match &letters {
                Some(letters) => Some(text_of(letters)?.chars().collect()),
                None => None,
            };
            let is_cut = |letter: char| match &letters {
                Some(letters) => letters.contains(&letter),
                None => is_blank(letter),
            };
            Value::from(match name {
                "strip" => text.trim_matches(is_cut),
                "lstrip" => text.trim_start_matches(is_cut),
                _ => text.trim_end_matches(is_cut),
            })
        }
        "split" | "rsplit" => {
            let (separator, most, named): (Option<Value>, Option<i64>, Kwargs) =
                from_args(arguments)?;
            let separator = separator.or(named.get("sep")?).filter(|sep| !sep.is_none());
            let most = most.or(named.get("maxsplit")?).unwrap_or(-1);
            named.assert_all_used()?;
            let most = usize::try_from(most).unwrap_or(usize::MAX);
            let parts = match &separator {
                None => split_at_blanks(text, most, name == "rsplit"),
                Some(separator) => split(text, text_of(separator)?, most, name == "rsplit")?,
            };
            parts.into_iter().map(Value::from).collect()
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(arguments)?;
            if separator.is_empty() {
                return Err(refused("empty separator"));
            }
            let parts = match name {
                "partition" => text.split_once(separator),
                _ => text.rsplit_once(separator),
            };
            let parts = match (parts, name) {
                (Some((before, behind)), _) => [before, separator, behind],
                (None, "partition") => [text, "", ""],
                (None, _) => ["", "", text],
            };
            Value::from(Tuple::from(parts.map(Value::from)))
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(arguments)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(arguments)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "splitlines" => {
            let (keeps, named): (Option<bool>, Kwargs) = from_args(arguments)?;
            let keeps = keeps.or(named.get("keepends")?).unwrap_or(false);
            named.assert_all_used()?;
            lines(text, keeps).into_iter().map(Value::from).collect()
        }
        "index" | "rindex" => {
            let (what,): (&str,) = from_args(arguments)?;
            let place = if name == "index" { text.find(what) } else { text.rfind(what) };
            let place = place.ok_or_else(|| refused("substring not found"))?;
            Value::from(text[..place].chars().count())
        }
        "ljust" | "rjust" | "center" => {
            let (width, fill): (i64, Option<char>) = from_args(arguments)?;
            padded(text, name, usize::try_from(width).unwrap_or(0), fill.unwrap_or(' '))
        }
        "zfill" => {
            let (width,): (i64,) = from_args(arguments)?;
            let (sign, digits) = match text.starts_with(['+', '-']) {
                true => text.split_at(1),
                false => ("", text),
            };
            let width = usize::try_from(width).unwrap_or(0);
            let count = width.saturating_sub(text.chars().count());
            Value::from(format!("{sign}{}{digits}", "0".repeat(count)))
        }
        "casefold" => Value::from(text.to_lowercase()),
        "swapcase" => {
            let swapped = text.chars().map(|letter| match letter.is_uppercase() {
                true => letter.to_lowercase().collect::<String>(),
                false => letter.to_uppercase().collect(),
            });
            Value::from(swapped.collect::<String>())
        }
        _ => return Ok(None),
    }))
}

fn text_of(value: &Value) -> Result<&str, Error> {
    value.as_str().ok_or_else(|| refused("the method takes a text"))
}

/// Splits a text at separators, at most `most` times.
fn split<'t>(
    text: &'t str,
    separator: &str,
    most: usize,
    is_from_end: bool,
) -> Result<Vec<&'t str>, Error> {
    if separator.is_empty() {
        return Err(refused("empty separator"));
    }
    let count = most.saturating_add(1);
    Ok(match is_from_end {
        false => text.splitn(count, separator).collect(),
        true => {
            let mut parts: Vec<_> = text.rsplitn(count, separator).collect();
            parts.reverse();
            parts
        }
    })
}

/// Splits a text into words at blanks, at most `most` times.
fn split_at_blanks(text: &str, most: usize, is_from_end: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text;
    loop {
        rest = match is_from_end {
            false => rest.trim_start_matches(is_blank),
            true => rest.trim_end_matches(is_blank),
        };
        if rest.is_empty() {
            break;
        }
        let place = match is_from_end {
            _ if parts.len() >= most => None,
            false => rest.find(is_blank).map(|at| rest.split_at(at)),
            true => rest.rfind(is_blank).map(|at| {
                let width = rest[at..].chars().next().map_or(1, char::len_utf8);
                let (before, part) = rest.split_at(at + width);
                (part, before)
            }),
        };
        // What is not split keeps its blanks on the other side.
        let Some((part, left)) = place else {
            parts.push(rest);
            break;
        };
        parts.push(part);
        rest = left;
    }
    if is_from_end {
        parts.reverse();
    }
    parts
}

fn lines(text: &str, keeps: bool) -> Vec<&str> {
    let mut made = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(ends_line) {
        let end = &rest[at..];
        let width = match end.starts_with("\r\n") {
            true => 2,
            false => end.chars().next().map_or(1, char::len_utf8),
        };
        made.push(&rest[..if keeps { at + width } else { at }]);
        rest = &rest[at + width..];
    }
    if !rest.is_empty() {
        made.push(rest);
    }
    made
}

fn padded(text: &str, name: &str, width: usize, fill: char) -> Value {
    let missing = width.saturating_sub(text.chars().count());
    let left = match name {
        "ljust" => 0,
        "rjust" => missing,
        // As Python rounds.
        _ => missing / 2 + (missing & width & 1),
    };
    let fill = |count: usize| std::iter::repeat_n(fill, count).collect::<String>();
    Value::from(format!("{}{text}{}", fill(left), fill(missing - left)))
}

fn of_list(value: &Value, name: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
    Ok(match name {
        "copy" => Some(value.clone()),
        "index" => {
            let (what,): (Value,) = from_args(arguments)?;
            let place = value.try_iter()?.position(|item| item == what);
            let missing = || Error::new(ErrorKind::InvalidOperation, "it is not in the list");
            Some(Value::from(place.ok_or_else(missing)?))
        }
        _ => None,
    })
}
