//! Patterns of tensor names: `~layers.{layer}.self_attn.q_proj.weight`.
//!
//! A pattern is made of components between dots. `{layer}` stands for a decimal number, `~` at the
//! start for the prefix of a convention, which a checkpoint has or lacks as a whole.

use std::collections::HashMap;
use std::fmt::Write;

use apr_core::{Error, Result};

/// A component of a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Component {
    Literal(String),
    /// Position in the pattern's [`indices`](Pattern::indices).
    Index(usize),
}

/// A pattern of names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pattern {
    prefixed: bool,
    components: Vec<Component>,
    indices: Vec<String>,
}

/// Numbers of the placeholders of a pattern, in the order of [`Pattern::indices`].
pub(crate) type Numbers = Vec<u64>;

impl Pattern {
    /// # Errors
    /// E001 when a placeholder is not a component of its own or stands twice.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let bad = |why: &str| Err(Error::format(format!("the name pattern '{text}' {why}")));
        let (prefixed, body) = text.strip_prefix('~').map_or((false, text), |body| (true, body));
        if body.is_empty() {
            return bad("is empty");
        }

        let (mut components, mut indices) = (Vec::new(), Vec::new());
        for part in body.split('.') {
            let index = part.strip_prefix('{').and_then(|part| part.strip_suffix('}'));
            components.push(match index {
                Some(index) if indices.iter().any(|known| known == index) => {
                    return bad("has a placeholder twice");
                }
                Some(index) => {
                    indices.push(index.to_owned());
                    Component::Index(indices.len() - 1)
                }
                None if part.contains(['{', '}', '~']) => {
                    return bad("has a placeholder that is not between dots");
                }
                None => Component::Literal(part.to_owned()),
            });
        }

        Ok(Self { prefixed, components, indices })
    }

    /// Returns the names of the placeholders, in their order in the pattern.
    pub(crate) fn indices(&self) -> &[String] {
        &self.indices
    }

    /// Returns the first component, or `None` if it is a number.
    pub(crate) fn beginning(&self) -> Option<&str> {
        match self.components.first()? {
            Component::Literal(text) => Some(text),
            Component::Index(_) => None,
        }
    }

    /// Returns the name with these numbers; `number` is called for each placeholder.
    pub(crate) fn name(
        &self,
        prefix: &str,
        number: impl Fn(&str) -> Option<u64>,
    ) -> Option<String> {
        let mut name = if self.prefixed { prefix.to_owned() } else { String::new() };
        for (position, component) in self.components.iter().enumerate() {
            if position > 0 {
                name.push('.');
            }
            match component {
                Component::Literal(text) => name.push_str(text),
                Component::Index(index) => {
                    write!(name, "{}", number(&self.indices[*index])?).ok()?;
                }
            }
        }
        Some(name)
    }

    /// The name with these numbers, in the order of [`Pattern::indices`].
    pub(crate) fn filled(&self, numbers: &[u64]) -> Option<String> {
        let number = |index: &usize| numbers.get(*index);
        let mut name = String::with_capacity(self.components.len() * 12);
        for (position, component) in self.components.iter().enumerate() {
            if position > 0 {
                name.push('.');
            }
            match component {
                Component::Literal(text) => name.push_str(text),
                Component::Index(index) => write!(name, "{}", number(index)?).ok()?,
            }
        }
        Some(name)
    }

    /// The numbers in a name of this form, the prefix taken off.
    pub(crate) fn matches(&self, body: &str) -> Option<Numbers> {
        let mut numbers = vec![0; self.indices.len()];
        let mut parts = body.split('.');
        for component in &self.components {
            let part = parts.next()?;
            match component {
                Component::Literal(text) if text == part => {}
                Component::Literal(_) => return None,
                Component::Index(index) => numbers[*index] = number(part)?,
            }
        }
        parts.next().is_none().then_some(numbers)
    }

    /// A name of this form with `#` for the numbers of some placeholders; `None` if the pattern has
    /// none of these.
    pub(crate) fn without(&self, name: &str, is_wanted: impl Fn(&str) -> bool) -> Option<String> {
        let is_left_out = |component: &Component| match component {
            Component::Index(index) => is_wanted(&self.indices[*index]),
            Component::Literal(_) => false,
        };
        if !self.components.iter().any(is_left_out) {
            return None;
        }
        let parts = self.components.iter().zip(name.split('.'));
        let parts = parts.map(|(own, part)| if is_left_out(own) { "#" } else { part });
        Some(parts.collect::<Vec<_>>().join("."))
    }

    /// Returns `true` if all names with its skeleton match the pattern: no literal component is a
    /// number.
    fn is_told_by_skeleton(&self) -> bool {
        let is_plain = |text: &str| !text.contains('/') && number(text).is_none();
        self.components.iter().all(|component| match component {
            Component::Literal(text) => is_plain(text),
            Component::Index(_) => true,
        })
    }

    fn skeleton(&self) -> String {
        let name = self.name("", |_| Some(0)).unwrap_or_default();
        let mut text = String::new();
        skeleton(&name, &mut text);
        text
    }
}

/// Parses a number in a name, without sign or leading zeros, so that formatting it restores the
/// text.
pub(crate) fn number(part: &str) -> Option<u64> {
    let canonical = part == "0" || !part.starts_with('0');
    (canonical && part.bytes().all(|byte| byte.is_ascii_digit())).then(|| part.parse().ok())?
}

/// Writes what names that differ in their numbers have in common: `#` for each number. Slashes
/// count as dots in names that start with one, which are those of ONNX.
pub(crate) fn skeleton(name: &str, text: &mut String) {
    text.clear();
    let body = name.strip_prefix('/');
    if body.is_some() {
        text.push('/');
    }

    let is_separator = |character: char| character == '.' || (body.is_some() && character == '/');
    for (position, part) in body.unwrap_or(name).split(is_separator).enumerate() {
        if position > 0 {
            text.push('.');
        }
        match number(part) {
            Some(_) => text.push('#'),
            // A `#` that starts a part is doubled, or it would pass for a number.
            None if part.starts_with('#') => text.extend(["#", part]),
            None => text.push_str(part),
        }
    }
}

/// Pattern and the tensor that it represents.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) pattern: Pattern,
    /// Position in the family's tensors.
    pub(crate) tensor: usize,
    /// `true` if the skeleton of a name is enough to match the pattern.
    pub(crate) is_told_by_skeleton: bool,
}

/// Patterns, found by a name without trying each.
#[derive(Debug, Clone, Default)]
pub(crate) struct PatternIndex {
    bare: HashMap<String, Vec<Entry>>,
    prefixed: HashMap<String, Vec<Entry>>,
}

impl PatternIndex {
    /// Adds a pattern that represents `tensor`; earlier patterns take precedence.
    pub(crate) fn add(&mut self, pattern: Pattern, tensor: usize) {
        let entries = if pattern.prefixed { &mut self.prefixed } else { &mut self.bare };
        let is_told_by_skeleton = pattern.is_told_by_skeleton();
        entries.entry(pattern.skeleton()).or_default().push(Entry {
            pattern,
            tensor,
            is_told_by_skeleton,
        });
    }

    /// Patterns without a prefix that names of this skeleton may be of.
    pub(crate) fn bare(&self, skeleton: &str) -> &[Entry] {
        self.bare.get(skeleton).map_or(&[], Vec::as_slice)
    }

    /// Patterns with a prefix that names of this skeleton may be of, the prefix taken off.
    pub(crate) fn prefixed(&self, skeleton: &str) -> &[Entry] {
        self.prefixed.get(skeleton).map_or(&[], Vec::as_slice)
    }

    /// Returns the tensor that `name` represents, the pattern that it matched, and its numbers.
    pub(crate) fn find(&self, name: &str, prefix: &str) -> Option<(usize, &Pattern, Numbers)> {
        fn first<'e>(entries: &'e [Entry], body: &str) -> Option<(usize, &'e Pattern, Numbers)> {
            entries.iter().find_map(|entry| {
                Some((entry.tensor, &entry.pattern, entry.pattern.matches(body)?))
            })
        }
        let mut text = String::with_capacity(name.len());
        skeleton(name, &mut text);
        first(self.bare(&text), name).or_else(|| {
            let body = name.strip_prefix(prefix)?;
            skeleton(body, &mut text);
            first(self.prefixed(&text), body)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(patterns: &[&str]) -> PatternIndex {
        let mut index = PatternIndex::default();
        for (tensor, pattern) in patterns.iter().enumerate() {
            index.add(Pattern::parse(pattern).expect("a pattern"), tensor);
        }
        index
    }

    #[test]
    fn names_are_found_with_their_numbers() {
        let index = index(&[
            "~layers.{layer}.mlp.experts.{expert}.w1.weight",
            "lm_head.weight",
            "~mlp.0.weight",
        ]);
        let found =
            |name, prefix| index.find(name, prefix).map(|(tensor, _, numbers)| (tensor, numbers));
        assert_eq!(
            found("model.layers.3.mlp.experts.17.w1.weight", "model."),
            Some((0, vec![3, 17]))
        );
        assert_eq!(found("layers.3.mlp.experts.17.w1.weight", ""), Some((0, vec![3, 17])));
        assert_eq!(found("lm_head.weight", "model."), Some((1, vec![])));
        assert_eq!(found("model.mlp.0.weight", "model."), Some((2, vec![])));
        for other in [
            "model.mlp.1.weight",
            "model.layers.03.mlp.experts.1.w1.weight",
            "model.lm_head.weight",
            "",
        ] {
            assert_eq!(found(other, "model."), None, "{other}");
        }
    }

    #[test]
    fn a_number_of_more_than_64_bits_does_not_match() {
        let index = index(&["layers.{layer}.weight"]);
        assert!(index.find("layers.99999999999999999999.weight", "").is_none());
    }

    #[test]
    fn malformed_patterns_are_refused() {
        for text in ["", "~", "a{b}.c", "a.{b}.{b}", "a.~b"] {
            assert!(Pattern::parse(text).is_err(), "{text}");
        }
    }
}
