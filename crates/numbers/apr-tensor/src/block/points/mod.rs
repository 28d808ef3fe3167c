//! Quantizing to points of a grid: IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS and IQ3_S.
//!
//! These types store groups of four or eight values as the number of a point of a fixed grid, times
//! a scale. A search tries a few dozen scales for each sub-block. For each scale, every group goes
//! to the point that its rounded values make, or, where the grid lacks that point, to the best of
//! the points around it. Which points these are is the same for all tensors: [`Grid`] finds that
//! out once.
//!
//! The results are ggml's to the bit, so every sum is added up in its order. What has no order runs
//! side by side: the levels of a sub-block's values, the sums of the different scales, the ways to
//! cut a sorted sub-block in three.

pub(super) mod grid;
mod ternary_points;
mod tries;
mod unsigned_points;

use alloc::vec::Vec;

use super::kernel::{QuantizeToPoints, quantize_to_points, room};
use grid::SUPER;
pub(super) use grid::{EIGHT, FOUR};
pub(super) use ternary_points::{Iq1M, Iq1S};
pub(super) use unsigned_points::{Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs};

/// Appends the super-blocks of whole rows to `out`.
pub(super) fn append<T: QuantizeToPoints<B, WIDTH>, const B: usize, const WIDTH: usize>(
    values: &[f32],
    importance: Option<&[f32]>,
    out: &mut Vec<u8>,
) {
    let importance = importance.map(|weights| weights.as_chunks().0);
    let blocks = room::<SUPER, B>(values.len(), out);
    T::with_grid(|grid| {
        quantize_to_points::<T, B, WIDTH>(values.as_chunks().0, importance, grid, blocks);
    });
}

/// The sum of a super-block's squares, in order.
#[inline(always)]
fn sum_of_squares(values: &[f32; SUPER]) -> f32 {
    values.iter().fold(0.0, |sum, &value| sum + value * value)
}

/// Importance, times the root of a value's square and a constant of its super-block.
#[inline(always)]
fn weigh<const LEN: usize>(
    values: &[f32; LEN],
    importance: &[f32; LEN],
    spread: f32,
) -> [f32; LEN] {
    let mut weights = [0.0; LEN];
    for ((weight, &value), &importance) in weights.iter_mut().zip(values).zip(importance) {
        *weight = importance * crate::square_root::square_root_f32(spread + value * value);
    }
    weights
}

/// The number of a scale that is stored as an odd multiple of a unit, of `COUNT` such multiples.
#[inline(always)]
fn odd_multiple<const COUNT: u8>(inverse_unit: f32, scale: f32) -> u8 {
    super::lanes::nearest_i32(0.5 * (inverse_unit * scale - 1.0)).clamp(0, i32::from(COUNT) - 1)
        as u8
}
