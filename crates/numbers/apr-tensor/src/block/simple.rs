//! The types of 32 elements with one scale: Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, and Q8_1, which is only
//! read.
//!
//! Layouts (ggml's `block_*`): an f16 scale; in the `_1` types an f16 minimum (Q8_1: the sum of the
//! block); in the 5-bit types 32 fifth bits, element 0 in the lowest; then 16 bytes with element i
//! in the low nibble of byte i and element i + 16 in the high one, or 32 signed bytes.

use super::extremes::{first_of_greatest_magnitude, greatest_magnitude, least_and_greatest};
use super::kernel::{Dequantize, Quantize};
use super::lanes::{BELOW_HALF, nearest_i32};
use super::pack::{decode_nibbles, fifth_bits, halves, inverse, nibbles, read_f16, write_f16};

pub(super) struct Q8_0;
pub(super) struct Q8_1;
pub(super) struct Q4_0;
pub(super) struct Q4_1;
pub(super) struct Q5_0;
pub(super) struct Q5_1;

impl Quantize<32, 34> for Q8_0 {
    #[inline(always)]
    fn quantize(values: &[f32; 32], block: &mut [u8; 34]) {
        let scale = greatest_magnitude(values) / 127.0;
        let inverse = inverse(scale);
        write_f16(block, 0, scale);
        for (byte, &value) in block[2..].iter_mut().zip(values) {
            *byte = round_half_away(value * inverse) as u8;
        }
    }

    fn quantize_in_hardware(values: &[[f32; 32]], blocks: &mut [[u8; 34]]) -> usize {
        match super::avx512::quantize_q8_0(values, blocks) {
            0 => super::avx2::quantize_q8_0(values, blocks),
            done => done,
        }
    }
}

/// The integer part of a number from 0 to 2^22; 0 for NaN.
#[inline(always)]
fn truncated(value: f32) -> i32 {
    // Unlike a conversion, which saturates, this vectorises.
    let nearest = nearest_i32(value);
    nearest - i32::from(nearest as f32 > value)
}

/// To nearest, ties away from zero, for magnitudes below 2^22; 0 for NaN.
#[inline(always)]
fn round_half_away(value: f32) -> i32 {
    let magnitude = truncated(value.abs() + BELOW_HALF);
    if value < 0.0 { -magnitude } else { magnitude }
}

impl Dequantize<32, 34> for Q8_0 {
    #[inline(always)]
    fn dequantize(block: &[u8; 34], values: &mut [f32; 32]) {
        let scale = read_f16(block, 0);
        for (value, &byte) in values.iter_mut().zip(&block[2..]) {
            *value = f32::from(byte.cast_signed()) * scale;
        }
    }
}

impl Dequantize<32, 36> for Q8_1 {
    #[inline(always)]
    fn dequantize(block: &[u8; 36], values: &mut [f32; 32]) {
        let scale = read_f16(block, 0);
        for (value, &byte) in values.iter_mut().zip(&block[4..]) {
            *value = f32::from(byte.cast_signed()) * scale;
        }
    }
}

impl Quantize<32, 18> for Q4_0 {
    #[inline(always)]
    fn quantize(values: &[f32; 32], block: &mut [u8; 18]) {
        let (scale, levels) = signed_levels::<8>(values);
        write_f16(block, 0, scale);
        block[2..].copy_from_slice(&nibbles(&levels));
    }

    fn quantize_in_hardware(values: &[[f32; 32]], blocks: &mut [[u8; 18]]) -> usize {
        super::avx2::quantize_q4_0(values, blocks)
    }
}

impl Quantize<32, 22> for Q5_0 {
    #[inline(always)]
    fn quantize(values: &[f32; 32], block: &mut [u8; 22]) {
        let (scale, levels) = signed_levels::<16>(values);
        write_f16(block, 0, scale);
        block[2..6].copy_from_slice(&fifth_bits(&levels));
        block[6..].copy_from_slice(&nibbles(&levels));
    }
}

impl Quantize<32, 20> for Q4_1 {
    #[inline(always)]
    fn quantize(values: &[f32; 32], block: &mut [u8; 20]) {
        let (scale, least, levels) = levels_above_least::<15>(values);
        write_f16(block, 0, scale);
        write_f16(block, 2, least);
        block[4..].copy_from_slice(&nibbles(&levels));
    }
}

impl Quantize<32, 24> for Q5_1 {
    #[inline(always)]
    fn quantize(values: &[f32; 32], block: &mut [u8; 24]) {
        let (scale, least, levels) = levels_above_least::<31>(values);
        write_f16(block, 0, scale);
        write_f16(block, 2, least);
        block[4..8].copy_from_slice(&fifth_bits(&levels));
        block[8..].copy_from_slice(&nibbles(&levels));
    }
}

/// Returns the scale and the levels 0 to 2 * `HALF` - 1.
///
/// `HALF` represents zero, and the value of greatest magnitude is at level 0.
#[inline(always)]
fn signed_levels<const HALF: u8>(values: &[f32; 32]) -> (f32, [u8; 32]) {
    let half = f32::from(HALF);
    let scale = first_of_greatest_magnitude(values) / -half;
    let inverse = inverse(scale);
    let mut levels = [0; 32];
    for (level, &value) in levels.iter_mut().zip(values) {
        *level = truncated(value * inverse + (half + 0.5)).min(2 * i32::from(HALF) - 1) as u8;
    }
    (scale, levels)
}

/// Scale, least value, and levels 0 to `TOP` above it.
#[inline(always)]
fn levels_above_least<const TOP: u8>(values: &[f32; 32]) -> (f32, f32, [u8; 32]) {
    let (mut least, greatest) = least_and_greatest(values);
    if least == 0.0 {
        // The reference keeps the first of several equal values, which shows where zeros differ in
        // sign.
        least = values.iter().copied().find(|&value| value == 0.0).unwrap_or(least);
    }

    // The sum with zero is positive, whatever the signs of the zeros of an all-zero block.
    let scale = (greatest - least + 0.0) / f32::from(TOP);
    let inverse = inverse(scale);
    let mut levels = [0; 32];
    for (level, &value) in levels.iter_mut().zip(values) {
        *level = truncated((value - least) * inverse + 0.5).min(TOP.into()) as u8;
    }

    (scale, least, levels)
}

impl Dequantize<32, 18> for Q4_0 {
    #[inline(always)]
    fn dequantize(block: &[u8; 18], values: &mut [f32; 32]) {
        let scale = read_f16(block, 0);
        decode_nibbles(&block[2..], values, |level| (level - 8) as f32 * scale);
    }
}

impl Dequantize<32, 20> for Q4_1 {
    #[inline(always)]
    fn dequantize(block: &[u8; 20], values: &mut [f32; 32]) {
        let (scale, least) = (read_f16(block, 0), read_f16(block, 2));
        decode_nibbles(&block[4..], values, |level| level as f32 * scale + least);
    }
}

impl Dequantize<32, 22> for Q5_0 {
    #[inline(always)]
    fn dequantize(block: &[u8; 22], values: &mut [f32; 32]) {
        let scale = read_f16(block, 0);
        let fifth = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
        for (i, (value, level)) in values.iter_mut().zip(halves(&block[6..])).enumerate() {
            *value =
                ((i32::from(level) | (fifth >> i << 4 & 16).cast_signed()) - 16) as f32 * scale;
        }
    }
}

impl Dequantize<32, 24> for Q5_1 {
    #[inline(always)]
    fn dequantize(block: &[u8; 24], values: &mut [f32; 32]) {
        let (scale, least) = (read_f16(block, 0), read_f16(block, 2));
        let fifth = u32::from_le_bytes([block[4], block[5], block[6], block[7]]);
        for (i, (value, level)) in values.iter_mut().zip(halves(&block[8..])).enumerate() {
            *value =
                (i32::from(level) | (fifth >> i << 4 & 16).cast_signed()) as f32 * scale + least;
        }
    }
}
