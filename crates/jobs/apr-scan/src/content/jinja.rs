//! Templates of chats: what reaches from a template into Python.
//!
//! Engines that are no sandbox give a template every attribute (CVE-2024-34359): from
//! `''.__class__` the way leads to all that is loaded. No chat needs a name with two underscores,
//! or attributes by computed names: `x['%c%cclass' | format(95, 95)]` is one of that name.
//! Expressions are cut into words, texts and marks; nothing is evaluated.

use std::collections::HashSet;

use apr_registry::Escaped;

use super::ContentRemarks;
use super::python::text_to;
use crate::report::FileVerdict;

/// Filters that take an attribute by a name which may be computed.
const BY_NAME: [&str; 1] = ["attr"];

/// Filters that take the attribute that their first argument, or `attribute`, names.
const BY_ARGUMENT: [&str; 7] = ["groupby", "map", "max", "min", "rejectattr", "selectattr", "sort"];

/// Filters by which a text becomes another one, or its letters.
const MAKING: [&str; 9] =
    ["center", "format", "join", "list", "replace", "reverse", "string", "urlencode", "xmlattr"];

/// Names of Jinja's own from which a way leads into Python, and which no chat needs.
const WAYS: [&str; 2] = ["cycler", "lipsum"];

/// Remarks of one verdict.
const REMARKS: usize = 20;

/// Tokens of a subscript, of arguments or of a part of a value that are looked at together.
const TOGETHER: usize = 200;

/// Judges a template.
pub(crate) fn judge(template: &str) -> ContentRemarks {
    let mut found = ContentRemarks::new();
    let mut made = HashSet::new();
    for expression in expressions(template) {
        let tokens = tokens(expression);
        if let Some(name) = joined(&tokens) {
            add(&mut found, FileVerdict::Suspicious, &name);
        }
        for name in computed(&tokens, &mut made) {
            add(&mut found, FileVerdict::Suspicious, &name);
        }
        for token in tokens {
            let verdict = match &token {
                Token::Word(word) if is_private(word) => FileVerdict::Dangerous,
                Token::Word(word) if WAYS.contains(word) || is_mangled(word) => {
                    FileVerdict::Suspicious
                }
                Token::Text(text) if text.split(['.', ' ', '[']).any(is_private) => {
                    FileVerdict::Dangerous
                }
                Token::Text(text) if is_mangled(text) => FileVerdict::Suspicious,
                Token::Filter(name) if BY_NAME.contains(name) => FileVerdict::Suspicious,
                _ => continue,
            };
            match &token {
                Token::Word(text) | Token::Filter(text) => add(&mut found, verdict, text),
                Token::Text(text) => add(&mut found, verdict, text),
                Token::Mark(_) => {}
            }
        }
    }
    found
}

/// Returns the places of an expression at which the name of an attribute is computed.
///
/// Jinja takes an attribute of a value for `value[name]`, whatever the name is made of. `made` has
/// the variables so far that hold a text which an expression made.
fn computed(tokens: &[Token<'_>], made: &mut HashSet<String>) -> Vec<String> {
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        if found.len() > REMARKS {
            break;
        }
        match token {
            // After a value, this is no list.
            Token::Mark('[') if at > 0 && is_value(&tokens[at - 1]) => {
                let inside = within(&tokens[at + 1..]);
                let is_made = |inside| makes_text(inside, true) || made.contains(&name(inside));
                if inside.is_none_or(is_made) {
                    found.push(format!("[{}]", name(inside.unwrap_or_default())));
                }
            }
            Token::Filter(filter)
                if BY_ARGUMENT.contains(filter)
                    && tokens.get(at + 1).is_some_and(|token| token.is('(')) =>
            {
                let arguments = within(&tokens[at + 2..]);
                if arguments.is_none_or(|arguments| takes_made(filter, arguments)) {
                    found.push((*filter).to_owned());
                }
            }
            Token::Word("format_map") => found.push("format_map".to_owned()),
            Token::Word("format") if at > 1 && tokens[at - 1].is('.') => {
                if let Token::Text(text) = &tokens[at - 2]
                    && has_way(text)
                {
                    found.push(text.clone());
                }
            }
            _ => {}
        }
    }

    // `set name = ...` and `for name in ...`.
    if let [Token::Word("set" | "for"), rest @ ..] = tokens {
        let end = rest.iter().position(|token| token.is('=') || matches!(token, Token::Word("in")));
        let (target, value) = rest.split_at(end.unwrap_or(rest.len()));
        if value.chunks(TOGETHER).any(|part| makes_text(part, false)) {
            made.insert(name(target));
        }
    }
    found
}

/// Returns `true` if a value can end with this token.
fn is_value(token: &Token<'_>) -> bool {
    match token {
        Token::Word(word) => !["else", "if", "in", "not", "and", "or", "is"].contains(word),
        Token::Filter(_) | Token::Text(_) => true,
        Token::Mark(mark) => [')', ']'].contains(mark),
    }
}

/// Returns the tokens before the bracket that closes, or `None` if that is far away.
fn within<'t, 'a>(tokens: &'t [Token<'a>]) -> Option<&'t [Token<'a>]> {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().take(TOGETHER).enumerate() {
        match token {
            Token::Mark('(' | '[' | '{') => depth += 1,
            Token::Mark(')' | ']' | '}') if depth == 0 => return Some(&tokens[..at]),
            Token::Mark(')' | ']' | '}') => depth -= 1,
            _ => {}
        }
    }
    (tokens.len() < TOGETHER).then_some(tokens)
}

/// Returns `true` if an expression makes a text: of parts, by repeating it, or by a filter.
///
/// In a subscript, any parts count; elsewhere, texts of prompts are joined as a matter of course.
fn makes_text(tokens: &[Token<'_>], is_subscript: bool) -> bool {
    let is_text = |at: Option<usize>| {
        at.and_then(|at| tokens.get(at)).is_some_and(|token| matches!(token, Token::Text(_)))
    };
    let mut depth = 0_usize;
    tokens.iter().enumerate().any(|(at, token)| match token {
        Token::Mark('[') => {
            depth += 1;
            false
        }
        Token::Mark(']') => {
            depth = depth.saturating_sub(1);
            false
        }
        // Within another subscript, it names something else.
        _ if depth > 0 && is_subscript => false,
        Token::Mark('~') => is_subscript || is_short(tokens),
        Token::Mark('*' | '%') => is_text(at.checked_sub(1)) || is_text(Some(at + 1)),
        Token::Mark('+') => {
            (is_text(at.checked_sub(1)) || is_text(Some(at + 1)))
                && (is_subscript || is_short(tokens))
        }
        Token::Filter(filter) => {
            MAKING.contains(filter)
                && (is_subscript || is_short(tokens))
                && tokens.iter().any(|token| matches!(token, Token::Text(_)))
        }
        _ => false,
    })
}

/// Returns `true` if the texts of an expression could be parts of a name, not of a prompt.
fn is_short(tokens: &[Token<'_>]) -> bool {
    tokens.iter().all(|token| match token {
        Token::Text(text) => text.chars().all(|c| c.is_ascii_alphanumeric() || "_%".contains(c)),
        _ => true,
    })
}

/// Returns `true` if a filter takes the attribute that its argument makes of something else than a
/// text.
fn takes_made(filter: &str, arguments: &[Token<'_>]) -> bool {
    let named = arguments.iter().position(|token| matches!(token, Token::Word("attribute")));
    let value = match (named, filter) {
        (Some(at), _) => arguments.get(at + 2..).unwrap_or_default(),
        (None, "rejectattr" | "selectattr" | "groupby") => arguments,
        _ => return false,
    };
    let end = value.iter().position(|token| token.is(',')).unwrap_or(value.len());
    !matches!(value[..end], [Token::Text(_)])
}

/// Returns `true` if a format takes an attribute or an item of a value: `{0.x}`.
fn has_way(format: &str) -> bool {
    format.split('{').skip(1).any(|field| {
        let field = field.split(['}', ':']).next().unwrap_or_default();
        field.contains(['.', '['])
    })
}

/// Returns the words and texts of tokens, as a report and a list of names have them.
fn name(tokens: &[Token<'_>]) -> String {
    let parts = tokens.iter().take(12).map(|token| match token {
        Token::Word(text) | Token::Filter(text) => (*text).to_owned(),
        Token::Text(text) => text.clone(),
        Token::Mark(mark) => mark.to_string(),
    });
    parts.collect()
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

/// `__class__`, `__globals__` and the like; a line of underscores is none.
fn is_private(word: &str) -> bool {
    word.len() > 4 && word.starts_with("__") && word.ends_with("__") && is_mangled(word)
}

/// Returns `true` for a name with two underscores in a row and something else.
fn is_mangled(word: &str) -> bool {
    word.contains("__") && word.contains(|c: char| c.is_alphanumeric())
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
    Mark(char),
}

impl Token<'_> {
    fn is(&self, mark: char) -> bool {
        matches!(self, Token::Mark(own) if *own == mark)
    }
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
            if !first.is_whitespace() {
                tokens.push(Token::Mark(first));
            }
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
            ("{{ '______' }}{{ a ~ '__' }}", None),
            ("{{ messages[(messages | length) - 1]['content'] | trim }}", None),
            ("{{ messages[loop.index0 + 1].content.split('</think>')[-1] }}", None),
            ("{% set ns = namespace(a='a' ~ b) %}{{ m[0]['role'] + '\\n' }}", None),
            ("{% set text = '<|' ~ role ~ '|>\\n' %}{{ names[role] }}", None),
            (
                "{{ messages | selectattr('role', 'equalto', 'x') | map(attribute='content') }}",
                None,
            ),
            ("{{ '{}: {}'.format(a, b) }}{{ '%s' | format(a) }}{{ a if x in ['b'] }}", None),
            ("{{ x['%c%cclass%c%c' | format(95, 95, 95, 95)] }}", Some(FileVerdict::Suspicious)),
            ("{% set u = '_' * 2 %}{{ x[u ~ 'class' ~ u] }}", Some(FileVerdict::Suspicious)),
            ("{% set k = u ~ 'cl' ~ 'ass' ~ u %}{{ x[k] }}", Some(FileVerdict::Suspicious)),
            ("{% set n.k = 'ssalc' | reverse %}{{ x[n.k] }}", Some(FileVerdict::Suspicious)),
            ("{{ x['aaclassaa' | replace('a', y)] }}", Some(FileVerdict::Suspicious)),
            ("{{ x[['a', 'b'] | join] }}", Some(FileVerdict::Suspicious)),
            ("{{ '{0.a}'.format(x) }}", Some(FileVerdict::Suspicious)),
            ("{{ '{0[a]}'.format_map(x) }}", Some(FileVerdict::Suspicious)),
            (&format!("{{{{ x[{}'_' ~ y] }}}}", "1, ".repeat(300)), Some(FileVerdict::Suspicious)),
            (&format!("{{{{ {} }}}}", "x[".repeat(9999)), Some(FileVerdict::Suspicious)),
            ("{{ x | map(attribute=y) }}", Some(FileVerdict::Suspicious)),
            ("{{ x | selectattr(y, 'eq', 1) }}", Some(FileVerdict::Suspicious)),
            ("{{ self._TemplateReference__context }}", Some(FileVerdict::Suspicious)),
            (&format!("{many}{{{{ x.__class__ }}}}"), Some(FileVerdict::Dangerous)),
        ] {
            let worst = judge(template).into_iter().map(|(verdict, _)| verdict).max();
            assert_eq!(worst, expected, "{template}");
        }
    }
}
