//! Methods that need nothing but the elements at one position.

use std::marker::PhantomData;

use apr_core::Result;

use super::{Kernel, Rule};
use crate::elements::{Block, Elements};
use crate::grid::Grid;

/// The weighted mean, computed in `f32` or wider.
struct Linear<G> {
    /// Weight of each input.
    weights: Vec<f64>,
    divisor: Option<f64>,
    grid: PhantomData<G>,
}

pub(super) fn linear<G: Grid>(rule: &Rule, elements: &Elements<'_>) -> Result<Box<dyn Kernel>> {
    let weights: Vec<f64> =
        (0..elements.inputs.len()).map(|input| G::wide(rule.of("weight", input))).collect();
    let total = weights.iter().fold(0.0, |sum, weight| G::wide(sum + weight));
    if rule.flag("normalize") && total == 0.0 {
        return Err(rule.lacks("weights whose sum is not zero"));
    }
    let divisor = rule.flag("normalize").then_some(total);
    Ok(Box::new(Linear::<G> { weights, divisor, grid: PhantomData }))
}

impl<G: Grid> Kernel for Linear<G> {
    fn apply(&self, block: &Block, out: &mut Vec<f64>) {
        let start = out.len();
        out.resize(start + block.len(), 0.0);
        let sums = &mut out[start..];
        let mut is_first = true;
        for (&weight, values) in self.weights.iter().zip(&block.inputs) {
            // So that the signs of zeros stay where one model counts alone.
            if weight == 0.0 {
                continue;
            }
            // The product is exact: one rounding, as a fused multiply-add has.
            if is_first {
                sums.iter_mut().zip(values).for_each(|(sum, x)| *sum = G::wide(weight * x));
            } else {
                sums.iter_mut().zip(values).for_each(|(sum, x)| *sum = G::wide(*sum + weight * x));
            }
            is_first = false;
        }
        match self.divisor {
            Some(divisor) => {
                sums.iter_mut().for_each(|sum| *sum = G::q(G::wide(*sum / divisor)));
            }
            None => sums.iter_mut().for_each(|sum| *sum = G::q(*sum)),
        }
    }
}

/// The mean, whose addends are taken in the order of their values: the models' order then makes no
/// difference.
struct Average<G> {
    count: f64,
    grid: PhantomData<G>,
}

#[expect(clippy::unnecessary_wraps, reason = "as all methods have it")]
pub(super) fn average<G: Grid>(_: &Rule, elements: &Elements<'_>) -> Result<Box<dyn Kernel>> {
    let count = elements.inputs.len() as f64;
    Ok(Box::new(Average::<G> { count, grid: PhantomData }))
}

impl<G: Grid> Kernel for Average<G> {
    fn apply(&self, block: &Block, out: &mut Vec<f64>) {
        let mut values = vec![0.0; block.inputs.len()];
        out.extend((0..block.len()).map(|at| {
            values.iter_mut().zip(&block.inputs).for_each(|(value, input)| *value = input[at]);
            values.sort_unstable_by(f64::total_cmp);
            let (first, rest) = values.split_first().unwrap_or((&0.0, &[]));
            let sum = rest.iter().fold(*first, |sum, value| G::wide(sum + value));
            G::q(G::wide(sum / self.count))
        }));
    }
}

/// One model's elements times a number.
struct Scale<G> {
    scale: f64,
    grid: PhantomData<G>,
}

#[expect(clippy::unnecessary_wraps, reason = "as all methods have it")]
pub(super) fn scale<G: Grid>(rule: &Rule) -> Result<Box<dyn Kernel>> {
    let scale = G::wide(rule.of(crate::parameters::SCALE, 0));
    Ok(Box::new(Scale::<G> { scale, grid: PhantomData }))
}

impl<G: Grid> Kernel for Scale<G> {
    fn apply(&self, block: &Block, out: &mut Vec<f64>) {
        let values = block.inputs.iter().take(1).flatten();
        out.extend(values.map(|x| G::q(G::wide(self.scale * x))));
    }
}

/// Base elements, moved towards the other model's elements if they are near them.
struct NearSwap<G> {
    base: usize,
    other: usize,
    t: f64,
    grid: PhantomData<G>,
}

pub(super) fn nearswap<G: Grid>(rule: &Rule, elements: &Elements<'_>) -> Result<Box<dyn Kernel>> {
    let (base, others) = rule.parted(elements)?;
    let &[other] = &others[..] else { return Err(rule.lacks("two models")) };
    Ok(Box::new(NearSwap::<G> { base, other, t: G::wide(rule.one("t")), grid: PhantomData }))
}

impl<G: Grid> Kernel for NearSwap<G> {
    fn apply(&self, block: &Block, out: &mut Vec<f64>) {
        let pairs = block.inputs[self.base].iter().zip(&block.inputs[self.other]);
        out.extend(pairs.map(|(&a, &b)| {
            let difference = G::q((a - b).abs());
            // Equal elements have no direction: all of the other's.
            let share = if difference == 0.0 {
                1.0
            } else {
                G::q(G::q(1.0 / difference) * self.t).clamp(0.0, 1.0)
            };
            G::q(G::q(G::q(1.0 - share) * a) + G::q(share * b))
        }));
    }
}
