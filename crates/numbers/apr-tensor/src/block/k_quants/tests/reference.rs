//! Quantization one element after the other: what the vectorised searches must equal bit for bit.
//!
//! It follows the formulas of `quantize_row_q?_K_ref` (without importance) and
//! `quantize_row_q?_K_impl` (with it) in `ggml-quants.c` of llama.cpp operation by operation: the
//! result is rounded after each.

#![expect(
    clippy::cast_possible_truncation,
    reason = "levels are bounded; what is cut off otherwise, ggml cuts off"
)]

use alloc::vec::Vec;

use apr_core::DType;

use super::super::layout::{
    SUPER, pack_2_bits, pack_4_bits, pack_6_bits, pack_bit, pack_scales, pack_scales_and_mins,
    unpack_scales, unpack_scales_and_mins,
};
use crate::half_float::{f16_to_f32, f32_to_f16};
use crate::square_root::square_root_f32;

/// Below this, a sub-block counts as zero.
const ALL_ZERO: f32 = 1e-15;

pub(super) fn quantize(
    dtype: DType,
    values: &[f32],
    row_len: usize,
    importance: Option<&[f32]>,
    out: &mut Vec<u8>,
) {
    let blocks_per_row = row_len / SUPER;
    for (index, block) in values.as_chunks::<SUPER>().0.iter().enumerate() {
        let importance = importance.map(|all| &all.as_chunks::<SUPER>().0[index % blocks_per_row]);
        match dtype {
            DType::Q2_K => quantize_q2(block, importance, out),
            DType::Q3_K => quantize_q3(block, importance, out),
            DType::Q4_K => quantize_q4_or_q5(15, &Q4_SWEEP, block, importance, out),
            DType::Q5_K => quantize_q4_or_q5(31, &Q5_SWEEP, block, importance, out),
            _ => quantize_q6(block, importance, out),
        }
    }
}

/// Rounds to nearest, ties to even, below 2^22; beyond, it returns what ggml does.
fn nearest(value: f32) -> i32 {
    ((value + 12_582_912.0).to_bits() & 0x007f_ffff) as i32 - 0x0040_0000
}

/// The scales that a search tries: `(first + step * i + levels) / range` for i up to and with
/// `steps`.
struct Sweep {
    first: f32,
    step: f32,
    steps: i32,
    /// Minimises absolute instead of squared differences.
    absolute: bool,
}

const Q2_SWEEP: Sweep = Sweep { first: -0.5, step: 0.1, steps: 15, absolute: true };
const Q4_SWEEP: Sweep = Sweep { first: -1.0, step: 0.1, steps: 20, absolute: false };
const Q5_SWEEP: Sweep = Sweep { first: -0.5, step: 0.1, steps: 15, absolute: false };
const WEIGHTED_SWEEP: Sweep = Sweep { first: -0.9, step: 0.05, steps: 36, absolute: false };

/// `make_qkx2_quants` and `make_qkx3_quants`: x is about scale * level - min. Returns the scale and
/// the minimum.
fn affine_search(
    max_level: i32,
    sweep: &Sweep,
    x: &[f32],
    weights: &[f32],
    levels: &mut [u8],
) -> (f32, f32) {
    let (mut min, mut max) = (x[0], x[0]);
    let mut sum_w = weights[0];
    let mut sum_x = sum_w * x[0];
    for (&x, &w) in x.iter().zip(weights).skip(1) {
        min = if x < min { x } else { min };
        max = if x > max { x } else { max };
        sum_w += w;
        sum_x += w * x;
    }
    min = if min > 0.0 { 0.0 } else { min };
    if max == min {
        levels.fill(0);
        return (0.0, -min);
    }
    let error = |scale: f32, min: f32, levels: &[u8]| {
        x.iter().zip(weights).zip(levels).fold(0.0, |sum, ((&x, &w), &level)| {
            let diff = scale * f32::from(level) + min - x;
            sum + w * if sweep.absolute { diff.abs() } else { diff * diff }
        })
    };
    let round = |iscale: f32, min: f32, levels: &mut [u8]| {
        for (level, &x) in levels.iter_mut().zip(x) {
            *level = nearest(iscale * (x - min)).clamp(0, max_level) as u8;
        }
    };
    let iscale = max_level as f32 / (max - min);
    let mut scale = 1.0 / iscale;
    round(iscale, min, levels);
    let mut best = error(scale, min, levels);
    let mut tried = [0; 32];
    let tried = &mut tried[..levels.len()];
    for at in 0..=sweep.steps {
        let iscale = (sweep.first + sweep.step * at as f32 + max_level as f32) / (max - min);
        round(iscale, min, tried);
        let (mut sum_l, mut sum_l2, mut sum_xl) = (0.0, 0.0, 0.0);
        for ((&x, &w), &level) in x.iter().zip(weights).zip(&*tried) {
            let level = f32::from(level);
            sum_l += w * level;
            sum_l2 += w * level * level;
            sum_xl += w * level * x;
        }
        let determinant = sum_w * sum_l2 - sum_l * sum_l;
        if determinant > 0.0 {
            let mut new_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
            let mut new_min = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
            if new_min > 0.0 {
                new_min = 0.0;
                new_scale = sum_xl / sum_l2;
            }
            let new = error(new_scale, new_min, tried);
            if new < best {
                levels.copy_from_slice(tried);
                (best, scale, min) = (new, new_scale, new_min);
            }
        }
    }
    (scale, -min)
}

/// The element of the greatest magnitude, and that.
fn extreme(x: &[f32]) -> (f32, f32) {
    x.iter().fold(
        (0.0, 0.0),
        |(max, magnitude), &x| if x.abs() > magnitude { (x, x.abs()) } else { (max, magnitude) },
    )
}

/// `make_qx_quants`: x is about scale * (level - half). Returns the scale.
fn symmetric_search(half: i32, x: &[f32], weights: &[f32], levels: &mut [u8]) -> f32 {
    let (max, magnitude) = extreme(x);
    if magnitude < ALL_ZERO {
        levels.fill(0);
        return 0.0;
    }
    let round = |iscale: f32, x: f32| nearest(iscale * x).clamp(-half, half - 1);
    let sums = |iscale: f32| {
        x.iter().zip(weights).fold((0.0, 0.0), |(sum_lx, sum_l2), (&x, &w)| {
            let level = round(iscale, x) as f32;
            (sum_lx + w * x * level, sum_l2 + w * level * level)
        })
    };
    let mut best_iscale = -half as f32 / max;
    let (sum_lx, sum_l2) = sums(best_iscale);
    let mut scale = if sum_l2 == 0.0 { 0.0 } else { sum_lx / sum_l2 };
    let mut best = scale * sum_lx;
    for at in (-9..=9).filter(|&at| at != 0) {
        let iscale = -(half as f32 + 0.1 * at as f32) / max;
        let (sum_lx, sum_l2) = sums(iscale);
        if sum_l2 > 0.0 && sum_lx * sum_lx > best * sum_l2 {
            best_iscale = iscale;
            scale = sum_lx / sum_l2;
            best = scale * sum_lx;
        }
    }
    for (level, &x) in levels.iter_mut().zip(x) {
        *level = (round(best_iscale, x) + half) as u8;
    }
    scale
}

/// `make_q3_quants`: as [`symmetric_search`], but single levels change as long as that lessens the
/// error.
fn refining_search(half: i32, x: &[f32], levels: &mut [u8]) -> f32 {
    let (max, magnitude) = extreme(x);
    if magnitude < ALL_ZERO {
        levels.fill(0);
        return 0.0;
    }
    let round = |value: f32| nearest(value).clamp(-half, half - 1) as f32;
    let iscale = -half as f32 / max;
    let mut rounded = [0.0; 16];
    let (mut sum_lx, mut sum_l2) = (0.0, 0.0);
    for (&x, level) in x.iter().zip(&mut rounded) {
        *level = round(iscale * x);
        sum_lx += x * x * x * *level;
        sum_l2 += x * x * *level * *level;
    }
    for _ in 0..5 {
        let mut changed = false;
        for (&x, level) in x.iter().zip(&mut rounded) {
            let w = x * x;
            let mut new_lx = sum_lx - w * x * *level;
            if new_lx > 0.0 {
                let mut new_l2 = sum_l2 - w * *level * *level;
                let new = round(x * new_l2 / new_lx);
                new_lx += w * x * new;
                new_l2 += w * new * new;
                if new != *level
                    && new_l2 > 0.0
                    && new_lx * new_lx * sum_l2 > sum_lx * sum_lx * new_l2
                {
                    (*level, sum_lx, sum_l2, changed) = (new, new_lx, new_l2, true);
                }
            }
        }
        if !changed {
            break;
        }
    }
    for (level, rounded) in levels.iter_mut().zip(rounded) {
        *level = (rounded as i32 + half) as u8;
    }
    if sum_l2 > 0.0 { sum_lx / sum_l2 } else { 0.0 }
}

/// `make_qp_quants`: x is positive and about scale * level. Returns the scale.
fn positive_search(max_level: i32, x: &[f32], weights: &[f32], levels: &mut [u8]) -> f32 {
    let max = x.iter().fold(0.0, |max, &x| if max > x { max } else { x });
    if max < ALL_ZERO {
        levels.fill(0);
        return 0.0;
    }
    let error = |iscale: f32, round: fn(i32, i32) -> i32| {
        let scale = 1.0 / iscale;
        x.iter().zip(weights).fold(0.0, |sum, (&x, &w)| {
            let diff = x - scale * round(nearest(iscale * x), max_level) as f32;
            sum + w * diff * diff
        })
    };
    let mut iscale = max_level as f32 / max;
    let mut best = error(iscale, |level, _| i32::from(level as u8));
    for at in (-4..=4).filter(|&at| at != 0) {
        let new_iscale = (0.1 * at as f32 + max_level as f32) / max;
        let new = error(new_iscale, i32::min);
        if new < best {
            (best, iscale) = (new, new_iscale);
        }
    }
    let (mut sum_lx, mut sum_l2) = (0.0, 0.0);
    for ((&x, &w), level) in x.iter().zip(weights).zip(&mut *levels) {
        let rounded = nearest(iscale * x).min(max_level);
        *level = rounded as u8;
        sum_lx += w * x * rounded as f32;
        sum_l2 += w * rounded as f32 * rounded as f32;
    }
    for _ in 0..5 {
        let mut changed = false;
        for ((&x, &w), level) in x.iter().zip(weights).zip(&mut *levels) {
            let old = f32::from(*level);
            let mut new_lx = sum_lx - w * x * old;
            let mut new_l2 = sum_l2 - w * old * old;
            if new_lx > 0.0 && new_l2 > 0.0 {
                let new = nearest(x * new_l2 / new_lx).min(max_level);
                new_lx += w * x * new as f32;
                new_l2 += w * new as f32 * new as f32;
                if new != i32::from(*level) && new_lx * new_lx * sum_l2 > sum_lx * sum_lx * new_l2 {
                    (*level, sum_lx, sum_l2, changed) = (new as u8, new_lx, new_l2, true);
                }
            }
        }
        if !changed {
            break;
        }
    }
    if sum_l2 > 0.0 { sum_lx / sum_l2 } else { 0.0 }
}

/// Rounds a sub-block again, with the stored scale and minimum.
///
/// Keeps the levels if that scale is zero.
fn round_again(
    range: core::ops::RangeInclusive<i32>,
    scale: f32,
    min: f32,
    x: &[f32],
    levels: &mut [u8],
) {
    if scale != 0.0 {
        for (level, &x) in levels.iter_mut().zip(x) {
            *level = (nearest((x + min) / scale).clamp(*range.start(), *range.end())
                - range.start()) as u8;
        }
    }
}

fn greatest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |max, &value| if value > max { value } else { max })
}

fn sum(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |sum, value| sum + value)
}

fn sum_of_squares(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |sum, value| sum + value * value)
}

/// Weights of a block's elements from the importance of their columns and the elements' size, and
/// their sums over sub-blocks.
fn weigh<const LEN: usize>(
    x: &[f32],
    importance: &[f32],
    variance: f32,
) -> ([f32; SUPER], Vec<f32>) {
    let mut weights = [0.0; SUPER];
    for ((weight, &x), &importance) in weights.iter_mut().zip(x).zip(importance) {
        *weight = importance * square_root_f32(variance + x * x);
    }
    (weights, weights.chunks(LEN).map(sum).collect())
}

fn quantize_q2(x: &[f32; SUPER], importance: Option<&[f32; SUPER]>, out: &mut Vec<u8>) {
    let (weights, sums, sweep) = match importance {
        None => (x.map(f32::abs), Vec::new(), &Q2_SWEEP),
        Some(importance) => {
            let (weights, sums) = weigh::<16>(x, importance, sum_of_squares(x) / SUPER as f32);
            (weights, sums, &WEIGHTED_SWEEP)
        }
    };
    let (mut levels, mut scales, mut mins) = ([0; SUPER], [0.0; 16], [0.0; 16]);
    for (at, levels) in levels.chunks_mut(16).enumerate() {
        (scales[at], mins[at]) =
            affine_search(3, sweep, &x[16 * at..][..16], &weights[16 * at..][..16], levels);
    }
    let plain = |values: &[f32; 16]| {
        let max = greatest(values);
        if max > 0.0 {
            let iscale = 15.0 / max;
            (values.map(|value| nearest(iscale * value) as u8), f32_to_f16(max / 15.0))
        } else {
            ([0; 16], 0)
        }
    };
    let weighted = |values: &[f32; 16]| {
        let mut levels = [0; 16];
        let scale = positive_search(15, values, &sums, &mut levels);
        (levels, f32_to_f16(scale))
    };
    let ((scales, d), (mins, dmin)) = if importance.is_none() {
        (plain(&scales), plain(&mins))
    } else {
        (weighted(&scales), weighted(&mins))
    };
    let mut packed_scales = [0; 16];
    for (at, levels) in levels.chunks_mut(16).enumerate() {
        let packed = scales[at] | mins[at] << 4;
        packed_scales[at] = packed;
        let (scale, min) =
            (f16_to_f32(d) * f32::from(packed & 15), f16_to_f32(dmin) * f32::from(packed >> 4));
        round_again(0..=3, scale, min, &x[16 * at..][..16], levels);
    }
    let mut packed = [0; 64];
    pack_2_bits(&levels, &mut packed);
    out.extend(packed_scales);
    out.extend(packed);
    out.extend(d.to_le_bytes());
    out.extend(dmin.to_le_bytes());
}

fn quantize_q3(x: &[f32; SUPER], importance: Option<&[f32; SUPER]>, out: &mut Vec<u8>) {
    let (mut levels, mut scales) = ([0; SUPER], [0.0; 16]);
    let (packed_scales, d) = if let Some(importance) = importance {
        let (weights, sums) = weigh::<16>(x, importance, 2.0 * sum_of_squares(x) / SUPER as f32);
        for (at, levels) in levels.chunks_mut(16).enumerate() {
            scales[at] =
                symmetric_search(4, &x[16 * at..][..16], &weights[16 * at..][..16], levels);
        }
        let mut rounded = [0; 16];
        let d = symmetric_search(32, &scales, &sums, &mut rounded);
        (pack_scales(&rounded), f32_to_f16(d))
    } else {
        for (at, levels) in levels.chunks_mut(16).enumerate() {
            scales[at] = refining_search(4, &x[16 * at..][..16], levels);
        }
        let (max, _) = extreme(&scales);
        if max == 0.0 {
            ([0; 12], 0)
        } else {
            let iscale = -32.0 / max;
            let round = |scale: f32| ((nearest(iscale * scale) as i8).clamp(-32, 31) + 32) as u8;
            (pack_scales(&scales.map(round)), f32_to_f16(1.0 / iscale))
        }
    };
    let stored = unpack_scales(&packed_scales);
    for (at, levels) in levels.chunks_mut(16).enumerate() {
        let scale = f16_to_f32(d) * (f32::from(stored[at]) - 32.0);
        round_again(-4..=3, scale, 0.0, &x[16 * at..][..16], levels);
    }
    let (mut high, mut low) = ([0; 32], [0; 64]);
    pack_bit::<2>(&levels, &mut high);
    pack_2_bits(&levels, &mut low);
    out.extend(high);
    out.extend(low);
    out.extend(packed_scales);
    out.extend(d.to_le_bytes());
}

fn quantize_q4_or_q5(
    max_level: i32,
    sweep: &Sweep,
    x: &[f32; SUPER],
    importance: Option<&[f32; SUPER]>,
    out: &mut Vec<u8>,
) {
    let mut weights = [0.0; SUPER];
    let (mut sums, mut sweep) = (Vec::new(), sweep);
    if let Some(importance) = importance {
        sweep = &WEIGHTED_SWEEP;
        (weights, sums) = weigh::<32>(x, importance, 2.0 * sum_of_squares(x) / SUPER as f32);
    } else {
        for (weights, x) in weights.chunks_mut(32).zip(x.chunks(32)) {
            let average = square_root_f32(sum_of_squares(x) / 32.0);
            for (weight, x) in weights.iter_mut().zip(x) {
                *weight = average + x.abs();
            }
        }
    }
    let (mut levels, mut scales, mut mins) = ([0; SUPER], [0.0; 8], [0.0; 8]);
    for (at, levels) in levels.chunks_mut(32).enumerate() {
        (scales[at], mins[at]) =
            affine_search(max_level, sweep, &x[32 * at..][..32], &weights[32 * at..][..32], levels);
    }
    let plain = |values: &[f32; 8]| {
        let max = greatest(values);
        let iscale = if max > 0.0 { 63.0 / max } else { 0.0 };
        (values.map(|value| (nearest(iscale * value) as u8).min(63)), f32_to_f16(max / 63.0))
    };
    let weighted = |values: &[f32; 8]| {
        let mut levels = [0; 8];
        let scale = positive_search(63, values, &sums, &mut levels);
        (levels, f32_to_f16(scale))
    };
    let ((mut scales, d), (mut mins, dmin)) = if importance.is_none() {
        (plain(&scales), plain(&mins))
    } else {
        (weighted(&scales), weighted(&mins))
    };
    if max_level == 31 {
        (scales, mins) = (scales.map(|scale| scale.min(63)), mins.map(|min| min.min(63)));
    }
    let packed_scales = pack_scales_and_mins(&scales, &mins);
    let (scales, mins) = unpack_scales_and_mins(&packed_scales);
    for (at, levels) in levels.chunks_mut(32).enumerate() {
        let (scale, min) =
            (f16_to_f32(d) * f32::from(scales[at]), f16_to_f32(dmin) * f32::from(mins[at]));
        round_again(0..=max_level, scale, min, &x[32 * at..][..32], levels);
    }
    out.extend(d.to_le_bytes());
    out.extend(dmin.to_le_bytes());
    out.extend(packed_scales);
    if max_level == 31 {
        let mut high = [0; 32];
        pack_bit::<4>(&levels, &mut high);
        out.extend(high);
    }
    let mut low = [0; 128];
    pack_4_bits(&levels, &mut low);
    out.extend(low);
}

fn quantize_q6(x: &[f32; SUPER], importance: Option<&[f32; SUPER]>, out: &mut Vec<u8>) {
    let weights = importance.copied().unwrap_or_else(|| x.map(|x| x * x));
    let (mut levels, mut scales) = ([0; SUPER], [0.0; 16]);
    for (at, levels) in levels.chunks_mut(16).enumerate() {
        scales[at] = symmetric_search(32, &x[16 * at..][..16], &weights[16 * at..][..16], levels);
    }
    let (max, magnitude) = extreme(&scales);
    if magnitude < ALL_ZERO {
        out.extend([0; 210]);
        return;
    }
    let iscale = -128.0 / max;
    let d = f32_to_f16(1.0 / iscale);
    let scales = scales.map(|scale| nearest(iscale * scale).min(127) as i8);
    for (at, levels) in levels.chunks_mut(16).enumerate() {
        round_again(
            -32..=31,
            f16_to_f32(d) * f32::from(scales[at]),
            0.0,
            &x[16 * at..][..16],
            levels,
        );
    }
    let (mut low, mut high) = ([0; 128], [0; 64]);
    pack_6_bits(&levels, &mut low, &mut high);
    out.extend(low);
    out.extend(high);
    out.extend(scales.map(|scale| scale as u8));
    out.extend(d.to_le_bytes());
}
