//! The names of a checkpoint's tensors, those together that differ in their numbers alone.
//!
//! A model of a thousand layers has as many kinds of names as one of two. Families are held against
//! these groups, so that the work grows with the kinds of names and not with tensors times
//! patterns.

use std::cell::Cell;
use std::collections::HashMap;

use apr_core::TensorInfo;

use crate::family::{CANONICAL, Family, Naming, ONNX, WRAPPERS};
use crate::pattern::{Entry, number, skeleton};

/// Groups of names whose words are looked up, which bounds the work whatever a file's tensors are
/// called.
const SAMPLED: usize = 64;

/// Tensors whose names differ in their numbers alone.
#[derive(Debug)]
struct Group {
    /// Common part of the names, without the wrapper.
    skeleton: String,
    /// Positions in [`NameGroups::order`].
    members: std::ops::Range<usize>,
}

/// The names of a checkpoint's tensors.
#[derive(Debug)]
pub(crate) struct NameGroups<'t> {
    /// Prefix that a training framework put before every name.
    wrapper: &'static str,
    /// Names by position, without the wrapper.
    names: Vec<&'t str>,
    groups: Vec<Group>,
    /// Positions of tensors, group by group.
    order: Vec<usize>,
    /// Lookups of a skeleton and comparisons of a name with a pattern so far.
    work: Cell<u64>,
}

/// A tensor of a family that a checkpoint's tensor is.
#[derive(Debug)]
pub(crate) struct Match {
    /// Position in the family's tensors.
    pub(crate) tensor: usize,
    /// Numbers, in the order of the canonical pattern's placeholders.
    pub(crate) numbers: Vec<u64>,
}

/// Patterns that may match the names of a group, and the number of bytes to skip in the names.
type Candidates<'f> = [(&'f [Entry], usize); 2];

impl<'t> NameGroups<'t> {
    pub(crate) fn of(tensors: &'t [TensorInfo]) -> Self {
        let is_wrapped = |wrapper: &&&str| {
            !tensors.is_empty() && tensors.iter().all(|info| info.name.starts_with(**wrapper))
        };
        // A name that only some have in front is no wrapper, but a module of the model.
        let wrapper = WRAPPERS.iter().find(is_wrapped).copied().unwrap_or_default();
        let names: Vec<&str> = tensors.iter().map(|info| &info.name[wrapper.len()..]).collect();
        let mut by_skeleton: HashMap<String, usize> = HashMap::new();
        let mut sizes: Vec<usize> = Vec::new();
        let mut text = String::new();
        let of: Vec<usize> = names
            .iter()
            .map(|name| {
                skeleton(name, &mut text);
                let group = match by_skeleton.get(text.as_str()) {
                    Some(&group) => group,
                    None => {
                        by_skeleton.insert(text.clone(), sizes.len());
                        sizes.push(0);
                        sizes.len() - 1
                    }
                };
                sizes[group] += 1;
                group
            })
            .collect();
        let (groups, order) = sorted(by_skeleton, &sizes, &of);
        Self { wrapper, names, groups, order, work: Cell::new(0) }
    }

    /// Returns `true` if a family may match at least `least` names, by the words in its table.
    ///
    /// A full match may still fail.
    pub(crate) fn may_be_of(&self, least: usize, has_word: impl Fn(&str) -> bool) -> bool {
        let mut left = self.names.len();
        for group in self.groups.iter().take(SAMPLED) {
            let name = self.names[self.order[group.members.start]];
            // Before the last words there may be a prefix, and placeholders stand for numbers.
            let words =
                name.split(['.', '/']).filter(|word| !word.contains(|c: char| c.is_ascii_digit()));
            if !words.rev().take(2).all(&has_word) {
                left -= group.members.len();
            }
            if left < least {
                return false;
            }
        }

        true
    }

    /// Returns the naming under which most of the tensors match the family, and the number of
    /// matches.
    ///
    /// If two namings are equally good, the more common one is used. Returns `None` if fewer than
    /// `least` tensors match.
    pub(crate) fn best_naming(&self, family: &Family, least: usize) -> Option<(Naming, usize)> {
        let namings: Vec<Naming> = self.namings(family).collect();
        let mut known = vec![0; namings.len()];
        let mut left = self.names.len();
        for group in &self.groups {
            let most = known.iter().copied().max().unwrap_or_default();
            // Not even if it knew all that are left.
            if most + left < least {
                return None;
            }
            for (naming, known) in namings.iter().zip(&mut known) {
                *known += self.known(family, naming, group);
            }
            left -= group.members.len();
        }

        let mut best: Option<(Naming, usize)> = None;
        for (naming, known) in namings.into_iter().zip(known) {
            if known >= least && best.as_ref().is_none_or(|(_, most)| known > *most) {
                best = Some((naming, known));
            }
        }

        best
    }

    fn namings(&self, family: &Family) -> impl Iterator<Item = Naming> {
        let wrapper = self.wrapper;
        family.namings().map(move |naming| Naming { wrapper: wrapper.to_owned(), ..naming })
    }

    /// Returns the number of names of a group that match the family under a naming.
    fn known(&self, family: &Family, naming: &Naming, group: &Group) -> usize {
        let members = &self.order[group.members.clone()];
        if !is_plain(&naming.prefix) {
            return members
                .iter()
                .filter(|&&position| self.find(family, naming, position).is_some())
                .count();
        }

        let candidates = self.candidates(family, naming, group);
        if candidates
            .iter()
            .any(|(entries, _)| entries.iter().any(|entry| entry.is_told_by_skeleton))
        {
            return members.len();
        }
        if candidates.iter().all(|(entries, _)| entries.is_empty()) {
            return 0;
        }

        members
            .iter()
            .filter(|&&position| self.matched(&candidates, naming, self.names[position]).is_some())
            .count()
    }

    /// Returns the match of each tensor under a naming, by position.
    pub(crate) fn matches(&self, family: &Family, naming: &Naming) -> Vec<Option<Match>> {
        if !is_plain(&naming.prefix) {
            return (0..self.names.len())
                .map(|position| self.find(family, naming, position))
                .collect();
        }

        let mut matches: Vec<Option<Match>> = self.names.iter().map(|_| None).collect();
        for group in &self.groups {
            let candidates = self.candidates(family, naming, group);
            if candidates.iter().all(|(entries, _)| entries.is_empty()) {
                continue;
            }
            for &position in &self.order[group.members.clone()] {
                let matched = self.matched(&candidates, naming, self.names[position]);
                matches[position] = matched.map(|(entry, numbers)| Match {
                    tensor: entry.tensor,
                    numbers: family.in_canonical_order(entry, numbers),
                });
            }
        }

        matches
    }

    /// Returns the match of one tensor, for a prefix that skeletons do not contain unchanged.
    fn find(&self, family: &Family, naming: &Naming, position: usize) -> Option<Match> {
        self.count(1);
        let unwrapped = Naming::new(naming.convention.clone(), naming.prefix.clone());
        let found = family.find(self.names[position], &unwrapped)?;
        Some(Match {
            tensor: found.tensor,
            numbers: found.numbers.iter().map(|(_, number)| *number).collect(),
        })
    }

    fn candidates<'f>(&self, family: &'f Family, naming: &Naming, group: &Group) -> Candidates<'f> {
        const NONE: (&[Entry], usize) = (&[], 0);
        self.count(1);
        let text = group.skeleton.as_str();
        if naming.convention == ONNX {
            let index = family.understood.get(CANONICAL).zip(text.strip_prefix('/'));
            return [index.map_or(NONE, |(index, text)| (index.bare(text), 0)), NONE];
        }
        let Some(index) = family.understood.get(&naming.convention) else { return [NONE, NONE] };
        let body = text.strip_prefix(naming.prefix.as_str()).map(|body| index.prefixed(body));
        [(index.bare(text), 0), body.map_or(NONE, |entries| (entries, naming.prefix.len()))]
    }

    /// The first pattern that a name is of, and its numbers.
    fn matched<'f>(
        &self,
        candidates: &Candidates<'f>,
        naming: &Naming,
        name: &str,
    ) -> Option<(&'f Entry, Vec<u64>)> {
        let dotted;
        let name = match naming.convention == ONNX {
            true => {
                dotted = name.strip_prefix('/')?.replace('/', ".");
                dotted.as_str()
            }
            false => name,
        };

        candidates.iter().find_map(|(entries, cut)| {
            let body = name.get(*cut..)?;
            entries.iter().find_map(|entry| {
                self.count(1);
                Some((entry, entry.pattern.matches(body)?))
            })
        })
    }

    fn count(&self, work: u64) {
        self.work.set(self.work.get() + work);
    }

    /// Lookups of a skeleton and comparisons of a name with a pattern so far.
    #[cfg(test)]
    pub(crate) fn work(&self) -> u64 {
        self.work.get()
    }
}

/// Groups in the order in which they were found, and positions of tensors, group by group.
fn sorted(
    by_skeleton: HashMap<String, usize>,
    sizes: &[usize],
    of: &[usize],
) -> (Vec<Group>, Vec<usize>) {
    let mut end = 0;
    let mut groups: Vec<Group> = sizes
        .iter()
        .map(|size| {
            let start = end;
            end += size;
            Group { skeleton: String::new(), members: start..end }
        })
        .collect();
    for (text, group) in by_skeleton {
        groups[group].skeleton = text;
    }

    let mut next: Vec<usize> = groups.iter().map(|group| group.members.start).collect();
    let mut order = vec![0; of.len()];
    for (position, &group) in of.iter().enumerate() {
        order[next[group]] = position;
        next[group] += 1;
    }

    (groups, order)
}

/// Returns `true` if skeletons contain a prefix unchanged.
fn is_plain(prefix: &str) -> bool {
    let is_plain_part = |part: &str| number(part).is_none() && !part.starts_with('#');
    prefix.is_empty()
        || !prefix.contains('/')
            && prefix.strip_suffix('.').is_some_and(|parts| parts.split('.').all(is_plain_part))
}

/// A name with `*` in the place of the numbers of layers.
#[must_use]
pub fn without_numbers(name: &str) -> String {
    let is_number =
        |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let parts = name.split('.').map(|part| if is_number(&part) { "*" } else { part });
    parts.collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use apr_core::DType;

    use super::*;
    use crate::families::Families;
    use crate::family::HUGGING_FACE;

    fn named(names: impl IntoIterator<Item = String>) -> Vec<TensorInfo> {
        names
            .into_iter()
            .map(|name| TensorInfo { name, dtype: DType::F32, shape: [4, 4].into() })
            .collect()
    }

    fn layers(count: usize) -> Vec<TensorInfo> {
        const PARTS: [&str; 3] =
            ["self_attn.q_proj.weight", "mlp.up_proj.weight", "input_layernorm.weight"];
        let names = |layer: usize| PARTS.map(|part| format!("model.layers.{layer}.{part}"));
        named((0..count).flat_map(names))
    }

    /// Lookups and comparisons that it takes to hold every family against these names.
    fn work(tensors: &[TensorInfo], least: usize) -> u64 {
        let names = NameGroups::of(tensors);
        let families = Families::builtin();
        let known =
            families.iter().filter(|family| names.best_naming(family, least).is_some()).count();
        assert!(least > 0 || known == families.iter().count());
        names.work()
    }

    #[test]
    fn the_work_for_a_name_does_not_grow_with_the_number_of_layers() {
        assert_eq!(work(&layers(10), 0), work(&layers(3000), 0));
    }

    #[test]
    fn a_name_costs_a_few_lookups_a_family_whatever_it_looks_like() {
        let words =
            ["model", "layers", "self_attn", "q_proj", "weight", "encoder", "block", "0", "mlp"];
        let word = |number: usize, place: u32| words[number / words.len().pow(place) % words.len()];
        let mixed = named(
            (0..5000).map(|n| (0..5).map(|place| word(n, place)).collect::<Vec<_>>().join(".")),
        );
        let digits = named((0..5000).map(|n| format!("{n}.{}.{}", n * 7, n * 13)));
        let letters = named((0..5000).map(|n| format!("x{n}.weight{n}")));
        let long = named((0..50).map(|n| format!("{}.{n}", "layers.0.".repeat(2000))));
        let families = Families::builtin().iter().count() as u64;
        for tensors in [mixed, digits, letters, long] {
            let (all, total) = (work(&tensors, 0), tensors.len() as u64);
            assert!(all <= 16 * total * families, "{all} for {total} names");
            // A family that can't reach its share any more is given up.
            let guessed = work(&tensors, tensors.len() * 9 / 10);
            assert!(guessed <= 16 * (total / 5) * families, "{guessed} for {total} names");
        }
    }

    #[test]
    fn groups_find_what_single_names_do() {
        let mut names: Vec<String> = Vec::new();
        for family in Families::builtin().iter() {
            for naming in family.namings() {
                names.extend(
                    family.example_names().filter_map(|name| family.source_name(&name, &naming)),
                );
            }
        }
        names.extend(
            ["model.layers.#.mlp.up_proj.weight", "layers.01.x", "", ".", "/", "#", "/layers/#/x"]
                .map(str::to_owned),
        );
        let tensors = named(names);
        let groups = NameGroups::of(&tensors);
        for family in Families::builtin().iter() {
            for naming in family.namings() {
                let matches = groups.matches(family, &naming);
                let mut known = 0;
                for (info, matched) in tensors.iter().zip(&matches) {
                    let found = family.find(&info.name, &naming);
                    let found = found.map(|it| {
                        (it.tensor, it.numbers.iter().map(|(_, n)| *n).collect::<Vec<_>>())
                    });
                    let matched = matched.as_ref().map(|it| (it.tensor, it.numbers.clone()));
                    assert_eq!(matched, found, "{} as {naming:?} of {}", info.name, family.name());
                    known += usize::from(matched.is_some());
                }
                let counted: usize =
                    groups.groups.iter().map(|group| groups.known(family, &naming, group)).sum();
                assert_eq!(counted, known, "{naming:?} of {}", family.name());
            }
        }
    }

    #[test]
    fn a_prefix_with_a_number_matches_only_itself() {
        let mut families = Families::builtin();
        let text = r#"
            name = "odd"
            title = "Odd"
            [conventions.huggingface]
            prefixes = ["net.0."]
            [[tensor]]
            name = "a.weight"
            kind = "linear"
            role = "A"
        "#;
        let family = families.add(text).expect("a family");
        let tensors = named(["net.1.a.weight", "net.0.a.weight"].map(str::to_owned));
        let naming = family.default_naming(HUGGING_FACE).expect("a naming");
        let groups = NameGroups::of(&tensors);
        let found: Vec<bool> =
            groups.matches(family, &naming).iter().map(Option::is_some).collect();
        assert_eq!(found, [false, true]);
        assert_eq!(groups.best_naming(family, 1), Some((naming, 1)));
    }
}
