//! Reads the IQ types whose groups of 4 or 8 elements are points of a grid: IQ2_XXS, IQ2_XS, IQ2_S,
//! IQ3_XXS, IQ3_S, IQ1_S and IQ1_M. All have super-blocks of 256 values, in eight parts of 32.
//!
//! The grids of 2 and 3 bits hold magnitudes; signs are stored apart, 8 a byte, or 7 bits of which
//! the eighth is the parity. The grid of 1 bit holds -1, 0 and 1, shifted up or down by an eighth.

use super::iq_grids;
use super::kernel::Dequantize;
use super::pack::read_f16;
use crate::half_float::f16_to_f32;

pub(super) struct Iq2Xxs;
pub(super) struct Iq2Xs;
pub(super) struct Iq2S;
pub(super) struct Iq3Xxs;
pub(super) struct Iq3S;
pub(super) struct Iq1S;
pub(super) struct Iq1M;

#[inline(always)]
fn read_u16(bytes: &[u8], index: usize) -> u16 {
    u16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]])
}

#[inline(always)]
fn read_u32(bytes: &[u8], index: usize) -> u32 {
    let [low, high] = [0, 1].map(|half| u32::from(read_u16(bytes, 2 * index + half)));
    low | high << 16
}

/// Eight signs of which seven are stored: an even number of them is negative.
#[inline(always)]
fn even_signs(stored: u32) -> u8 {
    let seven = stored as u8 & 127;
    seven | (seven.count_ones() as u8 & 1) << 7
}

/// Magnitudes of a grid's point, times a scale, with a set bit for each negative value.
#[inline(always)]
fn write_signed(magnitudes: &[u8], signs: u8, scale: f32, values: &mut [f32]) {
    for (i, (value, &magnitude)) in values.iter_mut().zip(magnitudes).enumerate() {
        let product = scale * f32::from(magnitude);
        *value = if signs >> i & 1 == 1 { -product } else { product };
    }
}

/// A scale of 4 bits that counts in halves, from a half.
#[inline(always)]
fn odd_halves(unit: f32, stored: u32) -> f32 {
    unit * (0.5 + (stored & 15) as f32)
}

/// Layout: f16 scale; for each part 4 bytes of grid indices, then u32: four times 7 signs from the
/// lowest bits, 4 bits of scale.
impl Dequantize<256, 66> for Iq2Xxs {
    #[inline(always)]
    fn dequantize(block: &[u8; 66], values: &mut [f32; 256]) {
        let unit = read_f16(block, 0);
        for (part, values) in
            block[2..].as_chunks::<8>().0.iter().zip(values.as_chunks_mut::<32>().0)
        {
            let signs_and_scale = read_u32(part, 1);
            let scale = odd_halves(unit, signs_and_scale >> 28) * 0.25;
            for (i, values) in values.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                let point = &iq_grids::IQ2_XXS[usize::from(part[i])];
                write_signed(point, even_signs(signs_and_scale >> (7 * i)), scale, values);
            }
        }
    }
}

/// Layout: f16 scale; 32 u16 of 9 bits of grid index and 7 signs; 8 bytes of two scales.
impl Dequantize<256, 74> for Iq2Xs {
    #[inline(always)]
    fn dequantize(block: &[u8; 74], values: &mut [f32; 256]) {
        let unit = read_f16(block, 0);
        for (i, values) in values.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let stored = read_u16(&block[2..66], i);
            let scale = odd_halves(unit, u32::from(block[66 + i / 4]) >> (i / 2 % 2 * 4)) * 0.25;
            let point = &iq_grids::IQ2_XS[usize::from(stored & 511)];
            write_signed(point, even_signs(u32::from(stored >> 9)), scale, values);
        }
    }
}

/// Layout: f16 scale; 32 bytes of the grid indices' low bits; 32 bytes of signs; 8 bytes of four
/// indices' upper two bits; 8 bytes of two scales.
impl Dequantize<256, 82> for Iq2S {
    #[inline(always)]
    fn dequantize(block: &[u8; 82], values: &mut [f32; 256]) {
        let unit = read_f16(block, 0);
        for (i, values) in values.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let upper = usize::from(block[66 + i / 4]) >> (i % 4 * 2) & 3;
            let scale = odd_halves(unit, u32::from(block[74 + i / 4]) >> (i / 2 % 2 * 4)) * 0.25;
            let point = &iq_grids::IQ2_S[usize::from(block[2 + i]) | upper << 8];
            write_signed(point, block[34 + i], scale, values);
        }
    }
}

/// Layout: f16 scale; 64 bytes of grid indices; for each part u32: four times 7 signs, 4 bits of
/// scale.
impl Dequantize<256, 98> for Iq3Xxs {
    #[inline(always)]
    fn dequantize(block: &[u8; 98], values: &mut [f32; 256]) {
        let unit = read_f16(block, 0);
        let indices = block[2..66].as_chunks::<2>().0;
        for (i, (values, indices)) in
            values.as_chunks_mut::<8>().0.iter_mut().zip(indices).enumerate()
        {
            let signs_and_scale = read_u32(&block[66..], i / 4);
            let scale = odd_halves(unit, signs_and_scale >> 28) * 0.5;
            let points = indices.map(|index| iq_grids::IQ3_XXS[usize::from(index)]);
            write_signed(
                points.as_flattened(),
                even_signs(signs_and_scale >> (i % 4 * 7)),
                scale,
                values,
            );
        }
    }
}

/// Layout: f16 scale; 64 bytes of the grid indices' low bits; 8 bytes of eight indices' ninth bits;
/// 32 bytes of signs; 4 bytes of two scales, which are the odd numbers.
impl Dequantize<256, 110> for Iq3S {
    #[inline(always)]
    fn dequantize(block: &[u8; 110], values: &mut [f32; 256]) {
        let unit = read_f16(block, 0);
        let indices = block[2..66].as_chunks::<2>().0;
        for (i, (values, indices)) in
            values.as_chunks_mut::<8>().0.iter_mut().zip(indices).enumerate()
        {
            let ninths = usize::from(block[66 + i / 4]) >> (i % 4 * 2);
            let scale = unit * odd(u16::from(block[106 + i / 8] >> (i / 4 % 2 * 4) & 15));
            let points = [ninths & 1, ninths >> 1 & 1];
            let points =
                [0, 1].map(|half| iq_grids::IQ3_S[usize::from(indices[half]) | points[half] << 8]);
            write_signed(points.as_flattened(), block[74 + i], scale, values);
        }
    }
}

/// The odd number with an index.
#[inline(always)]
fn odd(index: u16) -> f32 {
    f32::from(2 * index + 1)
}

/// A point of the 1-bit grid, shifted and scaled.
#[inline(always)]
fn write_shifted(index: usize, down: bool, scale: f32, values: &mut [f32; 8]) {
    let shift = if down { -0.125 } else { 0.125 };
    for (value, &level) in values.iter_mut().zip(&iq_grids::IQ1[index]) {
        *value = scale * (f32::from(level) + shift);
    }
}

/// Layout: f16 scale; 32 bytes of the grid indices' low bits; for each part u16: four times three
/// upper bits, three bits of scale, one for a shift downwards.
impl Dequantize<256, 50> for Iq1S {
    #[inline(always)]
    fn dequantize(block: &[u8; 50], values: &mut [f32; 256]) {
        let unit = read_f16(block, 0);
        for (i, values) in values.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let part = read_u16(&block[34..], i / 4);
            let upper = usize::from(part >> (i % 4 * 3) & 7);
            let scale = unit * odd(part >> 12 & 7);
            write_shifted(usize::from(block[2 + i]) | upper << 8, part >> 15 == 1, scale, values);
        }
    }
}

/// Layout: 32 bytes of the grid indices' low bits; 16 bytes of two times three upper bits and one
/// for a shift downwards; four u16 of four times three bits of scale, each for 16 values, and four
/// bits of the f16 scale, lowest first.
impl Dequantize<256, 56> for Iq1M {
    #[inline(always)]
    fn dequantize(block: &[u8; 56], values: &mut [f32; 256]) {
        let scales = [0, 1, 2, 3].map(|i| read_u16(&block[48..], i));
        let unit = f16_to_f32(scales.iter().rev().fold(0, |unit, &part| unit << 4 | part >> 12));
        for (i, values) in values.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let upper = block[32 + i / 2] >> (i % 2 * 4);
            let scale = unit * odd(scales[i / 8] >> (i / 2 % 4 * 3) & 7);
            write_shifted(
                usize::from(block[i]) | usize::from(upper & 7) << 8,
                upper & 8 == 8,
                scale,
                values,
            );
        }
    }
}
