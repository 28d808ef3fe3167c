//! SCE: select where the models' differences vary most, calculate weights by their squares, erase
//! where signs disagree.

use std::marker::PhantomData;

use apr_core::Result;

use super::task::share;
use super::{Kernel, Rule, fold};
use crate::elements::{Block, Elements};
use crate::grid::Grid;
use crate::select::{Keep, Kept, Visit, choose};

/// Sums of weights below which all count the same, and the least that is divided by.
const LEAST: f64 = 1e-6;

struct Sce<G> {
    base: usize,
    others: Vec<usize>,
    /// The positions whose variance is among the largest.
    kept: Kept,
    weights: Vec<f64>,
    grid: PhantomData<G>,
}

pub(super) fn prepare<G: Grid>(rule: &Rule, elements: &Elements<'_>) -> Result<Box<dyn Kernel>> {
    let (base, others) = rule.parted(elements)?;
    let weights = vec![1.0; others.len()];
    let mut sce = Sce::<G> { base, others, kept: Kept::All, weights, grid: PhantomData };
    let select = rule.one("select_topk");
    if select < 1.0 {
        sce.kept = sce.select(elements, select)?;
    }
    sce.weigh(elements)?;
    Ok(Box::new(sce))
}

impl<G: Grid> Sce<G> {
    fn differences(&self, block: &Block, at: usize, out: &mut [f64]) {
        let base = block.inputs[self.base][at];
        for (difference, &other) in out.iter_mut().zip(&self.others) {
            *difference = G::q(block.inputs[other][at] - base);
        }
    }

    /// Writes the differences at a position, or zeros if the position is not selected.
    fn selected(&self, block: &Block, at: usize, out: &mut [f64]) {
        self.differences(block, at, out);
        if self.kept != Kept::All && !self.kept.has(variance::<G>(out), block.start + at as u64) {
            out.fill(0.0);
        }
    }

    fn select(&self, elements: &Elements<'_>, portion: f64) -> Result<Kept> {
        let mut differences = vec![0.0; self.others.len()];
        let mut variances = Vec::new();
        let mut varying = 0;
        elements.each(false, |block| {
            for at in 0..block.len() {
                self.differences(block, at, &mut differences);
                varying += u64::from(variance::<G>(&differences) != 0.0);
            }
            Ok(())
        })?;
        let keep = match share(portion, varying) {
            0 => Keep::None,
            largest => Keep::Largest(largest),
        };
        let kept =
            choose(&[keep], elements.count(), elements.dtype, &mut |visit: &mut Visit<'_>| {
                elements.each(false, |block| {
                    variances.clear();
                    for at in 0..block.len() {
                        self.differences(block, at, &mut differences);
                        variances.push(variance::<G>(&differences));
                    }
                    visit(0, block.start, &variances);
                    Ok(())
                })
            })?;
        Ok(kept.first().copied().unwrap_or(Kept::All))
    }

    fn weigh(&mut self, elements: &Elements<'_>) -> Result<()> {
        let mut differences = vec![0.0; self.others.len()];
        let mut squares = vec![0.0_f64; self.others.len()];
        elements.each(false, |block| {
            for at in 0..block.len() {
                self.selected(block, at, &mut differences);
                for (sum, difference) in squares.iter_mut().zip(&differences) {
                    *sum += G::q(difference * difference);
                }
            }
            Ok(())
        })?;
        let count = elements.count().max(1) as f64;
        squares.iter_mut().for_each(|sum| *sum = G::q(*sum / count));
        let total = fold::<G>(squares.iter().copied());
        let equal = G::q(1.0 / squares.len().max(1) as f64);
        let weight = |square: f64| if total.abs() < LEAST { equal } else { G::q(square / total) };
        self.weights = squares.into_iter().map(weight).collect();
        Ok(())
    }
}

/// The variance over models, as of a population.
fn variance<G: Grid>(values: &[f64]) -> f64 {
    let count = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / count;
    G::q(values.iter().map(|value| (value - mean) * (value - mean)).sum::<f64>() / count)
}

impl<G: Grid> Kernel for Sce<G> {
    fn apply(&self, block: &Block, out: &mut Vec<f64>) {
        let mut differences = vec![0.0; self.others.len()];
        out.extend((0..block.len()).map(|at| {
            self.selected(block, at, &mut differences);
            let total = fold::<G>(differences.iter().copied());
            let agrees = |value: f64| if total >= 0.0 { value > 0.0 } else { value < 0.0 };
            let agreeing =
                differences.iter().zip(&self.weights).filter(|(value, _)| agrees(**value));
            let sum = fold::<G>(agreeing.clone().map(|(value, weight)| G::q(weight * value)));
            let weights = fold::<G>(agreeing.map(|(_, weight)| *weight)).max(LEAST);
            G::q(block.inputs[self.base][at] + G::q(sum / weights))
        }));
    }
}
