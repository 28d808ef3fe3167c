//! MXFP4 and NVFP4: 4-bit floats (E2M1) with one scale for 32 values, or four for 64.
//!
//! MXFP4: a power of two (E8M0), then 16 bytes of nibbles. NVFP4: four scales (E4M3 without sign),
//! then 32 bytes of nibbles, 8 for each 16 values. Nibbles as in Q4_0: the low ones are the first
//! half. ggml counts in halves, so that the values of the codes are the integers 0, 1, 2, 3, 4, 6,
//! 8 and 12, and all scales are half of what the format says.

use super::extremes::greatest_magnitude;
use super::kernel::{Dequantize, Quantize};
use super::pack::{halves, nibbles};
use crate::small_float::F8_E4M3;

pub(super) struct Mxfp4;
pub(super) struct Nvfp4;

/// Twice the value of a code; without negative zero.
#[inline(always)]
fn twice_e2m1(code: u8) -> f32 {
    let magnitude = u32::from(code & 7);
    // Two bits of exponent and one of mantissa, put where f32 has them.
    let normal = f32::from_bits((magnitude << 22) + (127 << 23));
    let value = if magnitude < 2 { magnitude as f32 } else { normal };
    if code & 8 == 0 { value } else { 0.0 - value }
}

impl Quantize<32, 17> for Mxfp4 {
    #[inline(always)]
    fn quantize(values: &[f32; 32], block: &mut [u8; 17]) {
        let greatest = greatest_magnitude(values);
        // The greatest code stands for 6, between 2^2 and 2^3.
        block[0] =
            if greatest > 0.0 { (floor_of_rounded_log2(greatest) - 2 + 127) as u8 } else { 0 };
        let codes = nearest_codes(values, half_of_e8m0(block[0]), greatest);
        block[1..].copy_from_slice(&nibbles(&codes));
    }
}

impl Dequantize<32, 17> for Mxfp4 {
    #[inline(always)]
    fn dequantize(block: &[u8; 17], values: &mut [f32; 32]) {
        let scale = half_of_e8m0(block[0]);
        for (value, &code) in values.iter_mut().zip(&halves(&block[1..])) {
            *value = twice_e2m1(code) * scale;
        }
    }
}

impl Quantize<64, 36> for Nvfp4 {
    #[inline(always)]
    fn quantize(values: &[f32; 64], block: &mut [u8; 36]) {
        let (scales, nibbles) = block.split_at_mut(4);
        let parts = values.as_chunks::<16>().0.iter().zip(nibbles.as_chunks_mut::<8>().0);
        for ((values, nibbles), scale) in parts.zip(scales) {
            let greatest = greatest_magnitude(values);
            *scale = e4m3_of_positive(greatest / 6.0);
            let codes = nearest_codes(values, half_of_e4m3(*scale), greatest);
            for (i, byte) in nibbles.iter_mut().enumerate() {
                *byte = codes[i] | codes[i + 8] << 4;
            }
        }
    }
}

impl Dequantize<64, 36> for Nvfp4 {
    #[inline(always)]
    fn dequantize(block: &[u8; 36], values: &mut [f32; 64]) {
        let (scales, nibbles) = block.split_at(4);
        let parts = values.as_chunks_mut::<16>().0.iter_mut().zip(nibbles.as_chunks::<8>().0);
        for ((values, nibbles), &scale) in parts.zip(scales) {
            let scale = half_of_e4m3(scale);
            let mut codes = [0; 16];
            for (i, &byte) in nibbles.iter().enumerate() {
                codes[i] = byte & 15;
                codes[i + 8] = byte >> 4;
            }
            for (value, code) in values.iter_mut().zip(codes) {
                *value = twice_e2m1(code) * scale;
            }
        }
    }
}

/// Codes of the values nearest in the reference's arithmetic, the lowest code of several that are
/// equally near.
#[inline(always)]
fn nearest_codes<const N: usize>(values: &[f32; N], scale: f32, greatest: f32) -> [u8; N] {
    let mut codes = [0; N];
    if scale == 0.0 {
        return codes;
    }

    if greatest > 4096.0 * scale || (8.0 * scale).is_infinite() {
        // So far beyond the scale, or so close to overflow, distances round to the same float.
        for (code, &value) in codes.iter_mut().zip(values) {
            *code = nearest_by_distance(value, scale);
        }
        return codes;
    }

    // Differences near a midpoint are exact (Sterbenz), so comparing with midpoints decides as
    // distances would.
    let midpoints = [0.5, 1.5, 2.5, 3.5, 5.0, 7.0, 10.0].map(|midpoint| midpoint * scale);
    for (code, &value) in codes.iter_mut().zip(values) {
        let magnitude = value.abs();
        let mut level = 0;
        for midpoint in midpoints {
            level += u8::from(magnitude > midpoint);
        }
        *code = level | u8::from((value < 0.0) & (level > 0)) << 3;
    }

    codes
}

#[cold]
fn nearest_by_distance(value: f32, scale: f32) -> u8 {
    let distance = |code: u8| (twice_e2m1(code) * scale - value).abs();
    (1..16).fold(0, |nearest, code| if distance(code) < distance(nearest) { code } else { nearest })
}

/// The largest integer not above `log2(value)` rounded to `f32`, for a positive value.
///
/// Rounding matters just below a power of two, where the logarithm may round up to the integer.
#[inline(always)]
fn floor_of_rounded_log2(value: f32) -> i32 {
    let bits = value.to_bits();
    let (exponent, significand) = if bits < 1 << 23 {
        let shift = bits.leading_zeros() - 8;
        (-126 - shift.cast_signed(), bits << shift)
    } else {
        ((bits >> 23).cast_signed() - 127, bits & 0x7f_ffff | 1 << 23)
    };

    // value = 2^next * (1 - gap / 2^24), so its logarithm is next - gap * log2(e) / 2^24. That
    // rounds to next when the difference is below half a unit in the last place on the side of
    // smaller values.
    let next = exponent + 1;
    let gap = (1 << 24) - significand;
    let size = if next > 0 { next - 1 } else { -next }.cast_unsigned();

    // 88 = floor(2^7 / log2(e)), for sizes from 2^7 on.
    let rounds_up = size > 0 && gap <= 88 >> (7 - size.ilog2());
    if rounds_up { next } else { exponent }
}

/// Returns half of 2^(code - 127).
///
/// The largest code, which means NaN elsewhere, is no exception here.
#[inline(always)]
fn half_of_e8m0(code: u8) -> f32 {
    let bits = if code < 2 { 1 << 21 << code } else { u32::from(code - 1) << 23 };
    f32::from_bits(bits)
}

/// Half of the value of E4M3 without sign, as the scales of NVFP4 are counted; 0 for the code of
/// NaN.
///
/// The eighth bit counts as none, except that it tells 480 from NaN.
#[must_use]
#[inline(always)]
pub fn half_of_e4m3(code: u8) -> f32 {
    match code {
        0x7f => 0.0,
        0xff => 240.0,
        _ => F8_E4M3[usize::from(code & 0x7f)] * 0.5,
    }
}

/// Rounds to nearest, ties away from zero.
///
/// Returns 448 if the result would be 256 or more, and 0 for values that are not positive.
#[inline(always)]
fn e4m3_of_positive(value: f32) -> u8 {
    const SMALLEST_NORMAL: f32 = 1.0 / 64.0;
    if value.is_nan() || value <= 0.0 {
        0
    } else if value < SMALLEST_NORMAL {
        // In units of 2^-9. The reference rounds what is nearest to the eighth unit, the smallest
        // normal, to the seventh.
        ((value * 512.0 + 0.5) as u8).min(7)
    } else {
        // f32's exponent bias exceeds E4M3's by 120; its mantissa has 20 bits more.
        let rounded = (value.min(448.0).to_bits() - (120 << 23) + (1 << 19)) >> 20;
        // The reference takes the largest exponent for one that is not to be used.
        if rounded >= 15 << 3 { 0x7e } else { rounded as u8 }
    }
}
