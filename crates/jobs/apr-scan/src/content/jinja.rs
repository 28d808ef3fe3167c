//! Templates of chats: what reaches from a template into Python.
//!
//! Engines that are no sandbox give a template every attribute (CVE-2024-34359): from
//! `''.__class__`
//! the way leads to all that is loaded. No chat needs a name with two underscores, or attributes
//! by computed names. Expressions are cut into words and texts; nothing is evaluated.

use apr_registry::Escaped;

use super::ContentRemarks;
use super::python::text_to;
use crate::report::FileVerdict;

/// Filters that take an attribute by a name which may be computed.
const BY_NAME: [&str; 1] = ["attr"];

/// Names of Jinja's own from which a way leads into Python, and which no chat needs.
const WAYS: [&str; 2] = ["cycler", "lipsum"];

/// Remarks of one verdict.
const REMARKS: usize = 20;

/// Judges a template.
pub(crate) fn judge(template: &str) -> ContentRemarks {
    let mut found = ContentRemarks::new();
    for expression in expressions(template) {
        let tokens = tokens(expression);
        if let Some(name) = joined(&tokens) {
            add(&mut found, FileVerdict::Suspicious, &name);
        }
        for token in tokens {
            let verdict = match &token {
                Token::Word(word) if is_private(word) => FileVerdict::Dangerous,
                Token::Word(word) if WAYS.contains(word) => FileVerdict::Suspicious,
                Token::Text(text) if text.split(['.', ' ', '[']).any(is_private) => {
                    FileVerdict::Dangerous
                }
                Token::Text(text) if text.contains("__") => FileVerdict::Suspicious,
                Token::Filter(name) if BY_NAME.contains(name) => FileVerdict::Suspicious,
                _ => continue,
            };
            match &token {
                Token::Word(text) | Token::Filter(text) => add(&mut found, verdict, text),
                Token::Text(text) => add(&mut found, verdict, text),
            }
        }
    }
    found
}

fn add(found: &mut ContentRemarks, verdict: FileVerdict, what: &str) {
    let message = format!("its template accesses Python internals by '{}'", Escaped::short(what));
    // For each verdict, so that many harmless names hide none that is dangerous.
    let of_verdict = found.iter().filter(|(known, _)| *known == verdict).count();
    if of_verdict < REMARKS && !found.iter().any(|(_, known)| *known == message) {
        found.push((verdict, message));
    }
}

/// Returns the private name that an expression's texts form when they are joined, if any.
fn joined(tokens: &[Token<'_>]) -> Option<String> {
    let texts = tokens.iter().filter_map(|token| match token {
        Token::Text(text) => Some(text.as_str()),
        _ => None,
    });
    let texts: Vec<&str> = texts.collect();
    // Each alone is judged anyway.
    if texts.len() < 2 {
        return None;
    }
    let whole = texts.concat();
    INSIDE.iter().map(|name| format!("__{name}__")).find(|name| whole.contains(name))
}

/// Names that Python keeps in its objects, between two underscores on each side.
const INSIDE: [&str; 10] = [
    "base",
    "bases",
    "builtins",
    "class",
    "dict",
    "getattribute",
    "globals",
    "import",
    "init",
    "mro",
];

/// `__class__`, `__globals__` and the like.
fn is_private(word: &str) -> bool {
    word.len() > 4 && word.starts_with("__") && word.ends_with("__")
}

/// Returns the content of expression and statement marks.
///
/// A mark without an end extends to the end of the template.
fn expressions(template: &str) -> Vec<&str> {
    let mut expressions = Vec::new();
    let mut rest = template;
    while let Some(at) = next_mark(rest) {
        let end = if rest[at..].starts_with("{{") { "}}" } else { "%}" };
        let inside = &rest[at + 2..];
        let len = length(inside, end);
        expressions.push(&inside[..len]);
        rest = inside.get(len + 2..).unwrap_or_default();
    }
    expressions
}

/// Returns the offset of the next expression or statement.
///
/// It searches for both marks in one pass. A separate search for each mark would repeatedly scan to
/// the end of the template if one of them is absent.
fn next_mark(text: &str) -> Option<usize> {
    text.as_bytes().windows(2).position(|pair| pair == b"{{" || pair == b"{%")
}

/// Returns the number of bytes before the end mark. A mark within a text is not an end mark.
fn length(inside: &str, end: &str) -> usize {
    let mut rest = inside;
    while let Some(first) = rest.chars().next() {
        if rest.starts_with(end) {
            return inside.len() - rest.len();
        }
        rest = match first {
            '"' | '\'' => text_to(&rest[1..], first).1,
            _ => &rest[first.len_utf8()..],
        };
    }
    inside.len()
}

enum Token<'a> {
    Word(&'a str),
    Filter(&'a str),
    Text(String),
}

fn tokens(expression: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut rest = expression;
    let mut after_bar = false;
    while let Some(first) = rest.chars().next() {
        if first == '"' || first == '\'' {
            let (text, left) = text_to(&rest[1..], first);
            tokens.push(Token::Text(text));
            rest = left;
        } else if first.is_alphanumeric() || first == '_' {
            let len = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            let word = &rest[..len];
            tokens.push(if after_bar { Token::Filter(word) } else { Token::Word(word) });
            rest = &rest[len..];
        } else {
            after_bar = first == '|' || after_bar && first.is_whitespace();
            rest = &rest[first.len_utf8()..];
            continue;
        }
        after_bar = false;
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_into_python_are_found_however_they_are_spelled() {
        let many: String = (0..30).map(|at| format!("{{{{ '__{at}' }}}}")).collect();
        for (template, expected) in [
            ("{% for m in messages %}{{ m['role'] + ': ' + m.content | trim }}{% endfor %}", None),
            ("text with __class__ outside of expressions", None),
            ("{{ bos_token }}{% set x = namespace(a=1) %}", None),
            ("{{ ''.__class__.__mro__ }}", Some(FileVerdict::Dangerous)),
            ("{% if x['__globals__'] %}{% endif %}", Some(FileVerdict::Dangerous)),
            (r"{{ x['\x5f\x5fclass\x5f\x5f'] }}", Some(FileVerdict::Dangerous)),
            (r"{{ x['\u005f_init__'] }}", Some(FileVerdict::Dangerous)),
            ("{{ x['__cl' ~ 'ass__'] }}", Some(FileVerdict::Suspicious)),
            ("{{ x | attr('a' ~ y) }}", Some(FileVerdict::Suspicious)),
            ("{{ x|map(attribute='__init__.__globals__') }}", Some(FileVerdict::Dangerous)),
            ("{{ '}}' ~ x.__class__ }}", Some(FileVerdict::Dangerous)),
            ("{{ x.__class__", Some(FileVerdict::Dangerous)),
            (&format!("{many}{{{{ x.__class__ }}}}"), Some(FileVerdict::Dangerous)),
        ] {
            let worst = judge(template).into_iter().map(|(verdict, _)| verdict).max();
            assert_eq!(worst, expected, "{template}");
        }
    }
}
