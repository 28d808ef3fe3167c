//! Pruning with an update of what stays: SparseGPT (Frantar and Alistarh 2023, arXiv:2301.00774).
//!
//! [`Pruner`] says which weights go: in each block of columns, those whose loss costs least.
//! [`second_order`](apr_lowrank::second_order) updates the rest of the matrix.

use std::collections::BTreeMap;

use apr_core::{CheckpointReader, Error, Metadata, Result, TensorInfo, keys};
use apr_lowrank::second_order::{BLOCK, Block, Change, Gram, Layers, Matrix, Rewrites};
use serde_json::{Map, json};

use crate::plan::{Amount, Left, PrunePlan, Scope, share_of};
use crate::report::{PruneReport, PruneTotal, PrunedTensor};
use crate::weights::{Buffers, read};

/// Pruning by inputs, layer by layer.
#[derive(Debug, Clone)]
pub struct SecondOrder {
    plan: PrunePlan,
    left: Vec<Left>,
    found: BTreeMap<usize, PrunedTensor>,
    before: f64,
    lost: f64,
}

impl SecondOrder {
    /// Creates the pruning for the matrices of a plan, in execution order.
    #[must_use]
    pub fn new(plan: PrunePlan, reader: &dyn CheckpointReader, layers: &Layers) -> Self {
        let mut left = plan.left().to_vec();
        left.extend(layers.left.iter().map(|(tensor, why)| Left {
            name: reader.tensors()[*tensor].name.clone(),
            why: (*why).to_owned(),
        }));
        Self { plan, left, found: BTreeMap::new(), before: 0.0, lost: 0.0 }
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
        let named = |error: Error| error.for_tensor(&info.name);
        let mut buffers = Buffers::default();
        let elements = info.shape.elements().unwrap_or_default();
        read(base, matrix.tensor, 0..elements, &mut buffers)?;
        let before = buffers.values;
        drop(buffers.bytes);
        let mut weights = before.clone();
        let mut pruner = Pruner::new(self.plan.amount()).map_err(named)?;
        let output_error =
            gram.rewrite(&mut weights, matrix.columns, &mut pruner).map_err(named)?;
        let pruned = self.count(info, &before, &weights, output_error);
        self.found.insert(matrix.tensor, pruned);
        rewrites.put(&info.name, info.dtype, &weights)
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

    /// Returns the report on the pruned matrices. Other matrices of the plan are listed as left
    /// unchanged.
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

/// States in a model's metadata that it was pruned.
pub fn record(report: &PruneReport, metadata: &mut Metadata) {
    let mut entry = Map::new();
    entry.insert("method".to_owned(), report.method.as_str().into());
    if let Some(share) = report.share {
        entry.insert("share".to_owned(), json!(share));
    }
    entry.insert("tensors".to_owned(), report.tensors.len().into());
    entry.insert("elements".to_owned(), report.total.elements.into());
    entry.insert("zeros".to_owned(), report.total.zeros.into());
    metadata.set(keys::SPARSITY, entry);
}

/// Selection of the weights of a matrix to remove.
#[derive(Debug, Clone)]
pub struct Pruner {
    amount: Chosen,
    /// Weights that went.
    gone: usize,
    /// `true` for each weight of a block, or of a group of a row, to remove.
    going: Vec<bool>,
}

/// Rule that selects the weights to remove.
#[derive(Debug, Clone, Copy)]
enum Chosen {
    /// A share of each block of columns, of all rows together.
    Share(f64),
    /// All but `keep` of every `of` weights of a row.
    Pattern { keep: usize, of: usize },
}

impl Pruner {
    /// Creates a pruner for this amount.
    ///
    /// # Errors
    /// E001 for amounts that are neither a share of each tensor nor a pattern.
    pub fn new(amount: Amount) -> Result<Self> {
        let amount = match amount {
            Amount::Pattern { keep, of } => Chosen::Pattern { keep, of },
            Amount::Share { share, scope: Scope::Tensor } => Chosen::Share(share),
            _ => {
                return Err(Error::format("only a share of each tensor, or a pattern, is updated"));
            }
        };
        Ok(Self { amount, gone: 0, going: Vec::new() })
    }
}

impl Change for Pruner {
    fn columns(&self) -> usize {
        match self.amount {
            Chosen::Pattern { of, .. } => (BLOCK / of).max(1) * of,
            Chosen::Share(_) => BLOCK,
        }
    }

    fn begin(&mut self, block: &Block<'_>, weights: &[f32]) {
        if let Chosen::Share(share) = self.amount {
            let rows = weights.len() / block.columns();
            let all = share_of(share, (rows * block.range().end) as u64);
            let count = usize::try_from(all).unwrap_or(usize::MAX) - self.gone;
            self.gone += count;
            self.going = cheapest(block, weights, count);
        }
    }

    fn value(&mut self, block: &Block<'_>, (number, row): (usize, &[f32]), at: usize) -> f32 {
        let goes = match self.amount {
            Chosen::Share(_) => self.going[number * row.len() + at],
            Chosen::Pattern { keep, of } => {
                if at.is_multiple_of(of) {
                    self.choose(block, (&row[at..(at + of).min(row.len())], at), keep);
                }
                self.going.get(at % of).copied().unwrap_or(false)
            }
        };
        if goes { 0.0 } else { row[at] }
    }
}

impl Pruner {
    /// Selects the weights of a group to remove: all but the `keep` with the highest cost.
    fn choose(&mut self, block: &Block<'_>, (group, first): (&[f32], usize), keep: usize) {
        let cost = |at: &usize| block.cost(group[*at], first + at);
        let mut order: Vec<usize> = (0..group.len()).collect();
        order.sort_by(|a, b| cost(a).total_cmp(&cost(b)).then(a.cmp(b)));
        self.going.clear();
        self.going.resize(group.len(), false);
        let count = group.len().saturating_sub(keep);
        order.iter().take(count).for_each(|at| self.going[*at] = true);
    }
}

/// Selects the `count` weights of lowest cost in all rows of these columns.
fn cheapest(block: &Block<'_>, weights: &[f32], count: usize) -> Vec<bool> {
    let width = block.range().len();
    let columns = weights.chunks(block.columns()).flat_map(|row| &row[block.range()]);
    let costs: Vec<f32> =
        columns.enumerate().map(|(at, weight)| block.cost(*weight, at % width)).collect();
    let mut mask = vec![false; costs.len()];
    let mut order: Vec<usize> = (0..costs.len()).collect();
    if (1..costs.len()).contains(&count) {
        let by_cost = |a: &usize, b: &usize| costs[*a].total_cmp(&costs[*b]).then(a.cmp(b));
        order.select_nth_unstable_by(count, by_cost);
    }
    order.iter().take(count).for_each(|at| mask[*at] = true);
    mask
}
