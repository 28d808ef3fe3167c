//! What differs between two checkpoints.
//!
//! Tensors whose files state equal digests of them are not read, unless that is asked for: a digest tells what the bytes were
//! when the file was written. The others are read side by side, in chunks; where dtypes differ, values are compared after
//! exact widening, and judged by what the narrower dtype can hold (`room.rs`).

mod alike;
mod compare;
mod metadata;
mod pairing;
mod parts;
mod room;

use std::collections::BTreeSet;

use apr_arch::FamilyModel;
use apr_core::Progress;
use apr_registry::{CheckpointReader, DType, Pipeline, Result, Shape};
use globset::GlobMatcher;
use serde::Serialize;

use apr_tokenizer::vocabulary;

pub use alike::{Alike, alike};
pub use parts::{PartOfDiff, diff_in_parts, diff_part, diff_units};

use compare::{Comparison, Norms, compare};
use metadata::metadata_changes;
use pairing::{Pair, Pairing, pair};

use crate::graph::{Computed, StructureDiff};

/// What to compare, and how strictly.
#[derive(Debug, Clone)]
pub struct DiffOptions {
    /// Largest difference between two values that still counts as a match.
    pub tolerance: f64,
    /// Only tensors of the left model whose name matches.
    pub filter: Option<GlobMatcher>,
    /// Left name, right name, for tensors that are called differently.
    pub mapping: Vec<(String, String)>,
    /// Read tensors whose files state equal digests, too.
    pub read: bool,
    /// A gate: the largest Euclidean distance of the two models.
    pub max_l2: Option<f64>,
}

impl Default for DiffOptions {
    fn default() -> Self {
        Self { tolerance: 1e-6, filter: None, mapping: Vec::new(), read: false, max_l2: None }
    }
}

/// How a pair of tensors compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The bytes are the same.
    Identical,
    /// The bytes are the same, the shape is another one.
    Reshaped,
    /// No value differs by more than the tolerance.
    Match,
    /// Values differ, by no more than the narrower dtype rounds.
    Rounded,
    /// Some value differs by more.
    Drift,
    /// Shapes differ, or a dtype that can't be decoded; values were not compared.
    Incomparable,
}

/// A tensor of the left model and its counterpart.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TensorDiff {
    /// Name in the left model.
    pub name: String,
    /// Name in the right model, where it is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_name: Option<String>,
    /// Whether only its bytes show that it is the same tensor.
    pub renamed: bool,
    /// How they compare.
    pub verdict: Verdict,
    /// Whether equal digests that the files state are all that shows it; the bytes were not read.
    pub by_digest: bool,
    /// Whether the files state equal digests and the bytes differ: one of them is damaged.
    pub damaged: bool,
    /// Dtypes, left and right.
    pub dtypes: [DType; 2],
    /// Shapes, left and right.
    pub shapes: [Shape; 2],
    /// Largest difference between two values, infinite where one side is not a number; `None` when not compared.
    pub max_delta: Option<f64>,
    /// Euclidean norm of the difference.
    pub l2: Option<f64>,
    /// Cosine of the angle between the two, as vectors; `None` where one is zero.
    pub cosine: Option<f64>,
    /// Norm of the difference over that of the values, where dtypes differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relative_error: Option<f64>,
    /// What of it the dtypes allow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed: Option<f64>,
}

/// A limit for the distance of two models.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct L2Gate {
    /// The largest Euclidean norm of the difference.
    pub limit: f64,
    /// Whether it was kept, and all tensors could be compared.
    pub passed: bool,
}

/// A metadata key whose values differ; `None` where it is missing.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MetadataChange {
    /// The key; of a GGUF pair `gguf.` and its key.
    pub key: String,
    /// Value in the left model, as JSON; of a long array its length.
    pub left: Option<serde_json::Value>,
    /// Value in the right model, as JSON.
    pub right: Option<serde_json::Value>,
}

/// How many tokens came and went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct VocabChanges {
    /// In the right model only.
    pub added: usize,
    /// In the left model only.
    pub removed: usize,
}

/// The report of `apr diff`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DiffReport {
    /// The left model.
    pub left: String,
    /// The right model.
    pub right: String,
    /// Whether nothing differs beyond the tolerance: tensors, vocabulary, names.
    pub same: bool,
    /// 100 for equal models: one minus the norm of the difference over the sum of both norms, in percent; a tensor
    /// without counterpart counts as wholly different.
    pub similarity: f64,
    /// Largest difference between two values.
    pub max_delta: f64,
    /// Euclidean norm of the whole difference.
    pub l2: f64,
    /// The limit that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub l2_gate: Option<L2Gate>,
    /// Pairs, in the order of the left model.
    pub tensors: Vec<TensorDiff>,
    /// Names that only the left model has.
    pub removed: Vec<String>,
    /// Names that only the right model has.
    pub added: Vec<String>,
    /// Tokens, where both models carry a vocabulary.
    pub vocab: Option<VocabChanges>,
    /// Metadata that differs, provenance aside.
    pub metadata: Vec<MetadataChange>,
    /// What differs in what they compute, where that is known of both in the same way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub structure: Option<StructureDiff>,
    /// Bytes that were read.
    pub bytes_read: u64,
}

impl DiffReport {
    /// The same with what differs in what the models compute.
    #[must_use]
    pub fn with_graphs(mut self, left: &Computed, right: &Computed) -> Self {
        self.structure = StructureDiff::new(left, right);
        self.same &= self.structure.as_ref().is_none_or(StructureDiff::is_empty);
        self
    }
}

/// A model to compare: its checkpoint, what the user calls it, and its family where that is known, so that tensors are
/// found under the names of another convention.
#[derive(Clone, Copy)]
pub struct Side<'a> {
    /// The checkpoint.
    pub reader: &'a dyn CheckpointReader,
    /// As the user wrote it.
    pub name: &'a str,
    /// The family.
    pub model: Option<&'a FamilyModel<'a>>,
}

/// Compares two checkpoints.
///
/// # Errors
/// E001 when the mapping names a tensor that is not there, E002 and E007 when bytes can't be read.
pub fn diff<P: Pipeline>(
    left: Side<'_>,
    right: Side<'_>,
    options: &DiffOptions,
    pipeline: &P,
    progress: &dyn Progress,
) -> Result<DiffReport> {
    let pairing = pair(left, right, options, pipeline, progress)?;
    let compared = compare(left.reader, right.reader, &pairing.pairs, options.read, pipeline, progress)?;
    judged(left, right, options, pairing, &compared)
}

/// The report on pairs that were compared.
fn judged(
    left: Side<'_>,
    right: Side<'_>,
    options: &DiffOptions,
    pairing: Pairing,
    compared: &[Comparison],
) -> Result<DiffReport> {
    let Side { reader: left, name: left_name, .. } = left;
    let Side { reader: right, name: right_name, .. } = right;
    let mut norms = Norms::default();
    let mut tensors = Vec::with_capacity(pairing.pairs.len());
    let mut drift = false;
    let mut bytes_read = pairing.bytes_read;
    for (pair, comparison) in pairing.pairs.iter().zip(compared) {
        norms.add(comparison);
        bytes_read += comparison.bytes_read;
        let tensor = describe(left, right, pair, comparison, options.tolerance);
        drift |= pair.renamed || !matches!(tensor.verdict, Verdict::Identical | Verdict::Match);
        tensors.push(tensor);
    }
    let vocab = vocab_changes(left, right)?;
    let lonely = !pairing.removed.is_empty() || !pairing.added.is_empty();
    let same = !drift && !lonely && vocab.is_none_or(|vocab| vocab.added + vocab.removed == 0);
    // Values that are not a number have no distance: what is not the same is never wholly alike.
    let most = if same { 100.0 } else { 99.99 };
    // A distance is one where every tensor has a counterpart, and every value is a number.
    let is_whole = !lonely && tensors.iter().all(|tensor| tensor.max_delta.is_some_and(f64::is_finite));
    let l2 = norms.sums.difference.sqrt();
    let gate = |limit| L2Gate { limit, passed: is_whole && l2 <= limit };
    Ok(DiffReport {
        left: left_name.to_owned(),
        right: right_name.to_owned(),
        same,
        similarity: norms.similarity(pairing.lonely_elements).min(most),
        max_delta: norms.sums.max_delta,
        l2,
        l2_gate: options.max_l2.map(gate),
        tensors,
        removed: pairing.removed,
        added: pairing.added,
        vocab,
        metadata: metadata_changes(left, right)?,
        structure: None,
        bytes_read,
    })
}

impl Comparison {
    /// The judgement on two tensors of one shape, whose dtypes leave `room` between them.
    fn verdict(&self, tolerance: f64, room: f64) -> Verdict {
        if self.identical {
            Verdict::Identical
        } else if self.incomparable {
            Verdict::Incomparable
        } else if self.max_delta <= tolerance {
            Verdict::Match
        } else if self.max_delta.is_finite() && self.difference.sqrt() <= room {
            Verdict::Rounded
        } else {
            Verdict::Drift
        }
    }
}

fn describe(
    left: &dyn CheckpointReader,
    right: &dyn CheckpointReader,
    pair: &Pair,
    sums: &Comparison,
    tolerance: f64,
) -> TensorDiff {
    let (a, b) = (&left.tensors()[pair.left], &right.tensors()[pair.right]);
    // The norms of both add up.
    let room = sums.room[0].sqrt() + sums.room[1].sqrt();
    let verdict = if sums.identical && a.shape != b.shape { Verdict::Reshaped } else { sums.verdict(tolerance, room) };
    let compared = |value: f64, same: f64| match sums {
        Comparison { incomparable: true, .. } => None,
        Comparison { identical: true, .. } => Some(same),
        _ => Some(value),
    };
    let norms = (sums.left * sums.right).sqrt();
    let norm = sums.left.max(sums.right).sqrt();
    let share = |of: f64| Some(of / norm).filter(|share| room > 0.0 && share.is_finite());
    TensorDiff {
        name: a.name.clone(),
        other_name: (a.name != b.name).then(|| b.name.clone()),
        renamed: pair.renamed,
        verdict,
        by_digest: sums.unread,
        damaged: sums.same_digest && !sums.identical,
        dtypes: [a.dtype, b.dtype],
        shapes: [a.shape.clone(), b.shape.clone()],
        max_delta: compared(sums.max_delta, 0.0),
        l2: compared(sums.difference.sqrt(), 0.0),
        cosine: compared(sums.dot / norms, 1.0).filter(|cosine| cosine.is_finite()),
        relative_error: share(sums.difference.sqrt()),
        allowed: share(room),
    }
}

fn vocab_changes(left: &dyn CheckpointReader, right: &dyn CheckpointReader) -> Result<Option<VocabChanges>> {
    let tokens = |reader| -> Result<Option<BTreeSet<String>>> {
        let vocabulary = vocabulary(reader, usize::MAX)?;
        Ok(vocabulary.map(|vocabulary| vocabulary.tokens.into_iter().map(|token| token.text).collect()))
    };
    let (Some(left), Some(right)) = (tokens(left)?, tokens(right)?) else { return Ok(None) };
    Ok(Some(VocabChanges { added: right.difference(&left).count(), removed: left.difference(&right).count() }))
}
