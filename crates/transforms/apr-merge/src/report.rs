//! What a merge changed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;

use apr_tensor::drift::Drift;
use serde::Serialize;

use crate::method::Method;

/// Tensors that a report names as changed most.
const WORST: usize = 10;

/// Report on a merge.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct MergeReport {
    /// Merge method.
    pub method: Method,
    /// The models, in their order.
    pub models: Vec<MergedModel>,
    /// The model that the result is compared with.
    pub compared_with: String,
    /// All tensors together, as far as they were read.
    pub total: Change,
    /// Tensors that were merged.
    pub merged: usize,
    /// Tensors that were copied from one model.
    pub copied: usize,
    /// Number of copied tensors that can't be merged and are equal in all models.
    pub identical: usize,
    /// Change of each merged tensor, in the order of the result.
    pub tensors: Vec<TensorChange>,
    /// The tensors that changed most.
    pub worst: Vec<TensorChange>,
}

/// A model that took part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MergedModel {
    /// Name of the model in the recipe.
    pub name: String,
    /// Bytes of its files.
    pub bytes: u64,
    /// `true` for the base.
    pub base: bool,
}

/// Difference between elements before and after.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
#[non_exhaustive]
pub struct Change {
    /// Norm of the difference, relative to the norm before.
    pub relative_error: f64,
    /// Cosine of the angle between before and after.
    pub cosine: f64,
    /// The largest difference of an element.
    pub max_error: f64,
}

/// Change of one tensor.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct TensorChange {
    /// Name of the tensor in the result.
    pub name: String,
    /// Difference from the tensor of the compared model.
    #[serde(flatten)]
    pub change: Change,
}

/// Measurement of a part of a tensor, which can be combined with other parts.
pub trait Measured: Copy + Default {
    /// Adds the measurement of another part.
    fn add(&mut self, other: &Self);

    /// Returns the change of the part.
    fn change(&self) -> Change;
}

/// Sums over elements.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sums {
    before: f64,
    after: f64,
    product: f64,
    difference: f64,
    max: f64,
}

impl Sums {
    pub(crate) fn of(before: &[f64], after: &[f64]) -> Self {
        let mut sums = Self::default();
        for (&before, &after) in before.iter().zip(after) {
            let difference = after - before;
            sums.before += before * before;
            sums.after += after * after;
            sums.product += before * after;
            sums.difference += difference * difference;
            sums.max = sums.max.max(difference.abs());
        }
        sums
    }
}

impl Measured for Sums {
    fn add(&mut self, other: &Self) {
        self.before += other.before;
        self.after += other.after;
        self.product += other.product;
        self.difference += other.difference;
        self.max = self.max.max(other.max);
    }

    fn change(&self) -> Change {
        let ratio = |a: f64, b: f64, none: f64| if b > 0.0 { a / b } else { none };
        let (difference, before) = (libm::sqrt(self.difference), libm::sqrt(self.before));
        let none = if difference > 0.0 { f64::MAX } else { 0.0 };
        let lengths = before * libm::sqrt(self.after);
        Change {
            relative_error: ratio(difference, before, none),
            cosine: ratio(self.product, lengths, if difference > 0.0 { 0.0 } else { 1.0 }),
            max_error: self.max,
        }
    }
}

impl Measured for Drift {
    fn add(&mut self, other: &Self) {
        self.merge(other);
    }

    fn change(&self) -> Change {
        let moved = self.max_error > 0.0;
        Change {
            relative_error: self.relative_error().unwrap_or(if moved { f64::MAX } else { 0.0 }),
            cosine: self.cosine().unwrap_or(if moved { 0.0 } else { 1.0 }),
            max_error: self.max_error,
        }
    }
}

/// Sums of a tensor, which any thread can add in any order, even twice.
#[derive(Debug, Default)]
pub struct Meter<M = Sums>(Mutex<Pieces<M>>);

#[derive(Debug, Default)]
struct Pieces<M> {
    /// First element, the one after the last, and the sums of those between.
    pieces: BTreeMap<u64, (u64, M)>,
    /// Elements of all pieces.
    covered: u64,
}

impl<M: Measured> Pieces<M> {
    fn total(&self) -> M {
        let mut total = M::default();
        self.pieces.values().for_each(|(_, sums)| total.add(sums));
        total
    }
}

impl<M: Measured> Meter<M> {
    /// Adds the elements of a range, unless some of them were added before. Once all `count` are
    /// there, one piece is left: tensors may be read in millions of them.
    pub fn add(&self, range: Range<u64>, count: u64, sums: M) {
        let Ok(mut pieces) = self.0.lock() else { return };
        let before = pieces.pieces.range(..range.end).next_back();
        if before.is_some_and(|(_, (last, _))| *last > range.start) {
            return;
        }
        pieces.covered += range.end - range.start;
        pieces.pieces.insert(range.start, (range.end, sums));
        if pieces.covered == count {
            let total = pieces.total();
            pieces.pieces = BTreeMap::from([(0, (count, total))]);
        }
    }

    /// The sums, put together in the order of the elements: the result does not depend on threads.
    fn total(&self) -> Option<M> {
        let pieces = self.0.lock().ok()?;
        (!pieces.pieces.is_empty()).then(|| pieces.total())
    }
}

/// The changes of tensors with these names and meters, all together, and the worst.
#[must_use]
pub fn changes<'t, M: Measured + 't>(
    tensors: impl Iterator<Item = (&'t str, &'t Meter<M>)>,
) -> (Vec<TensorChange>, Vec<TensorChange>, Change) {
    let mut total = M::default();
    let mut changes = Vec::new();
    for (name, meter) in tensors {
        let Some(sums) = meter.total() else { continue };
        total.add(&sums);
        changes.push(TensorChange { name: name.to_owned(), change: sums.change() });
    }
    let mut worst = changes.clone();
    worst.sort_by(|a, b| b.change.relative_error.total_cmp(&a.change.relative_error));
    worst.retain(|tensor| tensor.change.relative_error > 0.0);
    worst.truncate(WORST);
    (changes, worst, total.change())
}
