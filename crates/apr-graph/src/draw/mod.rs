//! Graphs as pictures and texts: a tree for the terminal, SVG, and what Graphviz and Mermaid read.
//!
//! All of them show a [`Scene`](crate::outline::Scene), opened down to some depth.

mod dot;
mod flowchart;
mod layered;
mod mermaid;
mod order;
mod place;
mod plan;
mod svg;
mod tree;

use std::fmt::Write as _;

pub use dot::dot;
pub use mermaid::mermaid;
pub use svg::{TooManyBoxes, svg};
pub use tree::{Branch, tree};

/// How much of a scene is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Depth(pub usize);

impl Depth {
    /// Everything.
    pub const ALL: Self = Self(usize::MAX);

    /// Whether groups are shown with what is in them, and how deep those in them are.
    pub(crate) fn opened(self) -> Option<Self> {
        self.0.checked_sub(1).map(Self)
    }
}

/// A number of parameters in three digits: `22.7 M`.
#[must_use]
pub fn parameters(count: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(1_000_000_000_000, "T"), (1_000_000_000, "B"), (1_000_000, "M"), (1_000, "k")];
    let Some((unit, suffix)) = UNITS.into_iter().find(|(unit, _)| count >= *unit) else {
        return count.to_string();
    };
    // Two decimals below 10, one below 100: three digits in all.
    let hundredths = u128::from(count) * 100 / u128::from(unit);
    match hundredths {
        0..1000 => format!("{}.{:02} {suffix}", hundredths / 100, hundredths % 100),
        1000..10_000 => format!("{}.{} {suffix}", hundredths / 100, hundredths / 10 % 10),
        _ => format!("{} {suffix}", hundredths / 100),
    }
}

/// A text within the quotes of XML, DOT or Mermaid. Characters that would end the quotes, start a tag or an entity, or
/// steer a terminal are written as numbers.
pub(crate) fn quoted(text: &str, special: &str, write: impl Fn(u32) -> String) -> String {
    let mut quoted = String::with_capacity(text.len());
    for c in text.chars() {
        if special.contains(c) || apr_core::is_hidden(c) {
            let _ = write!(quoted, "{}", write(u32::from(c)));
        } else {
            quoted.push(c);
        }
    }
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_tell_how_many() {
        for (count, text) in [(7, "7"), (1_003, "1.00 k"), (22_713_216, "22.7 M"), (6_738_415_616, "6.73 B")] {
            assert_eq!(parameters(count), text);
        }
        assert_eq!(parameters(u64::MAX), "18446744 T");
    }
}
