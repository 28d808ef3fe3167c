//! Patterns over names of tensors and files.

use std::fmt;

use apr_core::{Error, Result};
use glob::Pattern;
use regex_automata::nfa::thompson::pikevm::PikeVM;

use crate::renaming::compile;

/// Maximum number of patterns to which the braces of one pattern can expand.
const MAX_ALTERNATIVES: usize = 1000;

/// A pattern over names of tensors or files: `*`, `?`, `[a-c]`, `[!a-c]`, `{a,b}`, and `\` before a
/// character that stands for itself. A wildcard matches dots and slashes, too.
///
/// ```
/// let pattern = apr_view::parse_filter("layers.{0,1}.*.weight")?;
/// assert!(pattern.is_match("layers.1.attn.q_proj.weight"));
/// assert!(!pattern.is_match("layers.10.attn.q_proj.weight"));
/// # Ok::<(), apr_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamePattern {
    text: String,
    form: Form,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Form {
    /// One of these patterns, which have no braces.
    Globs(Vec<Pattern>),
    /// The expression matches a part of the name.
    Search(Expression),
    /// The text is a part of the name.
    Part,
    /// The text is the name.
    Whole,
}

/// Automaton of a regular expression. The text of its pattern identifies it.
#[derive(Clone)]
struct Expression(PikeVM);

impl PartialEq for Expression {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Expression {}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Expression")
    }
}

impl NamePattern {
    /// Returns the pattern as it was typed.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns `true` if the pattern matches the name: all of it, or a part for a search.
    #[must_use]
    pub fn is_match(&self, name: &str) -> bool {
        match &self.form {
            Form::Globs(globs) => globs.iter().any(|glob| glob.matches(name)),
            Form::Search(Expression(automaton)) => {
                automaton.is_match(&mut automaton.create_cache(), name)
            }
            Form::Part => name.contains(&self.text),
            Form::Whole => name == self.text,
        }
    }
}

/// Parses a `--filter` pattern.
///
/// # Errors
/// E001 when the pattern is malformed.
pub fn parse_filter(pattern: &str) -> Result<NamePattern> {
    let globs = alternatives(pattern).and_then(|globs| {
        let parse = |glob: &String| Pattern::new(glob).map_err(|error| error.msg);
        globs.iter().map(parse).collect()
    });
    let globs = globs.map_err(|why| Error::format(format!("invalid glob '{pattern}': {why}")))?;
    Ok(NamePattern { text: pattern.to_owned(), form: Form::Globs(globs) })
}

/// Returns the patterns without braces to which a pattern expands.
fn alternatives(pattern: &str) -> Result<Vec<String>, &'static str> {
    /// Characters with a meaning in the library's patterns, which have no escape other than a class
    /// of one character.
    const SPECIAL: [char; 3] = ['*', '?', '['];

    // For each open brace, the outermost first: the alternatives that are finished, what stood
    // before the brace, and the alternative that is being read.
    let mut open: Vec<(Vec<String>, Vec<String>)> = Vec::new();
    let mut now = vec![String::new()];
    let mut characters = pattern.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\\' => {
                let next =
                    characters.next().ok_or("expected a character after the last backslash")?;
                let literal =
                    if SPECIAL.contains(&next) { format!("[{next}]") } else { next.to_string() };
                now.iter_mut().for_each(|glob| glob.push_str(&literal));
            }
            '[' => {
                // A bracket that comes first in a class stands for itself.
                let mut class = String::from('[');
                class.extend(characters.next_if(|next| ['!', '^'].contains(next)).map(|_| '!'));
                class.extend(characters.next_if_eq(&']'));
                loop {
                    let next = characters.next().ok_or("a bracket is not closed")?;
                    class.push(next);
                    if next == ']' {
                        break;
                    }
                }
                now.iter_mut().for_each(|glob| glob.push_str(&class));
            }
            '{' => open.push((Vec::new(), std::mem::replace(&mut now, vec![String::new()]))),
            ',' if !open.is_empty() => {
                if let Some((finished, _)) = open.last_mut() {
                    finished.append(&mut now);
                }
                now.push(String::new());
            }
            '}' => {
                let (mut inner, before) = open.pop().ok_or("a brace is closed that is not open")?;
                inner.append(&mut now);
                if before.len() * inner.len() > MAX_ALTERNATIVES {
                    return Err("its braces expand to more than 1000 patterns");
                }
                let after = |start: &String| {
                    let start = start.clone();
                    inner.iter().map(move |end| format!("{start}{end}")).collect::<Vec<_>>()
                };
                now = before.iter().flat_map(after).collect();
            }
            _ => now.iter_mut().for_each(|glob| glob.push(character)),
        }
    }
    if !open.is_empty() {
        return Err("a brace is not closed");
    }
    // Several are as one here; the library takes them for folders.
    for glob in &mut now {
        while glob.contains("**") {
            *glob = glob.replace("**", "*");
        }
    }
    Ok(now)
}

/// Parses a search pattern: without a wildcard, it also matches names that contain it.
///
/// ```
/// let filter = apr_view::parse_search("q_proj")?;
/// assert!(filter.is_match("layers.0.attn.q_proj.weight"));
/// assert!(!apr_view::parse_search("q_proj*")?.is_match("layers.0.attn.q_proj.weight"));
/// # Ok::<(), apr_core::Error>(())
/// ```
///
/// # Errors
/// E001 when the pattern is malformed.
pub fn parse_search(pattern: &str) -> Result<NamePattern> {
    if pattern.contains(['*', '?', '[', ']', '{', '}', '\\']) {
        return parse_filter(pattern);
    }
    Ok(NamePattern { text: pattern.to_owned(), form: Form::Part })
}

/// Parses a regular expression, which is looked for anywhere in a name.
///
/// ```
/// let filter = apr_view::parse_expression(r"blk\.(0|1)\.attn_[qk]")?;
/// assert!(filter.is_match("blk.1.attn_k.weight"));
/// assert!(!filter.is_match("blk.10.attn_k.weight"));
/// # Ok::<(), apr_core::Error>(())
/// ```
///
/// # Errors
/// E001 when the expression is malformed.
pub fn parse_expression(expression: &str) -> Result<NamePattern> {
    let automaton = compile(expression).map_err(|why| {
        Error::format(format!("invalid regular expression '{expression}': {why}"))
    })?;
    Ok(NamePattern { text: expression.to_owned(), form: Form::Search(Expression(automaton)) })
}

/// Parses a pattern that is a glob, or else a regular expression.
///
/// # Errors
/// E001 when the pattern is neither.
pub fn parse_selection(pattern: &str) -> Result<NamePattern> {
    parse_filter(pattern).or_else(|broken| parse_expression(pattern).map_err(|_| broken))
}

/// A filter that only this name passes.
#[must_use]
pub fn named(name: &str) -> NamePattern {
    NamePattern { text: name.to_owned(), form: Form::Whole }
}

/// The names that are wanted: those that match a pattern to include, if there are any, and none to
/// exclude.
///
/// ```
/// let choice = apr_view::NameChoice::parse(&["*.{bin,json}"], &["optimizer*"])?;
/// assert!(choice.is_wanted("model/weights.bin") && !choice.is_wanted("optimizer.bin"));
/// # Ok::<(), apr_core::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NameChoice {
    include: Vec<NamePattern>,
    exclude: Vec<NamePattern>,
}

impl NameChoice {
    /// Parses the patterns of `--include` and `--exclude`.
    ///
    /// # Errors
    /// E001 when a pattern is malformed.
    pub fn parse(include: &[impl AsRef<str>], exclude: &[impl AsRef<str>]) -> Result<Self> {
        let include = include.iter().map(|text| parse_filter(text.as_ref()));
        let exclude = exclude.iter().map(|text| parse_filter(text.as_ref()));
        Ok(Self {
            include: include.collect::<Result<_>>()?,
            exclude: exclude.collect::<Result<_>>()?,
        })
    }

    /// Returns `true` if every name is wanted, as there are no patterns.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        self.include.is_empty() && self.exclude.is_empty()
    }

    /// Returns `true` if the name matches a pattern to include, or there are none.
    #[must_use]
    pub fn is_included(&self, name: &str) -> bool {
        self.include.is_empty() || self.include.iter().any(|pattern| pattern.is_match(name))
    }

    /// Returns `true` if the name matches a pattern to exclude.
    #[must_use]
    pub fn is_excluded(&self, name: &str) -> bool {
        self.exclude.iter().any(|pattern| pattern.is_match(name))
    }

    /// Returns `true` if the name is included and not excluded.
    #[must_use]
    pub fn is_wanted(&self, name: &str) -> bool {
        self.is_included(name) && !self.is_excluded(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_match_whole_names_over_dots_and_slashes() {
        let cases = [
            ("*", "model/block/kernel", true),
            ("model/*/kernel", "model/a/b/kernel", true),
            ("*.weight", "a.b.weight", true),
            ("*.weight", "a.weight.bias", false),
            ("layers.?.w", "layers.7.w", true),
            ("layers.?.w", "layers.17.w", false),
            ("l?s", "l\u{e9}s", true),
            ("a[0-3]", "a2", true),
            ("a[!0-3]", "a2", false),
            ("{q,k}_proj*", "k_proj.weight", true),
            ("{q,k}_proj*", "v_proj.weight", false),
            ("layers.{1,2{0,1}}.w", "layers.21.w", true),
            ("!a", "!a", true),
            ("!a", "b", false),
            (r"a\[0\]", "a[0]", true),
            ("**", "a/b.c", true),
            ("{a,x*}*b{*,}", "x/b.c", true),
            ("x{,.y}", "x", true),
            ("x{,.y}", "x.y", true),
            ("a[]]b", "a]b", true),
            ("a[^b]c", "abc", false),
            ("a,b", "a,b", true),
            (r"\{a\}\*", "{a}*", true),
            (r"\{a\}\*", "{a}b", false),
            ("", "a", false),
        ];
        for (pattern, name, expected) in cases {
            let filter = parse_filter(pattern).expect("a pattern");
            assert_eq!(filter.is_match(name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn broken_patterns_are_e001() {
        for pattern in ["[a", "{a,b", "a\\", "a}", "[]"] {
            let error = parse_filter(pattern).expect_err("a broken pattern");
            let start = format!("E001: invalid glob '{pattern}': ");
            assert!(error.to_string().starts_with(&start), "{error}");
        }
        let many = "{a,b,c,d,e,f,g,h,i,j}".repeat(12);
        assert!(parse_filter(&many).is_err());
    }

    #[test]
    fn expressions_are_looked_for_in_names() {
        for (expression, name, expected) in [
            ("attn_q", "blk.0.attn_q.weight", true),
            (r"\.([0-9]|1[0-5])\.ffn", "blk.12.ffn_up.weight", true),
            (r"\.([0-9]|1[0-5])\.ffn", "blk.16.ffn_up.weight", false),
            ("^output", "token_output", false),
        ] {
            let filter = parse_expression(expression).expect("an expression");
            assert_eq!(filter.is_match(name), expected, "{expression} {name}");
        }
        assert!(parse_expression("(").is_err() && parse_selection("[").is_err());
        assert!(parse_selection(r"a}|b").expect("an expression").is_match("b"));
        assert_ne!(parse_expression("a").expect("one"), parse_expression("b").expect("another"));
    }

    #[test]
    fn a_name_is_not_a_pattern() {
        let filter = named("a[0]*");
        assert!(filter.is_match("a[0]*") && !filter.is_match("a0b"));
    }

    #[test]
    fn many_wildcards_take_no_longer_than_few() {
        let pattern = parse_filter(&"*a".repeat(60)).expect("a pattern");
        assert!(!pattern.is_match(&"a".repeat(20_000).replace("aaaa", "ab/b")));
    }
}
