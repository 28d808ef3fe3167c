//! What a `tokenizer.json` may ask for, looked at before the library gets it.
//!
//! A pattern with counted repetitions inside each other is compiled to as many steps as the product
//! of the counts, and texts that replace short ones, one after the other, make a text as much
//! longer as the product of their lengths.

use apr_core::{Error, Result};
use apr_tokenizer::wrong_json;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value as Json;

/// Bytes of a pattern. The longest that models have is some 12,000.
const MAX_PATTERN: usize = 64 << 10;
/// Maximum product of the counts of nested repetitions. Models have up to 512.
const MAX_REPETITIONS: u64 = 100_000;
/// Bytes that a text may grow to on its way.
const MAX_GROWN: u64 = 256 << 20;

/// Times that a template may put a text. Models have one.
const MAX_TEXTS: usize = 4;
/// Memory of a token beside its text.
const BYTES_OF_A_TOKEN: u64 = 100;

/// The parts that do something with a text. The model is a table, and looked at by the library.
#[derive(Deserialize)]
struct Parts {
    /// Required, although the library reads it.
    #[serde(rename = "model")]
    _model: IgnoredAny,
    #[serde(default)]
    normalizer: Json,
    #[serde(default)]
    pre_tokenizer: Json,
    #[serde(default)]
    decoder: Json,
    #[serde(default)]
    post_processor: Json,
}

/// Bounds of a pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bounds {
    /// Factor by which a text may become longer.
    growth: u64,
}

impl Bounds {
    pub(super) fn check_text(self, text: &str) -> Result<()> {
        if self.growth.saturating_mul(text.len() as u64) > MAX_GROWN {
            return Err(Error::memory(format!(
                "the tokenizer may expand the text {} times, which is too much",
                self.growth
            )));
        }
        Ok(())
    }
}

/// Looks at a `tokenizer.json`.
pub(super) fn check(json: &[u8]) -> Result<Bounds> {
    let parts: Parts =
        serde_json::from_slice(json).map_err(|error| Error::format(wrong_json(&error)))?;
    let Parts { normalizer, pre_tokenizer, decoder, post_processor, .. } = &parts;
    check_parts([normalizer, pre_tokenizer, post_processor], decoder)
}

/// Checks the steps before a text becomes tokens, and the decoder.
pub(super) fn check_parts(before: [&Json; 3], decoder: &Json) -> Result<Bounds> {
    let mut growth = 1;
    for part in before {
        check_part(part, &mut growth)?;
    }
    // A token is decoded from a text of some bytes.
    let mut decoded = 1;
    check_part(decoder, &mut decoded)?;
    let bounds = Bounds { growth: growth.max(decoded) };
    bounds.check_text(" ")?;
    Ok(bounds)
}

fn check_part(part: &Json, growth: &mut u64) -> Result<()> {
    match part {
        Json::Object(fields) => {
            if let Some(pattern) = fields.get("Regex").and_then(Json::as_str) {
                check_pattern(pattern)?;
            }
            if fields.get("type").and_then(Json::as_str) == Some("Replace") {
                let content = fields.get("content").and_then(Json::as_str).unwrap_or_default();
                let pattern =
                    fields.get("pattern").and_then(|pattern| pattern.get("String")?.as_str());
                let replaced = pattern.map_or(1, |pattern| pattern.len().max(1));
                *growth = growth.saturating_mul((content.len().div_ceil(replaced) as u64).max(1));
            }
            match fields.get("type").and_then(Json::as_str) {
                // A byte beyond ASCII becomes a letter of two bytes.
                Some("ByteLevel") => *growth = growth.saturating_mul(2),
                Some("TemplateProcessing") => check_template(fields, growth)?,
                _ => {}
            }
            fields.values().try_for_each(|part| check_part(part, growth))
        }
        Json::Array(parts) => parts.iter().try_for_each(|part| check_part(part, growth)),
        _ => Ok(()),
    }
}

/// Counts how often a template inserts a text. The text's tokens take more memory than its bytes.
fn check_template(fields: &serde_json::Map<String, Json>, growth: &mut u64) -> Result<()> {
    let pieces = fields.get("single").and_then(Json::as_array);
    let texts = pieces.into_iter().flatten().filter(|piece| piece.get("Sequence").is_some());
    match texts.count() {
        0 | 1 => Ok(()),
        texts if texts <= MAX_TEXTS => {
            *growth = growth.saturating_mul(texts as u64 * BYTES_OF_A_TOKEN);
            Ok(())
        }
        texts => Err(Error::memory(format!(
            "the tokenizer inserts a text {texts} times; {MAX_TEXTS} are allowed"
        ))),
    }
}

/// Refuses a pattern that would be compiled to a program of more than a million steps.
fn check_pattern(pattern: &str) -> Result<()> {
    if pattern.len() > MAX_PATTERN {
        return Err(Error::memory(format!(
            "a pattern of the tokenizer has {} bytes",
            pattern.len()
        )));
    }

    let mut nesting = Nesting { inside: vec![1], before: 1 };
    let mut rest = pattern;
    while !rest.is_empty() {
        rest = nesting.step(rest);
        if nesting.inside.iter().any(|product| *product > MAX_REPETITIONS) {
            return Err(Error::memory(
                "a pattern of the tokenizer has counted repetitions inside each other",
            ));
        }
    }

    Ok(())
}

/// Groups of a pattern, as far as it has been read.
struct Nesting {
    /// The largest product of counts inside each open group so far.
    inside: Vec<u64>,
    /// Product for the last part that was read, which a count may follow.
    before: u64,
}

impl Nesting {
    /// Reads a letter; the rest of the pattern.
    fn step<'p>(&mut self, pattern: &'p str) -> &'p str {
        let mut letters = pattern.chars();
        match letters.next() {
            Some('\\') => {
                letters.next();
                self.before = 1;
            }
            Some('(') => self.inside.push(1),
            Some(')') => {
                self.before = self.inside.pop().unwrap_or(1);
                if self.inside.is_empty() {
                    self.inside.push(1);
                }
                self.raise();
            }
            Some('{') => {
                self.before = self.before.saturating_mul(largest_count(letters.as_str()));
                self.raise();
            }
            Some('}' | '?' | '+' | '*') | None => {}
            // A letter that a count follows is counted by itself.
            Some(_) if letters.as_str().starts_with('{') => self.before = 1,
            Some(_) => {}
        }

        letters.as_str()
    }

    fn raise(&mut self) {
        if let Some(last) = self.inside.last_mut() {
            *last = (*last).max(self.before);
        }
    }
}

/// Returns the larger number of `2,5}`, or 1 for text that is not a count, as in `{L}`.
fn largest_count(rest: &str) -> u64 {
    let counts = rest.split('}').next().unwrap_or_default().split(',');
    counts.filter_map(|count| count.trim().parse().ok()).max().unwrap_or(1).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(normalizer: &str, pre_tokenizer: &str) -> Result<Bounds> {
        let json = format!(
            r#"{{"normalizer": {normalizer}, "pre_tokenizer": {pre_tokenizer}, "model": {{}}}}"#
        );
        check(json.as_bytes())
    }

    fn split(pattern: &str) -> String {
        serde_json::json!({ "type": "Split", "pattern": { "Regex": pattern } }).to_string()
    }

    #[test]
    fn letters_of_two_bytes_and_texts_put_again_and_again_make_a_text_longer() {
        let bytes = |times| {
            let step = serde_json::json!({ "type": "ByteLevel" });
            serde_json::json!({ "type": "Sequence", "normalizers": vec![step; times] }).to_string()
        };
        assert_eq!(of(&bytes(3), "null").unwrap().growth, 8);
        assert!(of(&bytes(40), "null").is_err());

        let template = |texts| {
            let text = serde_json::json!({ "Sequence": { "id": "A", "type_id": 0 } });
            let single = vec![text; texts];
            let json = serde_json::json!({ "type": "TemplateProcessing", "single": single });
            check(
                serde_json::json!({ "post_processor": json, "model": null }).to_string().as_bytes(),
            )
        };
        assert_eq!(template(1).unwrap().growth, 1);
        assert_eq!(template(2).unwrap().growth, 2 * BYTES_OF_A_TOKEN);
        assert!(template(200_000).is_err());
    }

    #[test]
    fn a_pattern_that_is_longer_than_any_models_is_refused() {
        let longest = "a".repeat(MAX_PATTERN);
        of("null", &split(&longest)).unwrap();
        let error = of("null", &split(&(longest + "a"))).map(drop).unwrap_err();
        assert_eq!(error.code(), apr_core::Code::Memory);
    }

    #[test]
    fn patterns_that_models_have_pass() {
        for pattern in [
            concat!(
                r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*",
                r"|\s+(?!\S)|\s+",
            ),
            concat!(
                r"\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)",
                r"|\s{1,2}(?!\S)",
            ),
            r"\d{1,3}(?=(?:\d{3})*\b)",
        ] {
            assert!(of("null", &split(pattern)).is_ok(), "{pattern}");
        }
    }

    #[test]
    fn repetitions_inside_each_other_are_refused() {
        for pattern in [
            "((a{1000}){1000}){1000}",
            "((?=a)a{999}){1,999}",
            "a{1000}{1000}",
            "(a(b{400})c{2}){400}",
        ] {
            assert_eq!(
                of("null", &split(pattern)).unwrap_err().code(),
                apr_core::Code::Memory,
                "{pattern}"
            );
        }
    }

    #[test]
    fn texts_that_grow_without_bound_are_refused() {
        let step =
            r#"{"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaaaaaaaaaa"}"#;
        let steps = |count: usize| {
            format!(r#"{{"type": "Sequence", "normalizers": [{}]}}"#, vec![step; count].join(","))
        };
        assert_eq!(of(&steps(2), "null").unwrap(), Bounds { growth: 256 });
        assert!(of(&steps(2), "null").unwrap().check_text(&"a".repeat(2 << 20)).is_err());
        assert!(of(&steps(16), "null").is_err());
    }
}
