//! Arcee Fusion: the other model's values where the difference matters most.
//!
//! An element's importance is the magnitude of its difference times the divergence of its row, of
//! which both models' softmax is taken. What is above the median by one and a half times the range
//! between the quartiles is taken over; all three are elements, the lower ones where two would do.

use std::marker::PhantomData;

use apr_core::{Error, Result};

use super::task::share;
use super::{Kernel, Rule};
use crate::elements::{Block, Elements};
use crate::grid::Grid;
use crate::select::{Rank, Visit, find};

struct Fusion<G> {
    base: usize,
    other: usize,
    row_len: usize,
    threshold: f64,
    grid: PhantomData<G>,
}

pub(super) fn prepare<G: Grid>(rule: &Rule, elements: &Elements<'_>) -> Result<Box<dyn Kernel>> {
    let (base, others) = rule.parted(elements)?;
    let &[other] = &others[..] else { return Err(rule.lacks("two models")) };
    let row_len = usize::try_from(elements.row_len())
        .map_err(|_| Error::memory("a row does not fit in memory").for_tensor(&rule.name))?;
    let mut fusion = Fusion::<G> { base, other, row_len, threshold: 0.0, grid: PhantomData };
    fusion.threshold = fusion.find_threshold(elements)?;
    Ok(Box::new(fusion))
}

impl<G: Grid> Fusion<G> {
    /// Replaces `out` by the importance of whole rows.
    fn importance(&self, block: &Block, out: &mut Vec<f64>) {
        out.clear();
        let (base, other) = (&block.inputs[self.base], &block.inputs[self.other]);
        for (base, other) in base.chunks(self.row_len).zip(other.chunks(self.row_len)) {
            let divergence = divergence::<G>(base, other);
            let row = base.iter().zip(other);
            out.extend(row.map(|(a, b)| G::q(G::q(b - a).abs() * divergence)));
        }
    }

    fn find_threshold(&self, elements: &Elements<'_>) -> Result<f64> {
        let count = elements.count();
        if count == 0 {
            return Ok(0.0);
        }
        let mut importance = Vec::new();
        // Divergences may come out just below zero by rounding: negative values are ranked in
        // reverse, in a series of their own.
        let mut negative = Vec::new();
        let mut negatives = 0;
        elements.each(true, |block| {
            self.importance(block, &mut importance);
            negatives += importance.iter().filter(|value| **value < 0.0).count() as u64;
            Ok(())
        })?;
        let ranks: Vec<Rank> = [0.25, 0.5, 0.75]
            .into_iter()
            .map(|quantile| share(quantile, count - 1))
            .map(|rank| match rank < negatives {
                true => Rank { series: 1, rank: negatives - 1 - rank },
                false => Rank { series: 0, rank: rank - negatives },
            })
            .collect();
        let found = find(&ranks, elements.dtype, &mut |visit: &mut Visit<'_>| {
            elements.each(true, |block| {
                self.importance(block, &mut importance);
                negative.clear();
                negative.extend(importance.iter().filter(|value| **value < 0.0).map(|v| -v));
                importance.retain(|value| *value >= 0.0);
                // Zeros have one sign.
                importance.iter_mut().for_each(|value| *value = value.abs());
                visit(0, block.start, &importance);
                visit(1, block.start, &negative);
                Ok(())
            })
        })?;
        let value = |at: usize| match ranks[at].series {
            1 => -found[at].magnitude,
            _ => found[at].magnitude,
        };
        let (first, median, third) = (value(0), value(1), value(2));
        Ok(G::q(median + G::q(1.5 * G::q(third - first))))
    }
}

/// Returns the divergence between the softmax of the other model's row and of the base's row.
fn divergence<G: Grid>(base: &[f64], other: &[f64]) -> f64 {
    let sum_of = |row: &[f64]| {
        let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        (largest, row.iter().map(|x| libm::exp(x - largest)).sum::<f64>())
    };
    let ((base_top, base_sum), (top, sum)) = (sum_of(base), sum_of(other));
    let terms = base.iter().zip(other).map(|(a, b)| {
        let p = G::q(libm::exp(a - base_top) / base_sum);
        let q = G::q(libm::exp(b - top) / sum);
        // What is too small for the dtype says nothing.
        if p == 0.0 || q == 0.0 { 0.0 } else { G::q(q * G::q(libm::log(G::q(q / p)))) }
    });
    G::q(terms.sum())
}

impl<G: Grid> Kernel for Fusion<G> {
    fn by_row(&self) -> bool {
        true
    }

    fn apply(&self, block: &Block, out: &mut Vec<f64>) {
        let mut importance = Vec::new();
        self.importance(block, &mut importance);
        let pairs = block.inputs[self.base].iter().zip(&block.inputs[self.other]);
        out.extend(pairs.zip(&importance).map(|((&a, &b), &importance)| {
            if importance >= self.threshold { G::q(G::wide(a + G::q(b - a))) } else { a }
        }));
    }
}
