//! What differs between two checkpoints (seed 001 §4.5).
//!
//! Tensors that both files have digests of are compared without being read. The others are read side by side, in
//! chunks; where dtypes differ, values are compared after exact widening.

mod pairing;

use std::collections::BTreeSet;

use apr::{CheckpointReader, DType, Error, Metadata, Pipeline, Result, Shape, TensorInfo, keys};
use apr_tensor::element::{chunk_len, is_decodable, widen_f64};
use globset::GlobMatcher;
use serde::Serialize;

use crate::Progress;
use crate::chunks::take;
use crate::vocabulary::vocabulary;

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

/// Compares two checkpoints.
///
/// # Errors
/// E001 when the mapping names a tensor that is not there, E002 and E007 when bytes can't be read.
pub fn diff<P: Pipeline>(
    left: (&dyn CheckpointReader, &str),
    right: (&dyn CheckpointReader, &str),
    options: &DiffOptions,
    pipeline: &P,
    progress: &dyn Progress,
) -> Result<DiffReport> {
    let ((left, left_name), (right, right_name)) = (left, right);
    let pairing = pair(left, right, options, pipeline, progress)?;
    let compared = compare(left, right, &pairing.pairs, pipeline, progress)?;

    let mut norms = Norms::default();
    let mut tensors = Vec::with_capacity(pairing.pairs.len());
    let mut bytes_read = pairing.bytes_read;
    for (pair, comparison) in pairing.pairs.iter().zip(&compared) {
        norms.add(comparison);
        bytes_read += comparison.bytes_read;
        tensors.push(describe(left, right, pair, comparison, options.tolerance));
    }
    let vocab = vocab_changes(left, right)?;
    let lonely = !pairing.removed.is_empty() || !pairing.added.is_empty();
    let differs = |tensor: &TensorDiff| {
        let renamed = tensor.other_name.is_some() && options.mapping.iter().all(|(left, _)| *left != tensor.name);
        renamed || !matches!(tensor.verdict, Verdict::Identical | Verdict::Match)
    };
    let drift = tensors.iter().any(differs);
    Ok(DiffReport {
        left: left_name.to_owned(),
        right: right_name.to_owned(),
        same: !drift && !lonely && vocab.is_none_or(|vocab| vocab.added + vocab.removed == 0),
        similarity: norms.similarity(pairing.lonely_elements),
        max_delta: norms.max_delta,
        l2: norms.difference.sqrt(),
        tensors,
        removed: pairing.removed,
        added: pairing.added,
        vocab,
        metadata: metadata_changes(left.metadata(), right.metadata()),
        bytes_read,
    })
}

/// Sums over the values of one pair.
#[derive(Debug, Clone, Copy, Default)]
struct Comparison {
    identical: bool,
    incomparable: bool,
    elements: u64,
    left: f64,
    right: f64,
    dot: f64,
    difference: f64,
    max_delta: f64,
    bytes_read: u64,
}

impl Comparison {
    fn of_values(left: &[f64], right: &[f64]) -> Self {
        let mut sums = Self::default();
        for (&a, &b) in left.iter().zip(right) {
            // Two NaN are alike, and so are two equal infinities, whose difference would be NaN.
            let delta = if a == b || (a.is_nan() && b.is_nan()) { 0.0 } else { (a - b).abs() };
            sums.max_delta = sums.max_delta.max(if delta.is_nan() { f64::INFINITY } else { delta });
            if delta.is_finite() && a.is_finite() {
                sums.difference += delta * delta;
                sums.left += a * a;
                sums.right += b * b;
                sums.dot += a * b;
            }
        }
        sums
    }

    fn merge(&mut self, other: &Self) {
        self.identical &= other.identical;
        self.left += other.left;
        self.right += other.right;
        self.dot += other.dot;
        self.difference += other.difference;
        self.max_delta = self.max_delta.max(other.max_delta);
        self.bytes_read += other.bytes_read;
    }
}

/// Norms over all pairs.
#[derive(Debug, Default)]
struct Norms {
    left: f64,
    right: f64,
    difference: f64,
    max_delta: f64,
    elements: u64,
    /// Of pairs that are equal.
    same_elements: u64,
    /// Of pairs that could not be compared.
    different_elements: u64,
}

impl Norms {
    fn add(&mut self, pair: &Comparison) {
        self.elements += pair.elements;
        if pair.identical {
            self.same_elements += pair.elements;
        } else if pair.incomparable {
            self.different_elements += pair.elements;
        } else {
            self.left += pair.left;
            self.right += pair.right;
            self.difference += pair.difference;
            self.max_delta = self.max_delta.max(pair.max_delta);
        }
    }

    /// Identical pairs were not read, so their norms are unknown: they enter by their share of the elements.
    fn similarity(&self, lonely_elements: u64) -> f64 {
        let total = self.elements + lonely_elements;
        if total == 0 {
            return 100.0;
        }
        let read = self.elements - self.same_elements - self.different_elements;
        let norms = self.left.sqrt() + self.right.sqrt();
        let alike = if norms > 0.0 { 1.0 - self.difference.sqrt() / norms } else { 1.0 };
        100.0 * (self.same_elements as f64 + read as f64 * alike) / total as f64
    }
}

#[derive(Default)]
struct Slot {
    bytes: [Vec<u8>; 2],
    values: [Vec<f64>; 2],
    sums: Comparison,
}

/// A range of a pair of tensors.
#[derive(Clone, Copy)]
struct Job {
    pair: usize,
    first: u64,
    count: u64,
}

fn compare<P: Pipeline>(
    left: &dyn CheckpointReader,
    right: &dyn CheckpointReader,
    pairs: &[Pair],
    pipeline: &P,
    progress: &dyn Progress,
) -> Result<Vec<Comparison>> {
    let mut result: Vec<Comparison> = pairs.iter().map(|pair| known_beforehand(left, right, pair)).collect();
    let mut jobs = Vec::new();
    for (number, comparison) in result.iter().enumerate() {
        if !comparison.identical && !comparison.incomparable {
            jobs.extend(ranges(number, &left.tensors()[pairs[number].left]));
        }
    }
    for comparison in &mut result {
        comparison.identical |= !comparison.incomparable;
    }
    let produce = |at: usize, slot: &mut Slot| {
        let pair = &pairs[jobs[at].pair];
        slot.sums = compare_range([(left, pair.left), (right, pair.right)], jobs[at], slot)?;
        Ok(())
    };
    pipeline.run(jobs.len(), produce, |at, slot: &mut Slot| {
        result[jobs[at].pair].merge(&slot.sums);
        progress.advance(slot.sums.bytes_read);
        Ok(())
    })?;
    Ok(result)
}

/// What dtypes, shapes and digests alone tell.
fn known_beforehand(left: &dyn CheckpointReader, right: &dyn CheckpointReader, pair: &Pair) -> Comparison {
    let (a, b) = (&left.tensors()[pair.left], &right.tensors()[pair.right]);
    let digests = left.digest(pair.left).zip(right.digest(pair.right));
    let identical = pair.identical || (a.dtype == b.dtype && digests.is_some_and(|(a, b)| a == b));
    let comparable = a.shape == b.shape && (a.dtype == b.dtype || (is_decodable(a.dtype) && is_decodable(b.dtype)));
    let elements = a.shape.elements().unwrap_or_default();
    Comparison { identical, incomparable: !identical && !comparable, elements, ..Comparison::default() }
}

/// Ranges of elements, or of bytes for dtypes that are compared as they are stored.
fn ranges(pair: usize, info: &TensorInfo) -> impl Iterator<Item = Job> + use<> {
    let (total, step) = if is_decodable(info.dtype) {
        // Whole packed groups of any dtype fit this many elements.
        (info.shape.elements().unwrap_or_default(), 1 << 16)
    } else {
        (info.byte_len().unwrap_or_default(), chunk_len(info.dtype) as u64)
    };
    (0..total.div_ceil(step)).map(move |i| Job { pair, first: i * step, count: step.min(total - i * step) })
}

fn compare_range(sides: [(&dyn CheckpointReader, usize); 2], job: Job, slot: &mut Slot) -> Result<Comparison> {
    let [left, right] = sides.map(|(reader, tensor)| &reader.tensors()[tensor]);
    let [(a_offset, a_len), (b_offset, b_len)] = [byte_range(left, job)?, byte_range(right, job)?];
    let [a, b] = &mut slot.bytes;
    let (a, b) = (take(a, a_len), take(b, b_len));
    sides[0].0.read_tensor(sides[0].1, a_offset, a)?;
    sides[1].0.read_tensor(sides[1].1, b_offset, b)?;
    let bytes_read = (a_len + b_len) as u64;
    let identical = left.dtype == right.dtype && a == b;
    if !is_decodable(left.dtype) {
        // That blocks differ is all there is to say about them.
        let max_delta = if identical { 0.0 } else { f64::INFINITY };
        return Ok(Comparison { identical, max_delta, bytes_read, ..Comparison::default() });
    }
    let [a_values, b_values] = &mut slot.values;
    widen_f64(left.dtype, a, a_values);
    widen_f64(right.dtype, b, b_values);
    Ok(Comparison { identical, bytes_read, ..Comparison::of_values(a_values, b_values) })
}

/// Where the bytes of a range are.
fn byte_range(info: &TensorInfo, job: Job) -> Result<(u64, usize)> {
    let (offset, end) = if is_decodable(info.dtype) {
        let (block_len, block_bytes) = (info.dtype.block_len(), info.dtype.block_bytes());
        // The last group may be cut short: only the tensor's bits as a whole fill its last byte.
        let end = (job.first + job.count).div_ceil(block_len).saturating_mul(block_bytes);
        (job.first / block_len * block_bytes, end.min(info.byte_len()?))
    } else {
        (job.first, job.first + job.count)
    };
    let len = usize::try_from(end - offset).map_err(|_| Error::memory("the range does not fit in memory"))?;
    Ok((offset, len))
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
fn metadata_changes(left: &Metadata, right: &Metadata) -> Vec<MetadataChange> {
    const OF_THE_FILE: [&str; 5] = [keys::APR_VERSION, keys::SOURCE, keys::LOSS, keys::SAFETENSORS, keys::FILES];
    let keys: BTreeSet<&str> = left.iter().chain(right.iter()).map(|(key, _)| key).collect();
    let differing = keys.into_iter().filter(|key| !OF_THE_FILE.contains(key) && left.get(key) != right.get(key));
    differing
        .map(|key| MetadataChange { key: key.to_owned(), left: left.get(key).cloned(), right: right.get(key).cloned() })
        .collect()
}
