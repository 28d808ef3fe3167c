//! Searches for the scales of sixteen sub-blocks side by side.
//!
//! Each lane does the operations of the scalar search in `tests/reference.rs` in the same order.
//! Where that branches, lanes compute both ways and select.

#![expect(clippy::cast_possible_truncation, reason = "levels fit a byte")]

use super::lanes::{Mask, ROUNDING, Reals};
use super::weights::Weights;

/// Below this, a sub-block counts as zero.
pub(super) const ALL_ZERO: f32 = 1e-15;

/// The scales that a search tries: `(first + step * i + levels) / range` for i up to and with
/// `steps`.
pub(super) struct Sweep {
    pub(super) first: f32,
    pub(super) step: f32,
    pub(super) steps: u8,
    /// Minimises absolute instead of squared differences.
    pub(super) absolute: bool,
}

/// x is about scale * level - min.
pub(super) struct Affine {
    pub(super) scale: Reals,
    pub(super) min: Reals,
    /// Inverse scale: levels are `iscale * (x - offset)`, rounded; zero if not searched.
    pub(super) iscale: Reals,
    pub(super) offset: Reals,
}

/// The scale and the least value that give the least weighted error (ggml's `make_qkx2_quants`,
/// `make_qkx3_quants`).
#[inline(always)]
pub(super) fn affine<const LEN: usize>(
    max_level: u8,
    sweep: &Sweep,
    x: &[Reals; LEN],
    weights: &Weights<LEN>,
) -> Affine {
    let Weights { of_elements: weights, sums: sum_w } = weights;
    let sum_w = *sum_w;
    let (mut min, mut max) = (x[0], x[0]);
    let mut sum_x = weights[0] * x[0];
    for at in 1..LEN {
        min = min.min(x[at]);
        max = max.max(x[at]);
        sum_x = sum_x + weights[at] * x[at];
    }

    min = min.min(Reals::ZERO);
    let (least, flat) = (min, max.equal(min));
    let levels = Reals::all(f32::from(max_level));
    let mut best_iscale = levels / (max - min);
    let mut best_offset = min;
    let mut scale = Reals::all(1.0) / best_iscale;
    let mut best = Reals::ZERO;
    for at in 0..LEN {
        let level = (best_iscale * (x[at] - min)).nearest_within(0, max_level.into());
        best = best + weighted_difference(sweep, x[at], weights[at], scale, min, level);
    }

    let mut rounded = [Reals::ZERO; LEN];
    for step in 0..=sweep.steps {
        let iscale =
            (Reals::all(sweep.first + sweep.step * f32::from(step)) + levels) / (max - min);
        let (mut sum_l, mut sum_l2, mut sum_xl) = (Reals::ZERO, Reals::ZERO, Reals::ZERO);
        for at in 0..LEN {
            let level = (iscale * (x[at] - min)).nearest_within(0, max_level.into());
            rounded[at] = level;
            let weighted = weights[at] * level;
            sum_l = sum_l + weighted;
            sum_l2 = sum_l2 + weighted * level;
            sum_xl = sum_xl + weighted * x[at];
        }

        let determinant = sum_w * sum_l2 - sum_l * sum_l;
        let solved_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
        let solved_min = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
        let positive = Reals::ZERO.less(solved_min);
        let new_min = positive.select(Reals::ZERO, solved_min);
        let new_scale = positive.select(sum_xl / sum_l2, solved_scale);
        let mut new = Reals::ZERO;
        for at in 0..LEN {
            new = new
                + weighted_difference(sweep, x[at], weights[at], new_scale, new_min, rounded[at]);
        }

        let better = new.less(best).and(Reals::ZERO.less(determinant));
        best = better.select(new, best);
        best_iscale = better.select(iscale, best_iscale);
        best_offset = better.select(min, best_offset);
        scale = better.select(new_scale, scale);
        min = better.select(new_min, min);
    }

    Affine {
        scale: flat.select(Reals::ZERO, scale),
        min: flat.select(least, min).map(|min| -min),
        iscale: flat.select(Reals::ZERO, best_iscale),
        offset: best_offset,
    }
}

#[inline(always)]
fn weighted_difference(
    sweep: &Sweep,
    x: Reals,
    weight: Reals,
    scale: Reals,
    min: Reals,
    level: Reals,
) -> Reals {
    let diff = scale * level + min - x;
    weight * if sweep.absolute { diff.abs() } else { diff * diff }
}

/// x is about scale * (level - half).
pub(super) struct Symmetric<const N: usize> {
    pub(super) scale: Reals<N>,
    /// Inverse scale: the levels are `iscale * x`, rounded, plus half; all are zero if it is not a
    /// number.
    pub(super) iscale: Reals<N>,
}

/// Returns the elements of the greatest magnitude, and a mask of lanes with only (nearly) zeros.
#[inline(always)]
fn extreme<const LEN: usize, const N: usize>(x: &[Reals<N>; LEN]) -> (Reals<N>, Mask<N>) {
    let (mut max, mut magnitude) = (Reals::ZERO, Reals::ZERO);
    for &x in x {
        let greater = magnitude.less(x.abs());
        max = greater.select(x, max);
        magnitude = greater.select(x.abs(), magnitude);
    }
    (max, magnitude.less(Reals::all(ALL_ZERO)))
}

/// The scale of the least weighted error, of twenty tried (ggml's `make_qx_quants`).
#[inline(always)]
pub(super) fn symmetric<const LEN: usize, const N: usize>(
    half: u8,
    x: &[Reals<N>; LEN],
    weights: &Weights<LEN, N>,
) -> Symmetric<N> {
    let weights = &weights.of_elements;
    let (max, zero) = extreme(x);
    let levels = f32::from(half);
    let mut products = [Reals::ZERO; LEN];
    let mut best_iscale = Reals::all(-levels) / max;
    let (mut sum_lx, mut sum_l2) = (Reals::ZERO, Reals::ZERO);
    for at in 0..LEN {
        products[at] = weights[at] * x[at];
        let level = (best_iscale * x[at]).nearest_within(-i32::from(half), i32::from(half) - 1);
        sum_lx = sum_lx + products[at] * level;
        sum_l2 = sum_l2 + weights[at] * level * level;
    }

    let mut scale = sum_l2.equal(Reals::ZERO).select(Reals::ZERO, sum_lx / sum_l2);
    let mut best = scale * sum_lx;
    for step in -9_i8..=9 {
        if step == 0 {
            continue;
        }

        let iscale = Reals::all(-(levels + 0.1 * f32::from(step))) / max;
        (sum_lx, sum_l2) = (Reals::ZERO, Reals::ZERO);
        for at in 0..LEN {
            let level = (iscale * x[at]).nearest_within(-i32::from(half), i32::from(half) - 1);
            sum_lx = sum_lx + products[at] * level;
            sum_l2 = sum_l2 + weights[at] * level * level;
        }

        let better = (best * sum_l2).less(sum_lx * sum_lx).and(Reals::ZERO.less(sum_l2));
        best_iscale = better.select(iscale, best_iscale);
        scale = better.select(sum_lx / sum_l2, scale);
        best = better.select(scale * sum_lx, best);
    }

    Symmetric {
        scale: zero.select(Reals::ZERO, scale),
        iscale: zero.select(Reals::all(f32::NAN), best_iscale),
    }
}

/// x is positive and about scale * level.
pub(super) struct Positive<const LEN: usize> {
    pub(super) scale: Reals,
    levels: [Reals; LEN],
    zero: Mask,
}

impl<const LEN: usize> Positive<LEN> {
    /// The levels of a lane.
    pub(super) fn bytes(&self, lane: usize) -> [u8; LEN] {
        if self.zero.holds(lane) { [0; LEN] } else { self.levels.map(|level| level.0[lane] as u8) }
    }
}

/// The scale of the least weighted error, of nine tried; then single levels change as long as that
/// lessens the error (ggml's `make_qp_quants`).
#[inline(always)]
pub(super) fn positive<const LEN: usize>(
    max_level: u8,
    x: &[Reals; LEN],
    weights: &[Reals; LEN],
) -> Positive<LEN> {
    let mut max = Reals::ZERO;
    for &x in x {
        // Not `max`: a negative zero replaces a positive one, and a number replaces a NaN.
        max = x.less(max).select(max, x);
    }

    let zero = max.less(Reals::all(ALL_ZERO));
    let top = f32::from(max_level);
    let mut iscale = Reals::all(top) / max;
    let scale = Reals::all(1.0) / iscale;
    let mut best = Reals::ZERO;
    for at in 0..LEN {
        let level = as_bytes((iscale * x[at]).nearest_within(LOWEST, HIGHEST));
        let diff = x[at] - scale * level;
        best = best + weights[at] * diff * diff;
    }

    for step in -4_i8..=4 {
        if step == 0 {
            continue;
        }

        let new_iscale = Reals::all(0.1 * f32::from(step) + top) / max;
        let scale = Reals::all(1.0) / new_iscale;
        let mut new = Reals::ZERO;
        for at in 0..LEN {
            let diff =
                x[at] - scale * (new_iscale * x[at]).nearest_within(LOWEST, max_level.into());
            new = new + weights[at] * diff * diff;
        }

        let better = new.less(best);
        best = better.select(new, best);
        iscale = better.select(new_iscale, iscale);
    }

    let mut levels = [Reals::ZERO; LEN];
    let (mut sum_lx, mut sum_l2) = (Reals::ZERO, Reals::ZERO);
    for at in 0..LEN {
        let level = (iscale * x[at]).nearest_within(LOWEST, max_level.into());
        levels[at] = as_bytes(level);
        sum_lx = sum_lx + weights[at] * x[at] * level;
        sum_l2 = sum_l2 + weights[at] * level * level;
    }

    // Lanes that a pass has not changed do not change any more.
    for _ in 0..5 {
        let mut changed = false;
        for at in 0..LEN {
            let (w, old) = (weights[at], levels[at]);
            let less_lx = sum_lx - w * x[at] * old;
            let less_l2 = sum_l2 - w * old * old;
            let new = (x[at] * less_l2 / less_lx).nearest_within(LOWEST, max_level.into());
            let new_lx = less_lx + w * x[at] * new;
            let new_l2 = less_l2 + w * new * new;
            let better = (sum_lx * sum_lx * new_l2).less(new_lx * new_lx * sum_l2);
            let applies =
                Reals::ZERO.less(less_lx).and(Reals::ZERO.less(less_l2)).and(new.equal(old).not());
            let better = better.and(applies);
            changed |= better.any();
            levels[at] = better.select(as_bytes(new), old);
            sum_lx = better.select(new_lx, sum_lx);
            sum_l2 = better.select(new_l2, sum_l2);
        }

        if !changed {
            break;
        }
    }

    let scale = Reals::ZERO.less(sum_l2).select(sum_lx / sum_l2, Reals::ZERO);
    Positive { scale: zero.select(Reals::ZERO, scale), levels, zero }
}

/// The least and the greatest that rounding returns.
const LOWEST: i32 = -0x0040_0000;
const HIGHEST: i32 = 0x003f_ffff;

/// The low bytes of levels: ggml keeps them in bytes, whatever was found.
#[inline(always)]
fn as_bytes(levels: Reals) -> Reals {
    levels.map(|level| ((level + ROUNDING).to_bits() & 255) as f32)
}

/// x is about scale * (level - half).
pub(super) struct Refined<const LEN: usize> {
    pub(super) scale: Reals,
    half: u8,
    /// Levels minus `half`.
    levels: [Reals; LEN],
    zero: Mask,
}

impl<const LEN: usize> Refined<LEN> {
    /// The level of an element of a lane.
    pub(super) fn level(&self, lane: usize, at: usize) -> u8 {
        if self.zero.holds(lane) {
            0
        } else {
            (self.levels[at].0[lane] + f32::from(self.half)) as u8
        }
    }
}

/// Contribution of a level to the sums, and the bounds of quotients that round to it without doubt.
#[derive(Clone, Copy)]
struct Share {
    level: Reals,
    lx: Reals,
    l2: Reals,
    least: Reals,
    greatest: Reals,
}

impl Share {
    #[inline(always)]
    fn new(half: u8, x: Reals, level: Reals) -> Self {
        // A little less than half: more than what the rounding of quotients and products can amount
        // to.
        const CERTAIN: Reals = Reals::all(0.499_99);
        let (low, high) = (Reals::all(-f32::from(half)), Reals::all(f32::from(half) - 1.0));
        let w = x * x;
        Self {
            level,
            lx: w * x * level,
            l2: w * level * level,
            // Quotients beyond the outermost levels are moved to these.
            least: level.equal(low).select(Reals::all(-1000.0), level - CERTAIN),
            greatest: level.equal(high).select(Reals::all(1000.0), level + CERTAIN),
        }
    }

    /// Returns a mask of lanes whose level may have to change.
    ///
    /// It is computed without a division.
    #[inline(always)]
    fn is_in_doubt(&self, x: Reals, sum_lx: Reals, sum_l2: Reals) -> Mask {
        let (lx, l2) = (sum_lx - self.lx, sum_l2 - self.l2);
        let product = x * l2;
        // Written such that what is not a number is in doubt. Near the least numbers, rounding is
        // too coarse to tell.
        let within = (self.least * lx).less(product).and(product.less(self.greatest * lx));
        Reals::ZERO.less(lx).and(within.and(Reals::all(1e-30).less(lx)).not())
    }
}

/// The scale for the nearest levels; then single levels change as long as that lessens the error
/// (ggml's `make_q3_quants`).
#[inline(always)]
pub(super) fn refining<const LEN: usize>(half: u8, x: &[Reals; LEN]) -> Refined<LEN> {
    let (max, zero) = extreme(x);
    let (low, high) = (-i32::from(half), i32::from(half) - 1);
    let iscale = Reals::all(-f32::from(half)) / max;
    let mut shares = [Share::new(half, Reals::ZERO, Reals::ZERO); LEN];
    let (mut sum_lx, mut sum_l2) = (Reals::ZERO, Reals::ZERO);
    for at in 0..LEN {
        let share = Share::new(half, x[at], (iscale * x[at]).nearest_within(low, high));
        sum_lx = sum_lx + share.lx;
        sum_l2 = sum_l2 + share.l2;
        shares[at] = share;
    }

    // Lanes that a pass has not changed do not change any more.
    for _ in 0..5 {
        let mut changed = false;
        for at in 0..LEN {
            let old = shares[at];
            if !old.is_in_doubt(x[at], sum_lx, sum_l2).any() {
                continue;
            }

            let (less_lx, less_l2) = (sum_lx - old.lx, sum_l2 - old.l2);
            let level = (x[at] * less_l2 / less_lx).nearest_within(low, high);
            let new = Share::new(half, x[at], level);
            let (new_lx, new_l2) = (less_lx + new.lx, less_l2 + new.l2);
            let better = (sum_lx * sum_lx * new_l2).less(new_lx * new_lx * sum_l2);
            let applies = Reals::ZERO
                .less(less_lx)
                .and(Reals::ZERO.less(new_l2))
                .and(level.equal(old.level).not());
            let better = better.and(applies);
            changed |= better.any();
            shares[at] = Share::new(half, x[at], better.select(level, old.level));
            sum_lx = better.select(new_lx, sum_lx);
            sum_l2 = better.select(new_l2, sum_l2);
        }

        if !changed {
            break;
        }
    }

    let scale = Reals::ZERO.less(sum_l2).select(sum_lx / sum_l2, Reals::ZERO);
    let mut levels = [Reals::ZERO; LEN];
    for at in 0..LEN {
        levels[at] = shares[at].level;
    }

    Refined { scale: zero.select(Reals::ZERO, scale), half, levels, zero }
}
