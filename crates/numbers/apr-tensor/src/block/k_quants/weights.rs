//! What an error in an element costs.

use super::lanes::{LANES, Reals, transpose};
use super::layout::SUPER;
use crate::square_root::square_root_f32;

/// One weight per column, hence the same for every row.
pub(super) struct Importance<'a> {
    pub(super) of_columns: &'a [f32],
}

impl Importance<'_> {
    /// The importance of sub-blocks from `first` on, which is counted from the first row's first.
    #[inline(always)]
    pub(super) fn lanes<const LEN: usize, const N: usize>(&self, first: usize) -> [Reals<N>; LEN] {
        let subs = self.of_columns.as_chunks::<LEN>().0;
        let mut lanes = [[0.0; LEN]; N];
        let mut next = first % subs.len();
        for lane in &mut lanes {
            *lane = subs[next];
            next = if next + 1 == subs.len() { 0 } else { next + 1 };
        }
        transpose(lanes.as_flattened())
    }
}

/// Means of the squares of each super-block of a batch, times a factor.
#[inline(always)]
pub(super) fn mean_squares<const BATCH: usize>(
    factor: f32,
    blocks: &[[f32; SUPER]],
) -> [f32; BATCH] {
    let mut all = [&[0.0; SUPER]; BATCH];
    for (all, block) in all.iter_mut().zip(blocks) {
        *all = block;
    }
    let mut sums = [0.0; BATCH];
    // Each sum in the order of the elements, but all of them at once for their latency.
    #[expect(clippy::needless_range_loop, reason = "elements of several blocks")]
    for at in 0..SUPER {
        for index in 0..BATCH {
            sums[index] += all[index][at] * all[index][at];
        }
    }
    sums.map(|sum| factor * sum / SUPER as f32)
}

/// Weights of sub-blocks, and their sums.
pub(super) struct Weights<const LEN: usize, const N: usize = LANES> {
    pub(super) of_elements: [Reals<N>; LEN],
    pub(super) sums: Reals<N>,
}

impl<const LEN: usize, const N: usize> Weights<LEN, N> {
    pub(super) const NONE: Self = Self { of_elements: [Reals::ZERO; LEN], sums: Reals::ZERO };

    /// Sets the weight of the next element.
    ///
    /// Weights are summed up where they are made because a loop without a sum would be vectorised
    /// over elements instead of lanes.
    #[inline(always)]
    fn set(&mut self, at: usize, weight: Reals<N>) {
        self.of_elements[at] = weight;
        self.sums = self.sums + weight;
    }
}

/// Importance weights, times what the elements and their super-block's variance add to them.
#[inline(always)]
pub(super) fn weigh<const LEN: usize>(
    x: &[Reals; LEN],
    importance: &[Reals; LEN],
    variance: Reals,
) -> Weights<LEN> {
    let mut weights = Weights::NONE;
    for (at, (&x, &importance)) in x.iter().zip(importance).enumerate() {
        weights.set(at, importance * (variance + x * x).map(square_root_f32));
    }
    weights
}

/// The magnitudes, plus the root of the mean square of each sub-block.
#[inline(always)]
pub(super) fn magnitudes_above_mean<const LEN: usize>(x: &[Reals; LEN]) -> Weights<LEN> {
    let mut squares = Reals::ZERO;
    for &x in x {
        squares = squares + x * x;
    }
    let average = squares.map(|sum| square_root_f32(sum / LEN as f32));
    let mut weights = Weights::NONE;
    for (at, &x) in x.iter().enumerate() {
        weights.set(at, average + x.abs());
    }
    weights
}

/// The magnitudes.
#[inline(always)]
pub(super) fn magnitudes<const LEN: usize>(x: &[Reals; LEN]) -> Weights<LEN> {
    let mut weights = Weights::NONE;
    for (at, &x) in x.iter().enumerate() {
        weights.set(at, x.abs());
    }
    weights
}

/// Returns the squares of the values as weights.
#[inline(always)]
pub(super) fn squares<const LEN: usize, const N: usize>(x: &[Reals<N>; LEN]) -> Weights<LEN, N> {
    let mut weights = Weights::NONE;
    for (at, &x) in x.iter().enumerate() {
        weights.set(at, x * x);
    }
    weights
}
