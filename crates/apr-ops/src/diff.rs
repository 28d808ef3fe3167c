//! What differs between two checkpoints (seed 001 §4.5).
//!
//! Tensors that both files have digests of are compared without being read. The others are read side by side, in
//! chunks; where dtypes differ, values are compared after exact widening.

mod compare;
mod pairing;

use std::collections::BTreeSet;

use apr::{CheckpointReader, DType, FormatId, Pipeline, Result, Shape, keys};
use apr_arch::FamilyModel;
use globset::GlobMatcher;
use serde::Serialize;

use crate::vocabulary::vocabulary;
use crate::{Progress, naming};

use compare::{Comparison, Norms, compare};
use pairing::{Pair, pair};

/// What to compare, and how strictly.
#[derive(Debug, Clone)]
pub struct DiffOptions {
    /// Largest difference between two values that still counts as a match.
    pub tolerance: f64,
    /// Only tensors of the left model whose name matches.
    pub filter: Option<GlobMatcher>,
    /// Left name, right name, for tensors that are called differently.
    pub mapping: Vec<(String, String)>,
}

impl Default for DiffOptions {
    fn default() -> Self {
        Self { tolerance: 1e-6, filter: None, mapping: Vec::new() }
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
    /// Whether only its bytes tell that it is the same tensor.
    pub renamed: bool,
    /// How they compare.
    pub verdict: Verdict,
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
}

/// A metadata key whose values differ; `None` where it is missing.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MetadataChange {
    /// The key.
    pub key: String,
    /// Value in the left model, as JSON.
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
    /// Bytes that were read.
    pub bytes_read: u64,
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
    let Side { reader: left, name: left_name, .. } = left;
    let Side { reader: right, name: right_name, .. } = right;
    let compared = compare(left, right, &pairing.pairs, pipeline, progress)?;

    let mut norms = Norms::default();
    let mut tensors = Vec::with_capacity(pairing.pairs.len());
    let mut drift = false;
    let mut bytes_read = pairing.bytes_read;
    for (pair, comparison) in pairing.pairs.iter().zip(&compared) {
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
    Ok(DiffReport {
        left: left_name.to_owned(),
        right: right_name.to_owned(),
        same,
        similarity: norms.similarity(pairing.lonely_elements).min(most),
        max_delta: norms.sums.max_delta,
        l2: norms.sums.difference.sqrt(),
        tensors,
        removed: pairing.removed,
        added: pairing.added,
        vocab,
        metadata: metadata_changes(left, right)?,
        bytes_read,
    })
}

fn describe(
    left: &dyn CheckpointReader,
    right: &dyn CheckpointReader,
    pair: &Pair,
    sums: &Comparison,
    tolerance: f64,
) -> TensorDiff {
    let (a, b) = (&left.tensors()[pair.left], &right.tensors()[pair.right]);
    let verdict = match sums {
        Comparison { identical: true, .. } if a.shape != b.shape => Verdict::Reshaped,
        Comparison { identical: true, .. } => Verdict::Identical,
        Comparison { incomparable: true, .. } => Verdict::Incomparable,
        sums if sums.max_delta <= tolerance => Verdict::Match,
        _ => Verdict::Drift,
    };
    let compared = |value: f64, same: f64| match sums {
        Comparison { incomparable: true, .. } => None,
        Comparison { identical: true, .. } => Some(same),
        _ => Some(value),
    };
    let norms = (sums.left * sums.right).sqrt();
    TensorDiff {
        name: a.name.clone(),
        other_name: (a.name != b.name).then(|| b.name.clone()),
        renamed: pair.renamed,
        verdict,
        dtypes: [a.dtype, b.dtype],
        shapes: [a.shape.clone(), b.shape.clone()],
        max_delta: compared(sums.max_delta, 0.0),
        l2: compared(sums.difference.sqrt(), 0.0),
        cosine: compared(sums.dot / norms, 1.0).filter(|cosine| cosine.is_finite()),
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

/// Keys whose values differ. Where a file came from, and what its format alone knows, is no difference of the model.
fn metadata_changes(left: &dyn CheckpointReader, right: &dyn CheckpointReader) -> Result<Vec<MetadataChange>> {
    const OF_THE_FILE: [&str; 6] =
        [keys::APR_VERSION, keys::SOURCE, keys::LOSS, keys::SAFETENSORS, keys::FILES, naming::NAMES];
    // What repeats the companions is there after an import alone: it tells nothing where the other side lacks it.
    let derived = [naming::derived_keys(left)?, naming::derived_keys(right)?];
    let holds_none = [left, right].map(|side| side.format() != FormatId::Apr2 && side.companions().is_empty());
    let (left, right) = (left.metadata(), right.metadata());
    let keys: BTreeSet<&str> = left.iter().chain(right.iter()).map(|(key, _)| key).collect();
    // And a format without metadata lacks all of it.
    let untold = |key: &str| match (left.get(key), right.get(key)) {
        (Some(_), None) => holds_none[1] || derived[0].iter().any(|derived| derived == key),
        (None, Some(_)) => holds_none[0] || derived[1].iter().any(|derived| derived == key),
        _ => false,
    };
    let differs = |key: &&str| !OF_THE_FILE.contains(key) && left.get(key) != right.get(key) && !untold(key);
    let change = |key: &str| MetadataChange {
        key: key.to_owned(),
        left: left.get(key).cloned(),
        right: right.get(key).cloned(),
    };
    Ok(keys.into_iter().filter(differs).map(change).collect())
}
