//! TQ1_0 and TQ2_0: 256 values of -1, 0 and 1 times an f16 scale, the greatest magnitude, which
//! comes last.
//!
//! TQ2_0 has 2 bits a value (value + 1) in two runs of 32 bytes: bits 2n of byte m are value m + 32
//! n of the run's 128. TQ1_0 has five values a byte, as the digits of a number to base 3 that is
//! read as a fraction of 256, so that each multiplication by 3 carries the next digit out. Three
//! runs: 32 bytes for 160 values, 16 bytes for 80 (digit n of byte m is value m + 32 n, or m + 16
//! n), and 4 bytes of four digits for the last 16 (m + 4 n).

use super::extremes::greatest_magnitude;
use super::kernel::{Dequantize, Quantize};
use super::pack::{inverse, read_f16, write_f16};

pub(super) struct Tq1_0;
pub(super) struct Tq2_0;

/// One more than the nearest of -1, 0 and 1, ties away from zero; 1 for NaN.
#[inline(always)]
pub(super) fn trit(value: f32) -> u8 {
    1 + u8::from(value >= 0.5) - u8::from(value <= -0.5)
}

/// Writes the scale, which takes the last two bytes, and returns the values' trits.
#[inline(always)]
fn scale_and_trits(values: &[f32; 256], block: &mut [u8]) -> [u8; 256] {
    let scale = greatest_magnitude(values);
    let inverse = inverse(scale);
    write_f16(block, block.len() - 2, scale);
    let mut trits = [0; 256];
    for (trit_of, &value) in trits.iter_mut().zip(values) {
        *trit_of = trit(value * inverse);
    }
    trits
}

impl Quantize<256, 54> for Tq1_0 {
    #[inline(always)]
    fn quantize(values: &[f32; 256], block: &mut [u8; 54]) {
        let trits = scale_and_trits(values, block);
        pack_digits::<32, 5>(&trits[..160], &mut block[..32]);
        pack_digits::<16, 5>(&trits[160..240], &mut block[32..48]);
        pack_digits::<4, 4>(&trits[240..], &mut block[48..52]);
    }
}

/// `DIGITS` runs of `BYTES` trits into bytes, the first digit the most significant of five.
#[inline(always)]
fn pack_digits<const BYTES: usize, const DIGITS: usize>(trits: &[u8], bytes: &mut [u8]) {
    for (m, byte) in bytes[..BYTES].iter_mut().enumerate() {
        let digits = (0..DIGITS).fold(0, |number, n| 3 * number + u16::from(trits[m + n * BYTES]));
        let number = if DIGITS == 4 { 3 * digits } else { digits };
        // Rounded up, so that the truncation after multiplying does not lose a digit.
        *byte = (number * 256).div_ceil(243) as u8;
    }
}

impl Dequantize<256, 54> for Tq1_0 {
    #[inline(always)]
    fn dequantize(block: &[u8; 54], values: &mut [f32; 256]) {
        let scale = read_f16(block, 52);
        unpack_digits::<32>(&block[..32], scale, &mut values[..160]);
        unpack_digits::<16>(&block[32..48], scale, &mut values[160..240]);
        unpack_digits::<4>(&block[48..52], scale, &mut values[240..]);
    }
}

#[inline(always)]
fn unpack_digits<const BYTES: usize>(bytes: &[u8], scale: f32, values: &mut [f32]) {
    const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
    for (values, power) in values.as_chunks_mut::<BYTES>().0.iter_mut().zip(POWERS) {
        for (value, &byte) in values.iter_mut().zip(bytes) {
            let digit = (u16::from(byte.wrapping_mul(power)) * 3) >> 8;
            *value = (i32::from(digit) - 1) as f32 * scale;
        }
    }
}

impl Quantize<256, 66> for Tq2_0 {
    #[inline(always)]
    fn quantize(values: &[f32; 256], block: &mut [u8; 66]) {
        let trits = scale_and_trits(values, block);
        for (bytes, trits) in
            block.as_chunks_mut::<32>().0.iter_mut().zip(trits.as_chunks::<128>().0)
        {
            for (m, byte) in bytes.iter_mut().enumerate() {
                *byte = trits[m] | trits[m + 32] << 2 | trits[m + 64] << 4 | trits[m + 96] << 6;
            }
        }
    }
}

impl Dequantize<256, 66> for Tq2_0 {
    #[inline(always)]
    fn dequantize(block: &[u8; 66], values: &mut [f32; 256]) {
        let scale = read_f16(block, 64);
        for (values, bytes) in
            values.as_chunks_mut::<128>().0.iter_mut().zip(block.as_chunks::<32>().0)
        {
            for (n, values) in values.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                for (value, &byte) in values.iter_mut().zip(bytes) {
                    *value = (i32::from(byte >> (2 * n) & 3) - 1) as f32 * scale;
                }
            }
        }
    }
}
