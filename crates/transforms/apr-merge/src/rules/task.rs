//! Methods that add differences to a base: task arithmetic, TIES, DARE, DELLA, breadcrumbs.

use std::marker::PhantomData;

use apr_core::{Error, Result};

use super::{Kernel, Rule, fold};
use crate::elements::{Block, Elements};
use crate::grid::Grid;
use crate::method::Method;
use crate::random::Draws;
use crate::select::{Keep, Kept, Place, Visit, choose};

/// Threshold: differences with a smaller sum of magnitudes are not rescaled.
const LEAST: f64 = 1e-7;
/// Threshold: smaller sums of weights are not used as divisors.
const LEAST_WEIGHT: f64 = 1e-8;

/// Selection of a model's differences.
enum Sparse {
    Ranked(Kept),
    Drawn {
        draws: Draws,
        density: f64,
    },
    /// Random selection by the rank of the magnitude within its row.
    ByRow {
        draws: Draws,
        density: f64,
        epsilon: f64,
    },
}

/// A model that is added.
struct Part {
    input: usize,
    weight: f64,
    sparse: Sparse,
    /// Factor for the selected differences.
    factor: Option<f64>,
}

struct Task<G> {
    base: usize,
    parts: Vec<Part>,
    row_len: usize,
    by_row: bool,
    consensus: bool,
    normalize: bool,
    /// Sum of the weights, which is the divisor if all models count everywhere.
    divisor: f64,
    lambda: f64,
    grid: PhantomData<G>,
}

pub(super) fn prepare<G: Grid>(rule: &Rule, elements: &Elements<'_>) -> Result<Box<dyn Kernel>> {
    let (base, others) = rule.parted(elements)?;
    let consensus = matches!(
        rule.method,
        Method::Ties | Method::DareTies | Method::Della | Method::BreadcrumbsTies
    );
    let kept = kept::<G>(rule, elements, base, &others)?;
    let parts = others.iter().zip(kept).enumerate().map(|(model, (&input, kept))| {
        let sparse = drawn(rule, input, model)?.unwrap_or(Sparse::Ranked(kept));
        Ok(Part { input, weight: G::q(rule.of("weight", input)), sparse, factor: None })
    });
    let parts = parts.collect::<Result<Vec<_>>>()?;
    let divisor = fold::<G>(parts.iter().map(|part| part.weight));
    let by_row = parts.iter().any(|part| matches!(part.sparse, Sparse::ByRow { .. }));
    let row_len = usize::try_from(elements.row_len())
        .map_err(|_| Error::memory("a row does not fit in memory").for_tensor(&rule.name))?;
    let mut task = Task::<G> {
        base,
        parts,
        row_len,
        by_row,
        consensus,
        normalize: rule.flag("normalize"),
        divisor: if divisor.abs() < LEAST_WEIGHT { 1.0 } else { divisor },
        lambda: G::wide(rule.one("lambda")),
        grid: PhantomData,
    };
    if rule.flag("rescale") {
        task.rescale(elements)?;
    }
    Ok(Box::new(task))
}

/// Returns the random selection of a model's differences, or `None` if the method draws no numbers.
fn drawn(rule: &Rule, input: usize, model: usize) -> Result<Option<Sparse>> {
    let density = rule.of("density", input);
    if !rule.method.is_random() || density >= 1.0 {
        return Ok(None);
    }
    let draws = Draws::of(rule.seed, &rule.name, model);
    if matches!(rule.method, Method::DareLinear | Method::DareTies) {
        return Ok(Some(Sparse::Drawn { draws, density }));
    }
    let epsilon = rule.of("epsilon", input);
    if density + epsilon >= 1.0 || density - epsilon <= 0.0 {
        let message = format!(
            "density {density} with epsilon {epsilon}: density - epsilon and density + epsilon \
             must be between 0 and 1"
        );
        return Err(Error::format(message).for_tensor(&rule.name));
    }
    Ok(Some(Sparse::ByRow { draws, density, epsilon }))
}

/// Returns the differences of each model that are selected by rank.
fn kept<G: Grid>(
    rule: &Rule,
    elements: &Elements<'_>,
    base: usize,
    others: &[usize],
) -> Result<Vec<Kept>> {
    let count = elements.count();
    let keeps: Vec<Keep> = others
        .iter()
        .map(|&input| {
            let density = rule.of("density", input);
            match rule.method {
                _ if density >= 1.0 => Keep::All,
                Method::Ties => Keep::Largest(share(density, count).max(1)),
                Method::Breadcrumbs | Method::BreadcrumbsTies => {
                    middle(density, rule.of("gamma", input), count)
                }
                _ => Keep::All,
            }
        })
        .collect();
    let mut magnitudes = Vec::new();
    choose(&keeps, count, elements.dtype, &mut |visit: &mut Visit<'_>| {
        elements.each(false, |block| {
            let ranked = |series: &usize| !matches!(keeps[*series], Keep::All | Keep::None);
            for series in (0..keeps.len()).filter(ranked) {
                magnitudes.clear();
                let pairs = block.inputs[others[series]].iter().zip(&block.inputs[base]);
                magnitudes.extend(pairs.map(|(x, base)| G::q(x - base).abs()));
                visit(series, block.start, &magnitudes);
            }
            Ok(())
        })
    })
}

/// A share of a number of elements, rounded down.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "shares are not negative, and rounded down"
)]
pub(super) fn share(share: f64, count: u64) -> u64 {
    ((share * count as f64) as u64).min(count)
}

/// Returns the ranks to keep, between the smallest and the largest differences.
///
/// The largest share `gamma` is dropped, or less if too few elements would remain.
fn middle(density: f64, gamma: f64, count: u64) -> Keep {
    let (target, top) = (share(density, count), share(gamma, count));
    let bottom = count - target;
    let (bottom, top) = if bottom >= top { (bottom - top, top) } else { (0, bottom) };
    Keep::Ranks(bottom, count - top)
}

impl<G: Grid> Task<G> {
    /// Replaces `out` by the selected differences of a model, with zeros for the other elements.
    fn differences(&self, part: &Part, block: &Block, out: &mut Vec<f64>) {
        out.clear();
        let (base, values) = (&block.inputs[self.base], &block.inputs[part.input]);
        out.extend(values.iter().zip(base).map(|(x, base)| G::q(x - base)));
        match &part.sparse {
            Sparse::Ranked(Kept::All) => {}
            Sparse::Ranked(Kept::Largest(last)) => keep_largest(out, block.start, *last),
            Sparse::Ranked(kept) => out
                .iter_mut()
                .zip(block.start..)
                .filter(|(value, position)| !kept.has(value.abs(), *position))
                .for_each(|(value, _)| *value = 0.0),
            Sparse::Drawn { draws, density } => out
                .iter_mut()
                .zip(block.start..)
                .filter(|(_, position)| draws.at(*position) >= *density)
                .for_each(|(value, _)| *value = 0.0),
            Sparse::ByRow { draws, density, epsilon } => {
                let mut order = Vec::new();
                for (row, first) in
                    out.chunks_mut(self.row_len).zip((block.start..).step_by(self.row_len))
                {
                    draw_row(row, first, *draws, (*density, *epsilon), &mut order);
                }
            }
        }
        if let Some(factor) = part.factor {
            out.iter_mut().for_each(|value| *value = G::q(*value * factor));
        }
    }

    /// Compensates for dropped differences, so that the sum of magnitudes does not change.
    fn rescale(&mut self, elements: &Elements<'_>) -> Result<()> {
        let is_sparse = |part: &Part| !matches!(part.sparse, Sparse::Ranked(Kept::All));
        if !self.parts.iter().any(is_sparse) {
            return Ok(());
        }
        let mut sums = vec![(0.0_f64, 0.0_f64); self.parts.len()];
        let mut kept = Vec::new();
        elements.each(self.by_row, |block| {
            for (part, (all, stay)) in self.parts.iter().zip(&mut sums) {
                let pairs = block.inputs[part.input].iter().zip(&block.inputs[self.base]);
                *all += pairs.map(|(x, base)| G::q(x - base).abs()).sum::<f64>();
                self.differences(part, block, &mut kept);
                *stay += kept.iter().map(|value| value.abs()).sum::<f64>();
            }
            Ok(())
        })?;
        for (part, (all, stay)) in self.parts.iter_mut().zip(sums) {
            let (all, stay) = (G::q(all), G::q(stay));
            let sparse = !matches!(part.sparse, Sparse::Ranked(Kept::All));
            part.factor = (sparse && all >= LEAST && stay >= LEAST).then(|| G::q(all / stay));
        }
        Ok(())
    }
}

/// Sets random elements of a row to zero. Larger elements are more likely to be kept.
///
/// The probability rises with the rank from `density - epsilon` to `density + epsilon`.
fn draw_row(
    row: &mut [f64],
    first: u64,
    draws: Draws,
    (density, epsilon): (f64, f64),
    order: &mut Vec<usize>,
) {
    order.clear();
    order.extend(0..row.len());
    order.sort_by(|&a, &b| row[a].abs().total_cmp(&row[b].abs()));
    let last = row.len().saturating_sub(1) as f64;
    for (rank, &at) in order.iter().enumerate() {
        let place = if last > 0.0 { rank as f64 / last } else { 0.5 };
        let probability = (density - epsilon) + place * 2.0 * epsilon;
        if draws.at(first + at as u64) >= probability {
            row[at] = 0.0;
        }
    }
}

impl<G: Grid> Kernel for Task<G> {
    fn by_row(&self) -> bool {
        self.by_row
    }

    fn apply(&self, block: &Block, out: &mut Vec<f64>) {
        let weighted: Vec<Vec<f64>> = self
            .parts
            .iter()
            .map(|part| {
                let mut values = Vec::new();
                self.differences(part, block, &mut values);
                values.iter_mut().for_each(|value| *value = G::q(part.weight * *value));
                values
            })
            .collect();
        let base = &block.inputs[self.base];
        // A pass over all elements for each step: the compiler makes vectors of them.
        let mut mixed = sums::<G>(base.len(), &weighted, |_, value| value);
        let mut divisors = Vec::new();
        if self.consensus {
            let total = std::mem::take(&mut mixed);
            let agreeing = |at: usize, value: f64, counts: f64| {
                let up = total[at] >= 0.0;
                let agrees = (up & (value > 0.0)) | (!up & (value < 0.0));
                if agrees { counts } else { 0.0 }
            };
            mixed = sums::<G>(base.len(), &weighted, |at, value| agreeing(at, value, value));
            if self.normalize {
                divisors = vec![0.0; base.len()];
                for (values, part) in weighted.iter().zip(&self.parts) {
                    for (at, (sum, value)) in divisors.iter_mut().zip(values).enumerate() {
                        *sum = G::wide(*sum + agreeing(at, *value, part.weight));
                    }
                }
                let one_for_none = |sum: f64| if sum == 0.0 { 1.0 } else { sum };
                divisors.iter_mut().for_each(|sum| *sum = one_for_none(G::q(*sum)));
            }
        }
        if self.normalize && self.consensus {
            let pairs = mixed.iter_mut().zip(&divisors);
            pairs.for_each(|(value, divisor)| *value = G::q(*value / divisor));
        } else if self.normalize {
            mixed.iter_mut().for_each(|value| *value = G::q(*value / self.divisor));
        }
        if self.lambda != 1.0 {
            mixed.iter_mut().for_each(|value| *value = G::q(*value * self.lambda));
        }
        out.extend(base.iter().zip(&mixed).map(|(base, mixed)| G::q(base + mixed)));
    }
}

/// The sums of terms of all models in their order, rounded after each addition as sums accumulate,
/// and then to the grid.
fn sums<G: Grid>(
    count: usize,
    weighted: &[Vec<f64>],
    term: impl Fn(usize, f64) -> f64,
) -> Vec<f64> {
    let mut sums = vec![0.0; count];
    for values in weighted {
        for (at, (sum, value)) in sums.iter_mut().zip(values).enumerate() {
            *sum = G::wide(*sum + term(at, *value));
        }
    }
    sums.iter_mut().for_each(|sum| *sum = G::q(*sum));
    sums
}

/// Sets elements to zero that are smaller than `last`, or equal and after its position.
fn keep_largest(values: &mut [f64], start: u64, last: Place) {
    let until = last.position.saturating_add(1).saturating_sub(start);
    let until = usize::try_from(until).unwrap_or(usize::MAX).min(values.len());
    let (first, rest) = values.split_at_mut(until);
    for value in first {
        *value = if value.abs() >= last.magnitude { *value } else { 0.0 };
    }
    for value in rest {
        *value = if value.abs() > last.magnitude { *value } else { 0.0 };
    }
}
