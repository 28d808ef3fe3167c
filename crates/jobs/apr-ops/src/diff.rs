//! What differs between two checkpoints.
//!
//! Tensors whose files state equal digests of them are not read, unless that is asked for: a digest
//! tells what the bytes were when the file was written. The others are read side by side, in
//! chunks; where dtypes differ, values are compared after exact widening, and judged by what the
//! narrower dtype can hold ([`Room`](apr_tensor::room::Room)).

mod alike;
mod compare;
mod drift;
mod explained;
mod generation;
mod metadata;
mod options;
mod pairing;
mod parts;
mod positional;
mod report;
mod tokens;

use apr_core::Progress;
use apr_registry::{CheckpointReader, Error, Escaped, Pipeline, Result};

pub(crate) use alike::{Alike, alike};
pub(crate) use drift::drift;
pub use drift::{DriftReport, OfGraph, TensorDrift};
pub use explained::Explained;
pub use options::DiffOptions;
pub(crate) use options::Side;
pub use parts::PartOfDiff;
pub(crate) use parts::{diff_in_parts, diff_part, diff_units};
pub use report::{
    DiffReport, L2Gate, MetadataChange, RuleChange, TensorDiff, TokenChange, Verdict, VocabChanges,
};

use compare::{Comparison, Norms, compare};
use generation::generation_changes;
use metadata::metadata_changes;
use pairing::{Pair, Pairing, pair};
use tokens::vocab_changes;

/// Keys of the metadata that list what a comparison of vocabularies reports.
const OF_TOKENS: [&str; 3] = ["tokenizer.vocabulary", "vocab", "gguf.tokenizer.ggml.tokens"];

/// Compares two checkpoints.
///
/// # Errors
/// E001 when the mapping names a missing tensor, E002 and E007 when bytes can't be read.
pub(crate) fn diff<P: Pipeline>(
    left: Side<'_>,
    right: Side<'_>,
    options: &DiffOptions,
    pipeline: &P,
    progress: &dyn Progress,
) -> Result<DiffReport> {
    let pairing = pair(left, right, options, pipeline, progress)?;
    let compared =
        compare(left.reader, right.reader, &pairing.pairs, options.read, pipeline, progress)?;
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
    let is_empty =
        pairing.pairs.is_empty() && pairing.removed.is_empty() && pairing.added.is_empty();
    if let Some(filter) = options.filter.as_ref().filter(|_| is_empty) {
        // A gate that compares nothing must not pass.
        let (what, filter) = (DiffOptions::NOTHING, Escaped::short(filter.text()));
        let message = format!("{what} {filter}");
        return Err(Error::format(message));
    }

    let mut warnings = Vec::new();
    let vocab = vocab_changes(left.original, right.original, &mut warnings)?;
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

    let mut metadata = metadata_changes(left, right)?;
    metadata.extend(generation_changes(left, right)?);
    if vocab.is_some() {
        metadata.retain(|change| !OF_TOKENS.contains(&change.key.as_str()));
    }
    let lonely = !pairing.removed.is_empty() || !pairing.added.is_empty();
    let answers_differ = metadata.iter().any(|change| change.changes_answers);
    let same =
        !drift && !lonely && !answers_differ && vocab.as_ref().is_none_or(VocabChanges::is_empty);

    // Values that are not a number have no distance: what is not the same is never wholly alike.
    let most = if same { 100.0 } else { 99.99 };

    // A distance is one where every tensor has a counterpart, and every value is a number.
    let is_whole =
        !lonely && tensors.iter().all(|tensor| tensor.max_delta.is_some_and(f64::is_finite));
    let is_number = norms.sums.max_delta.is_finite();
    let l2 = if is_number { norms.sums.difference.sqrt() } else { f64::INFINITY };
    let gate = |limit| L2Gate { limit, passed: is_whole && l2 <= limit };
    Ok(DiffReport {
        path: left_name.to_owned(),
        other_path: right_name.to_owned(),
        same,
        similarity: norms.similarity(pairing.lonely_elements).min(most),
        max_delta: norms.sums.max_delta,
        l2,
        l2_gate: options.max_l2.map(gate),
        tensors,
        removed: pairing.removed,
        added: pairing.added,
        explained: pairing.explained,
        vocab,
        metadata,
        structure: None,
        bytes_read,
        warnings,
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
    let verdict = if sums.identical && a.shape != b.shape {
        Verdict::Reshaped
    } else {
        sums.verdict(tolerance, room)
    };
    let compared = |value: f64, same: f64| match sums {
        Comparison { incomparable: true, .. } => None,
        Comparison { identical: true, .. } => Some(same),
        _ => Some(value),
    };
    let norms = (sums.left * sums.right).sqrt();
    let norm = sums.left.max(sums.right).sqrt();
    let share = |of: f64| Some(of / norm).filter(|share| room > 0.0 && share.is_finite());
    // With NaN or infinity there is no distance.
    let is_number = sums.max_delta.is_finite();
    let difference = if is_number { sums.difference.sqrt() } else { f64::INFINITY };
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
        l2: compared(difference, 0.0),
        cosine: compared(sums.dot / norms, 1.0).filter(|cosine| is_number && cosine.is_finite()),
        relative_error: share(difference),
        allowed: share(room),
    }
}
