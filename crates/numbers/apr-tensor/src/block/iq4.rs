//! IQ4_NL and IQ4_XS: 4-bit codes of 16 unevenly spaced levels.
//!
//! IQ4_NL (32 values): an f16 scale, then 16 bytes of nibbles as in Q4_0. IQ4_XS (256 values): an
//! f16 scale, the upper two bits of eight scales (u16, the first lowest), their lower four bits (4
//! bytes, the first lowest), then the nibbles of eight times 32 values. Those scales count from
//! -32.

use super::kernel::{Dequantize, Importance, QuantizeGroups, Spread};
use super::lanes::{BLOCK, Columns, LANES, Lanes, Weights, nearest_i32, without_small};
use super::pack::{nibbles, read_f16, write_f16};

pub(super) struct Iq4Nl;
pub(super) struct Iq4Xs;

/// The levels of the codes.
const LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Scales that are tried for a block, in addition to the first.
///
/// They put the extreme value at -127 plus these numbers.
const TRIES: core::ops::RangeInclusive<i8> = -7..=7;

/// Halfway between a level and the one before.
///
/// The reference compares a value's distances from both, in `f32`. Near the midpoint both are
/// exact, so comparing with the midpoint decides alike; a tie goes to the upper level.
const fn midpoint(code: usize) -> f32 {
    (LEVELS[code - 1] as f32 + LEVELS[code] as f32) / 2.0
}

/// The level nearest to a value; the last for NaN.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "over the levels themselves it is a fifth slower")]
fn nearest_level(value: f32) -> f32 {
    let mut level = f32::from(LEVELS[0]);
    for code in 1..16 {
        level = if value < midpoint(code) { level } else { f32::from(LEVELS[code]) };
    }
    level
}

/// The code of the nearest level.
#[inline(always)]
fn nearest_code(value: f32) -> u8 {
    let mut nearest = 15;
    for code in 1..16 {
        nearest -= u8::from(value < midpoint(code));
    }
    nearest
}

/// The scale that costs least for each of a few blocks.
#[inline(always)]
fn search(columns: &Columns, weights: &Weights) -> Lanes {
    let greatest = columns.first_of_greatest_magnitude();
    let lowest = f32::from(LEVELS[0]);
    let mut factor = [0.0; LANES];
    for lane in 0..LANES {
        factor[lane] = 1.0 / (-greatest[lane] / lowest);
    }

    let (products, squares) = fit(columns, weights, &factor);
    let (mut scale, mut best) = ([0.0; LANES], [0.0; LANES]);
    for lane in 0..LANES {
        scale[lane] = if squares[lane] > 0.0 { products[lane] / squares[lane] } else { 0.0 };
        best[lane] = scale[lane] * products[lane];
    }

    for offset in TRIES {
        for lane in 0..LANES {
            factor[lane] = (f32::from(offset) + lowest) / greatest[lane];
        }
        let (products, squares) = fit(columns, weights, &factor);
        for lane in 0..LANES {
            let better = (squares[lane] > 0.0)
                & (products[lane] * products[lane] > best[lane] * squares[lane]);
            let fitted = products[lane] / squares[lane];
            scale[lane] = if better { fitted } else { scale[lane] };
            best[lane] = if better { fitted * products[lane] } else { best[lane] };
        }
    }

    without_small(scale, &greatest)
}

/// Weighted sums of level times value, and of the level's square, with the levels that a factor
/// leads to.
#[inline(always)]
fn fit(columns: &Columns, weights: &Weights, factor: &Lanes) -> (Lanes, Lanes) {
    let (mut products, mut squares) = ([0.0; LANES], [0.0; LANES]);
    for (values, weights) in columns.0.iter().zip(&weights.0) {
        for lane in 0..LANES {
            let level = nearest_level(factor[lane] * values[lane]);
            let weighted = weights[lane] * level;
            products[lane] += weighted * values[lane];
            squares[lane] += weighted * level;
        }
    }
    (products, squares)
}

/// Without importance, an error costs the value's square.
#[inline(always)]
fn weights<const N: usize>(columns: &Columns, importance: Option<&Importance<'_, N>>) -> Weights {
    match importance {
        Some(importance) => Columns::of(importance.blocks()).weights(columns, &importance.spreads),
        None => columns.squares(),
    }
}

#[inline(always)]
fn codes(values: &[f32; BLOCK], factor: f32) -> [u8; BLOCK] {
    let mut codes = [0; BLOCK];
    for (code, &value) in codes.iter_mut().zip(values) {
        *code = nearest_code(factor * value);
    }
    codes
}

/// The reference's `d ? 1 / d : 0`.
#[inline(always)]
fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

impl QuantizeGroups<32, 18> for Iq4Nl {
    const SPREAD: Spread = Spread::Block;

    #[inline(always)]
    fn quantize(
        values: &[[f32; 32]],
        importance: Option<&Importance<'_, 32>>,
        blocks: &mut [[u8; 18]],
    ) {
        let columns = Columns::of(values);
        let scales = search(&columns, &weights(&columns, importance));
        for ((values, block), scale) in values.iter().zip(blocks).zip(scales) {
            write_f16(block, 0, scale);
            block[2..].copy_from_slice(&nibbles(&codes(values, inverse(scale))));
        }
    }
}

impl QuantizeGroups<256, 136> for Iq4Xs {
    const SPREAD: Spread = Spread::Block;

    #[inline(always)]
    fn quantize(
        values: &[[f32; 256]],
        importance: Option<&Importance<'_, 256>>,
        blocks: &mut [[u8; 136]],
    ) {
        let columns = Columns::of(values.as_flattened().as_chunks().0);
        let scales = search(&columns, &weights(&columns, importance));
        for ((values, block), scales) in values.iter().zip(blocks).zip(scales.as_chunks::<8>().0) {
            write_super_block(values, scales, block);
        }
    }
}

/// Rounds the scales of eight blocks to multiples of a common one, and the values with those.
#[inline(always)]
fn write_super_block(values: &[f32; 256], scales: &[f32; 8], block: &mut [u8; 136]) {
    let greatest =
        scales.iter().fold(
            0.0_f32,
            |greatest, &scale| if scale.abs() > greatest.abs() { scale } else { greatest },
        );
    let unit = -greatest / 32.0;
    write_f16(block, 0, unit);
    let inverse_unit = inverse(unit);
    let (mut upper, mut lower) = (0_u16, 0_u32);
    for (i, (values, &scale)) in values.as_chunks().0.iter().zip(scales).enumerate() {
        let multiple = nearest_i32(inverse_unit * scale).clamp(-32, 31);
        let codes = codes(values, inverse(unit * multiple as f32));
        block[8 + 16 * i..][..16].copy_from_slice(&nibbles(&codes));
        let stored = (multiple + 32).cast_unsigned();
        lower |= (stored & 15) << (4 * i);
        upper |= ((stored >> 4) as u16) << (2 * i);
    }

    block[2..4].copy_from_slice(&upper.to_le_bytes());
    block[4..8].copy_from_slice(&lower.to_le_bytes());
}

impl Dequantize<32, 18> for Iq4Nl {
    #[inline(always)]
    fn dequantize(block: &[u8; 18], values: &mut [f32; 32]) {
        write_values(&block[2..], read_f16(block, 0), values);
    }
}

impl Dequantize<256, 136> for Iq4Xs {
    #[inline(always)]
    fn dequantize(block: &[u8; 136], values: &mut [f32; 256]) {
        let unit = read_f16(block, 0);
        let upper = u32::from(block[2]) | u32::from(block[3]) << 8;
        let lower = u32::from_le_bytes([block[4], block[5], block[6], block[7]]);
        for (i, (values, bytes)) in
            values.as_chunks_mut().0.iter_mut().zip(block[8..].as_chunks::<16>().0).enumerate()
        {
            let stored = lower >> (4 * i) & 15 | (upper >> (2 * i) & 3) << 4;
            write_values(bytes, unit * (stored.cast_signed() - 32) as f32, values);
        }
    }
}

#[inline(always)]
fn write_values(bytes: &[u8], scale: f32, values: &mut [f32; 32]) {
    let products = LEVELS.map(|level| scale * f32::from(level));
    for i in 0..16 {
        values[i] = products[usize::from(bytes[i] & 15)];
        values[i + 16] = products[usize::from(bytes[i] >> 4)];
    }
}
