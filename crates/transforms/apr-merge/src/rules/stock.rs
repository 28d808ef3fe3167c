//! Model Stock: between the base and the mean, by the angle between the models' differences.

use std::marker::PhantomData;

use apr_core::Result;

use super::{Kernel, Rule, fold};
use crate::elements::{Block, Elements};
use crate::grid::Grid;

/// The smallest product of norms that is divided by.
const LEAST: f64 = 1e-6;

struct Stock<G> {
    base: usize,
    others: Vec<usize>,
    row_len: usize,
    /// Share of the mean; `None` if each row has its own share.
    share: Option<f64>,
    grid: PhantomData<G>,
}

/// Sums of products of differences: of each model with itself, and of each pair.
struct Sums {
    squares: Vec<f64>,
    products: Vec<f64>,
}

pub(super) fn prepare<G: Grid>(rule: &Rule, elements: &Elements<'_>) -> Result<Box<dyn Kernel>> {
    let (base, others) = rule.parted(elements)?;
    if others.len() < 2 {
        return Err(rule.lacks("a base and two other models"));
    }
    let row_len = usize::try_from(elements.row_len()).unwrap_or(usize::MAX);
    let mut stock = Stock::<G> { base, others, row_len, share: None, grid: PhantomData };
    if !rule.flag("filter_wise") {
        let mut sums = Sums::none(stock.others.len());
        elements.each(false, |block| {
            stock.add(block, 0..block.len(), &mut sums);
            Ok(())
        })?;
        stock.share = Some(share::<G>(&sums));
    }
    Ok(Box::new(stock))
}

impl Sums {
    fn none(models: usize) -> Self {
        Self { squares: vec![0.0; models], products: vec![0.0; models * (models - 1) / 2] }
    }
}

impl<G: Grid> Stock<G> {
    /// Adds the products of some elements.
    fn add(&self, block: &Block, range: std::ops::Range<usize>, sums: &mut Sums) {
        let mut differences = vec![0.0; self.others.len()];
        for at in range {
            let base = block.inputs[self.base][at];
            for (difference, &other) in differences.iter_mut().zip(&self.others) {
                *difference = G::q(block.inputs[other][at] - base);
            }
            for (sum, difference) in sums.squares.iter_mut().zip(&differences) {
                *sum += difference * difference;
            }
            let pairs = (0..differences.len())
                .flat_map(|i| (i + 1..differences.len()).map(move |j| (i, j)));
            for (sum, (i, j)) in sums.products.iter_mut().zip(pairs) {
                *sum += G::q(differences[i] * differences[j]);
            }
        }
    }
}

/// The share of the mean that follows from the angles.
fn share<G: Grid>(sums: &Sums) -> f64 {
    let models = sums.squares.len();
    let norms: Vec<f64> = sums.squares.iter().map(|sum| G::q(libm::sqrt(*sum))).collect();
    let pairs = (0..models).flat_map(|i| (i + 1..models).map(move |j| (i, j)));
    let cosines = pairs.zip(&sums.products).map(|((i, j), &product)| {
        let lengths = G::q(norms[i] * norms[j]).max(G::q(LEAST));
        G::q(G::q(product) / lengths).clamp(-1.0, 1.0)
    });
    let mean = G::q(fold::<G>(cosines) / sums.products.len() as f64);
    let n = models as f64;
    G::q(G::q(n * mean) / G::q(1.0 + G::q((n - 1.0) * mean)))
}

impl<G: Grid> Kernel for Stock<G> {
    fn by_row(&self) -> bool {
        self.share.is_none()
    }

    fn apply(&self, block: &Block, out: &mut Vec<f64>) {
        let whole = block.len().max(1);
        let step = if self.share.is_none() { self.row_len.min(whole) } else { whole };
        let count = self.others.len() as f64;
        for start in (0..block.len()).step_by(step) {
            let range = start..(start + step).min(block.len());
            let t = self.share.unwrap_or_else(|| {
                let mut sums = Sums::none(self.others.len());
                self.add(block, range.clone(), &mut sums);
                share::<G>(&sums)
            });
            let rest = G::q(1.0 - t);
            out.extend(range.map(|at| {
                let models = self.others.iter().map(|&other| block.inputs[other][at]);
                let mean = G::q(models.fold(0.0, |sum, value| G::q(sum + value)) / count);
                G::q(G::q(t * mean) + G::q(rest * block.inputs[self.base][at]))
            }));
        }
    }
}
