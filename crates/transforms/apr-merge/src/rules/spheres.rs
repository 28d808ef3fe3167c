//! Means on a sphere: Multi-SLERP and the Karcher mean.
//!
//! Both need several sums over the whole tensor, each of elements that follow from the sums before.
//! Nothing but the sums is kept: every pass computes its elements anew from the models' own.

use std::marker::PhantomData;

use apr_core::Result;

use super::{Kernel, Rule, fold};
use crate::elements::{Block, Elements};
use crate::grid::Grid;

/// Multi-SLERP: the mean direction, to which the tangents are added, with the mean of the lengths.
struct MultiSlerp<G> {
    base: Option<usize>,
    others: Vec<usize>,
    weights: Vec<f64>,
    /// Lengths to divide by.
    norms: Vec<f64>,
    mean_norm: f64,
    dots: Vec<f64>,
    tangent_norm: f64,
    length: f64,
    /// `true` if the directions cancel, so that the weighted sum replaces the mean.
    cancelled: bool,
    grid: PhantomData<G>,
}

pub(super) fn multislerp<G: Grid>(rule: &Rule, elements: &Elements<'_>) -> Result<Box<dyn Kernel>> {
    let others = rule.others(elements);
    let eps = rule.one("eps");
    let mut weights: Vec<f64> =
        others.iter().map(|&input| G::q(rule.of("weight", input))).collect();
    if rule.flag("normalize_weights") {
        let total = fold::<G>(weights.iter().copied());
        if total == 0.0 {
            return Err(rule.lacks("weights whose sum is not zero"));
        }
        weights.iter_mut().for_each(|weight| *weight = G::q(*weight / total));
    }
    let mut mean = MultiSlerp::<G> {
        base: rule.base,
        norms: Vec::new(),
        dots: vec![0.0; others.len()],
        others,
        weights,
        mean_norm: 1.0,
        tangent_norm: 0.0,
        length: 0.0,
        cancelled: false,
        grid: PhantomData,
    };
    mean.measure(elements, eps)?;
    Ok(Box::new(mean))
}

impl<G: Grid> MultiSlerp<G> {
    #[inline]
    fn value(&self, block: &Block, model: usize, at: usize) -> f64 {
        let value = block.inputs[self.others[model]][at];
        self.base.map_or(value, |base| G::q(value - block.inputs[base][at]))
    }

    #[inline]
    fn unit(&self, block: &Block, model: usize, at: usize) -> f64 {
        G::q(self.value(block, model, at) / self.norms[model])
    }

    /// The weighted sum of the directions.
    fn sum(&self, block: &Block, at: usize) -> f64 {
        let terms = self.weights.iter().enumerate();
        fold::<G>(terms.map(|(model, weight)| G::q(self.unit(block, model, at) * weight)))
    }

    fn mean(&self, block: &Block, at: usize) -> f64 {
        G::q(self.sum(block, at) / self.mean_norm)
    }

    fn tangent(&self, block: &Block, at: usize, mean: f64) -> f64 {
        let terms = self.weights.iter().zip(&self.dots).enumerate();
        fold::<G>(terms.map(|(model, (weight, dot))| {
            G::q(G::q(self.unit(block, model, at) - G::q(dot * mean)) * weight)
        }))
    }

    fn measure(&mut self, elements: &Elements<'_>, eps: f64) -> Result<()> {
        let models = self.others.len();
        let mut sums = vec![0.0_f64; models];
        elements.each(false, |block| {
            for (model, sum) in sums.iter_mut().enumerate() {
                let values = (0..block.len()).map(|at| self.value(block, model, at));
                *sum += values.map(|value| value * value).sum::<f64>();
            }
            Ok(())
        })?;
        let norms: Vec<f64> = sums.iter().map(|sum| G::q(libm::sqrt(*sum))).collect();
        let lengths = norms.iter().zip(&self.weights);
        self.length = fold::<G>(lengths.map(|(norm, weight)| G::q(norm * weight)));
        // A tensor of zeros has no direction, and must not be divided by zero.
        self.norms = norms.iter().map(|norm| G::q(norm + eps).max(f64::MIN_POSITIVE)).collect();

        let mut square = 0.0_f64;
        elements.each(false, |block| {
            let values = (0..block.len()).map(|at| self.sum(block, at));
            square += values.map(|value| value * value).sum::<f64>();
            Ok(())
        })?;
        self.mean_norm = G::q(libm::sqrt(square));
        if self.mean_norm < eps {
            self.cancelled = true;
            return Ok(());
        }

        let mut dots = vec![0.0_f64; models];
        elements.each(false, |block| {
            for at in 0..block.len() {
                let mean = self.mean(block, at);
                for (model, dot) in dots.iter_mut().enumerate() {
                    *dot += G::q(self.unit(block, model, at) * mean);
                }
            }
            Ok(())
        })?;
        self.dots = dots.into_iter().map(G::q).collect();

        let mut square = 0.0_f64;
        elements.each(false, |block| {
            for at in 0..block.len() {
                let tangent = self.tangent(block, at, self.mean(block, at));
                square += tangent * tangent;
            }
            Ok(())
        })?;
        self.tangent_norm = G::q(G::q(libm::sqrt(square)) + eps);
        Ok(())
    }
}

impl<G: Grid> Kernel for MultiSlerp<G> {
    fn apply(&self, block: &Block, out: &mut Vec<f64>) {
        let cosine = G::q(libm::cos(self.tangent_norm));
        let sine = G::q(G::q(libm::sin(self.tangent_norm)) / self.tangent_norm);
        out.extend((0..block.len()).map(|at| {
            let merged = if self.cancelled {
                let terms = self.weights.iter().enumerate();
                fold::<G>(terms.map(|(model, weight)| G::q(self.value(block, model, at) * weight)))
            } else {
                let mean = self.mean(block, at);
                let tangent = self.tangent(block, at, mean);
                G::q(G::q(G::q(mean * cosine) + G::q(tangent * sine)) * self.length)
            };
            self.base.map_or(merged, |base| G::q(merged + block.inputs[base][at]))
        }));
    }
}

/// One step towards the Karcher mean.
struct Step {
    /// Cosine to the mean so far and factor of the tangent, for each direction.
    tangents: Vec<Option<(f64, f64)>>,
    /// The length of the tangents' sum.
    norm: f64,
    /// The length of the mean after the step; it is divided by that.
    after: f64,
}

/// Elements up to which the mean so far is kept between steps: 64 MiB. A larger tensor's is
/// computed anew from the first step on.
const KEPT: u64 = 1 << 23;

/// The Karcher mean of the directions, with the mean of the lengths.
struct Karcher<G> {
    /// Inputs that are not zero.
    inputs: Vec<usize>,
    norms: Vec<f64>,
    /// The share of each of them in the mean.
    share: f64,
    /// Length of the first mean; `None` if it vanishes.
    first: Option<f64>,
    steps: Vec<Step>,
    /// The mean after the steps that are done, while they are looked for.
    kept: Vec<f64>,
    length: f64,
    grid: PhantomData<G>,
}

pub(super) fn karcher<G: Grid>(rule: &Rule, elements: &Elements<'_>) -> Result<Box<dyn Kernel>> {
    let models = elements.inputs.len();
    let mut sums = vec![0.0_f64; models];
    elements.each(false, |block| {
        for (sum, values) in sums.iter_mut().zip(&block.inputs) {
            *sum += values.iter().map(|value| value * value).sum::<f64>();
        }
        Ok(())
    })?;
    let norms: Vec<f64> = sums.into_iter().map(|sum| G::wide(libm::sqrt(sum))).collect();
    let inputs: Vec<usize> = (0..models).filter(|&input| norms[input] > 0.0).collect();
    let mut karcher = Karcher::<G> {
        norms: inputs.iter().map(|&input| norms[input]).collect(),
        share: 1.0 / inputs.len().max(1) as f64,
        inputs,
        first: None,
        steps: Vec::new(),
        kept: Vec::new(),
        length: G::q(norms.iter().map(|norm| norm / models as f64).sum()),
        grid: PhantomData,
    };
    if !karcher.inputs.is_empty() {
        karcher.converge(elements, rule.one("max_iter"), rule.one("tol"))?;
    }
    Ok(Box::new(karcher))
}

impl<G: Grid> Karcher<G> {
    #[inline]
    fn unit(&self, block: &Block, model: usize, at: usize) -> f64 {
        G::q(block.inputs[self.inputs[model]][at] / self.norms[model])
    }

    /// The sum of directions that the mean begins with.
    fn start(&self, block: &Block, at: usize) -> f64 {
        let units = (0..self.inputs.len()).map(|model| self.unit(block, model, at));
        units.fold(0.0, |sum, unit| G::q(sum + G::q(self.share * unit)))
    }

    /// The sum of tangents at the mean.
    fn tangent(&self, step: &Step, block: &Block, at: usize, mean: f64) -> f64 {
        step.tangents.iter().enumerate().fold(0.0, |sum, (model, tangent)| match tangent {
            Some((dot, factor)) => {
                let across = G::q(self.unit(block, model, at) - G::q(dot * mean));
                G::q(sum + G::q(factor * across))
            }
            None => sum,
        })
    }

    /// The mean after a step, before its length is made one.
    fn moved(&self, step: &Step, block: &Block, at: usize, mean: f64) -> f64 {
        let tangent = G::q(self.tangent(step, block, at, mean) / step.norm);
        let (cosine, sine) = (G::q(libm::cos(step.norm)), G::q(libm::sin(step.norm)));
        G::q(G::q(cosine * mean) + G::q(sine * tangent))
    }

    /// The mean after all steps so far.
    fn mean(&self, block: &Block, at: usize) -> f64 {
        if !self.kept.is_empty() {
            let position = usize::try_from(block.start).unwrap_or_default() + at;
            return self.kept[position];
        }
        let start = match self.first {
            Some(norm) => G::q(self.start(block, at) / norm),
            None => self.unit(block, 0, at),
        };
        self.steps.iter().fold(start, |mean, step| self.after(step, block, at, mean))
    }

    /// The mean after a step.
    fn after(&self, step: &Step, block: &Block, at: usize, mean: f64) -> f64 {
        let moved = self.moved(step, block, at, mean);
        if step.after > 0.0 { G::q(moved / step.after) } else { moved }
    }

    /// Stores the mean after one more step, if the tensor is small enough.
    fn keep(&mut self, elements: &Elements<'_>, step: Option<&Step>) -> Result<()> {
        let Some(count) =
            usize::try_from(elements.count()).ok().filter(|_| elements.count() <= KEPT)
        else {
            return Ok(());
        };
        let mut kept = Vec::with_capacity(count);
        elements.each(false, |block| {
            kept.extend((0..block.len()).map(|at| {
                let mean = self.mean(block, at);
                step.map_or(mean, |step| self.after(step, block, at, mean))
            }));
            Ok(())
        })?;
        self.kept = kept;
        Ok(())
    }

    /// Returns the length of a vector with these elements.
    fn norm_of(elements: &Elements<'_>, value: impl Fn(&Block, usize) -> f64) -> Result<f64> {
        let mut square = 0.0_f64;
        elements.each(false, |block| {
            let values = (0..block.len()).map(|at| value(block, at));
            square += values.map(|value| value * value).sum::<f64>();
            Ok(())
        })?;
        Ok(G::wide(libm::sqrt(square)))
    }

    fn converge(&mut self, elements: &Elements<'_>, most: f64, tolerance: f64) -> Result<()> {
        let norm = Self::norm_of(elements, |block, at| self.start(block, at))?;
        self.first = (norm >= tolerance).then_some(norm);
        self.keep(elements, None)?;
        while (self.steps.len() as f64) < most {
            let mut dots = vec![0.0_f64; self.inputs.len()];
            elements.each(false, |block| {
                for at in 0..block.len() {
                    let mean = self.mean(block, at);
                    for (model, dot) in dots.iter_mut().enumerate() {
                        *dot += mean * self.unit(block, model, at);
                    }
                }
                Ok(())
            })?;
            let tangents = dots.into_iter().map(|dot| {
                let dot = G::q(dot).clamp(-1.0, 1.0);
                let angle = G::q(libm::acos(dot));
                let factor = || G::q(self.share * G::q(angle / G::q(libm::sin(angle))));
                (angle >= tolerance).then(|| (dot, factor()))
            });
            let mut step = Step { tangents: tangents.collect(), norm: 0.0, after: 0.0 };
            step.norm = Self::norm_of(elements, |block, at| {
                self.tangent(&step, block, at, self.mean(block, at))
            })?;
            if step.norm < tolerance {
                break;
            }
            step.after = Self::norm_of(elements, |block, at| {
                self.moved(&step, block, at, self.mean(block, at))
            })?;
            self.keep(elements, Some(&step))?;
            self.steps.push(step);
        }
        self.kept = Vec::new();
        Ok(())
    }
}

impl<G: Grid> Kernel for Karcher<G> {
    fn apply(&self, block: &Block, out: &mut Vec<f64>) {
        if self.inputs.is_empty() {
            out.extend((0..block.len()).map(|_| 0.0));
            return;
        }
        out.extend((0..block.len()).map(|at| G::q(self.length * self.mean(block, at))));
    }
}
