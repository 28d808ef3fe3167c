//! The YAML between `---` lines that a model card begins with.
//!
//! Only its outermost level is kept: scalars, and lists of scalars. Results of evaluations
//! (`model-index`) and what the hub's page shows (`widget`) are nested, and large; they stay in the
//! file. Aliases are refused, so that no text stands for more than itself; nesting is bounded by
//! the parser.

use std::borrow::Cow;

use apr_core::{Escaped, grouped};
use granit_parser::{Event, Parser, ScalarStyle, StrInput};
use serde_json::{Map, Number, Value};

/// Bytes of front matter. Cards with results of a hundred evaluations have a few hundred thousand.
const MAX_FRONT_MATTER: usize = 2 << 20;

/// Bytes of one scalar, and elements of a list, that are kept.
const MAX_SCALAR: usize = 4 << 10;
const MAX_LIST: usize = 1000;

/// Bytes of all that is kept.
const MAX_KEPT: usize = 64 << 10;

/// The fields of a card, and warnings about fields that occur twice or are too large.
#[derive(Debug, Default, PartialEq)]
pub(super) struct FrontMatter {
    pub(super) fields: Map<String, Value>,
    pub(super) warnings: Vec<String>,
}

/// Reads the front matter. Returns `None` if the text does not begin with one.
pub(super) fn read(text: &str) -> Result<Option<FrontMatter>, String> {
    let Some(yaml) = cut(text) else { return Ok(None) };
    if yaml.len() > MAX_FRONT_MATTER {
        return Err(format!(
            "its front matter has {} bytes, too many for a model card",
            grouped(yaml.len() as u64)
        ));
    }

    let mut reader =
        Reader { events: Parser::new_from_str(yaml), found: FrontMatter::default(), kept: 0 };
    match reader.read() {
        // A text between two rules is not front matter.
        Ok(false) => Ok(None),
        Ok(true) => Ok(Some(reader.found)),
        Err(why) => Err(format!("its front matter is not valid YAML: {why}")),
    }
}

/// Returns the lines between the first line, `---`, and the next such line.
fn cut(text: &str) -> Option<&str> {
    let text = text.trim_start_matches('\u{feff}').trim_start();
    let (first, rest) = text.split_once('\n')?;
    if first.trim_end() != "---" {
        return None;
    }
    let mut end = 0;
    for line in rest.split_inclusive('\n') {
        if line.trim_end() == "---" {
            return rest.get(..end);
        }
        end += line.len();
    }
    None
}

struct Reader<'a> {
    events: Parser<'a, StrInput<'a>>,
    found: FrontMatter,
    /// Bytes of the fields so far.
    kept: usize,
}

/// A value of the outermost level.
enum Field {
    Kept(Value),
    /// A value with nested elements, or with more than a card needs.
    Nested,
    TooLarge,
}

impl<'a> Reader<'a> {
    /// Reads a mapping. Returns `false` if the text is something else.
    fn read(&mut self) -> Result<bool, String> {
        let first = loop {
            match self.next()? {
                Event::StreamStart | Event::DocumentStart(..) => {}
                event => break event,
            }
        };

        if !matches!(first, Event::MappingStart(..)) {
            return Ok(false);
        }

        loop {
            match self.next()? {
                Event::MappingEnd => return Ok(true),
                Event::Scalar(key, ..) => self.field(key)?,
                _ => return Err("a key is not text".to_owned()),
            }
        }
    }

    fn next(&mut self) -> Result<Event<'a>, String> {
        match self.events.next() {
            Some(Ok((event, _))) => Ok(event),
            Some(Err(error)) => Err(error.to_string()),
            None => Err("it ends early".to_owned()),
        }
    }

    fn field(&mut self, key: Cow<'a, str>) -> Result<(), String> {
        let field = match self.next()? {
            Event::Scalar(text, style, _, tag) => scalar(&text, style, tag.is_some()),
            Event::SequenceStart(..) => self.list()?,
            Event::MappingStart(..) => {
                self.skip()?;
                Field::Nested
            }
            _ => return Err(ALIASES.to_owned()),
        };

        let name = Escaped::short(&key);
        let warning = match field {
            Field::Nested => return Ok(()),
            Field::Kept(_) if self.found.fields.contains_key(&*key) => {
                format!("the field '{name}' appears twice")
            }
            Field::Kept(value) if self.fits(&key, &value) => {
                self.found.fields.insert(key.into_owned(), value);
                return Ok(());
            }
            Field::Kept(_) | Field::TooLarge => {
                format!("the field '{name}' is too long; it is kept in the file only")
            }
        };

        // A card of nothing else would be repeated as warnings.
        if self.found.warnings.len() < 10 {
            self.found.warnings.push(warning);
        }

        Ok(())
    }

    fn fits(&mut self, key: &str, value: &Value) -> bool {
        let size = key.len() + value.to_string().len();
        let fits = self.kept + size <= MAX_KEPT;
        self.kept += if fits { size } else { 0 };
        fits
    }

    /// Reads a list of scalars after its start.
    fn list(&mut self) -> Result<Field, String> {
        let (mut values, mut nested, mut large) = (Vec::new(), false, false);
        loop {
            match self.next()? {
                Event::SequenceEnd => break,
                Event::Scalar(text, style, _, tag) => match scalar(&text, style, tag.is_some()) {
                    Field::Kept(value) if values.len() < MAX_LIST => values.push(value),
                    _ => large = true,
                },
                Event::SequenceStart(..) | Event::MappingStart(..) => {
                    self.skip()?;
                    nested = true;
                }
                _ => return Err(ALIASES.to_owned()),
            }
        }

        Ok(match (nested, large) {
            (true, _) => Field::Nested,
            (false, true) => Field::TooLarge,
            (false, false) => Field::Kept(values.into()),
        })
    }

    /// Passes over a collection, after its start.
    fn skip(&mut self) -> Result<(), String> {
        let mut depth = 1_usize;
        while depth > 0 {
            match self.next()? {
                Event::SequenceStart(..) | Event::MappingStart(..) => depth += 1,
                Event::SequenceEnd | Event::MappingEnd => depth -= 1,
                _ => {}
            }
        }
        Ok(())
    }
}

const ALIASES: &str = "it uses aliases, which apr does not follow";

/// Parses a scalar by YAML 1.2's core schema, in which `no` is text: it is a language.
fn scalar(text: &str, style: ScalarStyle, tagged: bool) -> Field {
    if text.len() > MAX_SCALAR {
        return Field::TooLarge;
    }
    if tagged || style != ScalarStyle::Plain {
        return Field::Kept(text.into());
    }
    Field::Kept(match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => true.into(),
        "false" | "False" | "FALSE" => false.into(),
        text => number(text).map_or_else(|| text.into(), Value::Number),
    })
}

/// Parses a decimal number that JSON can hold unchanged.
fn number(text: &str) -> Option<Number> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if !digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    if digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return text
            .parse::<i64>()
            .map(Number::from)
            .or_else(|_| text.parse::<u64>().map(Number::from))
            .ok();
    }
    Number::from_f64(text.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(yaml: &str) -> Value {
        read(&format!("---\n{yaml}\n---\n# Card\n")).unwrap().expect("front matter").fields.into()
    }

    #[test]
    fn scalars_match_the_core_schema() {
        let yaml = "a: no\nb: true\nc: 1.5\nd: -7\ne: '7'\nf: ~\ng:\nh: 1.0.0\ni: 2024-05-01\nj: \
            !!str 3\nk: 1e3\nl: nan\nm: .inf\nn: 99999999999999999999\no: 0x10\np: inf";
        let expected = json!({
            "a": "no", "b": true, "c": 1.5, "d": -7, "e": "7", "f": null, "g": null, "h": "1.0.0",
            "i": "2024-05-01", "j": "3", "k": 1000.0, "l": "nan", "m": ".inf",
            "n": "99999999999999999999", "o": "0x10", "p": "inf",
        });
        assert_eq!(fields(yaml), expected);
    }

    #[test]
    fn lists_of_scalars_are_kept_and_nested_fields_are_not() {
        let yaml = "language:\n- en\n- no\ntags: [a, 1]\nmodel-index:\n- name: x\n  results: [{a: \
            {b: c}}]\nwidget: {text: hello}\nnote: |\n  two\n  lines\nfolded: >-\n  one\n  line\n# \
            end\n";
        let expected = json!({
            "language": ["en", "no"], "tags": ["a", 1], "note": "two\nlines\n",
            "folded": "one line",
        });
        assert_eq!(fields(yaml), expected);
    }

    #[test]
    fn only_what_stands_first_between_rules_is_front_matter() {
        for text in [
            "",
            "# Card",
            "---",
            "---\n",
            "---\na: b\n",
            "Text\n---\na: b\n---\n",
            "---\njust text\n---\n",
            "---\n---\n",
        ] {
            assert_eq!(read(text), Ok(None), "{text:?}");
        }
        for text in ["\u{feff}\n---\na: b\n---", "--- \r\na: b\r\n---\r\n# Card"] {
            assert_eq!(read(text).unwrap().unwrap().fields["a"], "b", "{text:?}");
        }
    }

    #[test]
    fn a_duplicate_or_long_field_is_reported() {
        let long = "x".repeat(MAX_SCALAR + 1);
        let found = read(&format!("---\na: b\na: c\nprompt: {long}\n---\n")).unwrap().unwrap();
        assert_eq!(found.fields, Map::from_iter([("a".to_owned(), "b".into())]));
        let expected = [
            "the field 'a' appears twice",
            "the field 'prompt' is too long; it is kept in the file only",
        ];
        assert_eq!(found.warnings, expected);
        let many: String = (0..200_000).map(|i| format!("k{i}: v\n")).collect();
        let found = read(&format!("---\n{many}---\n")).unwrap().unwrap();
        assert_eq!(found.warnings.len(), 10);
        assert!(found.fields.len() < MAX_KEPT / 4);
    }

    #[test]
    fn bombs_are_refused() {
        let deep = |open: &str| format!("---\na: {}\n---\n", open.repeat(10_000));
        let bomb = "---\na: &a [x, x]\nb: &b [*a, *a]\n---\n".to_owned();
        let large = format!("---\na: {}\n---\n", "x".repeat(MAX_FRONT_MATTER));
        for text in [
            deep("["),
            deep("{a: "),
            deep("- "),
            deep("? "),
            bomb,
            large,
            "---\na: *b\n---\n".to_owned(),
        ] {
            assert!(read(&text).is_err(), "{text:.40}");
        }
    }
}
