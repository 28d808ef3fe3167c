//! llama.cpp's notation of grammars (`grammars/README.md` there), as rules of Lark.
//!
//! GBNF describes characters, and Lark words, of which the longest is taken: so each character
//! becomes a word of its own, and the language stays the same.

use std::collections::HashMap;
use std::fmt::Write;

use apr_registry::{Error, Escaped, Result};

/// Groups within each other.
const DEEPEST: usize = 64;
/// Maximum number of repetitions. Each repetition is a part of the rules.
const MOST: usize = 2000;

/// Translates a GBNF grammar to Lark's notation.
///
/// # Errors
/// E001 with the line for a text that is not GBNF, E003 for tokens in it, E008 beyond a limit.
pub(super) fn to_lark(text: &str) -> Result<String> {
    let mut parser = Parser { text, at: 0, depth: 0, rules: Vec::new(), ids: HashMap::new() };
    parser.space(true);
    while parser.peek().is_some() {
        parser.rule()?;
        parser.space(true);
    }

    let mut lark = String::new();
    let Some(root) = parser.ids.get("root") else {
        return Err(Error::format("the grammar has no rule 'root'"));
    };
    let _ = writeln!(lark, "start: r{root}");
    for (number, rule) in parser.rules.iter().enumerate() {
        match &rule.body {
            Some(body) => {
                let _ = writeln!(lark, "r{number}: {body}");
            }
            None => {
                let name = Escaped::short(&rule.name).to_string();
                return Err(error_in(rule.line, &format!("unknown rule '{name}'")));
            }
        }
    }
    Ok(lark)
}

/// A rule, or a group, which is one without a name.
struct Rule {
    name: String,
    /// Line of the first mention of the rule.
    line: usize,
    /// `None` before it is defined.
    body: Option<String>,
}

struct Parser<'t> {
    text: &'t str,
    at: usize,
    depth: usize,
    rules: Vec<Rule>,
    /// Numbers of rules by their names.
    ids: HashMap<&'t str, usize>,
}

impl<'t> Parser<'t> {
    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.at += next.len_utf8();
        Some(next)
    }

    fn takes(&mut self, token: &str) -> bool {
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    fn line(&self) -> usize {
        self.text[..self.at].matches('\n').count() + 1
    }

    fn error(&self, what: &str) -> Error {
        error_in(self.line(), what)
    }

    /// Skips spaces and comments, and line ends if a rule continues after them.
    fn space(&mut self, over_lines: bool) {
        loop {
            match self.peek() {
                Some(' ' | '\t') => self.at += 1,
                Some('\n' | '\r') if over_lines => self.at += 1,
                Some('#') => self.at += self.rest().find(['\n', '\r']).unwrap_or(self.rest().len()),
                _ => return,
            }
        }
    }

    fn name(&mut self) -> Option<&'t str> {
        let is_part = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
        let rest = self.rest();
        let end = rest.find(|letter| !is_part(letter)).unwrap_or(rest.len());
        self.at += end;
        Some(&rest[..end]).filter(|name| !name.is_empty())
    }

    /// The number of a rule, which need not be defined yet.
    fn id(&mut self, name: &'t str) -> usize {
        let line = self.line();
        let Self { rules, ids, .. } = self;
        *ids.entry(name).or_insert_with(|| {
            rules.push(Rule { name: name.to_owned(), line, body: None });
            rules.len() - 1
        })
    }

    fn rule(&mut self) -> Result<()> {
        let name = self.name().ok_or_else(|| self.unexpected("the name of a rule"))?;
        let id = self.id(name);
        self.space(false);
        if !self.takes("::=") {
            return Err(self.unexpected("'::='"));
        }
        if self.rules[id].body.is_some() {
            return Err(self.error(&format!("the rule '{name}' is defined twice")));
        }
        self.space(true);
        let body = self.alternatives(false)?;
        self.rules[id].body = Some(body);
        match self.peek() {
            None | Some('\n' | '\r') => Ok(()),
            Some(_) => Err(self.unexpected("the end of the line")),
        }
    }

    fn unexpected(&self, expected: &str) -> Error {
        match self.peek() {
            Some(found) => {
                let found = Escaped::short(&found.to_string()).to_string();
                self.error(&format!("expected {expected}, found '{found}'"))
            }
            None => self.error(&format!("expected {expected}, found the end of the grammar")),
        }
    }

    fn alternatives(&mut self, is_group: bool) -> Result<String> {
        let mut all = self.sequence(is_group)?;
        while self.takes("|") {
            self.space(true);
            all.push_str(" | ");
            all.push_str(&self.sequence(is_group)?);
        }
        Ok(all)
    }

    fn sequence(&mut self, is_group: bool) -> Result<String> {
        let mut parts: Vec<String> = Vec::new();
        loop {
            let part = match self.peek() {
                Some('"') => self.literal()?,
                Some('[') => self.class()?,
                Some('(') => self.group()?,
                Some('.') => {
                    self.at += 1;
                    "/(?s:.)/".to_owned()
                }
                Some('<' | '!') => {
                    let line = self.line();
                    return Err(Error::version(format!(
                        "the grammar, line {line}: tokens in GBNF are not supported; use Lark's \
                         notation"
                    )));
                }
                Some('*' | '+' | '?' | '{') => {
                    return Err(self.unexpected("something to repeat before it"));
                }
                _ => match self.name() {
                    Some(name) => format!("r{}", self.id(name)),
                    None => return Ok(parts.join(" ")),
                },
            };
            let part = self.repeated(part)?;
            parts.extend(Some(part).filter(|part| !part.is_empty()));
            self.space(is_group);
        }
    }

    /// Reads a repetition of a part, if there is one.
    fn repeated(&mut self, part: String) -> Result<String> {
        let place = self.at;
        self.space(false);
        let (least, most) = match self.peek() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            Some('{') => {
                self.at += 1;
                self.counts()?
            }
            _ => {
                self.at = place;
                return Ok(part);
            }
        };
        self.at += 1;
        if part.is_empty() || most == Some(0) {
            return Ok(String::new());
        }
        let part = if part.contains(' ') { self.new_rule(part) } else { part };
        // Repetitions of repetitions are those of a rule.
        let made = match (least, most) {
            (0, None) => format!("{part}*"),
            (1, None) => format!("{part}+"),
            (0, Some(1)) => format!("{part}?"),
            (least, None) => format!("{part}{{{least},}}"),
            (least, Some(most)) => format!("{part}{{{least},{most}}}"),
        };
        self.space(false);
        match self.peek() {
            Some('*' | '+' | '?' | '{') => {
                let rule = self.new_rule(made);
                self.repeated(rule)
            }
            _ => Ok(made),
        }
    }

    /// The numbers in braces, up to the closing one.
    fn counts(&mut self) -> Result<(usize, Option<usize>)> {
        self.space(false);
        let least = self.count()?.ok_or_else(|| self.unexpected("a number"))?;
        self.space(false);
        let mut most = Some(least);
        if self.takes(",") {
            self.space(false);
            most = self.count()?;
            self.space(false);
        }
        match self.peek() {
            Some('}') if most.is_none_or(|most| least <= most) => Ok((least, most)),
            Some('}') => Err(self.error("the second number is smaller than the first")),
            _ => Err(self.unexpected("'}'")),
        }
    }

    fn count(&mut self) -> Result<Option<usize>> {
        let rest = self.rest();
        let end = rest.find(|digit: char| !digit.is_ascii_digit()).unwrap_or(rest.len());
        if end == 0 {
            return Ok(None);
        }
        let line = self.line();
        self.at += end;
        rest[..end].parse().ok().filter(|count| *count <= MOST).map(Some).ok_or_else(|| {
            Error::memory(format!("the grammar, line {line}: more than {MOST} repetitions"))
        })
    }

    fn new_rule(&mut self, body: String) -> String {
        let line = self.line();
        self.rules.push(Rule { name: String::new(), line, body: Some(body) });
        format!("r{}", self.rules.len() - 1)
    }

    fn group(&mut self) -> Result<String> {
        let line = self.line();
        self.depth += 1;
        if self.depth > DEEPEST {
            let message = format!("the grammar, line {line}: groups in more than {DEEPEST} groups");
            return Err(Error::memory(message));
        }
        self.at += 1;
        self.space(true);
        let body = self.alternatives(true)?;
        if !self.takes(")") {
            return Err(self.unexpected("')'"));
        }
        self.depth -= 1;
        Ok(self.new_rule(body))
    }

    fn literal(&mut self) -> Result<String> {
        let line = self.line();
        self.at += 1;
        let mut parts = Vec::new();
        while !self.takes("\"") {
            match self.peek() {
                None | Some('\n') => return Err(error_in(line, "'\"' is not closed")),
                Some(_) => {
                    let letter = self.letter()?;
                    parts.push(format!("/{}/", escaped(letter)));
                }
            }
        }
        Ok(parts.join(" "))
    }

    fn class(&mut self) -> Result<String> {
        let line = self.line();
        self.at += 1;
        let mut class = if self.takes("^") { "[^" } else { "[" }.to_owned();
        let empty = class.len();
        while !self.takes("]") {
            if matches!(self.peek(), None | Some('\n')) {
                return Err(error_in(line, "'[' is not closed"));
            }
            let first = self.letter()?;
            class.push_str(&escaped(first));
            if self.rest().starts_with('-') && !self.rest().starts_with("-]") {
                self.at += 1;
                let last = self.letter()?;
                if last < first {
                    return Err(error_in(line, "a range of characters ends before it begins"));
                }
                class.push('-');
                class.push_str(&escaped(last));
            }
        }
        match class.len() == empty {
            true => Err(error_in(line, "a class without characters")),
            false => Ok(format!("/{class}]/")),
        }
    }

    /// Reads a character, or the character that an escape represents.
    fn letter(&mut self) -> Result<char> {
        let line = self.line();
        let letter = self.next().ok_or_else(|| self.unexpected("a character"))?;
        if letter != '\\' {
            return Ok(letter);
        }
        let kind = self.next().ok_or_else(|| self.unexpected("an escape"))?;
        let digits = match kind {
            'n' => return Ok('\n'),
            'r' => return Ok('\r'),
            't' => return Ok('\t'),
            '\\' | '"' | '[' | ']' => return Ok(kind),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            other => {
                let other = Escaped::short(&other.to_string()).to_string();
                return Err(error_in(line, &format!("unknown escape '\\{other}'")));
            }
        };
        let number = self.rest().get(..digits).and_then(|it| u32::from_str_radix(it, 16).ok());
        let letter = number.and_then(char::from_u32).ok_or_else(|| {
            error_in(line, &format!("'\\{kind}' is not followed by {digits} hex digits"))
        })?;
        self.at += digits;
        Ok(letter)
    }
}

fn error_in(line: usize, what: &str) -> Error {
    Error::format(format!("the grammar, line {line}: {what}"))
}

/// A character in an expression.
fn escaped(letter: char) -> String {
    format!("\\x{{{:x}}}", u32::from(letter))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_become_rules_of_single_characters() {
        let text = "# a list\nroot ::= \"a\\n\" item{2,3} |\n  ( [^a-c\\]-]+ \"\" )? # or\n\
                    item ::= .\n";
        let expected = "start: r0\n\
                        r0: /\\x{61}/ /\\x{a}/ r1{2,3} | r2?\n\
                        r1: /(?s:.)/\n\
                        r2: /[^\\x{61}-\\x{63}\\x{5d}\\x{2d}]/+\n";
        assert_eq!(to_lark(text).expect("GBNF"), expected);
        let again = to_lark("root ::= \"ab\"* [x] {2} {,}").expect_err("no number");
        assert!(again.message().contains("line 1: expected a number"), "{again}");
    }

    #[test]
    fn errors_contain_the_line() {
        for (text, expected) in [
            ("a ::= \"b\"", "no rule 'root'"),
            ("root ::= b\n", "line 1: unknown rule 'b'"),
            ("root ::= \"a\"\nroot ::= \"b\"", "line 2: the rule 'root' is defined twice"),
            ("root ::= \"a", "line 1: '\"' is not closed"),
            ("root ::= [a", "line 1: '[' is not closed"),
            ("root ::= [b-a]", "line 1: a range of characters ends before it begins"),
            ("root ::= [] ", "line 1: a class without characters"),
            ("root ::=\n\n(\"a\"", "line 3: expected ')', found the end"),
            ("root ::= \"\\q\"", "line 1: unknown escape '\\q'"),
            ("root ::= \"\\xg0\"", "line 1: '\\x' is not followed by 2 hex digits"),
            ("root ::= *", "line 1: expected something to repeat"),
            ("root = \"a\"", "line 1: expected '::='"),
            ("root ::= \"a\" )", "line 1: expected the end of the line, found ')'"),
            ("root ::= \"a\"{3,2}", "line 1: the second number is smaller"),
        ] {
            let error = to_lark(text).expect_err(text);
            assert!(error.message().contains(expected), "{text}: {error}");
        }
        let tokens = to_lark("root ::= <[12]>").expect_err("tokens");
        assert_eq!(tokens.code().id(), "E003");
        for text in ["root ::= \"a\"{9999}".to_owned(), format!("root ::= {}", "(".repeat(99))] {
            assert_eq!(to_lark(&text).expect_err("a limit").code().id(), "E008");
        }
    }
}
