//! Which steps add more drift than others of their kind, and which weights explain it.

use std::collections::{BTreeMap, HashMap};

use apr_core::{CheckpointReader, DType, counted, grouped};
use apr_graph::WeightRef;
use apr_registry::Result;

use super::drift::ValueDrift;
use super::lockstep::Pairing;
use super::weights::{Compared, WeightDrift, compare};

/// Number of steps whose weights are examined: the ones that add most drift, and the ones that add
/// most for their kind.
const LOOKED_AT: usize = 8;
/// Times the usual drift of weights of the same type from which on a step is out of line.
const OUT_OF_LINE: f64 = 3.0;
/// Factor of the relative weight difference up to which a step's drift may be caused by rounding.
///
/// Inputs may be nearly orthogonal to the rows of a matrix, which then reduces them.
const MOST_OF_ROUNDING: f64 = 10.0;
/// Maximum number of weights that are compared for a step, including weights of preceding
/// operators.
///
/// If two graphs have little in common, all weights of a model may precede one step.
const WEIGHTS: usize = 64;
/// Drift that any step may add, caused by another order of summation.
const FLOOR: f64 = 1e-4;
/// Factor of the rounding that dtypes allow. Above it, a difference of weights is not rounding.
///
/// Rounding that is corrected by calibration data changes single weights more than the nearest
/// value would.
const BEYOND_ROUNDING: f64 = 2.0;
/// Relative difference of weights that are stored at 16 or 32 bits: half a unit of bf16.
const OF_FLOATS: f64 = 1.0 / 256.0;
/// Drift at the end of a pass from which on weights beyond rounding count, of floats and of
/// quantized weights.
///
/// Quantization may move factors from one weight to the next. This leaves the end as it is.
const AT_END: [f64; 2] = [0.02, 0.5];

/// A step that adds drift.
#[derive(Debug, Clone)]
pub(crate) struct Suspect {
    /// Position in the pairs.
    pub(crate) pair: usize,
    /// Drift that it adds to equal inputs.
    pub(crate) added: f64,
    /// Usual drift of the other steps with weights of the same type; `None` if there are no others.
    pub(crate) usual: Option<f64>,
    /// Weights of the step, the most changed first.
    pub(crate) weights: Vec<WeightDrift>,
    /// Weights that could not be compared, with the reasons.
    pub(crate) not_compared: Vec<String>,
    /// Bytes that comparing the largest of those takes that exceed the limit.
    pub(crate) needed: Option<u64>,
    /// `true` if the step is out of line.
    pub(crate) is_out: bool,
}

impl Suspect {
    /// Returns `true` if rounding its weights to their dtypes explains the drift that the step
    /// adds.
    ///
    /// All weights must be as close to the original's as rounding allows, and the added drift must
    /// not exceed the drift that such weights cause.
    fn is_rounding(&self) -> bool {
        let is_rounded = |weight: &WeightDrift| weight.relative_l2 <= weight.allowed;
        let most = self.weights.iter().map(|weight| weight.relative_l2).fold(0.0, f64::max);
        self.not_compared.is_empty()
            && self.weights.iter().all(is_rounded)
            && self.added <= MOST_OF_ROUNDING * most
    }

    /// Returns `true` if a weight differs by more than rounding to the dtypes of both models.
    ///
    /// This does not depend on the other steps: in a model with other weights everywhere, no step
    /// adds more than is usual. `end` is the drift at the end of the pass.
    fn is_beyond(&self, end: f64) -> bool {
        let is_quantized =
            |weight: &WeightDrift| weight.dtype.is_quantized() || weight.other_dtype.is_quantized();
        let is_beyond = |weight: &WeightDrift| {
            let at_end = AT_END[usize::from(is_quantized(weight))];
            end > at_end && weight.relative_l2 > BEYOND_ROUNDING * weight.allowed.max(OF_FLOATS)
        };
        self.weights.iter().any(is_beyond)
    }

    /// Returns the ratio of the added drift to the usual drift.
    pub(crate) fn score(&self) -> f64 {
        self.usual.map_or(1.0, |usual| self.added / usual.max(FLOOR))
    }
}

/// The steps that add most drift for their kind, in the order in which they run. `local` is the
/// drift of each pair where its inputs are the original's, and `end` the drift of the last value
/// where each model has its own.
pub(crate) fn suspects(
    pairing: &Pairing,
    local: &[Option<ValueDrift>],
    end: f64,
    readers: [&dyn CheckpointReader; 2],
    most: u64,
) -> Result<Vec<Suspect>> {
    let measured = |pair: usize| {
        local[pair].as_ref().filter(|drift| drift.is_measured()).map(|drift| drift.relative_l2)
    };
    let tensors = readers[1].tensors().iter();
    let dtypes: HashMap<&str, DType> =
        tensors.map(|info| (info.name.as_str(), info.dtype)).collect();
    let kinds: Vec<String> =
        (0..pairing.pairs.len()).map(|pair| kind(pairing, pair, &dtypes)).collect();
    let mut by_kind: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for (pair, kind) in kinds.iter().enumerate() {
        by_kind.entry(kind).or_default().extend(measured(pair));
    }
    by_kind.values_mut().for_each(|drifts| drifts.sort_by(f64::total_cmp));

    let mut found: Vec<Suspect> = (0..pairing.pairs.len())
        .filter_map(|pair| {
            let added = measured(pair).filter(|added| *added > FLOOR)?;
            let usual = median_without(by_kind.get(kinds[pair].as_str())?, added);
            let (weights, not_compared) = (Vec::new(), Vec::new());
            let (needed, is_out) = (None, false);
            Some(Suspect { pair, added, usual, weights, not_compared, needed, is_out })
        })
        .collect();
    // A kind of one step says nothing of what is usual: those that add most count, too.
    found.sort_by(|one, other| other.added.total_cmp(&one.added));
    let mut rest = found.split_off(found.len().min(LOOKED_AT));
    rest.sort_by(|one, other| other.score().total_cmp(&one.score()));
    rest.truncate(LOOKED_AT);
    found.append(&mut rest);
    for suspect in &mut found {
        suspect.compare_weights(pairing, readers, most)?;
        let is_damaged = suspect.weights.iter().any(|weight| weight.change.is_damage());
        let is_unusual = suspect.score() >= OUT_OF_LINE && !suspect.is_rounding();
        suspect.is_out = is_damaged || is_unusual || suspect.is_beyond(end);
    }
    found.sort_by_key(|suspect| suspect.pair);
    Ok(found)
}

/// Returns the key for steps that are compared with each other: the dtypes of their weights in the
/// other model.
fn kind(pairing: &Pairing, pair: usize, dtypes: &HashMap<&str, DType>) -> String {
    let site = &pairing.sites[1].list()[pairing.pairs[pair].1];
    let dtype = |tensor: &str| dtypes.get(tensor).map_or_else(String::new, DType::to_string);
    // What has no weights adds nothing but rounding.
    let dtypes: Vec<String> = site.weights.iter().map(|weight| dtype(&weight.tensor)).collect();
    dtypes.join(" ")
}

/// Returns the median of sorted values without one of them.
///
/// For an even number of values it is the lower one, since one of two steps is as it should be.
fn median_without(values: &[f64], own: f64) -> Option<f64> {
    let middle = values.len().checked_sub(2)? / 2;
    let position = values.partition_point(|value| *value < own);
    Some(values[if position <= middle { middle + 1 } else { middle }])
}

impl Suspect {
    /// Compares the weights of a pair of steps, and of preceding operators without counterpart.
    fn compare_weights(
        &mut self,
        pairing: &Pairing,
        readers: [&dyn CheckpointReader; 2],
        most: u64,
    ) -> Result<()> {
        let [ours, theirs] = [0, 1].map(|side| pairing.weights_behind(side, self.pair, WEIGHTS));
        let by_name: HashMap<&str, &WeightRef> =
            theirs.weights.iter().rev().map(|weight| (weight.tensor.as_str(), *weight)).collect();
        // By their order only the operator's own weights are known to be the same: of those before
        // it, one model may have others.
        let has_places = ours.own == theirs.own;
        for (at, weight) in ours.weights.iter().enumerate() {
            let same = by_name.get(weight.tensor.as_str()).copied();
            let same_place = || theirs.weights.get(at).filter(|_| has_places && at < ours.own);
            let Some(other) = same.or_else(|| same_place().copied()) else {
                self.not_compared.push(format!("{} has no counterpart", weight.tensor));
                continue;
            };
            match compare((readers[0], weight), (readers[1], other), most)? {
                Compared::Drift(drift) => self.weights.push(drift),
                Compared::Not(why) => self.not_compared.push(format!("{} {why}", weight.tensor)),
                Compared::TooLarge(needed) => {
                    self.needed = self.needed.max(Some(needed));
                    self.not_compared.push(format!(
                        "{} takes {} to compare, beyond the {} of memory for each model",
                        weight.tensor,
                        bytes(needed),
                        bytes(most)
                    ));
                }
            }
        }
        if ours.left_out > 0 {
            let rest = counted(ours.left_out as u64, "more weight");
            self.not_compared.push(format!("{rest} of operators without a counterpart"));
        }
        self.weights.sort_by(|one, other| other.relative_l2.total_cmp(&one.relative_l2));
        Ok(())
    }
}

/// A size in words.
fn bytes(number: u64) -> String {
    format!("{} bytes", grouped(number))
}

#[cfg(test)]
mod tests {
    use super::super::weights::WeightChange;
    use super::*;

    /// Returns a suspect with one weight.
    fn with_weight(dtypes: [DType; 2], relative_l2: f64, allowed: f64) -> Suspect {
        let weight = WeightDrift {
            tensor: "w".to_owned(),
            other_tensor: None,
            dtype: dtypes[0],
            other_dtype: dtypes[1],
            relative_l2,
            allowed,
            cosine: 0.0,
            change: WeightChange::Other,
        };
        Suspect {
            pair: 0,
            added: relative_l2,
            usual: Some(relative_l2),
            weights: vec![weight],
            not_compared: Vec::new(),
            needed: None,
            is_out: false,
        }
    }

    #[test]
    fn only_rounding_may_come_between_floats() {
        let floats = [DType::BF16, DType::BF16];
        assert!(with_weight(floats, 1.35, 0.0).is_beyond(1.0));
        assert!(with_weight(floats, 0.03, 0.0).is_beyond(0.03));
        assert!(!with_weight(floats, 0.003, 0.0).is_beyond(0.03), "rounding to bf16 and back");
        assert!(!with_weight(floats, 0.03, 0.0).is_beyond(0.01), "the end is as it was");
    }

    #[test]
    fn rounding_of_quantized_weights_depends_on_the_type() {
        // bf16 to q8_0 and q4_0 of a model with random weights, and what they allow.
        let to = |dtype| [DType::BF16, dtype];
        assert!(with_weight(to(DType::Q8_0), 1.35, 0.0135).is_beyond(1.0));
        assert!(with_weight(to(DType::Q4_0), 1.35, 0.144).is_beyond(1.0));
        assert!(!with_weight(to(DType::Q4_0), 0.08, 0.144).is_beyond(1.0));
        assert!(!with_weight(to(DType::Q4_0), 1.35, 0.144).is_beyond(0.1), "factors moved");
    }
}
