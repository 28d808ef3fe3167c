//! What generated text keeps to: a JSON schema, a regular expression, or a grammar.
//!
//! Before a token is chosen, the tokens that can't go on as the grammar says are ruled out: every
//! beginning of a text is the beginning of one that the grammar has. Which tokens these are is
//! computed by `llguidance`, over the bytes that each token of the vocabulary writes.

#[cfg(feature = "grammar")]
mod constraint;
#[cfg(not(feature = "grammar"))]
#[path = "constraint_off.rs"]
mod constraint;
#[cfg(feature = "grammar")]
mod errors;
#[cfg(feature = "grammar")]
mod gbnf;
#[cfg(feature = "grammar")]
mod vocabulary;

use apr_registry::Error;
use serde::Serialize;

pub(crate) use constraint::{Compiled, Constraint};

/// A grammar that generated text must match, from its first character to its last.
///
/// ```
/// use apr_run::{GenerateOptions, Grammar};
///
/// let digits = Grammar::regex("[0-9]{1,3}");
/// let options = GenerateOptions { grammar: Some(digits), ..GenerateOptions::default() };
/// assert_eq!(options.grammar.map(|grammar| grammar.kind().name()), Some("regex"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grammar {
    kind: GrammarKind,
    text: String,
    file: Option<String>,
}

/// Notation of a grammar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum GrammarKind {
    /// JSON schema.
    JsonSchema,
    /// A regular expression, which the whole text matches.
    Regex,
    /// Lark's notation, as llguidance has it.
    Lark,
    /// llama.cpp's notation.
    Gbnf,
}

impl GrammarKind {
    /// Returns the name used in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::JsonSchema => "json_schema",
            Self::Regex => "regex",
            Self::Lark => "lark",
            Self::Gbnf => "gbnf",
        }
    }
}

impl Grammar {
    /// A JSON schema: the text is a JSON document that it describes.
    #[must_use]
    pub fn json_schema(text: impl Into<String>) -> Self {
        Self { kind: GrammarKind::JsonSchema, text: text.into(), file: None }
    }

    /// A regular expression in the syntax of the crate `regex`: the whole text matches it.
    #[must_use]
    pub fn regex(pattern: impl Into<String>) -> Self {
        Self { kind: GrammarKind::Regex, text: pattern.into(), file: None }
    }

    /// A grammar: in Lark's notation, whose rule `start` the text is, or in llama.cpp's, GBNF,
    /// which has `::=` behind the name of a rule, and whose rule `root` the text is.
    #[must_use]
    pub fn rules(text: impl Into<String>) -> Self {
        let text = text.into();
        let kind = if is_gbnf(&text) { GrammarKind::Gbnf } else { GrammarKind::Lark };
        Self { kind, text, file: None }
    }

    /// Sets the name of the grammar's file, for errors.
    #[must_use]
    pub fn in_file(self, name: impl Into<String>) -> Self {
        Self { file: Some(name.into()), ..self }
    }

    /// Returns the notation of the grammar.
    #[must_use]
    pub fn kind(&self) -> GrammarKind {
        self.kind
    }

    /// An error that names the file.
    #[cfg_attr(not(feature = "grammar"), expect(dead_code, reason = "nothing reads a grammar"))]
    fn located(&self, error: Error) -> Error {
        match &self.file {
            Some(file) => error.in_file(file),
            None => error,
        }
    }
}

/// Returns `true` if a text defines rules at the beginning of a line, as in GBNF.
fn is_gbnf(text: &str) -> bool {
    let is_name = |name: &str| {
        let is_part = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
        !name.is_empty() && name.chars().all(is_part)
    };
    text.lines().filter_map(|line| line.split_once("::=")).any(|(name, _)| is_name(name.trim()))
}

/// Match of a generated text with its grammar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct KeptGrammar {
    /// Notation of the grammar: `json_schema`, `regex`, `lark` or `gbnf`.
    pub kind: &'static str,
    /// `true` if the grammar accepts the text, `false` if the text is only the beginning of an
    /// accepted one.
    pub complete: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notations_are_detected_by_their_rules() {
        for (text, kind) in [
            ("root ::= \"a\"", GrammarKind::Gbnf),
            ("# text\n  a-rule ::= [a]\nroot::=a-rule", GrammarKind::Gbnf),
            ("start: \"a\"", GrammarKind::Lark),
            ("start: \"x ::= y\"", GrammarKind::Lark),
            ("", GrammarKind::Lark),
        ] {
            assert_eq!(Grammar::rules(text).kind(), kind, "{text}");
        }
    }
}
