//! Pruning with an update of what stays: SparseGPT (Frantar and Alistarh 2023, arXiv:2301.00774).
//!
//! A weight that goes changes a layer's outputs; the weights of its row that come after it take up
//! what they can. How far they can follows from the products of the inputs' columns with each
//! other, the [`Gram`] of a calibration run. [`Gram::prune`] works through the columns in blocks:
//! in each, the weights whose loss costs least go, and the rest of the matrix is updated.
//!
//! [`Rewritten`] is the checkpoint with the matrices that are done so far, so that a later layer's
//! inputs are those that the pruned layers before it give.

mod checkpoint;
mod gram;
mod solve;

use std::collections::BTreeMap;

use apr_arch::FamilyModel;
use apr_core::{CheckpointReader, Result, TensorInfo};
use apr_quantize::measured_names;

pub use self::checkpoint::{Rewrites, Rewritten};
pub use self::gram::Gram;
use crate::plan::{Left, PrunePlan};
use crate::report::{PruneReport, PruneTotal, PrunedTensor};
use crate::weights::{Buffers, in_memory, read};

/// A matrix that is pruned by its inputs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matrix {
    /// Its position in the checkpoint.
    pub tensor: usize,
    /// What a measurement calls it.
    pub measured: String,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
}

impl Matrix {
    /// Bytes of its products of inputs.
    #[must_use]
    pub fn gram_bytes(&self) -> u64 {
        square(self.columns)
    }

    /// Bytes that pruning it takes beside those: its weights, and a second matrix of products.
    #[must_use]
    pub fn work_bytes(&self) -> u64 {
        let weights = (self.rows as u64).saturating_mul(self.columns as u64).saturating_mul(4);
        // Weights twice, as bytes and as numbers.
        square(self.columns).saturating_add(weights.saturating_mul(2))
    }
}

fn square(columns: usize) -> u64 {
    (columns as u64).saturating_mul(columns as u64).saturating_mul(4)
}

/// What is pruned by inputs, layer by layer.
#[derive(Debug, Clone)]
pub struct SecondOrder {
    plan: PrunePlan,
    /// Matrices whose inputs are measured together, since none of them depends on another.
    pub layers: Vec<Vec<Matrix>>,
    left: Vec<Left>,
    found: BTreeMap<usize, PrunedTensor>,
    before: f64,
    lost: f64,
}

impl SecondOrder {
    /// Of a plan, for what a measurement can see: names in the order in which a run meets them.
    #[must_use]
    pub fn new(
        plan: PrunePlan,
        reader: &dyn CheckpointReader,
        model: Option<&FamilyModel<'_>>,
        measured: &[String],
    ) -> Self {
        let names = measured_names(reader, model);
        let order: BTreeMap<&str, usize> =
            measured.iter().enumerate().rev().map(|(at, name)| (name.as_str(), at)).collect();
        let mut left = plan.left().to_vec();
        let mut layers: BTreeMap<(usize, String), Vec<Matrix>> = BTreeMap::new();
        let mut first: BTreeMap<String, usize> = BTreeMap::new();
        let mut kept = Vec::new();
        for tensor in plan.positions() {
            let info = &reader.tensors()[tensor];
            let measured = &names[tensor];
            let why = match (&info.shape.dims(), order.get(measured.as_str())) {
                _ if model.is_some_and(|model| model.has_inputs_first(tensor)) => {
                    "its rows are inputs, not outputs"
                }
                ([rows, columns], Some(&at)) => {
                    match (usize::try_from(*rows), usize::try_from(*columns)) {
                        (Ok(rows), Ok(columns)) => {
                            let layer = layer_of(&info.name);
                            let known = first.entry(layer.clone()).or_insert(at);
                            *known = (*known).min(at);
                            let measured = measured.clone();
                            kept.push((layer, Matrix { tensor, measured, rows, columns }));
                            continue;
                        }
                        _ => "it does not fit in memory",
                    }
                }
                ([_, _], None) => "its inputs were not measured",
                _ => "it is no matrix",
            };
            left.push(Left { name: info.name.clone(), why: why.to_owned() });
        }
        for (layer, matrix) in kept {
            let at = first.get(&layer).copied().unwrap_or_default();
            layers.entry((at, layer)).or_default().push(matrix);
        }
        let layers = layers.into_values().collect();
        Self { plan, layers, left, found: BTreeMap::new(), before: 0.0, lost: 0.0 }
    }

    /// Bytes that the largest layer takes.
    #[must_use]
    pub fn memory(&self) -> u64 {
        let of_layer = |layer: &Vec<Matrix>| {
            let grams = layer.iter().map(Matrix::gram_bytes).fold(0, u64::saturating_add);
            let work = layer.iter().map(Matrix::work_bytes).max().unwrap_or_default();
            grams.saturating_add(work)
        };
        self.layers.iter().map(of_layer).max().unwrap_or_default()
    }

    /// Prunes a matrix by the products of its inputs, and puts what becomes of it among `rewrites`.
    ///
    /// # Errors
    /// E001 where the inputs are of another length than its rows, E002 for values that are not
    /// finite, E007 and E008 when it can't be read or kept.
    pub fn prune(
        &mut self,
        base: &dyn CheckpointReader,
        matrix: &Matrix,
        gram: Gram,
        rewrites: &Rewrites,
    ) -> Result<()> {
        let info = &base.tensors()[matrix.tensor];
        let named = |error: apr_core::Error| error.for_tensor(&info.name);
        let mut buffers = Buffers::default();
        let elements = info.shape.elements().unwrap_or_default();
        read(base, matrix.tensor, 0..elements, &mut buffers)?;
        let before = buffers.values;
        drop(buffers.bytes);
        let mut weights = before.clone();
        let amount = self.plan.amount();
        let output_error = gram.prune(&mut weights, matrix.columns, amount).map_err(named)?;
        let pruned = self.count(info, &before, &weights, output_error);
        self.found.insert(matrix.tensor, pruned);
        rewrites.put(info, &weights)
    }

    fn count(
        &mut self,
        info: &TensorInfo,
        before: &[f32],
        now: &[f32],
        output_error: f64,
    ) -> PrunedTensor {
        let zeros = |values: &[f32]| values.iter().filter(|value| **value == 0.0).count() as u64;
        let (mut energy, mut energy_now, mut product, mut lost) = (0.0, 0.0, 0.0, 0.0);
        for (before, now) in before.iter().zip(now) {
            let (before, now) = (f64::from(*before), f64::from(*now));
            energy += before * before;
            energy_now += now * now;
            product += before * now;
            lost += (before - now) * (before - now);
        }
        self.before += energy;
        self.lost += lost;
        let ratio = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        PrunedTensor {
            name: info.name.clone(),
            elements: before.len() as u64,
            zeros_before: zeros(before),
            zeros: zeros(now),
            relative_error: ratio(lost, energy).sqrt(),
            cosine: ratio(product, (energy * energy_now).sqrt()),
            output_error: Some(output_error),
        }
    }

    /// What was pruned. Matrices that were not are left.
    #[must_use]
    pub fn report(&self) -> PruneReport {
        let mut total = PruneTotal::default();
        for tensor in self.found.values() {
            total.elements += tensor.elements;
            total.zeros_before += tensor.zeros_before;
            total.zeros += tensor.zeros;
        }
        if self.before > 0.0 {
            total.relative_error = (self.lost / self.before).sqrt();
        }
        PruneReport {
            method: self.plan.method(),
            share: self.plan.share(),
            total,
            tensors: self.found.values().cloned().collect(),
            left: self.left.clone(),
        }
    }
}

/// What tensors of a layer have in front of their names: up to its number, or else all.
fn layer_of(name: &str) -> String {
    let mut end = 0;
    for part in name.split('.') {
        end += part.len() + 1;
        if end > part.len() + 1 && !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()) {
            return name[..end - 1].to_owned();
        }
    }
    name.to_owned()
}

/// Numbers of a matrix in memory, as a length.
fn len_of(rows: usize, columns: usize) -> Result<usize> {
    in_memory((rows as u64).saturating_mul(columns as u64))
}
