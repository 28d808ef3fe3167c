//! YAML as JSON values: what a configuration is written in.
//!
//! Aliases stand for copies of what they name, so a text of a kilobyte could ask for any amount of
//! memory: values are counted, copies too, and there may be no more than [`MAX_VALUES`]. Nesting is
//! bounded by the parser.

use std::collections::HashMap;

use apr_core::{Error, Escaped, Result, grouped};
use granit_parser::{Event, Parser, ScalarStyle, StrInput};
use serde_json::{Map, Number, Value};

/// Bytes of a configuration.
const MAX_TEXT: usize = 4 << 20;

/// Scalars, lists and mappings of all documents together.
const MAX_VALUES: usize = 100_000;

/// The documents of a text.
///
/// # Errors
/// E001 for what is not YAML, and E008 for what is too large, by aliases or without.
pub(crate) fn documents(text: &str) -> Result<Vec<Value>> {
    if text.len() > MAX_TEXT {
        let len = grouped(text.len() as u64);
        return Err(Error::memory(format!("{len} bytes are too many for a configuration")));
    }
    let mut reader =
        Reader { events: Parser::new_from_str(text), anchors: HashMap::new(), values: 0 };
    let mut documents = Vec::new();
    loop {
        match reader.next()? {
            Event::StreamEnd => return Ok(documents),
            Event::StreamStart | Event::DocumentStart(..) => {}
            Event::DocumentEnd => reader.anchors.clear(),
            event => documents.push(reader.value(event)?),
        }
    }
}

struct Reader<'a> {
    events: Parser<'a, StrInput<'a>>,
    anchors: HashMap<usize, Value>,
    values: usize,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<Event<'a>> {
        match self.events.next() {
            Some(Ok((event, _))) => Ok(event),
            Some(Err(error)) => {
                Err(Error::format(format!("not valid YAML: {}", apr_core::foreign(&error))))
            }
            None => Err(Error::format("not valid YAML: it ends early")),
        }
    }

    fn count(&mut self, values: usize) -> Result<()> {
        self.values += values;
        if self.values > MAX_VALUES {
            let most = grouped(MAX_VALUES as u64);
            return Err(Error::memory(format!(
                "the configuration has more than {most} values, copies by aliases included"
            )));
        }
        Ok(())
    }

    fn value(&mut self, event: Event<'a>) -> Result<Value> {
        self.count(1)?;
        let (anchor, value) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                (anchor, scalar(&text, style, tag.is_some()))
            }
            Event::SequenceStart(_, anchor, _) => (anchor, self.sequence()?),
            Event::MappingStart(_, anchor, _) => (anchor, self.mapping()?),
            Event::Alias(anchor) => {
                // Only what is complete is there: nothing contains itself.
                let value = self.anchors.get(&anchor).cloned();
                let value = value.ok_or_else(|| Error::format("an alias refers to itself"))?;
                self.count(size(&value))?;
                return Ok(value);
            }
            other => return Err(Error::format(format!("unexpected in YAML: {other:?}"))),
        };
        if anchor > 0 {
            self.count(size(&value))?;
            self.anchors.insert(anchor, value.clone());
        }
        Ok(value)
    }

    fn sequence(&mut self) -> Result<Value> {
        let mut values = Vec::new();
        loop {
            match self.next()? {
                Event::SequenceEnd => return Ok(Value::Array(values)),
                event => values.push(self.value(event)?),
            }
        }
    }

    fn mapping(&mut self) -> Result<Value> {
        let mut values = Map::new();
        let mut inherited = Map::new();
        loop {
            let key = match self.next()? {
                Event::MappingEnd => break,
                Event::Scalar(text, ..) => text.into_owned(),
                _ => return Err(Error::format("a key is not text")),
            };
            self.count(1)?;
            let event = self.next()?;
            let value = self.value(event)?;
            match (key.as_str(), value) {
                ("<<", Value::Object(object)) => inherited.extend(object),
                (_, value) if !values.contains_key(&key) => {
                    values.insert(key, value);
                }
                _ => {
                    let key = Escaped::short(&key).to_string();
                    return Err(Error::format(format!("the key '{key}' appears twice")));
                }
            }
        }
        for (key, value) in inherited {
            values.entry(key).or_insert(value);
        }
        Ok(Value::Object(values))
    }
}

/// Returns the number of nested values in a value.
fn size(value: &Value) -> usize {
    1 + match value {
        Value::Array(values) => values.iter().map(size).sum(),
        Value::Object(values) => values.values().map(|value| 1 + size(value)).sum(),
        _ => 0,
    }
}

/// A scalar by YAML 1.2's core schema.
fn scalar(text: &str, style: ScalarStyle, tagged: bool) -> Value {
    if tagged || style != ScalarStyle::Plain {
        return text.into();
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => true.into(),
        "false" | "False" | "FALSE" => false.into(),
        text => number(text).map_or_else(|| text.into(), Value::Number),
    }
}

/// A decimal number.
fn number(text: &str) -> Option<Number> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if !digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    if digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse::<i64>().map(Number::from).ok();
    }
    Number::from_f64(text.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use apr_core::Code;
    use serde_json::json;

    use super::*;

    #[test]
    fn documents_lists_mappings_and_scalars_are_read() {
        let text = "a: 1\nb: [0.5, 1e-3, -2, yes, 'no', true]\nc: {d: ~}\n---\n- x\n- y: z\n";
        let expected = [
            json!({"a": 1, "b": [0.5, 0.001, -2, "yes", "no", true], "c": {"d": null}}),
            json!(["x", {"y": "z"}]),
        ];
        assert_eq!(documents(text).unwrap(), expected);
    }

    #[test]
    fn aliases_are_copies_and_keys_are_inherited() {
        let text = "a: &a {w: 1, d: 2}\nb: *a\nc:\n  <<: *a\n  d: 3\n";
        let expected = json!({"a": {"w": 1, "d": 2}, "b": {"w": 1, "d": 2}, "c": {"w": 1, "d": 3}});
        assert_eq!(documents(text).unwrap(), [expected]);
    }

    #[test]
    fn aliases_that_multiply_are_refused() {
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..30 {
            let before = vec![format!("*a{}", level - 1); 10].join(", ");
            bomb += &format!("a{level}: &a{level} [{before}]\n");
        }
        assert_eq!(documents(&bomb).unwrap_err().code(), Code::Memory);
        let long = format!("a: [{}]", "x, ".repeat(MAX_VALUES + 1));
        assert_eq!(documents(&long).unwrap_err().code(), Code::Memory);
        assert_eq!(documents(&"x".repeat(MAX_TEXT + 1)).unwrap_err().code(), Code::Memory);
    }

    #[test]
    fn text_that_is_not_yaml_is_rejected() {
        for text in [
            "a: [".to_owned(),
            "a: *nobody".to_owned(),
            "a: &a [*a]".to_owned(),
            "a: 1\na: 2".to_owned(),
            "? [a, b]\n: c".to_owned(),
            "a: ".to_owned() + &"[".repeat(100_000),
            "\u{0}".to_owned(),
        ] {
            assert!(documents(&text).is_err(), "{text:.20}");
        }
    }
}
