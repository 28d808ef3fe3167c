//! New names of tensors, by name or by regular expression.

use std::collections::BTreeMap;
use std::fmt;

use apr_core::{Error, Escaped, Result};
use regex_automata::PatternID;
use regex_automata::nfa::thompson;
use regex_automata::nfa::thompson::pikevm::PikeVM;
use regex_automata::util::{interpolate, syntax};

use crate::nearest;

/// Bytes of the automaton that an expression may take.
const MAX_AUTOMATON: usize = 1 << 20;

/// New names of tensors.
///
/// Each has a name, or a regular expression, and what replaces it. An expression is looked for
/// anywhere in a name, and each of its matches is replaced; `\1` and `${1}` are its groups.
///
/// ```
/// use apr_view::Renamings;
///
/// let pairs = [(r"^model\.layers\.(\d+)\.", r"blk.\1."), ("norm", "output_norm")];
/// let renamings = Renamings::new(pairs.map(|(old, new)| (old.to_owned(), new.to_owned())))?;
/// let names = ["model.layers.10.mlp", "norm", "norm.2"];
/// let renamed = renamings.of(&names)?;
/// assert_eq!(renamed["model.layers.10.mlp"], "blk.10.mlp");
/// assert_eq!(renamed["norm"], "output_norm");
/// // A name that a tensor has is that name alone, and no expression.
/// assert_eq!(renamed.get("norm.2"), None);
/// # Ok::<(), apr_core::Error>(())
/// ```
#[derive(Default)]
pub struct Renamings(Vec<Renaming>);

struct Renaming {
    old: String,
    new: String,
    /// Expression of the renaming, or the reason for which it is not a valid expression.
    expression: std::result::Result<Expression, String>,
}

struct Expression {
    automaton: PikeVM,
    /// Replacement of a match, with groups as `${1}`.
    replacement: String,
}

impl Renamings {
    /// Creates renamings from old names or expressions and their replacements.
    ///
    /// # Errors
    /// E001 for a replacement that names a group which the expression does not have.
    pub fn new(pairs: impl IntoIterator<Item = (String, String)>) -> Result<Self> {
        let pairs = pairs.into_iter().map(|(old, new)| {
            let expression = match compile(&old) {
                Ok(automaton) => Ok(Expression::new(automaton, &old, &new)?),
                Err(wrong) => Err(wrong),
            };
            Ok(Renaming { old, new, expression })
        });
        pairs.collect::<Result<_>>().map(Self)
    }

    /// Returns `true` if there are no renamings.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the new names by their old names; unchanged names are omitted.
    ///
    /// For each name, the first matching renaming applies.
    ///
    /// # Errors
    /// E001 for a renaming that matches no name.
    pub fn of(&self, names: &[&str]) -> Result<BTreeMap<String, String>> {
        let mut renamed = BTreeMap::new();
        for renaming in &self.0 {
            let fitting = renaming.of(names)?;
            if fitting.is_empty() {
                return Err(renaming.fits_nothing(names));
            }
            for (old, new) in fitting {
                renamed.entry(old).or_insert(new);
            }
        }
        renamed.retain(|old, new| old != new);
        Ok(renamed)
    }
}

impl Renaming {
    fn of(&self, names: &[&str]) -> Result<Vec<(String, String)>> {
        if names.contains(&self.old.as_str()) {
            return Ok(vec![(self.old.clone(), self.new.clone())]);
        }
        let Ok(expression) = &self.expression else { return Ok(Vec::new()) };
        let renamed = names.iter().filter_map(|name| {
            let new = expression.replaced(name)?;
            Some((name, new))
        });
        renamed
            .map(|(name, new)| match new.is_empty() {
                true => Err(Error::format("the new name is empty").for_tensor(*name)),
                false => Ok(((*name).to_owned(), new)),
            })
            .collect()
    }

    fn fits_nothing(&self, names: &[&str]) -> Error {
        let why = match &self.expression {
            Ok(_) => "no such tensor, and no name matches it as a regular expression".to_owned(),
            Err(wrong) => format!("no such tensor, and not a regular expression ({wrong})"),
        };
        let similar = nearest(&self.old, names.iter().copied(), 3);
        let hint = match similar.is_empty() {
            true => String::new(),
            false => format!("; do you mean {}?", similar.join(", ")),
        };
        Error::format(format!("{why}{hint}")).for_tensor(&self.old)
    }
}

impl Expression {
    fn new(automaton: PikeVM, old: &str, new: &str) -> Result<Self> {
        let replacement = with_braces(new);
        let groups = automaton.get_nfa().group_info();
        let mut unknown = None;
        let mut text = String::new();
        interpolate::string(
            &replacement,
            |index, _| {
                if index >= groups.group_len(PatternID::ZERO) {
                    unknown = Some(index.to_string());
                }
            },
            |name| groups.to_index(PatternID::ZERO, name).or(Some(usize::MAX)),
            &mut text,
        );
        match unknown {
            None => Ok(Self { automaton, replacement }),
            Some(_) => Err(Error::format(format!(
                "'{}' names a group that the regular expression '{}' does not have; $$ is a dollar",
                Escaped(new),
                Escaped(old)
            ))),
        }
    }

    /// Returns the name with all matches replaced, or `None` if there are no matches.
    fn replaced(&self, name: &str) -> Option<String> {
        let mut cache = self.automaton.create_cache();
        let mut new = String::new();
        let mut end = 0;
        for captures in self.automaton.captures_iter(&mut cache, name) {
            let whole = captures.get_match()?;
            new.push_str(&name[end..whole.start()]);
            end = whole.end();
            interpolate::string(
                &self.replacement,
                |index, text| {
                    if let Some(span) = captures.get_group(index) {
                        text.push_str(&name[span.range()]);
                    }
                },
                |group| captures.group_info().to_index(whole.pattern(), group),
                &mut new,
            );
        }
        let is_matched = end > 0 || !new.is_empty();
        new.push_str(&name[end..]);
        is_matched.then_some(new)
    }
}

/// Groups that are written as in Python and sed, `\1`, as `${1}`.
fn with_braces(replacement: &str) -> String {
    let mut text = String::with_capacity(replacement.len());
    let mut chars = replacement.chars().peekable();
    while let Some(char) = chars.next() {
        match (char, chars.peek()) {
            ('\\', Some(digit @ '0'..='9')) => {
                text.push_str("${");
                text.push(*digit);
                text.push('}');
                chars.next();
            }
            _ => text.push(char),
        }
    }
    text
}

pub(crate) fn compile(expression: &str) -> std::result::Result<PikeVM, String> {
    // The last line of what the parser says is what is wrong.
    let last = |text: String| {
        let line = text.lines().last().unwrap_or_default().trim();
        line.strip_prefix("error: ").unwrap_or(line).to_owned()
    };
    syntax::parse(expression).map_err(|error| last(error.to_string()))?;
    let config = thompson::Config::new().nfa_size_limit(Some(MAX_AUTOMATON));
    let built = PikeVM::builder().thompson(config).build(expression);
    built.map_err(|error| last(error.to_string()))
}

impl fmt::Debug for Renamings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.iter().map(|one| (&one.old, &one.new))).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn renamed(pairs: &[(&str, &str)], names: &[&str]) -> Result<Vec<(String, String)>> {
        let pairs = pairs.iter().map(|(old, new)| ((*old).to_owned(), (*new).to_owned()));
        Ok(Renamings::new(pairs)?.of(names)?.into_iter().collect())
    }

    fn message(pairs: &[(&str, &str)], names: &[&str]) -> String {
        renamed(pairs, names).expect_err("a refusal").to_string()
    }

    #[test]
    fn expressions_replace_every_match_and_know_their_groups() {
        let of = |old, new| renamed(&[(old, new)], &["a.b.a", "c"]).expect("new names");
        let one = |new: &str| vec![("a.b.a".to_owned(), new.to_owned())];
        assert_eq!(of("a", "x"), one("x.b.x"));
        assert_eq!(of(r"^(\w)\.(?P<mid>\w)", "${mid}.$1"), one("b.a.a"));
        assert_eq!(of(r"^(\w)\.", r"\1_"), one("a_b.a"));
        assert_eq!(of(r"^a\.", ""), one("b.a"));
        assert_eq!(of("^", "p."), [one("p.a.b.a"), vec![("c".into(), "p.c".into())]].concat());
    }

    #[test]
    fn the_first_that_fits_a_name_counts() {
        let pairs = [("a", "b"), ("b", "a"), (".", "x")];
        let found = renamed(&pairs, &["a", "b", "c"]).expect("new names");
        let found: Vec<(&str, &str)> = found.iter().map(|(a, b)| (&**a, &**b)).collect();
        assert_eq!(found, [("a", "b"), ("b", "a"), ("c", "x")]);
    }

    #[test]
    fn renamings_without_a_match_are_rejected_with_similar_names() {
        let said = message(&[("tabel", "x")], &["table", "steps"]);
        assert!(said.contains("no such tensor") && said.contains("table"), "{said}");
        assert!(message(&[("a(", "x")], &["b"]).contains("not a regular expression"));
        assert!(message(&[("(a)", "$2")], &["a"]).contains("names a group"));
        assert!(message(&[("(a)", "$1x")], &["a"]).contains("names a group"));
        assert!(message(&[(".*", "")], &["a"]).contains("the new name is empty"));
    }
}
