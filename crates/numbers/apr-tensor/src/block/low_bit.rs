//! Q1_0 and Q2_0: an f16 scale, then values of one or two bits, the first in the lowest bits of the
//! first byte.
//!
//! Q1_0 (128 values): a set bit means plus the scale, a clear one minus; the scale is the mean
//! magnitude. Q2_0 (64 values): codes 0 to 3 mean -1, 0, 1 and 2 times the scale, which is the
//! greatest magnitude.

use super::extremes::greatest_magnitude;
use super::kernel::{Dequantize, Quantize};
use super::pack::{inverse, low_bits, read_f16, write_f16};
use super::ternary::trit;

pub(super) struct Q1_0;
pub(super) struct Q2_0;

impl Quantize<128, 18> for Q1_0 {
    #[inline(always)]
    fn quantize(values: &[f32; 128], block: &mut [u8; 18]) {
        // In the reference's order.
        let sum = values.iter().fold(0.0, |sum, value| sum + value.abs());
        write_f16(block, 0, sum / 128.0);
        for (byte, values) in block[2..].iter_mut().zip(values.as_chunks::<8>().0) {
            *byte = low_bits(values.map(|value| u8::from(value >= 0.0)));
        }
    }
}

impl Dequantize<128, 18> for Q1_0 {
    #[inline(always)]
    fn dequantize(block: &[u8; 18], values: &mut [f32; 128]) {
        let scale = read_f16(block, 0);
        for (values, &byte) in values.as_chunks_mut::<8>().0.iter_mut().zip(&block[2..]) {
            for (bit, value) in values.iter_mut().enumerate() {
                *value = if byte >> bit & 1 == 1 { scale } else { -scale };
            }
        }
    }
}

impl Quantize<64, 18> for Q2_0 {
    #[inline(always)]
    fn quantize(values: &[f32; 64], block: &mut [u8; 18]) {
        let scale = greatest_magnitude(values);
        let inverse = inverse(scale);
        write_f16(block, 0, scale);
        let mut codes = [0; 64];
        for (code, &value) in codes.iter_mut().zip(values) {
            *code = trit(value * inverse);
        }

        if inverse.is_nan() {
            // What the reference's conversion of an infinity to an integer comes to on its
            // platforms.
            codes = [0; 64];
        }

        for (byte, codes) in block[2..].iter_mut().zip(codes.as_chunks().0) {
            let codes = u32::from_le_bytes(*codes);
            *byte = (codes | codes >> 6 | codes >> 12 | codes >> 18) as u8;
        }
    }
}

impl Dequantize<64, 18> for Q2_0 {
    #[inline(always)]
    fn dequantize(block: &[u8; 18], values: &mut [f32; 64]) {
        let scale = read_f16(block, 0);
        for (values, &byte) in values.as_chunks_mut::<4>().0.iter_mut().zip(&block[2..]) {
            for (i, value) in values.iter_mut().enumerate() {
                *value = (i32::from(byte >> (2 * i) & 3) - 1) as f32 * scale;
            }
        }
    }
}
