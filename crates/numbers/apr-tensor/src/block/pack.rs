//! Bits, nibbles and half floats of blocks.

use crate::half_float::{f16_to_f32, f32_to_f16};

/// The factor that undoes a scale: 0 for a scale of zero, NaN for a scale whose inverse overflows.
///
/// The reference multiplies by infinity then and converts infinities and NaN to integers, which
/// yields 0 on its platforms. Multiples of NaN become 0 in Rust as well.
#[inline(always)]
pub(super) fn inverse(scale: f32) -> f32 {
    let inverse = 1.0 / scale;
    if scale == 0.0 {
        0.0
    } else if inverse.is_infinite() {
        f32::NAN
    } else {
        inverse
    }
}

/// The f16 at a byte offset.
#[inline(always)]
pub(super) fn read_f16(block: &[u8], at: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([block[at], block[at + 1]]))
}

/// Rounds to nearest even.
#[inline(always)]
pub(super) fn write_f16(block: &mut [u8], at: usize, value: f32) {
    block[at..at + 2].copy_from_slice(&f32_to_f16(value).to_le_bytes());
}

/// The low nibbles of 32 levels: level i in the low nibble of byte i, level i + 16 in its high
/// nibble.
#[inline(always)]
pub(super) fn nibbles(levels: &[u8; 32]) -> [u8; 16] {
    let mut bytes = [0; 16];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = levels[i] & 15 | levels[i + 16] << 4;
    }
    bytes
}

/// Decodes the levels in 16 bytes of [`nibbles`].
#[inline(always)]
pub(super) fn decode_nibbles(bytes: &[u8], values: &mut [f32; 32], decode: impl Fn(i32) -> f32) {
    let (low, high) = values.split_at_mut(16);
    for (value, &byte) in low.iter_mut().zip(bytes) {
        *value = decode(i32::from(byte & 15));
    }
    for (value, &byte) in high.iter_mut().zip(bytes) {
        *value = decode(i32::from(byte >> 4));
    }
}

/// The inverse of [`nibbles`], for 16 bytes.
#[inline(always)]
pub(super) fn halves(bytes: &[u8]) -> [u8; 32] {
    let mut levels = [0; 32];
    for (i, &byte) in bytes[..16].iter().enumerate() {
        levels[i] = byte & 15;
        levels[i + 16] = byte >> 4;
    }
    levels
}

/// Bit 4 of 32 levels, the first in the lowest bit.
#[inline(always)]
pub(super) fn fifth_bits(levels: &[u8; 32]) -> [u8; 4] {
    let mut bytes = [0; 4];
    for (byte, levels) in bytes.iter_mut().zip(levels.as_chunks().0) {
        *byte = low_bits((u64::from_le_bytes(*levels) >> 4 & LOW_BITS).to_le_bytes());
    }
    bytes
}

/// The lowest bit of each of 8 bytes.
const LOW_BITS: u64 = 0x0101_0101_0101_0101;

/// Gathers bytes that are 0 or 1 into one, the first in its lowest bit.
#[inline(always)]
pub(super) fn low_bits(bytes: [u8; 8]) -> u8 {
    // Byte i times 2^(56 - 7 i) puts its bit at 56 + i; the other products stay below or overflow,
    // and none collide.
    (u64::from_le_bytes(bytes).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8
}
