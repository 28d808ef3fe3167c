//! Differences between a checkpoint and its family.

use std::collections::BTreeSet;

use apr_core::{Shape, TensorInfo};
use serde::Serialize;

use super::FamilyModel;
use crate::missing::{Expected, Present, part};

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

/// Dimensions from the first on that is not 1.
pub(super) fn without_outer_ones(dims: &[u64]) -> &[u64] {
    let first = dims.iter().position(|&dim| dim != 1).unwrap_or(dims.len());
    &dims[first..]
}

impl FamilyModel<'_> {
    /// Where the configuration leads to another shape than the tensor's.
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
}
