//! Differences between a checkpoint and its family.

use std::collections::BTreeSet;

use apr_core::{Shape, TensorInfo};
use serde::Serialize;

use super::FamilyModel;
use super::member::numbers;
use crate::family::Required;
use crate::kind::TensorKind;
use crate::mapper::TensorNameMapper;
use crate::missing::{Expected, Present, part};

/// A difference between a checkpoint and its family, known from names and shapes alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "what", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Mismatch {
    /// Tensor that the family does not have.
    Unexpected {
        /// Name in the checkpoint.
        name: String,
        /// `true` if the tensor belongs to a part that the family does not have, such as a custom
        /// head.
        extra: bool,
    },
    /// Tensor that the configuration requires but the checkpoint lacks.
    Missing {
        /// Name in the checkpoint's own convention.
        name: String,
    },
    /// A tensor of a layer or expert that the configuration does not have.
    Beyond {
        /// Name in the checkpoint.
        name: String,
        /// Name of the index, such as `layer`.
        index: String,
        /// Number of the index, starting at 0.
        number: u64,
        /// Number of values of the index.
        count: u64,
    },
    /// A bias that the configuration states the model not to have, so that no library loads it.
    Excluded {
        /// Name in the checkpoint.
        name: String,
        /// Entry of the configuration that is false: `attention_bias`.
        entry: String,
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
        /// Shape of the tensor.
        shape: Shape,
        /// The shape it should have.
        expected: Shape,
        /// Formula of the expected shape: `[vocab, hidden]`.
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
            | Self::Excluded { name, .. }
            | Self::Twice { name, .. }
            | Self::Shape { name, .. } => name,
        }
    }
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unexpected { .. } => f.write_str("not a tensor of this family"),
            Self::Missing { .. } => f.write_str("missing tensor of this family and configuration"),
            Self::Beyond { index, number, count, .. } => {
                let index = index.replace('_', " ");
                write!(f, "no {index} {number}: the configuration has {count}, numbered from 0")
            }
            Self::Excluded { entry, .. } => write!(
                f,
                "the configuration excludes this bias ({entry} is false), and libraries ignore it"
            ),
            Self::Twice { canonical, .. } => {
                write!(f, "another tensor has the canonical name {canonical}")
            }
            Self::Shape { shape, expected, formula, .. } => {
                write!(f, "expected {expected} ({formula}), found {shape}")
            }
        }
    }
}

/// Dimensions from the first on that is not 1.
pub(super) fn without_outer_ones(dims: &[u64]) -> &[u64] {
    let first = dims.iter().position(|&dim| dim != 1).unwrap_or(dims.len());
    &dims[first..]
}

/// Returns `true` if a projection computes keys or values from the encoder's output.
fn is_of_encoder(canonical: &str) -> bool {
    let is_cross = |part: &str| ["encoder_attn", "EncDecAttention"].contains(&part);
    let makes_keys = |part: &str| ["k", "v", "k_proj", "v_proj"].contains(&part);
    canonical.split('.').any(is_cross) && canonical.split('.').any(makes_keys)
}

impl FamilyModel<'_> {
    /// Returns the entry of the configuration that excludes a bias: it is stated to be false, and
    /// the family has the bias only if it is true.
    #[must_use]
    pub fn excluded(&self, position: usize) -> Option<&str> {
        let member = self.member(position)?;
        let tensor = &self.family.tensors[member.tensor];
        let Required::Computed(condition) = &tensor.required else { return None };
        let is_stated = |name: &str| {
            name.ends_with("_bias") && self.dimensions.stated_entry(name) == Some(false.into())
        };
        let entry = condition.names().into_iter().find(|name| is_stated(name))?;
        let is_asked_for = self.dimensions.truth(condition, &numbers(tensor, member));
        (tensor.expectation.kind == TensorKind::Bias && is_asked_for == Some(false))
            .then_some(entry)
    }

    /// Returns the mismatch if the configuration requires another shape than the tensor's.
    fn misshaped(&self, position: usize, info: &TensorInfo) -> Option<Mismatch> {
        // Most shapes fit, and are compared without computing what a message needs.
        let differs = |dims: &[u64]| {
            // ggml's tensors have no trace of outermost dimensions of 1.
            let [own, expected] = [info.shape.dims(), dims].map(without_outer_ones);
            dims != info.shape.dims() && !(self.in_gguf_layout && own == expected)
        };
        self.expected_dims(position).filter(|dims| differs(dims))?;
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
        let is_extra = self.is_extra();
        let mut present = Present::of(self.family);
        let mut mismatches = Vec::new();
        for (position, info) in tensors.iter().enumerate() {
            let name = || info.name.clone();
            let beyond = self.beyond(position);
            match self.members.get(position).and_then(Option::as_ref) {
                None if self.auxiliary == Some(&info.name) => {}
                None => {
                    let extra = is_extra(&info.name);
                    mismatches.push(Mismatch::Unexpected { name: name(), extra });
                }
                // The guard itself notes that the tensor is there.
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

            let excluded = self.excluded(position).map(str::to_owned);
            mismatches.extend(excluded.map(|entry| Mismatch::Excluded { name: name(), entry }));
            mismatches.extend(self.misshaped(position, info));
        }

        let missing = |canonical: String| {
            let name = self.family.source_name(&canonical, &self.naming).unwrap_or(canonical);
            Mismatch::Missing { name }
        };
        mismatches.extend(self.expected().missing(&present).into_iter().map(missing));
        if let Some(vision) = self.vision() {
            vision.add_mismatches(tensors, &mut mismatches);
        }
        mismatches
    }

    fn expected(&self) -> Expected<'_> {
        Expected {
            family: self.family,
            dimensions: &self.dimensions,
            counts: &self.counts,
            in_gguf_layout: self.in_gguf_layout,
        }
    }

    /// Returns the positions of the family's tensors that the checkpoint lacks in any layer, and
    /// whether it has them in another.
    pub(crate) fn lacking(&self) -> Vec<(usize, bool)> {
        let mut present = Present::of(self.family);
        for (position, member) in self.members.iter().enumerate() {
            let Some(member) = member else { continue };
            present.add(&member.canonical, member.tensor, self.beyond(position).is_none());
        }
        let there: BTreeSet<usize> =
            self.members.iter().flatten().map(|member| member.tensor).collect();
        let lacking = self.expected().lacking(&present).into_iter();
        lacking.map(|tensor| (tensor, there.contains(&tensor))).collect()
    }

    /// Adds the mismatches of the part for images to the mismatches of the language model.
    ///
    /// The tensors of this part are unknown to the language model, so they are removed from its
    /// unexpected tensors.
    fn add_mismatches(&self, tensors: &[TensorInfo], mismatches: &mut Vec<Mismatch>) {
        let known =
            tensors.iter().enumerate().filter(|(position, _)| self.member(*position).is_some());
        let known: BTreeSet<&str> = known.map(|(_, info)| info.name.as_str()).collect();
        let is_unexpected = |it: &Mismatch| matches!(it, Mismatch::Unexpected { .. });
        mismatches.retain(|it| !(is_unexpected(it) && known.contains(it.name())));
        mismatches.extend(self.mismatches(tensors).into_iter().filter(|it| !is_unexpected(it)));
    }

    /// Returns the number of mismatches, without missing tensors of modules that are entirely
    /// absent.
    pub(crate) fn mismatches_of_own_modules(&self, tensors: &[TensorInfo]) -> usize {
        let modules = self.modules();
        let is_own = |mismatch: &Mismatch| {
            let Mismatch::Missing { name } = mismatch else { return true };
            let canonical = self.family.map_name(name);
            canonical.is_none_or(|canonical| modules.contains(part(&canonical)))
        };
        self.mismatches(tensors).iter().filter(|mismatch| is_own(mismatch)).count()
    }

    /// The modules at the top that there is a tensor of.
    fn modules(&self) -> BTreeSet<&str> {
        self.members.iter().flatten().map(|member| part(&member.canonical)).collect()
    }

    /// Splits mismatches into those of other parts of the model and those of the checkpoint's own
    /// parts.
    ///
    /// If a module with layers is entirely absent, such as the decoder of an encoder that was
    /// exported alone, missing tensors of absent modules belong to other parts. A decoder that
    /// takes the encoder's keys and values as inputs has no weights to compute them in any layer.
    /// These weights also belong to other parts, if every tensor is known.
    #[must_use]
    pub fn of_other_parts(&self, mismatches: Vec<Mismatch>) -> (Vec<Mismatch>, Vec<Mismatch>) {
        let modules = self.modules();
        let present = self.members.iter().flatten();
        let tensors: BTreeSet<usize> = present.map(|member| member.tensor).collect();
        let found = |mismatch: &Mismatch| {
            let Mismatch::Missing { name } = mismatch else { return None };
            let canonical = self.family.map_name(name)?;
            let found = self.family.find_canonical(&canonical)?;
            let is_layered = !found.numbers.is_empty();
            let is_cached = is_of_encoder(&canonical) && !tensors.contains(&found.tensor);
            Some((!modules.contains(part(&canonical)), is_layered, is_cached))
        };
        let missing: Vec<_> = mismatches.iter().map(found).collect();
        let is_part = missing.iter().any(|found| matches!(found, Some((true, true, _))));
        let is_known =
            |mismatch: &Mismatch| !matches!(mismatch, Mismatch::Unexpected { extra: false, .. });
        let all_known = mismatches.iter().all(is_known);
        let (mut other, mut own) = (Vec::new(), Vec::new());
        for (mismatch, found) in mismatches.into_iter().zip(missing) {
            let is_other = found
                .is_some_and(|(is_of_absent, _, is_cached)| is_of_absent || is_cached && all_known);
            if is_part && is_other { other.push(mismatch) } else { own.push(mismatch) }
        }
        (other, own)
    }

    /// Returns a test of names that the family does not know: `true` for a tensor of a part that
    /// the family does not have at all, such as a task's own head.
    pub fn is_extra(&self) -> impl Fn(&str) -> bool {
        let beginnings = self.family.beginnings(&self.naming);

        // Where few tensors are known, it is the family that is in question, and nothing an
        // addition to it.
        let is_believed = self.known() * 2 >= self.members.len();
        move |name| {
            if self.is_of_other_part(name) {
                return true;
            }
            let rest = name.strip_prefix(self.naming.wrapper.as_str()).unwrap_or(name);
            let mut rests =
                [rest, rest.strip_prefix(&*self.naming.prefix).unwrap_or(rest)].into_iter();
            is_believed && rests.all(|name| !beginnings.contains(part(name)))
        }
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
}
