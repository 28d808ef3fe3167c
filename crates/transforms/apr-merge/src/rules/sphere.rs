//! Spherical interpolation between two models.

use std::marker::PhantomData;

use apr_core::{Error, Result};

use super::{Kernel, Rule};
use crate::elements::{Block, Elements};
use crate::grid::Grid;

/// Cosine above which two tensors are interpolated on a line.
const PARALLEL: f64 = 0.9995;
/// Threshold: smaller norms and sines are not used as divisors.
const LEAST: f64 = 1e-8;

/// Factors for the two tensors of an interpolation.
#[derive(Clone, Copy)]
struct Coefficients {
    first: f64,
    second: f64,
    /// Divisor of the sum.
    divisor: f64,
}

/// SLERP, which computes in `f32` or wider.
struct Slerp<G> {
    base: usize,
    other: usize,
    coefficients: Coefficients,
    grid: PhantomData<G>,
}

pub(super) fn slerp<G: Grid>(rule: &Rule, elements: &Elements<'_>) -> Result<Box<dyn Kernel>> {
    let (base, others) = rule.parted(elements)?;
    let &[other] = &others[..] else { return Err(rule.lacks("two models")) };
    let r = G::wide;
    let (mut first, mut second) = (0.0_f64, 0.0_f64);
    elements.each(false, |block| {
        first += block.inputs[base].iter().map(|x| x * x).sum::<f64>();
        second += block.inputs[other].iter().map(|x| x * x).sum::<f64>();
        Ok(())
    })?;
    let norms = (r(libm::sqrt(first)), r(libm::sqrt(second)));
    let unit = |x: f64, norm: f64| if norm > LEAST { r(x / norm) } else { x };
    let mut dot = 0.0_f64;
    elements.each(false, |block| {
        let pairs = block.inputs[base].iter().zip(&block.inputs[other]);
        dot += pairs.map(|(a, b)| r(unit(*a, norms.0) * unit(*b, norms.1))).sum::<f64>();
        Ok(())
    })?;
    let (dot, t) = (r(dot), r(rule.one("t")));
    let rest = r(1.0 - t);
    let coefficients = if dot.abs() > PARALLEL {
        Coefficients { first: rest, second: t, divisor: 1.0 }
    } else {
        let angle = r(libm::acos(dot));
        let sine = r(libm::sin(angle));
        let part = |share: f64| r(r(libm::sin(r(angle * share))) / sine);
        Coefficients { first: part(rest), second: part(t), divisor: 1.0 }
    };
    Ok(Box::new(Slerp::<G> { base, other, coefficients, grid: PhantomData }))
}

impl<G: Grid> Kernel for Slerp<G> {
    fn apply(&self, block: &Block, out: &mut Vec<f64>) {
        let Coefficients { first, second, .. } = self.coefficients;
        let pairs = block.inputs[self.base].iter().zip(&block.inputs[self.other]);
        out.extend(pairs.map(|(a, b)| G::q(G::wide(G::wide(first * a) + G::wide(second * b)))));
    }
}

/// The vectors that are turned.
#[derive(Clone, Copy, PartialEq)]
enum Vectors {
    /// The tensor is one.
    Whole,
    /// Vectors along the last dimension.
    Last,
    /// Vectors along the first dimension, with their number.
    First(usize),
}

/// NuSLERP, of two models or of their differences to a base.
struct NuSlerp<G> {
    base: Option<usize>,
    pair: (usize, usize),
    /// The second one's share.
    t: f64,
    vectors: Vectors,
    row_len: usize,
    /// Coefficients of each vector, if they are known beforehand.
    coefficients: Vec<Coefficients>,
    grid: PhantomData<G>,
}

pub(super) fn nuslerp<G: Grid>(rule: &Rule, elements: &Elements<'_>) -> Result<Box<dyn Kernel>> {
    let others = rule.others(elements);
    let &[first, second] = &others[..] else { return Err(rule.lacks("two models and a base")) };
    let weights = (rule.of("weight", first), rule.of("weight", second));
    let total = weights.0 + weights.1;
    if total.abs() < 1e-6 {
        return Err(rule.lacks("weights whose sum is not zero"));
    }
    let too_large = || Error::memory("a row does not fit in memory").for_tensor(&rule.name);
    let row_len = usize::try_from(elements.row_len()).map_err(|_| too_large())?;
    let dims = elements.shape.dims();
    let vectors = if rule.flag("nuslerp_flatten") {
        Vectors::Whole
    } else if !rule.flag("nuslerp_row_wise") || dims.len() < 2 {
        Vectors::Last
    } else {
        /// Vectors of which scalars are kept: 100 MB.
        const MOST: u64 = 1 << 21;
        let count = elements.count() / dims[0].max(1);
        let count = usize::try_from(count.max(1)).ok().filter(|&count| count as u64 <= MOST);
        Vectors::First(count.ok_or_else(too_large)?)
    };
    let mut nuslerp = NuSlerp::<G> {
        base: rule.base,
        pair: (first, second),
        t: weights.1 / total,
        vectors,
        row_len,
        coefficients: Vec::new(),
        grid: PhantomData,
    };
    let count = match vectors {
        Vectors::Whole => 1,
        Vectors::First(count) => count,
        Vectors::Last => 0,
    };
    if count > 0 {
        nuslerp.measure(elements, count)?;
    }
    Ok(Box::new(nuslerp))
}

impl<G: Grid> NuSlerp<G> {
    /// The two elements at a position.
    #[inline]
    fn pair(&self, block: &Block, at: usize) -> (f64, f64) {
        let (a, b) = (block.inputs[self.pair.0][at], block.inputs[self.pair.1][at]);
        match self.base {
            Some(base) => {
                let base = block.inputs[base][at];
                (G::q(a - base), G::q(b - base))
            }
            None => (a, b),
        }
    }

    /// The coefficients of `count` vectors whose elements take turns.
    fn measure(&mut self, elements: &Elements<'_>, count: usize) -> Result<()> {
        let turn = |block: &Block, at: usize| {
            usize::try_from((block.start + at as u64) % count as u64).unwrap_or_default()
        };
        let mut squares = vec![(0.0_f64, 0.0_f64); count];
        elements.each(false, |block| {
            for at in 0..block.len() {
                let ((a, b), sums) = (self.pair(block, at), &mut squares[turn(block, at)]);
                *sums = (sums.0 + a * a, sums.1 + b * b);
            }
            Ok(())
        })?;
        let norms: Vec<(f64, f64)> =
            squares.into_iter().map(|(a, b)| (norm::<G>(a), norm::<G>(b))).collect();
        let mut dots = vec![0.0_f64; count];
        elements.each(false, |block| {
            for at in 0..block.len() {
                let vector = turn(block, at);
                dots[vector] += cosine_term::<G>(self.pair(block, at), norms[vector]);
            }
            Ok(())
        })?;
        self.coefficients = dots.into_iter().map(|dot| self.of_cosine(dot)).collect();
        Ok(())
    }

    fn of_cosine(&self, dot: f64) -> Coefficients {
        let angle = G::q(libm::acos(G::q(dot).clamp(-1.0, 1.0)));
        let sine = G::q(libm::sin(angle));
        let (rest, t) = (G::wide(1.0 - self.t), G::wide(self.t));
        if sine.abs() < LEAST {
            return Coefficients { first: rest, second: t, divisor: 1.0 };
        }
        let part = |share: f64| G::q(libm::sin(G::q(share * angle)));
        Coefficients { first: part(rest), second: part(t), divisor: sine }
    }

    fn of_row(&self, block: &Block, range: std::ops::Range<usize>) -> Coefficients {
        let squares = range.clone().fold((0.0, 0.0), |(first, second), at| {
            let (a, b) = self.pair(block, at);
            (first + a * a, second + b * b)
        });
        let norms = (norm::<G>(squares.0), norm::<G>(squares.1));
        self.of_cosine(range.map(|at| cosine_term::<G>(self.pair(block, at), norms)).sum())
    }

    fn element(&self, block: &Block, at: usize, coefficients: Coefficients) -> f64 {
        let Coefficients { first, second, divisor } = coefficients;
        let (a, b) = self.pair(block, at);
        let sum = G::q(G::q(first * a) + G::q(second * b));
        let turned = if divisor == 1.0 { sum } else { G::q(sum / divisor) };
        self.base.map_or(turned, |base| G::q(block.inputs[base][at] + turned))
    }
}

/// A norm that may be divided by.
fn norm<G: Grid>(squares: f64) -> f64 {
    G::q(libm::sqrt(squares)).max(G::q(LEAST))
}

/// Returns the term that two elements add to the cosine.
#[inline]
fn cosine_term<G: Grid>((a, b): (f64, f64), norms: (f64, f64)) -> f64 {
    G::q(G::q(a / norms.0) * G::q(b / norms.1))
}

impl<G: Grid> Kernel for NuSlerp<G> {
    fn by_row(&self) -> bool {
        self.vectors == Vectors::Last
    }

    fn apply(&self, block: &Block, out: &mut Vec<f64>) {
        if self.vectors == Vectors::Last {
            for start in (0..block.len()).step_by(self.row_len) {
                let range = start..(start + self.row_len).min(block.len());
                let coefficients = self.of_row(block, range.clone());
                out.extend(range.map(|at| self.element(block, at, coefficients)));
            }
            return;
        }
        let count = self.coefficients.len().max(1) as u64;
        let first = usize::try_from(block.start % count).unwrap_or_default();
        let coefficients = self.coefficients.iter().cycle().skip(first);
        out.extend(
            coefficients
                .take(block.len())
                .enumerate()
                .map(|(at, &coefficients)| self.element(block, at, coefficients)),
        );
    }
}
