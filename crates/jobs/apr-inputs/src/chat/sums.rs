//! Sums of lists in templates, which the engine makes for nothing: 40 doublings of a short list
//! take more memory than a computer has. Operands of `+` that may be lists pay for their length.
//! And loops, which in the engine go over `none` as over an empty list: Python refuses it.
//!
//! The engine has no hook for `+` and `for`, so that the text of a template is changed before it is
//! read: `a + b` becomes `(a)|FILTER(2) + (b)|FILTER(2)`, and `for x in y` becomes
//! `for x in (y)|ITERATED`. Sums with a text or a number in them are of no lists, and stay as they
//! are.

use std::borrow::Cow;

/// Name of the filter that is applied to operands, with the number of operands.
pub(super) const FILTER: &str = "__pay_for_length";

/// Name of the filter that is applied to the value that a loop iterates over.
pub(super) const ITERATED: &str = "__iterated";

/// The name of the filter that operands beside a `safe` one pass.
pub(super) const ESCAPED: &str = "__escaped";

/// Words that end an operand.
const WORDS: [&str; 8] = ["and", "or", "not", "in", "if", "else", "recursive", "set"];

/// Returns a template whose sums consume fuel, and whose loops iterate over the same values as in
/// Python.
pub(super) fn with_paid_sums(template: &str) -> Cow<'_, str> {
    let mut scan =
        Scan { text: template.as_bytes(), at: 0, loops: Loop::None, changes: Vec::new() };
    scan.template();
    let mut changes = scan.changes;
    if changes.is_empty() {
        return Cow::Borrowed(template);
    }

    // What is inserted at one place stays in the order in which it came.
    changes.sort_by_key(|(at, _)| *at);
    let mut text = String::with_capacity(template.len() + changes.len() * (FILTER.len() + 8));
    let mut from = 0;
    for (at, insert) in changes {
        text.push_str(template.get(from..at).unwrap_or_default());
        text.push_str(&insert);
        from = at;
    }
    text.push_str(template.get(from..).unwrap_or_default());
    Cow::Owned(text)
}

/// Operands of one sum, and of the rest of a bracket.
#[derive(Default)]
struct Sum {
    /// Beginnings and ends of complete operands.
    operands: Vec<(usize, usize)>,
    /// Beginning and end of the operand that is being read.
    current: Option<(usize, usize)>,
    /// `true` if that operand is a single literal so far.
    is_literal: bool,
    has_literal: bool,
    has_plus: bool,
}

impl Sum {
    fn extend(&mut self, start: usize, end: usize, is_literal: bool) {
        self.is_literal = is_literal && self.current.is_none();
        self.current = Some((self.current.map_or(start, |(first, _)| first), end));
    }

    fn next(&mut self) {
        self.operands.extend(self.current.take());
        self.has_literal |= std::mem::take(&mut self.is_literal);
    }
}

/// The part of a `for` that is being read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Loop {
    /// No loop, or the text after the value that the loop iterates over.
    None,
    /// Names that the loop binds.
    Names,
    /// The value that the loop iterates over, from this position on.
    Over(usize),
}

struct Scan<'t> {
    text: &'t [u8],
    at: usize,
    loops: Loop,
    /// Positions and texts of the insertions.
    changes: Vec<(usize, String)>,
}

impl Scan<'_> {
    fn starts(&self, with: &str) -> bool {
        self.text.get(self.at..).is_some_and(|rest| rest.starts_with(with.as_bytes()))
    }

    /// Continues after the next occurrence of `what`.
    fn skip_past(&mut self, what: &str) {
        while self.at < self.text.len() && !self.starts(what) {
            self.at += 1;
        }
        self.at += what.len();
    }

    fn template(&mut self) {
        while self.at < self.text.len() {
            if self.starts("{#") {
                self.at += 2;
                self.skip_past("#}");
            } else if self.starts("{{") {
                // A mark here is about blanks, and no sign of the first operand.
                self.at += 2;
                self.at += usize::from(matches!(self.text.get(self.at), Some(b'-' | b'+')));
                self.expressions("}}");
            } else if self.starts("{%") {
                self.at += 2;
                self.statement();
            } else {
                self.at += 1;
            }
        }
    }

    /// Scans a statement, whose first word is not part of an operand.
    fn statement(&mut self) {
        self.blanks_and_marks();
        let start = self.at;
        self.word();
        let word = self.text.get(start..self.at);
        if word != Some(b"raw") {
            self.loops = if word == Some(b"for") { Loop::Names } else { Loop::None };
            return self.expressions("%}");
        }

        // Nothing in here is an expression.
        self.skip_past("%}");
        while self.at < self.text.len() {
            self.skip_past("{%");
            self.blanks_and_marks();
            if self.starts("endraw") {
                return self.skip_past("%}");
            }
        }
    }

    fn blanks_and_marks(&mut self) {
        let is_skipped = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b'-' | b'+');
        while self.text.get(self.at).is_some_and(is_skipped) {
            self.at += 1;
        }
    }

    fn word(&mut self) {
        let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_' || *byte >= 128;
        while self.text.get(self.at).is_some_and(is_part) {
            self.at += 1;
        }
    }

    /// A text between quotes.
    fn quoted(&mut self, quote: u8) {
        self.at += 1;
        while let Some(byte) = self.text.get(self.at) {
            self.at += if *byte == b'\\' { 2 } else { 1 };
            if *byte == quote {
                break;
            }
        }
    }

    /// Expressions up to the end of a block.
    fn expressions(&mut self, end: &str) {
        let mut sums = vec![Sum::default()];
        let mut after_is = false;
        let mut ended = None;
        while let Some(&byte) = self.text.get(self.at) {
            let start = self.at;
            let is_outside = sums.len() == 1;
            let is_mark = matches!(byte, b'-' | b'+')
                && self.text.get(start + 1..).is_some_and(|rest| rest.starts_with(end.as_bytes()));
            if is_outside && (is_mark || self.starts(end)) {
                ended = Some(start);
                self.at += end.len() + usize::from(is_mark);
                break;
            }
            let Some(sum) = sums.last_mut() else { break };
            match byte {
                b'\'' | b'"' => {
                    self.quoted(byte);
                    sum.extend(start, self.at, true);
                }
                b'+' | b'-' if sum.current.is_some() => {
                    sum.next();
                    sum.has_plus |= byte == b'+';
                    self.at += 1;
                }
                b'(' | b'[' | b'{' => {
                    sum.extend(start, start + 1, false);
                    sums.push(Sum::default());
                    self.at += 1;
                }
                b')' | b']' | b'}' => {
                    if let Some(inner) = sums.pop() {
                        self.pay(inner);
                    }
                    self.at += 1;
                    match sums.last_mut() {
                        Some(outer) => outer.extend(start, self.at, false),
                        None => break,
                    }
                }
                b',' | b':' | b'=' | b'!' | b'<' | b'>' => {
                    let ended = std::mem::take(sum);
                    self.pay(ended);
                    self.at += 1;
                }
                _ if byte.is_ascii_whitespace() => {
                    self.at += 1;
                    continue;
                }
                _ if byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 128 => {
                    self.word();
                    let word = self.text.get(start..self.at).unwrap_or_default();
                    let is_end = WORDS.iter().any(|end| end.as_bytes() == word);
                    if is_end && !after_is {
                        let ended = std::mem::take(sum);
                        self.pay(ended);
                    } else {
                        sum.extend(start, self.at, byte.is_ascii_digit());
                    }
                    after_is = word == b"is";
                    if is_outside {
                        match (self.loops, word) {
                            (Loop::Names, b"in") => self.loops = Loop::Over(self.at),
                            (Loop::Over(_), b"if" | b"recursive") => self.check_loop(start),
                            _ => {}
                        }
                    }
                    continue;
                }
                _ => {
                    self.at += 1;
                    sum.extend(start, self.at, false);
                }
            }
            after_is = false;
        }
        while let Some(sum) = sums.pop() {
            self.pay(sum);
        }
        if let Some(end) = ended {
            self.check_loop(end);
        }
    }

    /// Applies the filter to the value that a loop iterates over, which ends here.
    fn check_loop(&mut self, end: usize) {
        if let Loop::Over(start) = std::mem::replace(&mut self.loops, Loop::None) {
            self.changes.push((start, "(".to_owned()));
            self.changes.push((end, format!(")|{ITERATED} ")));
        }
    }

    /// Lets the operands of a sum pay, if they may be lists.
    ///
    /// Behind or before a text that is `safe`, Python escapes the other operands.
    fn pay(&mut self, mut sum: Sum) {
        sum.next();
        let is_safe = |(start, end): &(usize, usize)| {
            let operand = self.text.get(*start..*end).unwrap_or_default().trim_ascii_end();
            let before = operand.strip_suffix(b"safe").map(<[u8]>::trim_ascii_end);
            before.is_some_and(|before| before.ends_with(b"|"))
        };
        if sum.has_plus && sum.operands.iter().any(is_safe) {
            for (start, end) in sum.operands {
                self.changes.push((start, "(".to_owned()));
                self.changes.push((end, format!(")|{ESCAPED}")));
            }
            return;
        }
        if !sum.has_plus || sum.has_literal {
            return;
        }
        let count = sum.operands.len();
        for (start, end) in sum.operands {
            self.changes.push((start, "(".to_owned()));
            self.changes.push((end, format!(")|{FILTER}({count})")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paid(template: &str) -> String {
        with_paid_sums(template).replace(FILTER, "f").replace(ITERATED, "i").replace(ESCAPED, "e")
    }

    #[test]
    fn operands_that_may_be_lists_pay() {
        for (template, expected) in [
            ("{{ a + b }}", "{{ (a)|f(2) + (b)|f(2) }}"),
            ("{{- a + b }}", "{{- (a)|f(2) + (b)|f(2) }}"),
            ("{%- set x.y=x.y+x.y -%}", "{%- set x.y=(x.y)|f(2)+(x.y)|f(2) -%}"),
            ("{{ [0] * 9 + m[1:2] - -a }}", "{{ ([0] * 9)|f(3) + (m[1:2])|f(3) - (-a)|f(3) }}"),
            ("{{ f(a + (b + c)) }}", "{{ f((a)|f(2) + (((b)|f(2) + (c)|f(2)))|f(2)) }}"),
            ("{{ 'a' | safe + b }}", "{{ ('a' | safe)|e + (b)|e }}"),
            ("{%- for x in y-%}", "{%- for x in( y)|i -%}"),
            ("{% for x, y in a+b%}", "{% for x, y in( (a)|f(2)+(b)|f(2))|i %}"),
            (
                "{% for x in (y if z else w) if x in v %}",
                "{% for x in( (y if z else w) )|i if x in v %}",
            ),
            ("{% if not a + b in c %}", "{% if not (a)|f(2) + (b)|f(2) in c %}"),
            (
                "{{ a + b if c is not none else d }}",
                "{{ (a)|f(2) + (b)|f(2) if c is not none else d }}",
            ),
            ("{{ {'k': a|list + b}['k'] }}", "{{ {'k': (a|list)|f(2) + (b)|f(2)}['k'] }}"),
        ] {
            assert_eq!(paid(template), expected);
        }
    }

    #[test]
    fn templates_that_add_no_lists_are_unchanged() {
        for template in [
            "a + b {# a + b #}{% raw %}{{ a + b }}{% endraw %}",
            "{{ 'a' + b + \"}}\" }}{{ i + 1 }}{{+ a -}}{{ a +}}",
            "{{ '\\'+' ~ a }}{{- 'a' + b }}",
            "{{ a + b",
            "{{ ) + a }}",
            "{% raw %}",
        ] {
            let paid = paid(template);
            assert!(paid == template || template == "{{ a + b", "{paid}");
        }
    }
}
