//! Ranks and alphas that modules have of their own: PEFT's `rank_pattern` and `alpha_pattern`.
//!
//! A key is a regular expression that a module's name, or its end after a dot, must match as a
//! whole; of several that match, the first of the file counts. Nearly all keys are plain names, and
//! an adapter may have one for each of its modules: those are looked up, so that the cost follows
//! from the length of a name. What is left is matched one by one. All of it is charged to a budget.

use std::collections::HashMap;
use std::fmt;

use apr_core::{Error, Escaped, Result, Work};
use regex_automata::nfa::thompson;
use regex_automata::nfa::thompson::pikevm::PikeVM;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

/// Bytes of the automaton that an expression may take.
const MAX_AUTOMATON: usize = 1 << 20;

/// Bytes of the automata of all expressions under a key.
const MAX_AUTOMATA: usize = 16 << 20;

/// Bytes of the text of an expression. Parsed, it takes up to a thousand times as much for a while.
const MAX_EXPRESSION: usize = 1 << 14;

/// Steps for each byte of an expression: five of them may name a class of all letters.
const PARSED: u64 = 2_000;

/// Steps of a state of an automaton for a character.
const STATE: u64 = 4;

/// Special characters of regular expressions, except for the dot.
const SPECIAL: &str = r"\^$*+?{}[]|()#&-~ ";

/// Patterns and their values, in the order of the file.
pub(crate) struct Pairs(pub(crate) Vec<(String, f64)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;

        impl<'de> Visitor<'de> for InOrder {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }

        deserializer.deserialize_map(InOrder)
    }
}

/// Values of modules, by patterns of their names.
#[derive(Default)]
pub(crate) struct Patterns {
    /// Names by their form, as a dot in them matches any character.
    names: HashMap<Form, HashMap<String, Entry>>,
    expressions: Vec<(PikeVM, Entry)>,
}

/// Length of a name and positions of its dots.
#[derive(PartialEq, Eq, Hash)]
struct Form {
    len: usize,
    dots: Vec<usize>,
}

/// A value, and the position of its pattern in the configuration.
#[derive(Clone, Copy)]
struct Entry {
    position: usize,
    value: f64,
}

impl Patterns {
    /// Creates the patterns from patterns and values, in the order of the configuration.
    ///
    /// # Errors
    /// E001 for a pattern that is not a regular expression, or is too large; E008 if the budget is
    /// exceeded, or if all patterns together are too large.
    pub(crate) fn new(pairs: &[(String, f64)], work: &Work) -> Result<Self> {
        let mut patterns = Self::default();
        let mut left = MAX_AUTOMATA;
        for (position, (pattern, value)) in pairs.iter().enumerate() {
            let entry = Entry { position, value: *value };
            work.spend(pattern.len() as u64)?;
            if let Some(form) = Form::of(pattern) {
                let names = patterns.names.entry(form).or_default();
                names.entry(pattern.clone()).or_insert(entry);
                continue;
            }

            let machine = compile(pattern, work)?;
            let size = machine.get_nfa().memory_usage();
            left = left.checked_sub(size).ok_or_else(|| {
                Error::memory("the regular expressions up to this one take too much memory")
            })?;
            work.spend(size as u64)?;
            patterns.expressions.push((machine, entry));
        }
        Ok(patterns)
    }

    /// The value of the first pattern that a module's name matches.
    ///
    /// # Errors
    /// E008 over the budget.
    pub(crate) fn find(&self, module: &str, work: &Work) -> Result<Option<f64>> {
        let mut first: Option<Entry> = None;
        for (form, names) in &self.names {
            work.spend(form.len as u64 + 1)?;
            let found = form.end_of(module).and_then(|end| names.get(&end)).copied();
            first = [first, found].into_iter().flatten().min_by_key(|entry| entry.position);
        }
        for (machine, entry) in &self.expressions {
            if first.is_some_and(|first| first.position < entry.position) {
                break;
            }
            let states = machine.get_nfa().states().len() as u64;
            let steps = states.saturating_mul(module.len() as u64 + 1).saturating_mul(STATE);
            work.spend(steps)?;
            if machine.is_match(&mut machine.create_cache(), module) {
                first = Some(*entry);
            }
        }
        Ok(first.map(|entry| entry.value))
    }
}

impl Form {
    /// Returns the form of a pattern that is a plain name.
    fn of(pattern: &str) -> Option<Self> {
        let is_plain = |byte: u8| byte.is_ascii_graphic() && !SPECIAL.contains(char::from(byte));
        let dots = || pattern.bytes().enumerate().filter(|(_, byte)| *byte == b'.');
        pattern
            .bytes()
            .all(is_plain)
            .then(|| Self { len: pattern.len(), dots: dots().map(|(at, _)| at).collect() })
    }

    /// Returns the end of a module's name that a pattern of this form can match.
    ///
    /// It has dots at the positions of the pattern's dots.
    fn end_of(&self, module: &str) -> Option<String> {
        let start = module.len().checked_sub(self.len)?;
        let is_whole = start == 0 || module.as_bytes().get(start - 1) == Some(&b'.');
        let mut end = module.get(start..).filter(|_| is_whole)?.as_bytes().to_vec();
        for &dot in &self.dots {
            let byte = end.get_mut(dot).filter(|byte| byte.is_ascii())?;
            *byte = b'.';
        }
        String::from_utf8(end).ok()
    }
}

fn compile(pattern: &str, work: &Work) -> Result<PikeVM> {
    let wrong =
        |why: &dyn fmt::Display| Error::format(format!("'{}': {why}", Escaped::short(pattern)));
    if pattern.len() > MAX_EXPRESSION {
        return Err(wrong(&"the regular expression is too long"));
    }
    work.spend((pattern.len() as u64).saturating_mul(PARSED))?;
    let config = thompson::Config::new().nfa_size_limit(Some(MAX_AUTOMATON));
    let whole = format!(r"\A(?:.*\.)?(?:{pattern})\z");
    let built = PikeVM::builder().thompson(config).build(&whole);
    built.map_err(|error| wrong(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(pairs: &[(&str, f64)], module: &str) -> Option<f64> {
        let pairs: Vec<_> = pairs.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect();
        let work = Work::new(1 << 30);
        let patterns = Patterns::new(&pairs, &work).expect("valid patterns");
        patterns.find(module, &work).expect("little work")
    }

    #[test]
    fn names_match_as_the_regular_expressions_that_they_are() {
        for (name, module, is_match) in [
            ("q", "layers.1.q", true),
            ("q", "layers.1.xq", false),
            ("1.q", "layers.1.q", true),
            ("1.q", "layers.11.q", false),
            ("layers.1..q", "model.layers.12.q", true),
            ("layers.1..q", "model.layers.1.q", false),
            ("a.b", "a_b", true),
            ("a.b", "aéb", false),
            ("q", "q", true),
            ("layers.1.q", "q", false),
        ] {
            let expression = format!("(?:{name})");
            for pattern in [name, &expression] {
                let found = find(&[(pattern, 1.0)], module);
                // A dot is one character, of however many bytes; names of modules are ASCII.
                if module.is_ascii() || pattern == name {
                    assert_eq!(found.is_some(), is_match, "{pattern} {module}");
                }
            }
        }
    }

    #[test]
    fn the_first_pattern_of_the_configuration_counts() {
        let pairs = [("z", 1.0), ("[a-z]", 2.0), ("a", 3.0), ("b|a", 4.0)];
        for (module, expected) in [("m.z", 1.0), ("m.a", 2.0), ("m.b", 2.0)] {
            assert_eq!(find(&pairs, module), Some(expected));
        }
        assert_eq!(find(&pairs[2..], "m.a"), Some(3.0));
        assert_eq!(find(&pairs[3..], "m.a"), Some(4.0));
        assert_eq!(find(&pairs, "m.ab"), None);
    }

    #[test]
    fn a_name_for_each_of_many_modules_costs_little() {
        let name = |at: usize| format!("model.layers.{}.m{}.q_proj", at % 100, at / 100);
        let pairs: Vec<_> = (0..20_000).map(|at| (name(at), at as f64)).collect();
        let work = Work::new(1 << 28);
        let patterns = Patterns::new(&pairs, &work).expect("names");
        for at in 0..20_000 {
            let found = patterns.find(&name(at), &work).expect("little work");
            assert_eq!(found, Some(at as f64));
        }
    }

    #[test]
    fn expressions_that_take_much_are_refused() {
        let many = |pattern: &str, count| vec![(pattern.to_owned(), 1.0); count];
        let of = |pairs: &[(String, f64)]| Patterns::new(pairs, &Work::new(1 << 30));
        for (pairs, expected) in [
            (many("(?:(?:a{1000}){1000}){1000}", 1), "limit"),
            (many(&"(a)".repeat(1 << 13), 1), "too long"),
            (many(r"\pL{40}", 1000), "too much memory"),
        ] {
            let error = of(&pairs).err().expect("refused").to_string();
            assert!(error.contains(expected), "{error}");
        }

        let work = Work::new(1 << 24);
        let patterns = Patterns::new(&many("(a|b)*", 1), &work).expect("small");
        let over = (0..1_000).find_map(|_| patterns.find(&"a".repeat(9_999), &work).err());
        assert!(over.expect("over the budget").to_string().contains(Work::OVER));
    }
}
