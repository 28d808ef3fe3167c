//! A family applied to one checkpoint.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use apr_core::{Error, Metadata, Result, Shape, TensorInfo};
use serde::Serialize;
use serde_json::Value as Json;

use crate::dimensions::{Dimensions, Told};
use crate::expression::{Expression, Value};
use crate::family::{Family, FamilyTensor, GGUF, Naming, Required};
use crate::gguf::{GgufCut, GgufLayout, GgufValue, Layout};
use crate::kind::{Range, TensorExpectation};
use crate::missing::{Expected, Present, part};
use crate::names::{Match, NameGroups};

/// A checkpoint, seen as a member of a family.
#[derive(Debug)]
pub struct FamilyModel<'a> {
    pub(crate) family: &'a Family,
    naming: Naming,
    /// Of each tensor: which of the family's it is.
    members: Vec<Option<Member>>,
    pub(crate) dimensions: Dimensions<'a>,
    counts: BTreeMap<&'a str, u64>,
    /// Of each tensor, how many values an output is made of.
    inputs: Vec<u64>,
    /// Of the family's tensors, those whose dimensions are the same in every layer.
    shapes: BTreeMap<usize, Option<Vec<u64>>>,
    /// What an import added, which no family knows.
    auxiliary: Option<&'a str>,
    /// Whether values lie as GGUF has them.
    in_gguf_layout: bool,
    is_guessed: bool,
}

#[derive(Debug)]
struct Member {
    tensor: usize,
    numbers: Vec<u64>,
    canonical: String,
}

/// What a family says about its model, for `apr explain`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Description {
    /// Title of the family.
    pub title: String,
    /// Whether the names of the tensors alone speak for the family.
    pub guessed: bool,
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
        /// Whether it belongs to a part that the family does not have at all, such as a task's own
        /// head.
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
            Self::Unexpected { extra: false, .. } => {
                f.write_str("models of this family have no such tensor")
            }
            Self::Unexpected { extra: true, .. } => {
                f.write_str("it is not part of the family, and kept as it is")
            }
            Self::Missing { .. } => {
                f.write_str("it is missing; models of this family and configuration have it")
            }
            Self::Beyond { index, number, count, .. } => {
                let index = index.replace('_', " ");
                write!(
                    f,
                    "there is no {index} {number}: the configuration has {count}, counted from 0"
                )
            }
            Self::Twice { canonical, .. } => {
                write!(f, "another tensor stands for {canonical} already")
            }
            Self::Shape { shape, expected, formula, .. } => {
                write!(
                    f,
                    "its shape is {shape}, but the configuration leads to {formula} = {expected}"
                )
            }
        }
    }
}

impl<'a> FamilyModel<'a> {
    /// Applies a family to tensors that are named so.
    pub(crate) fn new(
        family: &'a Family,
        naming: Naming,
        names: &NameGroups<'_>,
        tensors: &[TensorInfo],
        metadata: &'a Metadata,
    ) -> Self {
        let matches = names.matches(family, &naming).into_iter();
        let mut members: Vec<Option<Member>> =
            matches.map(|matched| member(family, matched?)).collect();
        let mut dimensions = Dimensions::new(family, Told::by(metadata));
        let in_gguf_layout = naming.convention == GGUF || gguf_values(metadata);
        if naming.convention == GGUF {
            tell_namesakes(family, &mut members, &dimensions);
        }
        // Shapes that GGUF changes would show other dimensions.
        let is_same = |tensor: usize| {
            !in_gguf_layout
                || !matches!(family.layout(tensor), Some(Layout::Transposed | Layout::SkipRows(_)))
        };
        let known = members
            .iter()
            .zip(tensors)
            .filter_map(|(member, info)| Some((member.as_ref()?.tensor, &info.shape)))
            .filter(|(tensor, _)| is_same(*tensor))
            .map(|(tensor, shape)| (&family.tensors[tensor], shape));
        dimensions.observe(known);
        let counts = counts(family, &members, &dimensions);
        let is_turned = |member: &Option<Member>| {
            let member = member.as_ref().filter(|_| !in_gguf_layout);
            member.is_some_and(|member| {
                matches!(family.layout(member.tensor), Some(Layout::Transposed))
            })
        };
        let inputs = members
            .iter()
            .zip(tensors)
            .map(|(member, info)| inputs(&info.shape, is_turned(member)))
            .collect();
        let auxiliary = metadata.auxiliary_tensor();
        let mut model = Self {
            family,
            naming,
            members,
            dimensions,
            counts,
            inputs,
            shapes: BTreeMap::new(),
            auxiliary,
            in_gguf_layout,
            is_guessed: false,
        };
        model.compute_shapes();
        model
    }

    /// Computes the shapes that are the same in every layer, once for all of them.
    fn compute_shapes(&mut self) {
        let present: BTreeSet<usize> =
            self.members.iter().flatten().map(|member| member.tensor).collect();
        for tensor in present {
            let Some(shape) = &self.family.tensors[tensor].shape else { continue };
            let indices = self.family.tensors[tensor].pattern.indices();
            if !indices.iter().any(|index| shape.iter().any(|dim| dim.mentions(index))) {
                self.shapes.insert(tensor, self.computed_dims(tensor, &[]));
            }
        }
    }

    /// The same, taken for a member of the family because of its names alone.
    pub(crate) fn guessed(self) -> Self {
        Self { is_guessed: true, ..self }
    }

    /// Whether only the names of the tensors speak for the family: nothing else says what the model
    /// is.
    #[must_use]
    pub fn is_guessed(&self) -> bool {
        self.is_guessed
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
        let mut expectation =
            self.family.tensors[member].expectation.for_width(self.inputs[tensor]);
        if let (true, Some(Layout::Add(constant))) =
            (self.in_gguf_layout, self.family.layout(member))
        {
            let constant = f64::from(*constant);
            expectation.mean =
                expectation.mean.map(|mean| Range::new(mean.low + constant, mean.high + constant));
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

    /// The shape that the tensor at this position should have, where its dimensions are known, and
    /// how it is made up: `[vocab, hidden]`.
    #[must_use]
    pub fn expected_shape(&self, tensor: usize) -> Option<(Shape, String)> {
        let dims = self.expected_dims(tensor)?.into_owned();
        let member = self.members.get(tensor)?.as_ref()?;
        let mut formula = self.family.file.tensors[member.tensor].shape.clone()?;
        if self.in_gguf_layout {
            match self.family.layout(member.tensor) {
                Some(Layout::Transposed) => formula.reverse(),
                Some(Layout::SkipRows(_)) if !formula.is_empty() => {
                    formula[0].push_str(" less those that GGUF leaves out");
                }
                _ => {}
            }
        }
        Some((dims.into(), format!("[{}]", formula.join(", "))))
    }

    fn expected_dims(&self, tensor: usize) -> Option<Cow<'_, [u64]>> {
        let member = self.members.get(tensor)?.as_ref()?;
        match self.shapes.get(&member.tensor) {
            Some(dims) => dims.as_deref().map(Cow::Borrowed),
            None => {
                let numbers = numbers(&self.family.tensors[member.tensor], member);
                self.computed_dims(member.tensor, &numbers).map(Cow::Owned)
            }
        }
    }

    /// The dimensions of a tensor of the family, in the layout that the checkpoint has.
    fn computed_dims(&self, tensor: usize, numbers: &[(&str, u64)]) -> Option<Vec<u64>> {
        let shape = self.family.tensors[tensor].shape.as_ref()?;
        let dims = shape.iter().map(|dim| self.dimensions.value(dim, numbers)?.as_size());
        let mut dims = dims.collect::<Option<Vec<u64>>>()?;
        if self.in_gguf_layout {
            match (self.family.layout(tensor), dims.first_mut()) {
                (Some(Layout::Transposed), _) => dims.reverse(),
                (Some(Layout::SkipRows(skipped)), Some(rows)) => {
                    *rows = rows.checked_sub(self.dimensions.size(skipped)?)?;
                }
                _ => {}
            }
        }
        Some(dims)
    }

    /// Where the configuration leads to another shape than the tensor's.
    fn misshaped(&self, position: usize, info: &TensorInfo) -> Option<Mismatch> {
        self.expected_dims(position).filter(|dims| **dims != *info.shape.dims())?;
        let (expected, formula) = self.expected_shape(position)?;
        Some(Mismatch::Shape {
            name: info.name.clone(),
            shape: info.shape.clone(),
            expected,
            formula,
        })
    }

    /// Everything that names and shapes show to be wrong: of the checkpoint's tensors in their
    /// order, then what is missing.
    #[must_use]
    pub fn mismatches(&self, tensors: &[TensorInfo]) -> Vec<Mismatch> {
        let beginnings = self.family.beginnings(&self.naming);
        // Where few tensors are known, it is the family that is in question, and nothing an
        // addition to it.
        let is_believed = self.known() * 2 >= self.members.len();
        let mut present = Present::of(self.family);
        let mut mismatches = Vec::new();
        for (position, info) in tensors.iter().enumerate() {
            let name = || info.name.clone();
            let beyond = self.beyond(position);
            match self.members.get(position).and_then(Option::as_ref) {
                None if self.auxiliary == Some(&info.name) => {}
                None => {
                    let extra = is_believed && self.is_extra(&info.name, &beginnings);
                    mismatches.push(Mismatch::Unexpected { name: name(), extra });
                }
                Some(member)
                    if !present.add(&member.canonical, member.tensor, beyond.is_none()) =>
                {
                    mismatches.push(Mismatch::Twice {
                        name: name(),
                        canonical: member.canonical.clone(),
                    });
                }
                Some(_) => {}
            }
            if let Some((index, number, count)) = beyond {
                mismatches.push(Mismatch::Beyond {
                    name: name(),
                    index: index.to_owned(),
                    number,
                    count,
                });
            }
            mismatches.extend(self.misshaped(position, info));
        }
        let missing = |canonical: String| {
            let name = self.family.source_name(&canonical, &self.naming).unwrap_or(canonical);
            Mismatch::Missing { name }
        };
        let expected = Expected {
            family: self.family,
            dimensions: &self.dimensions,
            counts: &self.counts,
            in_gguf_layout: self.in_gguf_layout,
        };
        mismatches.extend(expected.missing(&present).into_iter().map(missing));
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
    fn beyond(&self, position: usize) -> Option<(&str, u64, u64)> {
        let member = self.members.get(position)?.as_ref()?;
        let indices =
            self.family.tensors[member.tensor].pattern.indices().iter().map(String::as_str);
        indices.zip(&member.numbers).find_map(|(index, &number)| {
            let count = *self.counts.get(index)?;
            (number >= count).then_some((index, number, count))
        })
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
                Error::format("the configuration does not say how GGUF lays out its rows")
                    .for_tensor(canonical)
            })
        };
        Ok(match found.and_then(|found| self.family.layout(found.tensor)) {
            None | Some(Layout::Stack(_) | Layout::Cut(_)) => GgufLayout::Same,
            Some(Layout::Groups([groups, queries, rows])) => {
                GgufLayout::Groups([size(groups)?, size(queries)?, size(rows)?])
            }
            Some(Layout::Swap([outer, a, b, inner])) => {
                GgufLayout::Swap([size(outer)?, size(a)?, size(b)?, size(inner)?])
            }
            Some(Layout::Add(constant)) => GgufLayout::Add(*constant),
            Some(Layout::Transposed) => GgufLayout::Transposed,
            Some(Layout::SkipRows(rows)) => GgufLayout::SkipRows(size(rows)?),
        })
    }

    /// Which rows the tensor with this canonical name is in a GGUF file, where it is cut out of
    /// another one.
    ///
    /// # Errors
    /// E001 when the configuration lacks what that depends on.
    pub fn gguf_cut(&self, canonical: &str) -> Result<Option<GgufCut>> {
        let found = self.family.find_canonical(canonical);
        let Some(Layout::Cut(cut)) = found.and_then(|found| self.family.layout(found.tensor))
        else {
            return Ok(None);
        };
        let size = |expression: &Expression| {
            self.dimensions.size(expression).ok_or_else(|| {
                Error::format("the configuration does not say which of its rows GGUF has")
                    .for_tensor(canonical)
            })
        };
        let (groups, first, count) = (size(&cut.groups)?, size(&cut.first)?, size(&cut.count)?);
        Ok(Some(GgufCut { groups, first, step: cut.step, count, turned: cut.turned }))
    }

    /// The shape that the tensor with this canonical name has in Hugging Face's layout, where its
    /// dimensions are known.
    #[must_use]
    pub fn shape_of(&self, canonical: &str) -> Option<Shape> {
        let found = self.family.find_canonical(canonical)?;
        let shape = self.family.tensors[found.tensor].shape.as_ref()?;
        let dims = shape.iter().map(|dim| self.dimensions.value(dim, &found.numbers)?.as_size());
        dims.collect::<Option<Vec<u64>>>().map(Into::into)
    }

    /// How many parts the tensor with this canonical name has, which GGUF stacks them in.
    #[must_use]
    pub fn parts_of(&self, stack: &str) -> Option<u64> {
        let found = self.family.find_canonical(&self.family.part(stack, 0)?)?;
        let whole = self.family.stack_of(found.tensor)?;
        self.counts.get(self.family.stacked_index(found.tensor, whole)?).copied()
    }

    /// Whether llama.cpp goes without the tensor with this canonical name.
    #[must_use]
    pub fn is_without(&self, canonical: &str) -> bool {
        let condition = self.family.gguf.as_ref().and_then(|gguf| gguf.without_tensors.as_ref());
        let (Some(condition), Some(found)) = (condition, self.family.find_canonical(canonical))
        else {
            return false;
        };
        !found.numbers.is_empty() && self.dimensions.truth(condition, &found.numbers) == Some(true)
    }

    /// What `general.architecture` is in a GGUF file of this model; `None` where llama.cpp has no
    /// such models.
    #[must_use]
    pub fn gguf_architecture(&self) -> Option<&'a str> {
        Some(self.family.gguf.as_ref()?.architecture(&mut |name| self.dimensions.named_value(name)))
    }

    /// Hyperparameters under the keys of GGUF, in llama.cpp's order. `entry` gives entries of the
    /// configuration by dotted path, and whatever else the family's table names.
    ///
    /// # Errors
    /// E001 when one that llama.cpp needs is not there or not of its type.
    pub fn gguf_keys(
        &self,
        entry: &dyn Fn(&str) -> Option<Json>,
    ) -> Result<Vec<(String, GgufValue)>> {
        let Some(gguf) = &self.family.gguf else { return Ok(Vec::new()) };
        let told = |name: &str| entry(name).and_then(|json| Value::of(&json));
        let mut lookup = |name: &str| match name.strip_prefix("config.") {
            Some(name) => told(name),
            None => self
                .dimensions
                .dimension(name)
                .or_else(|| told(name))
                .or_else(|| self.dimensions.named_value(name)),
        };
        gguf.keys(&mut lookup, |name| self.family.source_of_dimension(name))
    }

    /// What the model is.
    #[must_use]
    pub fn description(&self) -> Description {
        let file = &self.family.file;
        let fill = |text: &Option<String>| {
            let text = text.as_ref()?;
            let filled = self.dimensions.sizes().fold(text.clone(), |text, (name, value)| {
                text.replace(&format!("{{{name}}}"), &value.to_string())
            });
            // A sentence about a number nobody knows says nothing.
            (!filled.contains('{')).then_some(filled)
        };
        let size = self
            .family
            .sizes
            .iter()
            .find(|(_, when)| self.dimensions.truth(when, &[]) == Some(true));
        Description {
            title: file.title.clone(),
            guessed: self.is_guessed,
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
        let is_asked_for =
            |tensor: usize, numbers: &[(&str, u64)]| match &family.tensors[tensor].required {
                Required::Stated(stated) => Some(*stated),
                Required::Computed(condition) => dimensions.truth(condition, numbers),
            };
        for member in members.iter_mut().flatten().filter(|member| member.tensor == taken) {
            let named = numbers(&family.tensors[taken], member);
            if is_asked_for(taken, &named) != Some(false)
                || is_asked_for(other, &named) != Some(true)
            {
                continue;
            }
            let number = |index: &str| {
                named.iter().find(|(name, _)| *name == index).map(|(_, number)| *number)
            };
            let Some(canonical) = family.tensors[other].pattern.name("", number) else { continue };
            *member = Member { tensor: other, numbers: member.numbers.clone(), canonical };
        }
    }
}

fn member(family: &Family, Match { tensor, numbers }: Match) -> Option<Member> {
    let canonical = family.tensors[tensor].pattern.filled(&numbers)?;
    Some(Member { tensor, numbers, canonical })
}

fn numbers<'f>(tensor: &'f FamilyTensor, member: &Member) -> Vec<(&'f str, u64)> {
    tensor
        .pattern
        .indices()
        .iter()
        .map(String::as_str)
        .zip(member.numbers.iter().copied())
        .collect()
}

/// How many values of a matrix or a kernel an output is made of; outputs come first, and last where
/// it is turned.
fn inputs(shape: &Shape, is_turned: bool) -> u64 {
    let outputs = if is_turned { shape.dims().last() } else { shape.dims().first() };
    shape.elements().unwrap_or(u64::MAX).checked_div(outputs.copied().unwrap_or(1)).unwrap_or(1)
}

/// How many there are of each index: as the configuration says, else as far as the tensors go.
fn counts<'a>(
    family: &'a Family,
    members: &[Option<Member>],
    dimensions: &Dimensions<'_>,
) -> BTreeMap<&'a str, u64> {
    let seen = |index: &str| {
        let of = |member: &Member| {
            let tensor = &family.tensors[member.tensor];
            numbers(tensor, member)
                .into_iter()
                .find(|(name, _)| *name == index)
                .map(|(_, number)| number)
        };
        members.iter().flatten().filter_map(of).max().map(|last| last.saturating_add(1))
    };
    let count = |(index, count)| {
        Some((String::as_str(index), dimensions.size(count).or_else(|| seen(index))?))
    };
    family.indices.iter().filter_map(count).collect()
}
