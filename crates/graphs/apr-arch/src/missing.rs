//! Which tensors a checkpoint lacks.

use std::collections::{BTreeMap, HashSet};

use crate::dimensions::Dimensions;
use crate::family::{Family, FamilyTensor, GGUF, Required};

/// Maximum number of missing tensors that are listed: a configuration can require 2^60 layers.
const MAX_MISSING: usize = 1000;

/// Tensors that are looked for, for the same reason; models of 100 layers of 256 experts have some
/// 100,000.
const MAX_CANDIDATES: usize = 300_000;

/// The tensors that are there.
#[derive(Debug)]
pub(crate) struct Present<'m> {
    /// Canonical names of the tensors.
    names: HashSet<&'m str>,
    /// Number of present tensors for each of the family's tensors, within the counts of the
    /// configuration.
    counts: Vec<u64>,
}

impl<'m> Present<'m> {
    pub(crate) fn of(family: &Family) -> Self {
        Self { names: HashSet::new(), counts: vec![0; family.tensors.len()] }
    }

    /// Adds a tensor, and returns `false` if there already is one of this name.
    pub(crate) fn add(&mut self, canonical: &'m str, tensor: usize, is_counted: bool) -> bool {
        let is_new = self.names.insert(canonical);
        self.counts[tensor] += u64::from(is_new && is_counted);
        is_new
    }
}

/// Sources that determine which tensors a checkpoint should have.
#[derive(Debug)]
pub(crate) struct Expected<'m> {
    pub(crate) family: &'m Family,
    pub(crate) dimensions: &'m Dimensions<'m>,
    /// Number of values of each index.
    pub(crate) counts: &'m BTreeMap<&'m str, u64>,
    /// `true` if parts are stacked as in GGUF.
    pub(crate) in_gguf_layout: bool,
}

impl Expected<'_> {
    /// Canonical names of required tensors that are not present.
    pub(crate) fn missing(&self, present: &Present<'_>) -> Vec<String> {
        let mut search = Search::new(self, present);
        for (position, tensor) in self.family.tensors.iter().enumerate() {
            if !search.look_for(position, tensor) {
                break;
            }
        }
        search.missing
    }

    /// Returns the positions of the family's tensors of which a required one is not present, in any
    /// layer.
    pub(crate) fn lacking(&self, present: &Present<'_>) -> Vec<usize> {
        let mut search = Search::new(self, present);
        let is_lacking = |(position, tensor): (usize, &FamilyTensor)| {
            search.missing.clear();
            search.candidates = 0;
            search.look_for(position, tensor);
            (!search.missing.is_empty()).then_some(position)
        };
        self.family.tensors.iter().enumerate().filter_map(is_lacking).collect()
    }
}

struct Search<'s> {
    expected: &'s Expected<'s>,
    present: &'s Present<'s>,
    parts: HashSet<&'s str>,
    candidates: usize,
    missing: Vec<String>,
}

impl<'s> Search<'s> {
    fn new(expected: &'s Expected<'s>, present: &'s Present<'s>) -> Self {
        Self {
            expected,
            present,
            parts: present.names.iter().map(|name| part(name)).collect(),
            candidates: 0,
            missing: Vec::new(),
        }
    }

    /// Adds the missing tensors of an entry of the family, and returns `false` if the limit was
    /// reached.
    fn look_for(&mut self, position: usize, tensor: &FamilyTensor) -> bool {
        let indices = tensor.pattern.indices();
        let counts: Option<Vec<u64>> =
            indices.iter().map(|index| self.expected.counts.get(index.as_str()).copied()).collect();
        let Some(counts) = counts else { return true };
        let all = counts.iter().try_fold(1_u64, |product, &count| product.checked_mul(count));

        // Counting is enough where nothing is missing, so no names are made.
        if all == Some(self.present.counts[position]) {
            return true;
        }

        let depends_on_place = match &tensor.required {
            Required::Stated(_) => false,
            Required::Computed(condition) => indices.iter().any(|index| condition.mentions(index)),
        };
        for numbers in combinations(&counts) {
            self.candidates += 1;
            if self.candidates > MAX_CANDIDATES || self.missing.len() >= MAX_MISSING {
                return false;
            }

            let named: Vec<(&str, u64)> =
                indices.iter().map(String::as_str).zip(numbers.iter().copied()).collect();
            let required = match &tensor.required {
                Required::Stated(stated) => *stated,
                Required::Computed(condition) => {
                    self.expected.dimensions.truth(condition, &named).unwrap_or(false)
                }
            };

            match (required, depends_on_place) {
                (true, _) => self.look_for_one(position, tensor, &numbers, &named),
                (false, true) => {}
                // What one layer may lack, the others may, too.
                (false, false) => break,
            }
        }

        true
    }

    fn look_for_one(
        &mut self,
        position: usize,
        tensor: &FamilyTensor,
        numbers: &[u64],
        named: &[(&str, u64)],
    ) {
        let canonical = tensor.pattern.filled(numbers).unwrap_or_default();
        if self.present.names.contains(canonical.as_str()) || !self.may_be_asked_for(&canonical) {
            return;
        }

        let number =
            |index: &str| named.iter().find(|(name, _)| *name == index).map(|(_, number)| *number);
        let stack = self
            .expected
            .family
            .stack_of(position)
            .and_then(|stack| stack.pattern.name("", number));
        if stack.as_ref().is_some_and(|stack| self.present.names.contains(stack.as_str())) {
            return;
        }
        if !self.expected.in_gguf_layout {
            return self.missing.push(canonical);
        }

        // GGUF may have it in one piece, or in several.
        let cuts = self.expected.family.cuts(&canonical);
        if cuts.iter().any(|cut| self.present.names.contains(cut.as_str())) {
            return;
        }

        match stack {
            Some(stack) => self.miss_stack(stack),
            None if self.expected.family.is_written_in(position, GGUF) => {
                self.missing.push(canonical);
            }
            None => {}
        }
    }

    /// Adds a stack, once for all of its parts.
    fn miss_stack(&mut self, stack: String) {
        if self.missing.last() != Some(&stack) {
            self.missing.push(stack);
        }
    }

    /// Without a configuration, a part that is absent as a whole may not belong to the model.
    fn may_be_asked_for(&self, canonical: &str) -> bool {
        !self.expected.dimensions.is_guessed() || self.parts.contains(part(canonical))
    }
}

/// The module that a tensor belongs to, at the top: `decoder`.
pub(crate) fn part(canonical: &str) -> &str {
    canonical.split('.').next().unwrap_or(canonical)
}

/// All combinations of numbers below the counts, the last one running fastest.
pub(crate) fn combinations(counts: &[u64]) -> impl Iterator<Item = Vec<u64>> {
    let mut next = (!counts.contains(&0)).then(|| vec![0; counts.len()]);
    std::iter::from_fn(move || {
        let current = next.take()?;
        let mut following = current.clone();
        for (number, &count) in following.iter_mut().zip(counts).rev() {
            *number += 1;
            if *number < count {
                next = Some(following);
                break;
            }
            *number = 0;
        }
        Some(current)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combinations_run_through_all_numbers() {
        let all: Vec<_> = combinations(&[2, 3]).collect();
        assert_eq!(all, [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]);
        assert_eq!(combinations(&[]).count(), 1);
        assert_eq!(combinations(&[3, 0]).count(), 0);
    }
}
