//! Errors of grammars, in the words and with the codes of this project.

use apr_registry::{Error, Escaped};
use llguidance::api::StopReason;

use super::{Grammar, GrammarKind};

/// Returns the error for a JSON schema that is not valid JSON.
pub(super) fn of_json(error: &serde_json::Error, text: &str) -> Error {
    match error.is_eof() && text.trim().is_empty() {
        true => Error::format("the JSON schema is empty"),
        false => {
            Error::format(format!("not valid JSON: {}", Escaped::short(&apr_core::foreign(&error))))
        }
    }
}

/// Returns the error for the library's message about a grammar, with the line.
pub(super) fn of_library(message: &str, grammar: &Grammar) -> Error {
    let (place, message) = placed(message);
    let message = plain(message);
    let place = place.or_else(|| match grammar.kind {
        GrammarKind::JsonSchema => line_of_key(&message, &grammar.text),
        _ => None,
    });
    // Lines of GBNF are none of what it became: what can be wrong with one was found before.
    let place = place.filter(|_| !matches!(grammar.kind, GrammarKind::Gbnf | GrammarKind::Regex));
    let what = match grammar.kind {
        GrammarKind::JsonSchema => "the JSON schema",
        GrammarKind::Regex => "the regular expression",
        GrammarKind::Lark | GrammarKind::Gbnf => "the grammar",
    };
    let place = place.map_or_else(String::new, |line| format!(", line {line}"));
    let text = format!("{what}{place}: {}", Escaped::short(&message));
    let lower = message.to_lowercase();
    let says = |parts: &[&str]| parts.iter().any(|part| lower.contains(part));
    if says(&["too big", "too large", "too complex", "too many", "fuel"]) {
        return Error::memory(text);
    }
    match says(&["unimplemented", "not supported", "not implemented", "unsupported", "only "]) {
        true => Error::version(text),
        false => Error::format(text),
    }
}

/// Returns the error for a text that can't be continued.
pub(super) fn unfit(message: &str) -> Error {
    let message = plain(message);
    let is = |reason: StopReason| message.contains(&reason.to_string());
    if is(StopReason::NoExtensionBias) {
        return Error::version(
            "no token of the vocabulary continues the text as the grammar requires: it has \
             characters that the model can't write",
        );
    }
    let shown = Escaped::short(&message);
    match is(StopReason::LexerTooComplex) || is(StopReason::ParserTooComplex) {
        true => Error::memory(format!("the grammar takes too much work: {shown}")),
        false => Error::format(format!("the grammar: {shown}")),
    }
}

/// A message that begins with a line and a column, `at 3(5): ` or `3(5): `.
fn placed(message: &str) -> (Option<usize>, &str) {
    let start = message.strip_prefix("at ").unwrap_or(message);
    let found = start.split_once('(').and_then(|(line, rest)| {
        let (column, rest) = rest.split_once("): ")?;
        column.parse::<usize>().ok()?;
        Some((line.parse().ok()?, rest))
    });
    found.map_or((None, message), |(line, rest)| (Some(line), rest))
}

/// Returns the sentence with the problem, without the text around the place and without traces.
fn plain(message: &str) -> String {
    // Errors of expressions show the expression, and say below what is wrong with it.
    let of_expression = message.lines().find_map(|line| line.trim().strip_prefix("error: "));
    let first = message.lines().map(str::trim).find(|line| !line.is_empty());
    of_expression.or(first).unwrap_or("it can't be used").to_owned()
}

/// The first line of a schema that has a key which a message quotes.
fn line_of_key(message: &str, schema: &str) -> Option<usize> {
    let key = message.split('"').nth(1).or_else(|| message.split('\'').nth(1))?;
    let key = format!("\"{key}\"");
    schema.lines().position(|line| line.contains(&key)).map(|line| line + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_messages_are_lines() {
        assert_eq!(placed("at 3(5): unknown\nmore"), (Some(3), "unknown\nmore"));
        assert_eq!(placed("12(1): a (at b)"), (Some(12), "a (at b)"));
        assert_eq!(unfit("NoExtensionBias\n<non-verbose/>").code().id(), "E003");
        assert_eq!(unfit("LexerTooComplex").code().id(), "E008");
        assert_eq!(placed("f(x): y"), (None, "f(x): y"));
        assert_eq!(plain("regex parse error:\n  (\n  ^\nerror: unclosed group"), "unclosed group");
        assert_eq!(line_of_key("Unimplemented keys: [\"b\"]", "{\"a\": 1,\n\"b\": 2}"), Some(2));
    }
}
