//! What a weight is to blame for: the other model with the original's weight in its place.

use apr_core::{CheckpointReader, DType, Error, Result};
use apr_infer::{Outcome, Value};
use apr_run::RunResult;
use apr_view::{TensorOrigin, View};
use serde::Serialize;

use super::drift::ValueDrift;
use super::lockstep::Pairing;
use super::suspects::Suspect;
use super::weights::Matrix;
use crate::payload::Pass;

/// Drift of the outputs with one weight replaced by the original's.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Blame {
    /// The weight, as the other model's file calls it.
    pub tensor: String,
    /// The step that reads it.
    pub path: String,
    /// Relative L2 drift of the outputs as the other model is.
    pub drift: f64,
    /// Relative L2 drift of the outputs with the original's weight instead of the other model's.
    pub drift_without: f64,
    /// Share of the drift that the replacement removes, from 0 to 1; negative if the drift grows.
    pub share: f64,
}

/// Measures up to `most` weights of the suspects, starting with the most suspicious.
pub(crate) fn blame(
    suspects: &[Suspect],
    pairing: &Pairing,
    passes: [&Pass<'_>; 2],
    outcomes: [&Outcome; 2],
    most: usize,
) -> RunResult<Vec<Blame>> {
    let (original, other) = (passes[0].part.runner(), passes[1].part.runner());
    let drift = outputs_drift(&outcomes[0].outputs, &outcomes[1].outputs);
    let mut order: Vec<&Suspect> = suspects.iter().collect();
    order.sort_by(|one, other| {
        let by_score = other.score().total_cmp(&one.score());
        other.is_out.cmp(&one.is_out).then(by_score)
    });

    let mut found = Vec::new();
    for suspect in order {
        let (one, two) = pairing.pairs[suspect.pair];
        let (ours, theirs) = (&pairing.sites[0].list()[one], &pairing.sites[1].list()[two]);
        for weight in &suspect.weights {
            if found.len() >= most {
                return Ok(found);
            }
            let name = weight.other_tensor.as_ref().unwrap_or(&weight.tensor);
            let from = ours.weights.iter().find(|from| from.tensor == weight.tensor);
            let to = theirs.weights.iter().find(|to| to.tensor == *name);
            let (Some(from), Some(to)) = (from, to) else { continue };
            let (ours, theirs) = (original.weights(), other.weights());
            let one = Matrix::of(ours, from);
            let two = Matrix::of(theirs, to);
            let (Some(one), Some(two)) = (one, two) else { continue };
            let Some(view) = swapped((ours, &one), (theirs, &two))? else { continue };
            let part = other.prepared_with(passes[1].part.runnable(), &view)?;
            let outcome = part.run(passes[1].inputs.clone(), &passes[1].outputs())?;
            let drift_without = outputs_drift(&outcomes[0].outputs, &outcome.outputs);
            let share = if drift > 0.0 { 1.0 - drift_without / drift } else { 0.0 };
            let path = pairing.sites[1].list()[suspect_site(pairing, suspect)].path.clone();
            found.push(Blame { tensor: name.clone(), path, drift, drift_without, share });
        }
    }
    Ok(found)
}

fn suspect_site(pairing: &Pairing, suspect: &Suspect) -> usize {
    pairing.pairs[suspect.pair].1
}

/// The drift of all outputs together.
fn outputs_drift(original: &[Value], other: &[Value]) -> f64 {
    ValueDrift::of(original, other)
        .filter(ValueDrift::is_measured)
        .map_or(f64::INFINITY, |drift| drift.relative_l2)
}

/// Returns a checkpoint with one tensor of another, in single precision, or `None` if the shapes
/// differ.
fn swapped<'a>(
    (from, one): (&dyn CheckpointReader, &Matrix),
    (base, two): (&'a dyn CheckpointReader, &Matrix),
) -> Result<Option<View<'a>>> {
    let Some(values) = one.laid_out_as(from, two)? else { return Ok(None) };
    #[expect(clippy::cast_possible_truncation, reason = "graphs compute in single precision")]
    let bytes: Vec<u8> = values.iter().flat_map(|value| (*value as f32).to_le_bytes()).collect();
    let mut tensors: Vec<_> = base
        .tensors()
        .iter()
        .cloned()
        .enumerate()
        .map(|(position, info)| (info, TensorOrigin::Base(position)))
        .collect();
    let (info, origin) =
        tensors.get_mut(two.position).ok_or_else(|| Error::format("missing tensor"))?;
    info.dtype = DType::F32;
    *origin = TensorOrigin::Own(bytes);
    Ok(Some(View::of(base, tensors)))
}
