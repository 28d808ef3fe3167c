//! Quantization errors of weights that are laid out, measured while they are read.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use apr_core::Escaped;
use apr_tensor::drift::Drift;

use super::{Layout, Rounded};
use crate::quality::{LOST_ABOVE, QualityLog, QuantizationReport};

/// Quantization errors of the weights that were read to the end.
#[derive(Debug)]
pub struct LaidErrors {
    /// Layout of each weight, by position in the base.
    layouts: Vec<Option<Layout>>,
    /// Errors of pieces, by position in the base and offset. The key order makes sums independent
    /// of threads.
    drifts: Mutex<BTreeMap<(usize, u64), Moved>>,
    /// Weights that were rounded before, whose drift counts. Measured while they are encoded, it
    /// would be zero.
    rounded: BTreeMap<usize, Rounded>,
    names: Vec<String>,
    bytes: Vec<u64>,
    elements: u64,
}

/// Error of a piece of a weight.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Moved {
    pub(super) drift: Drift,
    /// Rows that begin in the piece, and those of them with an error above [`LOST_ABOVE`].
    rows: u64,
    lost: u64,
}

impl From<Drift> for Moved {
    fn from(drift: Drift) -> Self {
        Self { drift, ..Self::default() }
    }
}

impl Moved {
    pub(super) fn merge(&mut self, other: &Self) {
        self.drift.merge(&other.drift);
        self.rows += other.rows;
        self.lost += other.lost;
    }

    pub(super) fn add_row(&mut self, values: &[f32], held: &[f32]) {
        let drift = Drift::of(values, held);
        self.drift.merge(&drift);
        self.rows += 1;
        self.lost += u64::from(drift.relative_error().is_some_and(|error| error > LOST_ABOVE));
    }
}

impl LaidErrors {
    /// Creates the errors of weights, none of which was read.
    pub(super) fn new(
        layouts: Vec<Option<Layout>>,
        rounded: BTreeMap<usize, Rounded>,
        names: Vec<String>,
        bytes: Vec<u64>,
        elements: u64,
    ) -> Self {
        Self { layouts, drifts: Mutex::default(), rounded, names, bytes, elements }
    }

    /// Records the error of a weight whose codes are read from `offset` on.
    pub(super) fn note(&self, tensor: usize, offset: u64, moved: Moved) {
        if moved.drift.count > 0 {
            let mut drifts = self.drifts.lock().unwrap_or_else(PoisonError::into_inner);
            drifts.insert((tensor, offset), moved);
        }
    }

    /// Returns `true` for a weight that was rounded before.
    pub(super) fn is_rounded(&self, tensor: usize) -> bool {
        self.rounded.contains_key(&tensor)
    }

    /// Elements of all tensors as weights.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.elements
    }

    /// Returns the report on all weights, or `None` if no weight was laid out.
    #[must_use]
    pub fn report(&self) -> Option<QuantizationReport> {
        let mut log = QualityLog::default();
        for (tensor, Moved { drift, .. }) in self.weights() {
            let drift = self.rounded.get(&tensor).map_or(drift, |rounded| rounded.drift);
            if let Some(layout) = self.layouts[tensor] {
                log.add_laid(&self.names[tensor], layout, self.bytes[tensor], &drift);
            }
        }
        log.finish()
    }

    /// Returns a warning for each weight of which most rows have an error above [`LOST_ABOVE`],
    /// but not the whole: one value is much larger than all others.
    #[must_use]
    pub fn lost(&self) -> Vec<String> {
        let limit = 100.0 * LOST_ABOVE;
        let is_lost = |(_, Moved { drift, rows, lost }): &(usize, Moved)| {
            let is_whole = drift.relative_error().is_some_and(|error| error > LOST_ABOVE);
            !is_whole && 2 * lost > *rows
        };
        let lost = self.weights().into_iter().filter(is_lost);
        lost.map(|(tensor, Moved { rows, lost, .. })| {
            let name = Escaped::short(&self.names[tensor]);
            format!(
                "tensor {name}: relative quantization error above {limit:.0} % in {lost} of \
                 {rows} rows"
            )
        })
        .collect()
    }

    /// The errors of weights, by position.
    fn weights(&self) -> BTreeMap<usize, Moved> {
        let drifts = self.drifts.lock().unwrap_or_else(PoisonError::into_inner);
        let mut weights: BTreeMap<usize, Moved> = BTreeMap::new();
        for ((tensor, _), moved) in drifts.iter() {
            weights.entry(*tensor).or_default().merge(moved);
        }
        weights
    }
}
