//! Reinforced agent merging: the mean of the differences that there are, and more of what only one
//! model changed.

use std::marker::PhantomData;

use apr_core::Result;

use super::{Kernel, Rule};
use crate::elements::{Block, Elements};
use crate::grid::Grid;
use crate::method::Method;

struct Ram<G> {
    base: usize,
    others: Vec<usize>,
    /// Magnitude above which a difference is one.
    epsilon: f64,
    /// Factors for each model's differences that no other model shares.
    alone: Option<Vec<f64>>,
    grid: PhantomData<G>,
}

pub(super) fn prepare<G: Grid>(rule: &Rule, elements: &Elements<'_>) -> Result<Box<dyn Kernel>> {
    let (base, others) = rule.parted(elements)?;
    let epsilon = rule.one("epsilon");
    let mut ram = Ram::<G> { base, others, epsilon, alone: None, grid: PhantomData };
    if rule.method == Method::RamPlusTl {
        ram.alone = Some(ram.factors(elements, rule.one("r"), rule.one("alpha"))?);
    }
    Ok(Box::new(ram))
}

impl<G: Grid> Ram<G> {
    /// The differences at a position: those above the threshold, and zero.
    fn differences<'b>(&'b self, block: &'b Block, at: usize) -> impl Iterator<Item = f64> + 'b {
        let base = block.inputs[self.base][at];
        self.others.iter().map(move |&other| {
            let difference = G::q(block.inputs[other][at] - base);
            if difference.abs() > self.epsilon { difference } else { 0.0 }
        })
    }

    /// Returns a factor of at least 1 per model, by the ratio of its shared and unshared
    /// differences.
    fn factors(&self, elements: &Elements<'_>, r: f64, alpha: f64) -> Result<Vec<f64>> {
        let mut counts = vec![(0_u64, 0_u64); self.others.len()];
        elements.each(false, |block| {
            for at in 0..block.len() {
                let changed = self.differences(block, at).filter(|&value| value != 0.0).count();
                for (value, (shared, alone)) in self.differences(block, at).zip(&mut counts) {
                    *shared += u64::from(value != 0.0 && changed > 1);
                    *alone += u64::from(value != 0.0 && changed == 1);
                }
            }
            Ok(())
        })?;
        let factor = |(shared, alone): (u64, u64)| {
            // Where nothing is a model's alone, nothing is multiplied.
            let ratio = if alone == 0 { 0.0 } else { shared as f64 / alone as f64 };
            G::wide(1.0 + r * ratio.min(alpha))
        };
        Ok(counts.into_iter().map(factor).collect())
    }
}

impl<G: Grid> Kernel for Ram<G> {
    fn apply(&self, block: &Block, out: &mut Vec<f64>) {
        out.extend((0..block.len()).map(|at| {
            let base = block.inputs[self.base][at];
            let count = self.differences(block, at).filter(|&value| value != 0.0).count();
            let divisor = count.max(1) as f64;
            let shares = self.differences(block, at).map(|value| G::q(value / divisor));
            match &self.alone {
                None => G::q(base + super::fold::<G>(shares)),
                // These are floats of 32 bits until the end.
                Some(factors) => {
                    let factor = |at: usize| if count == 1 { factors[at] } else { 1.0 };
                    let scaled = shares.enumerate().map(|(at, value)| G::wide(value * factor(at)));
                    let sum = scaled.fold(0.0, |sum, value| G::wide(sum + value));
                    G::q(G::wide(base + sum))
                }
            }
        }));
    }
}
