//! Words of Python's expressions, as TorchScript, sympy, MONAI and Jinja read them; nothing is
//! evaluated.
//!
//! Comments, texts, line ends and brackets are told apart, so that a mark within a text is none.

use std::borrow::Cow;

/// Token of Python code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token<'a> {
    /// A name or keyword.
    Name(&'a str),
    /// A text, with its escapes decoded.
    Text(String),
    /// Number, as written in the code.
    Number(&'a str),
    /// Any other character; `\n` for the end of a statement.
    Mark(char),
}

impl Token<'_> {
    pub(super) fn is(&self, mark: char) -> bool {
        *self == Token::Mark(mark)
    }
}

/// Splits a text into tokens. Unclosed texts extend to the end.
pub(super) fn tokens(source: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut rest = source;
    let mut depth = 0_usize;
    while let Some(first) = rest.chars().next() {
        if let Some((text, left)) = text(rest) {
            tokens.push(Token::Text(text));
            rest = left;
            continue;
        }
        if is_start(first) {
            let len = rest.find(|c| !is_start(c) && !c.is_alphanumeric()).unwrap_or(rest.len());
            tokens.push(Token::Name(&rest[..len]));
            rest = &rest[len..];
            continue;
        }
        if first.is_ascii_digit() {
            let len = number(rest);
            tokens.push(Token::Number(&rest[..len]));
            rest = &rest[len..];
            continue;
        }

        rest = &rest[first.len_utf8()..];
        match first {
            '#' => rest = &rest[rest.find(['\n', '\r']).unwrap_or(rest.len())..],
            // The next line goes on with this one.
            '\\' if rest.starts_with(['\n', '\r']) => rest = &rest[1..],
            '\n' | '\r' | ';' if depth == 0 => tokens.push(Token::Mark('\n')),
            _ if first.is_whitespace() => {}
            _ => {
                match first {
                    '(' | '[' | '{' => depth += 1,
                    ')' | ']' | '}' => depth = depth.saturating_sub(1),
                    _ => {}
                }
                tokens.push(Token::Mark(first));
            }
        }
    }
    tokens
}

fn is_start(c: char) -> bool {
    c.is_alphabetic() || c == '_' || !c.is_ascii() && !c.is_whitespace()
}

/// Bytes of a number: digits, a point, an exponent.
fn number(rest: &str) -> usize {
    let mut last = '0';
    let ends = |c: char| {
        let is_part = c.is_ascii_alphanumeric()
            || "._".contains(c)
            || "+-".contains(c) && "eE".contains(last);
        last = c;
        !is_part
    };
    rest.find(ends).unwrap_or(rest.len())
}

/// Parses a text at the start, with its prefix (`r`, `b`, `f`). Returns it and the rest.
fn text(rest: &str) -> Option<(String, &str)> {
    let len = rest.find(|c: char| !c.is_ascii_alphabetic())?;
    let (prefix, quoted) = rest.split_at(len);
    let quote = quoted.chars().next().filter(|c| ['"', '\''].contains(c))?;
    let is_prefix = prefix.len() <= 2 && prefix.chars().all(|c| "rRbBuUfFtT".contains(c));
    if !is_prefix {
        return None;
    }

    let is_raw = prefix.contains(['r', 'R']);
    let triple: String = std::iter::repeat_n(quote, 3).collect();
    if let Some(inside) = quoted.strip_prefix(&triple) {
        let len = inside.find(&triple);
        let (inside, rest) = match len {
            Some(len) => (&inside[..len], &inside[len + 3..]),
            None => (inside, ""),
        };
        let text = if is_raw { Cow::Borrowed(inside) } else { unescaped(inside) };
        return Some((text.into_owned(), rest));
    }
    if is_raw {
        let inside = &quoted[1..];
        let len = inside.find(quote).unwrap_or(inside.len());
        return Some((inside[..len].to_owned(), inside.get(len + 1..).unwrap_or_default()));
    }
    Some(text_to(&quoted[1..], quote))
}

fn unescaped(text: &str) -> Cow<'_, str> {
    if !text.contains('\\') {
        return Cow::Borrowed(text);
    }
    // No text has this character, so it is read to its end.
    Cow::Owned(text_to(text, '\0').0)
}

/// Parses a text up to its closing quote and decodes Python's escapes. Returns it and the rest.
pub(super) fn text_to(rest: &str, quote: char) -> (String, &str) {
    let mut text = String::new();
    let mut chars = rest.char_indices();
    while let Some((at, c)) = chars.next() {
        if c == quote {
            return (text, &rest[at + c.len_utf8()..]);
        }
        if c != '\\' {
            text.push(c);
            continue;
        }
        let Some((_, escape)) = chars.next() else { break };
        let digits = match escape {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            '0'..='7' => {
                let mut code = escape.to_digit(8).unwrap_or_default();
                while let Some(digit) = chars.clone().next().and_then(|(_, c)| c.to_digit(8)) {
                    if code >= 64 {
                        break;
                    }
                    chars.next();
                    code = code * 8 + digit;
                }
                text.extend(char::from_u32(code & 0xff));
                continue;
            }
            // A letter by its name, which is hardly ever written otherwise than to hide it.
            'N' => {
                let name: String = chars
                    .by_ref()
                    .map(|(_, c)| c)
                    .take_while(|c| *c != '}' && *c != quote)
                    .collect();
                text.push_str(if name == "{LOW LINE" { "_" } else { "__" });
                continue;
            }
            other => {
                text.push(other);
                continue;
            }
        };
        let code: String = chars.by_ref().take(digits).map(|(_, c)| c).collect();
        let decoded = u32::from_str_radix(&code, 16).ok().and_then(char::from_u32);
        text.extend(decoded);
    }
    (text, "")
}

/// Brackets, and calls of `getattr`, in each other that are followed.
const DEPTH: usize = 32;

/// Parses a name with its attributes, such as `torch.ops.aten`. Returns the path and its end.
///
/// Brackets around the path and `getattr(torch, "ops")` are supported.
pub(super) fn path(tokens: &[Token<'_>], start: usize) -> Option<(Vec<String>, usize)> {
    path_within(tokens, start, DEPTH)
}

fn path_within(tokens: &[Token<'_>], start: usize, depth: usize) -> Option<(Vec<String>, usize)> {
    let rest = tokens.get(start..)?;
    let mut open = rest.iter().take(depth).take_while(|token| token.is('(')).count();
    let first = start + open;
    let (mut parts, mut at) = match tokens.get(first)? {
        Token::Name("getattr") if tokens.get(first + 1)?.is('(') => {
            taken(tokens, first + 2, depth.checked_sub(1)?)?
        }
        Token::Name(name) => (vec![(*name).to_owned()], first + 1),
        _ => return None,
    };

    loop {
        match (tokens.get(at), tokens.get(at + 1)) {
            (Some(Token::Mark('.')), Some(Token::Name(name))) => {
                parts.push((*name).to_owned());
                at += 2;
            }
            (Some(Token::Mark(')')), _) if open > 0 => {
                open -= 1;
                at += 1;
            }
            _ => break,
        }
    }
    (open == 0).then_some((parts, at))
}

/// Parses the arguments of `getattr`: the path of a value, and a name as a text.
fn taken(tokens: &[Token<'_>], start: usize, depth: usize) -> Option<(Vec<String>, usize)> {
    /// Maximum number of tokens in a third argument, the default value of a missing attribute.
    const THIRD: usize = 16;

    let (mut parts, comma) = path_within(tokens, start, depth)?;
    if !tokens.get(comma)?.is(',') {
        return None;
    }
    // Texts one after the other are one.
    let texts = tokens[comma + 1..].iter().map_while(|token| match token {
        Token::Text(text) => Some(text.as_str()),
        _ => None,
    });
    let (name, count) = (texts.clone().collect::<String>(), texts.count());
    if count == 0 {
        return None;
    }
    parts.extend(name.split('.').map(str::to_owned));
    let after = comma + 1 + count;
    let close = tokens[after..].iter().take(THIRD).position(|token| token.is(')'))?;
    Some((parts, after + close + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_within_texts_and_comments_are_ignored() {
        let found = tokens("a(\"#)\", b) # c(\nd = '''x\n'y'''");
        let expected = [
            Token::Name("a"),
            Token::Mark('('),
            Token::Text("#)".to_owned()),
            Token::Mark(','),
            Token::Name("b"),
            Token::Mark(')'),
            Token::Mark('\n'),
            Token::Name("d"),
            Token::Mark('='),
            Token::Text("x\n'y".to_owned()),
        ];
        assert_eq!(found, expected);
        assert_eq!(
            tokens("1.5e-3+2"),
            [Token::Number("1.5e-3"), Token::Mark('+'), Token::Number("2")]
        );
        assert_eq!(
            tokens(r#"rb"\x41" "\x41""#),
            [Token::Text(r"\x41".to_owned()), Token::Text("A".to_owned())]
        );
    }

    #[test]
    fn paths_are_followed_through_brackets_and_getattr() {
        for (source, expected) in [
            ("torch.a.b(", "torch.a.b"),
            ("torch . a \\\n. b", "torch.a.b"),
            ("((torch).a)(1)", "torch.a"),
            ("getattr(torch, 'a').b", "torch.a.b"),
            ("getattr(torch, 'a' \"b\")", "torch.ab"),
            ("getattr((getattr(x, \"y\")), 'a', 0)", "x.y.a"),
        ] {
            let tokens = tokens(source);
            let found = path(&tokens, 0).map(|(parts, _)| parts.join("."));
            assert_eq!(found.as_deref(), Some(expected), "{source}");
        }
        assert_eq!(path(&tokens("(a, b)"), 0), None);
    }
}
