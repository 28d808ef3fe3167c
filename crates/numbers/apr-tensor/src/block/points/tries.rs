//! The scale of a sub-block, of a few dozen that are tried.

use super::super::lanes::nearest_i32;
use super::grid::{Costs, EIGHT, Grid};

/// Maximum number of scales that are tried together.
const ROOM: usize = 32;

/// Sub-blocks of magnitudes and the weight of an error at each.
pub(super) struct Sub<const LEN: usize> {
    /// Magnitudes. One of a group may be negative if only an even number of signs can be stored.
    pub(super) values: [f32; LEN],
    pub(super) weights: [f32; LEN],
    /// Roots of the weights, by which the nearest point is chosen.
    pub(super) roots: [f32; LEN],
}

/// Scales to try, which put `extreme` at the greatest odd number plus a few steps.
pub(super) struct Sweep {
    pub(super) extreme: f32,
    /// Steps to either side.
    pub(super) reach: u8,
    pub(super) step: f32,
}

/// Groups that are fitted again with the scale that was found.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Refit {
    /// All groups.
    All,
    /// All, unless every group was a point without being moved.
    AllIfMoved,
    /// Groups that were moved to a point.
    Moved,
}

impl Refit {
    /// Returns a bit for each group that is fitted again, given the moved groups.
    #[inline(always)]
    fn open(self, moved: u8) -> u8 {
        match self {
            Self::All => u8::MAX,
            Self::AllIfMoved => u8::from(moved != 0) * u8::MAX,
            Self::Moved => moved,
        }
    }
}

/// The values of a sub-block are about scale * (2 * level + 1).
pub(super) struct FittedSubBlock<const LEN: usize> {
    pub(super) scale: f32,
    /// Levels of points of the grid.
    pub(super) levels: [u8; LEN],
}

/// The greatest level of groups of `WIDTH` values.
const fn top(width: usize) -> u8 {
    if width == EIGHT { 2 } else { 7 }
}

/// Returns the value of a level, before the scale.
#[inline(always)]
fn odd(level: u8) -> f32 {
    f32::from(2 * level + 1)
}

impl<const LEN: usize> Sub<LEN> {
    /// The levels that the values round to. Their points would be `1 / inverse` times odd numbers.
    #[inline(always)]
    fn levels(&self, inverse: f32, top: u8) -> [u8; LEN] {
        let mut levels = [0; LEN];
        for (level, &value) in levels.iter_mut().zip(&self.values) {
            *level = nearest_i32(0.5 * (inverse * value - 1.0)).clamp(0, i32::from(top)) as u8;
        }
        levels
    }

    /// Moves a group's levels to a point of the grid; returns whether they were one.
    #[inline(always)]
    fn settle<const WIDTH: usize>(
        &self,
        grid: &Grid<WIDTH>,
        group: usize,
        scale: f32,
        levels: &mut [u8; WIDTH],
    ) -> bool {
        let of_group = |all: &[f32; LEN]| all.as_chunks::<WIDTH>().0[group];
        grid.settle(levels, || {
            Costs::new(&of_group(&self.values), &of_group(&self.roots), |level| {
                scale * odd(level as u8)
            })
        })
    }

    /// Tries all scales of a sweep. `start` is the scale if none of them has a positive score.
    #[inline(always)]
    pub(super) fn search<const WIDTH: usize>(
        &self,
        grid: &Grid<WIDTH>,
        sweep: &Sweep,
        start: f32,
        refit: Refit,
    ) -> FittedSubBlock<LEN> {
        let top = top(WIDTH);
        let mut tried = [[0; LEN]; ROOM];

        // A bit for each group that was no point.
        let mut moved = [0_u8; ROOM];
        let mut columns = [[0.0; ROOM]; LEN];
        let reach = sweep.reach as i8;
        for (at, step) in (-reach..=reach).enumerate() {
            let inverse = (odd(top) + f32::from(step) * sweep.step) / sweep.extreme;
            let mut levels = self.levels(inverse, top);
            for (group, levels) in levels.as_chunks_mut::<WIDTH>().0.iter_mut().enumerate() {
                moved[at] |= u8::from(!self.settle(grid, group, 1.0 / inverse, levels)) << group;
            }
            for (column, &level) in columns.iter_mut().zip(&levels) {
                column[at] = odd(level);
            }
            tried[at] = levels;
        }

        let (products, squares) = self.fits(&columns);

        // Where no scale is better than none, the sub-block counts as settled, but for
        // `AllIfMoved`.
        let (mut scale, mut best, mut levels) = (start, 0.0, [0; LEN]);
        let mut open = if refit == Refit::Moved { 0 } else { u8::MAX };
        for at in 0..usize::from(2 * sweep.reach + 1) {
            if squares[at] > 0.0 && products[at] * products[at] > best * squares[at] {
                scale = products[at] / squares[at];
                best = scale * products[at];
                levels = tried[at];
                open = refit.open(moved[at]);
            }
        }

        let mut found = FittedSubBlock { scale, levels };
        if open != 0 && scale > 0.0 {
            self.refit(grid, open, &mut found);
        }

        found
    }

    /// Rounds the open groups again with the found scale, and fits the scale to the result.
    #[inline(always)]
    fn refit<const WIDTH: usize>(
        &self,
        grid: &Grid<WIDTH>,
        open: u8,
        found: &mut FittedSubBlock<LEN>,
    ) {
        let scale = found.scale;
        let rounded = self.levels(1.0 / scale, top(WIDTH));
        let groups =
            found.levels.as_chunks_mut::<WIDTH>().0.iter_mut().zip(rounded.as_chunks::<WIDTH>().0);
        for (group, (levels, rounded)) in
            groups.enumerate().filter(|(group, _)| open >> group & 1 == 1)
        {
            *levels = *rounded;
            self.settle(grid, group, scale, levels);
        }
        let (mut products, mut squares) = (0.0, 0.0);
        for ((&value, &weight), &level) in self.values.iter().zip(&self.weights).zip(&found.levels)
        {
            let level = odd(level);
            products += weight * value * level;
            squares += weight * level * level;
        }
        if squares > 0.0 {
            found.scale = products / squares;
        }
    }

    /// For each scale, the weighted sums of level times value, and of the level's square.
    #[inline(always)]
    fn fits(&self, columns: &[[f32; ROOM]; LEN]) -> ([f32; ROOM], [f32; ROOM]) {
        let (mut products, mut squares) = ([0.0; ROOM], [0.0; ROOM]);
        for ((column, &value), &weight) in columns.iter().zip(&self.values).zip(&self.weights) {
            let weighted = weight * value;
            for at in 0..ROOM {
                products[at] += weighted * column[at];
                squares[at] += weight * column[at] * column[at];
            }
        }
        (products, squares)
    }
}
