//! The weights of smallest magnitude: exactly so many, found in two passes and 640 KiB.

use std::ops::Range;
use std::sync::Arc;

use apr_core::{CheckpointReader, Phase, Pipeline, Progress, Result};

use crate::weights::{Buffers, in_memory, pieces, read};

/// Bits of a magnitude that the first pass counts by; the second counts by the rest.
const HIGH: u32 = 16;
const LOW: u32 = 31 - HIGH;

/// End of the removed weights of a tensor, in the order of magnitude and then of position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Magnitude below which all weights are removed.
    magnitude: u32,
    /// Position before which weights of exactly this magnitude are removed.
    before: u64,
}

impl Cut {
    /// Returns the cut that removes all weights below a threshold.
    pub(crate) fn below(threshold: f32) -> Self {
        Self { magnitude: magnitude(threshold), before: 0 }
    }

    /// Returns `true` if the cut removes an element.
    pub(crate) fn takes(self, value: f32, position: u64) -> bool {
        let own = magnitude(value);
        own < self.magnitude || (own == self.magnitude && position < self.before)
    }
}

/// Magnitudes in the order of these numbers are in order; NaN is beyond all.
fn magnitude(value: f32) -> u32 {
    value.to_bits() & (u32::MAX >> 1)
}

/// A piece of one of the tensors: its place in the list, and elements.
type Piece = (usize, Range<u64>);

/// Tensor with the weights of its magnitudes.
#[derive(Debug, Clone)]
pub(crate) struct Weighed {
    pub(crate) tensor: usize,
    pub(crate) weights: Option<Arc<[f32]>>,
}

/// Counts of one piece.
#[derive(Default)]
struct Slot {
    buffers: Buffers,
    counts: Vec<u32>,
}

/// Returns the cuts that remove exactly the `count` smallest weights of these tensors.
///
/// Among equal magnitudes, weights of earlier tensors are removed first, and within a tensor,
/// earlier weights.
///
/// # Errors
/// E002 and E007 when a tensor can't be read.
pub(crate) fn smallest<P: Pipeline>(
    reader: &dyn CheckpointReader,
    tensors: &[Weighed],
    count: u64,
    pipeline: &P,
    progress: &dyn Progress,
) -> Result<Vec<Cut>> {
    let elements = |of: &Weighed| reader.tensors()[of.tensor].shape.elements().unwrap_or_default();
    let of_all: Vec<Piece> = tensors
        .iter()
        .enumerate()
        .flat_map(|(at, tensor)| pieces(elements(tensor), 1).map(move |range| (at, range)))
        .collect();
    let all = Pieces { reader, tensors, pieces: &of_all };
    let pass = Pass { all, pipeline, progress };

    let high = pass.count(|value| Some(magnitude(value) >> LOW), 1 << HIGH)?;
    let (bucket, smaller) = bucket_of(&high, count);
    let in_bucket = |value| {
        let own = magnitude(value);
        (own >> LOW == bucket).then_some(own & ((1 << LOW) - 1))
    };
    let low = pass.count(in_bucket, 1 << LOW)?;
    let (rest, among) = bucket_of(&low, count - smaller);
    let last = bucket << LOW | rest;
    let ties = count - smaller - among;

    let mut cuts = vec![Cut { magnitude: last, before: 0 }; tensors.len()];
    let all = low.get(rest as usize).copied().unwrap_or_default();
    // Zeros stay zeros, whichever of them are said to go; what weighs nothing need not be one.
    let is_weighed = tensors.iter().any(|tensor| tensor.weights.is_some());
    if last == 0 && !is_weighed || ties == 0 {
        return Ok(cuts);
    }
    if ties == all {
        cuts.iter_mut().for_each(|cut| cut.before = u64::MAX);
        return Ok(cuts);
    }
    pass.end_of_ties(last, ties, &mut cuts)?;
    Ok(cuts)
}

/// The tensors in pieces.
#[derive(Clone, Copy)]
struct Pieces<'p> {
    reader: &'p dyn CheckpointReader,
    tensors: &'p [Weighed],
    pieces: &'p [Piece],
}

impl Pieces<'_> {
    /// Reads the weighed values of a piece.
    fn read(&self, task: usize, buffers: &mut Buffers) -> Result<()> {
        let (at, range) = &self.pieces[task];
        let Weighed { tensor, weights } = &self.tensors[*at];
        read(self.reader, *tensor, range.clone(), buffers)?;
        if let Some(weights) = weights {
            let first = in_memory(range.start)?.min(weights.len());
            buffers.values.iter_mut().zip(&weights[first..]).for_each(|(value, by)| *value *= by);
        }
        Ok(())
    }
}

/// Context of a pass over the tensors.
struct Pass<'p, P> {
    all: Pieces<'p>,
    pipeline: &'p P,
    progress: &'p dyn Progress,
}

impl<P: Pipeline> Pass<'_, P> {
    /// Counts the elements in each of `classes` classes.
    fn count(&self, class: impl Fn(f32) -> Option<u32> + Sync, classes: usize) -> Result<Vec<u64>> {
        let all = self.all;
        self.begin();
        let mut total = vec![0_u64; classes];
        self.pipeline.run(
            self.all.pieces.len(),
            |task, slot: &mut Slot| {
                all.read(task, &mut slot.buffers)?;
                slot.counts.clear();
                slot.counts.resize(classes, 0);
                for class in slot.buffers.values.iter().filter_map(|value| class(*value)) {
                    slot.counts[class as usize] += 1;
                }
                Ok(())
            },
            |task, slot| {
                total.iter_mut().zip(&slot.counts).for_each(|(all, one)| *all += u64::from(*one));
                self.done(task);
                Ok(())
            },
        )?;
        Ok(total)
    }

    /// Moves the cuts so that they remove the first `ties` weights of the magnitude `last`.
    fn end_of_ties(&self, last: u32, mut ties: u64, cuts: &mut [Cut]) -> Result<()> {
        let all = self.all;
        self.begin();
        self.pipeline.run(
            self.all.pieces.len(),
            |task, slot: &mut Slot| {
                all.read(task, &mut slot.buffers)?;
                let values = slot.buffers.values.iter().zip(0..);
                let found = values.filter(|(value, _)| magnitude(**value) == last);
                slot.counts.clear();
                slot.counts.extend(found.map(|(_, place)| place));
                Ok(())
            },
            |task, slot| {
                let (at, range) = &self.all.pieces[task];
                let found = slot.counts.len() as u64;
                if ties >= found {
                    cuts[*at].before = range.end;
                    ties -= found;
                } else if ties > 0 {
                    let place = usize::try_from(ties).ok().and_then(|ties| slot.counts.get(ties));
                    cuts[*at].before = range.start + place.copied().map_or(0, u64::from);
                    ties = 0;
                }
                self.done(task);
                Ok(())
            },
        )
    }

    fn begin(&self) {
        let pieces = self.all.pieces.iter().map(|(_, range)| range.end - range.start);
        self.progress.begin(Phase::Measuring, pieces.sum::<u64>() * 4);
    }

    fn done(&self, task: usize) {
        let (_, range) = &self.all.pieces[task];
        self.progress.advance((range.end - range.start) * 4);
    }
}

/// Returns the class of the element with this rank, and the number of elements in earlier classes.
///
/// Ranks start at 1.
fn bucket_of(counts: &[u64], rank: u64) -> (u32, u64) {
    let mut before = 0;
    for (class, count) in (0..).zip(counts) {
        if before + count >= rank {
            return (class, before);
        }
        before += count;
    }
    (u32::MAX >> LOW, before)
}
