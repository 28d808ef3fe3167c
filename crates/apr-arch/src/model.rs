//! A family applied to one checkpoint.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use apr_core::{Error, Metadata, Result, Shape, TensorInfo};
use serde::Serialize;
use serde_json::Value as Json;

use crate::dimensions::{Dimensions, Told};
use crate::expression::{Expression, Value};
use crate::family::{CANONICAL, Family, FamilyTensor, GGUF, HUGGING_FACE, Naming, Required, WRAPPERS};
use crate::gguf::{GgufLayout, GgufValue, Layout};
use crate::kind::{Range, TensorExpectation};

/// Missing tensors that are named before the rest is left out: a configuration can ask for 2^60 layers.
const MAX_MISSING: usize = 1000;

/// Tensors that are looked for, for the same reason; models of 100 layers of 256 experts have some 100,000.
const MAX_CANDIDATES: usize = 300_000;

/// A checkpoint, seen as a member of a family.
#[derive(Debug)]
pub struct FamilyModel<'a> {
    family: &'a Family,
    naming: Naming,
    /// Of each tensor: which of the family's it is.
    members: Vec<Option<Member>>,
    dimensions: Dimensions<'a>,
    counts: BTreeMap<&'a str, u64>,
    /// What an import added, which no family knows.
    auxiliary: Option<&'a str>,
    /// Whether values lie as GGUF has them.
    in_gguf_layout: bool,
}

#[derive(Debug)]
struct Member {
    tensor: usize,
    numbers: Vec<u64>,
    canonical: String,
}

/// What a family says about its model (seed 001 §4.12).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Description {
    /// Title of the family.
    pub title: String,
    /// Size of the model, where the family has names for sizes.
    pub size: Option<String>,
    /// What the model is for.
    pub purpose: Option<String>,
    /// How it is built.
    pub architecture: Option<String>,
    /// What goes in.
    pub input: Option<String>,
    /// What comes out.
    pub output: Option<String>,
}

/// A difference between a checkpoint and its family, known from names and shapes alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "what", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Mismatch {
    /// The family has no such tensor.
    Unexpected {
        /// Name in the checkpoint.
        name: String,
        /// Whether it belongs to a part that the family does not have at all, such as a task's own head.
        extra: bool,
    },
    /// The checkpoint lacks a tensor that its configuration asks for.
    Missing {
        /// Name in the checkpoint's own convention.
        name: String,
    },
    /// A tensor of a layer or expert that the configuration does not have.
    Beyond {
        /// Name in the checkpoint.
        name: String,
        /// What is counted: `layer`.
        index: String,
        /// Its number, from 0 on.
        number: u64,
        /// How many there are.
        count: u64,
    },
    /// Two tensors have the same canonical name.
    Twice {
        /// Name of the second one in the checkpoint.
        name: String,
        /// The name both would get.
        canonical: String,
    },
    /// A tensor has another shape than the configuration leads to.
    Shape {
        /// Name in the checkpoint.
        name: String,
        /// Its shape.
        shape: Shape,
        /// The shape it should have.
        expected: Shape,
        /// How that is made up: `[vocab, hidden]`.
        formula: String,
    },
}

impl Mismatch {
    /// The tensor, as the checkpoint calls it or would.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Unexpected { name, .. }
            | Self::Missing { name }
            | Self::Beyond { name, .. }
            | Self::Twice { name, .. }
            | Self::Shape { name, .. } => name,
        }
    }
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unexpected { extra: false, .. } => f.write_str("models of this family have no such tensor"),
            Self::Unexpected { extra: true, .. } => f.write_str("it is no part of the family, and kept as it is"),
            Self::Missing { .. } => f.write_str("it is missing; models of this family and configuration have it"),
            Self::Beyond { index, number, count, .. } => {
                let index = index.replace('_', " ");
                write!(f, "there is no {index} {number}: the configuration has {count}, counted from 0")
            }
            Self::Twice { canonical, .. } => write!(f, "another tensor stands for {canonical} already"),
            Self::Shape { shape, expected, formula, .. } => {
                write!(f, "its shape is {shape}, but the configuration leads to {formula} = {expected}")
            }
        }
    }
}

impl<'a> FamilyModel<'a> {
    /// Applies a family to tensors that are named so.
    pub(crate) fn new(family: &'a Family, naming: Naming, tensors: &[TensorInfo], metadata: &'a Metadata) -> Self {
        let mut members: Vec<Option<Member>> = tensors.iter().map(|info| member(family, &info.name, &naming)).collect();
        let mut dimensions = Dimensions::new(family, Told::by(metadata));
        let in_gguf_layout = naming.convention == GGUF || gguf_values(metadata);
        if naming.convention == GGUF {
            tell_namesakes(family, &mut members, &dimensions);
        }
        // Shapes that GGUF changes would show other dimensions.
        let is_same = |tensor: usize| {
            !in_gguf_layout || !matches!(family.layout(tensor), Some(Layout::Transposed | Layout::SkipRows(_)))
        };
        let known = members
            .iter()
            .zip(tensors)
            .filter_map(|(member, info)| Some((member.as_ref()?.tensor, &info.shape)))
            .filter(|(tensor, _)| is_same(*tensor))
            .map(|(tensor, shape)| (&family.tensors[tensor], shape));
        dimensions.observe(known);
        let counts = counts(family, &members, &dimensions);
        let auxiliary = metadata.auxiliary_tensor();
        Self { family, naming, members, dimensions, counts, auxiliary, in_gguf_layout }
    }

    /// The family.
    #[must_use]
    pub fn family(&self) -> &'a Family {
        self.family
    }

    /// How the checkpoint names its tensors.
    #[must_use]
    pub fn naming(&self) -> &Naming {
        &self.naming
    }

    /// The canonical name of the tensor at this position of the checkpoint.
    #[must_use]
    pub fn canonical(&self, tensor: usize) -> Option<&str> {
        Some(self.members.get(tensor)?.as_ref()?.canonical.as_str())
    }

    /// Statistics that the tensor at this position should have.
    #[must_use]
    pub fn expectation(&self, tensor: usize) -> Option<TensorExpectation> {
        let member = self.members.get(tensor)?.as_ref()?.tensor;
        let mut expectation = self.family.tensors[member].expectation;
        if let (true, Some(Layout::Add(constant))) = (self.in_gguf_layout, self.family.layout(member)) {
            let constant = f64::from(*constant);
            expectation.mean = expectation.mean.map(|mean| Range::new(mean.low + constant, mean.high + constant));
        }
        Some(expectation)
    }

    /// Tensors that the family knows.
    #[must_use]
    pub fn known(&self) -> usize {
        self.members.iter().flatten().count()
    }

    /// A dimension of the family file, such as `hidden` or `vocab`.
    #[must_use]
    pub fn dimension(&self, name: &str) -> Option<u64> {
        self.dimensions.named(name)
    }

    /// The shape that the tensor at this position should have, where its dimensions are known, and how it is made up:
    /// `[vocab, hidden]`.
    #[must_use]
    pub fn expected_shape(&self, tensor: usize) -> Option<(Shape, String)> {
        let member = self.members.get(tensor)?.as_ref()?;
        let family_tensor = &self.family.tensors[member.tensor];
        let numbers = numbers(family_tensor, member);
        let dims = family_tensor.shape.as_ref()?.iter().map(|dim| self.dimensions.value(dim, &numbers)?.as_size());
        let mut dims = dims.collect::<Option<Vec<u64>>>()?;
        let mut formula = self.family.file.tensors[member.tensor].shape.clone()?;
        if self.in_gguf_layout {
            match (self.family.layout(member.tensor), dims.first_mut()) {
                (Some(Layout::Transposed), _) => {
                    dims.reverse();
                    formula.reverse();
                }
                (Some(Layout::SkipRows(skipped)), Some(rows)) => {
                    *rows = rows.checked_sub(self.dimensions.size(skipped)?)?;
                    formula[0].push_str(" less those that GGUF leaves out");
                }
                _ => {}
            }
        }
        Some((dims.into(), format!("[{}]", formula.join(", "))))
    }

    /// Everything that names and shapes tell to be wrong: of the checkpoint's tensors in their order, then what is
    /// missing.
    #[must_use]
    pub fn mismatches(&self, tensors: &[TensorInfo]) -> Vec<Mismatch> {
        let beginnings = self.family.beginnings(&self.naming);
        // Where few tensors are known, it is the family that is in question, and nothing an addition to it.
        let is_believed = self.known() * 2 >= self.members.len();
        let mut seen = HashSet::new();
        let mut mismatches = Vec::new();
        for (position, info) in tensors.iter().enumerate() {
            let name = || info.name.clone();
            match self.canonical(position) {
                None if self.auxiliary == Some(&info.name) => {}
                None => {
                    let extra = is_believed && self.is_extra(&info.name, &beginnings);
                    mismatches.push(Mismatch::Unexpected { name: name(), extra });
                }
                Some(canonical) if !seen.insert(canonical) => {
                    mismatches.push(Mismatch::Twice { name: name(), canonical: canonical.to_owned() });
                }
                Some(_) => {}
            }
            if let Some((index, number, count)) = self.beyond(position) {
                mismatches.push(Mismatch::Beyond { name: name(), index, number, count });
            }
            if let Some((expected, formula)) = self.expected_shape(position).filter(|(shape, _)| *shape != info.shape) {
                mismatches.push(Mismatch::Shape { name: name(), shape: info.shape.clone(), expected, formula });
            }
        }
        let missing = |canonical: String| {
            let name = self.family.source_name(&canonical, &self.naming).unwrap_or(canonical);
            Mismatch::Missing { name }
        };
        mismatches.extend(self.missing(&seen).into_iter().map(missing));
        mismatches
    }

    /// Whether a name that the family does not know starts as none of its tensors does.
    fn is_extra(&self, name: &str, beginnings: &BTreeSet<&str>) -> bool {
        let rest = name.strip_prefix(self.naming.wrapper.as_str()).unwrap_or(name);
        [rest, rest.strip_prefix(self.naming.prefix.as_str()).unwrap_or(rest)]
            .iter()
            .all(|name| !beginnings.contains(part(name)))
    }

    /// The first index of a tensor that is past what the configuration counts.
    fn beyond(&self, position: usize) -> Option<(String, u64, u64)> {
        let member = self.members.get(position)?.as_ref()?;
        let numbers = numbers(&self.family.tensors[member.tensor], member);
        let past = numbers.into_iter().map(|(index, number)| (index, number, self.counts.get(index).copied()));
        past.filter_map(|(index, number, count)| Some((index.to_owned(), number, count?)))
            .find(|(_, number, count)| number >= count)
    }

    /// Canonical names of required tensors that are not in `present`.
    fn missing(&self, present: &HashSet<&str>) -> Vec<String> {
        let mut missing = Vec::new();
        let mut candidates = 0;
        // Without a configuration, a part that is absent as a whole may not belong to the model.
        let parts: HashSet<&str> = present.iter().map(|name| part(name)).collect();
        let may_be_asked_for = |name: &str| !self.dimensions.is_guessed() || parts.contains(part(name));
        for (position, tensor) in self.family.tensors.iter().enumerate() {
            let indices = tensor.pattern.indices();
            let counts: Option<Vec<u64>> =
                indices.iter().map(|index| self.counts.get(index.as_str()).copied()).collect();
            let Some(counts) = counts else { continue };
            for numbers in combinations(&counts) {
                candidates += 1;
                if candidates > MAX_CANDIDATES {
                    return missing;
                }
                let named: Vec<_> = indices.iter().map(String::as_str).zip(numbers).collect();
                if missing.len() >= MAX_MISSING {
                    return missing;
                }
                let required = match &tensor.required {
                    Required::Stated(stated) => *stated,
                    Required::Computed(condition) => self.dimensions.truth(condition, &named).unwrap_or(false),
                };
                if !required {
                    // What one layer may lack, the others of an unconditional tensor may, too.
                    if matches!(tensor.required, Required::Stated(_)) {
                        break;
                    }
                    continue;
                }
                let number = |index: &str| named.iter().find(|(name, _)| *name == index).map(|(_, number)| *number);
                let canonical = tensor.pattern.name("", number).unwrap_or_default();
                if present.contains(canonical.as_str()) || !may_be_asked_for(&canonical) {
                    continue;
                }
                let stack = self.family.stack_of(position).and_then(|stack| stack.pattern.name("", number));
                match stack {
                    Some(stack) if present.contains(stack.as_str()) => {}
                    Some(stack) if self.in_gguf_layout && missing.last() == Some(&stack) => {}
                    Some(stack) if self.in_gguf_layout => missing.push(stack),
                    None if self.in_gguf_layout && !self.family.is_written_in(position, GGUF) => {}
                    _ => missing.push(canonical),
                }
            }
        }
        missing
    }

    /// Whether values lie as GGUF has them, and not as in Hugging Face's checkpoints.
    #[must_use]
    pub fn is_in_gguf_layout(&self) -> bool {
        self.in_gguf_layout
    }

    /// How GGUF's values of the tensor with this canonical name come from Hugging Face's.
    ///
    /// # Errors
    /// E001 when the configuration lacks what that depends on.
    pub fn gguf_layout(&self, canonical: &str) -> Result<GgufLayout> {
        let found = self.family.find_canonical(canonical);
        let size = |expression: &Expression| {
            let size = self.dimensions.size(expression);
            size.ok_or_else(|| {
                Error::format("the configuration does not tell how GGUF lays out its rows").for_tensor(canonical)
            })
        };
        Ok(match found.and_then(|found| self.family.layout(found.tensor)) {
            None | Some(Layout::Stack(_)) => GgufLayout::Same,
            Some(Layout::Swap([outer, a, b, inner])) => {
                GgufLayout::Swap([size(outer)?, size(a)?, size(b)?, size(inner)?])
            }
            Some(Layout::Add(constant)) => GgufLayout::Add(*constant),
            Some(Layout::Transposed) => GgufLayout::Transposed,
            Some(Layout::SkipRows(rows)) => GgufLayout::SkipRows(size(rows)?),
        })
    }

    /// What `general.architecture` is in a GGUF file of this model; `None` where llama.cpp has no such models.
    #[must_use]
    pub fn gguf_architecture(&self) -> Option<&'a str> {
        Some(self.family.gguf.as_ref()?.architecture(&mut |name| self.dimensions.named_value(name)))
    }

    /// Hyperparameters under the keys of GGUF, in llama.cpp's order. `entry` gives entries of the configuration by
    /// dotted path, and whatever else the family's table names.
    ///
    /// # Errors
    /// E001 when one that llama.cpp needs is not there or not of its type.
    pub fn gguf_keys(&self, entry: &dyn Fn(&str) -> Option<Json>) -> Result<Vec<(String, GgufValue)>> {
        let Some(gguf) = &self.family.gguf else { return Ok(Vec::new()) };
        let told = |name: &str| entry(name).and_then(|json| Value::of(&json));
        let mut lookup = |name: &str| match name.strip_prefix("config.") {
            Some(name) => told(name),
            None => {
                self.dimensions.dimension(name).or_else(|| told(name)).or_else(|| self.dimensions.named_value(name))
            }
        };
        gguf.keys(&mut lookup, |name| self.family.source_of_dimension(name))
    }

    /// What the model is.
    #[must_use]
    pub fn description(&self) -> Description {
        let file = &self.family.file;
        let fill = |text: &Option<String>| {
            let text = text.as_ref()?;
            let filled = self
                .dimensions
                .sizes()
                .fold(text.clone(), |text, (name, value)| text.replace(&format!("{{{name}}}"), &value.to_string()));
            // A sentence about a number nobody knows says nothing.
            (!filled.contains('{')).then_some(filled)
        };
        let size = self.family.sizes.iter().find(|(_, when)| self.dimensions.truth(when, &[]) == Some(true));
        Description {
            title: file.title.clone(),
            size: size.map(|(name, _)| name.clone()),
            purpose: fill(&file.purpose),
            architecture: fill(&file.architecture),
            input: fill(&file.input),
            output: fill(&file.output),
        }
    }
}

/// Whether an import took the values from a GGUF file as they were.
fn gguf_values(metadata: &Metadata) -> bool {
    let convention = metadata.object("names").and_then(|names| names.get("convention")?.as_str());
    convention == Some(GGUF)
}

/// Of tensors that GGUF calls the same, takes the one that the configuration has.
fn tell_namesakes(family: &Family, members: &mut [Option<Member>], dimensions: &Dimensions<'_>) {
    for (taken, other) in family.namesakes(GGUF) {
        let is_asked_for = |tensor: usize, numbers: &[(&str, u64)]| match &family.tensors[tensor].required {
            Required::Stated(stated) => Some(*stated),
            Required::Computed(condition) => dimensions.truth(condition, numbers),
        };
        for member in members.iter_mut().flatten().filter(|member| member.tensor == taken) {
            let named = numbers(&family.tensors[taken], member);
            if is_asked_for(taken, &named) != Some(false) || is_asked_for(other, &named) != Some(true) {
                continue;
            }
            let number = |index: &str| named.iter().find(|(name, _)| *name == index).map(|(_, number)| *number);
            let Some(canonical) = family.tensors[other].pattern.name("", number) else { continue };
            *member = Member { tensor: other, numbers: member.numbers.clone(), canonical };
        }
    }
}

/// The module that a tensor belongs to, at the top: `decoder`.
fn part(canonical: &str) -> &str {
    canonical.split('.').next().unwrap_or(canonical)
}

fn member(family: &Family, name: &str, naming: &Naming) -> Option<Member> {
    let found = family.find(name, naming)?;
    let canonical = family.written(&found, &Naming::new(CANONICAL, ""))?;
    Some(Member { tensor: found.tensor, numbers: found.numbers.iter().map(|(_, number)| *number).collect(), canonical })
}

fn numbers<'f>(tensor: &'f FamilyTensor, member: &Member) -> Vec<(&'f str, u64)> {
    tensor.pattern.indices().iter().map(String::as_str).zip(member.numbers.iter().copied()).collect()
}

/// The naming under which the family knows most of the tensors, and how many those are; the more common one where two
/// are equally good.
pub(crate) fn best_naming(family: &Family, tensors: &[TensorInfo]) -> (Naming, usize) {
    let is_wrapped =
        |wrapper: &&&str| !tensors.is_empty() && tensors.iter().all(|info| info.name.starts_with(**wrapper));
    let wrapper = WRAPPERS.iter().find(is_wrapped).copied().unwrap_or_default();
    let mut best: Option<(Naming, usize)> = None;
    for naming in family.namings() {
        let naming = Naming { wrapper: wrapper.to_owned(), ..naming };
        let known = tensors.iter().filter(|info| family.find(&info.name, &naming).is_some()).count();
        if best.as_ref().is_none_or(|(_, most)| known > *most) {
            best = Some((naming, known));
        }
    }
    best.unwrap_or_else(|| (Naming::new(HUGGING_FACE, ""), 0))
}

/// How many there are of each index: as the configuration says, else as far as the tensors go.
fn counts<'a>(family: &'a Family, members: &[Option<Member>], dimensions: &Dimensions<'_>) -> BTreeMap<&'a str, u64> {
    let seen = |index: &str| {
        let of = |member: &Member| {
            let tensor = &family.tensors[member.tensor];
            numbers(tensor, member).into_iter().find(|(name, _)| *name == index).map(|(_, number)| number)
        };
        members.iter().flatten().filter_map(of).max().map(|last| last.saturating_add(1))
    };
    let count = |(index, count)| Some((String::as_str(index), dimensions.size(count).or_else(|| seen(index))?));
    family.indices.iter().filter_map(count).collect()
}

/// All combinations of numbers below the counts, the last one running fastest.
fn combinations(counts: &[u64]) -> impl Iterator<Item = Vec<u64>> {
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
