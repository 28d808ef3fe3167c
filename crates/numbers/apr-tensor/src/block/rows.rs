//! The two types of APR2 (`docs/format/apr2.md`, "Dtypes"), both symmetric around zero.
//!
//! I8_ROW: for each row an f32 scale, the greatest magnitude divided by 127, then one signed byte
//! for each value, from -127 to 127.
//!
//! I4_ROW: for each 32 values of a row an f16 scale, the greatest magnitude divided by 7, then 16
//! bytes of nibbles (value + 8, values -7 to 7). As in Q4_0, the low nibble of byte i is element i
//! and the high one element i + 16.
//!
//! All scales and floats are little-endian. Values are rounded to nearest, ties to even.

use super::extremes::greatest_magnitude;
use super::kernel::{Dequantize, Quantize};
use super::lanes::nearest_i32;
use super::pack::{decode_nibbles, nibbles, read_f16, write_f16};

pub(super) struct I4Row;

/// The nearest multiple of a scale, at most `top` in magnitude; 0 for a scale of zero.
#[inline(always)]
fn nearest_multiple(value: f32, scale: f32, top: f32) -> i32 {
    // A scale that was rounded down, or is subnormal, leaves the extremes outside; clamping also
    // takes infinities away.
    let multiple = if scale > 0.0 { value / scale } else { 0.0 };
    nearest_i32(multiple.clamp(-top, top))
}

impl Quantize<32, 18> for I4Row {
    #[inline(always)]
    fn quantize(values: &[f32; 32], block: &mut [u8; 18]) {
        const GREATEST_F16: f32 = 65504.0;
        write_f16(block, 0, (greatest_magnitude(values) / 7.0).min(GREATEST_F16));
        // What a reader multiplies with, rather than what it was rounded from.
        let scale = read_f16(block, 0);
        let mut levels = [0; 32];
        for (level, &value) in levels.iter_mut().zip(values) {
            *level = (nearest_multiple(value, scale, 7.0) + 8) as u8;
        }
        block[2..].copy_from_slice(&nibbles(&levels));
    }
}

impl Dequantize<32, 18> for I4Row {
    #[inline(always)]
    fn dequantize(block: &[u8; 18], values: &mut [f32; 32]) {
        let scale = read_f16(block, 0);
        decode_nibbles(&block[2..], values, |level| (level - 8) as f32 * scale);
    }
}

/// 127 times this is finite, which 127 times the quotient itself, rounded up, is not.
const GREATEST_SCALE: f32 = (f32::MAX / 127.0).next_down();

/// A row's scale and values into `4 + values.len()` bytes.
#[inline(always)]
pub(super) fn quantize_i8_row(values: &[f32], row: &mut [u8]) {
    let (groups, rest) = values.as_chunks::<64>();
    let of_groups = groups.iter().map(greatest_magnitude).fold(0.0, f32::max);
    let greatest = rest.iter().fold(of_groups, |greatest, value| greatest.max(value.abs()));
    let scale = (greatest / 127.0).min(GREATEST_SCALE);
    let (stored_scale, bytes) = row.split_at_mut(4);
    stored_scale.copy_from_slice(&scale.to_le_bytes());
    for (byte, &value) in bytes.iter_mut().zip(values) {
        *byte = nearest_multiple(value, scale, 127.0) as u8;
    }
}

/// The inverse, from the bytes of a row.
#[inline(always)]
pub(super) fn dequantize_i8_row(row: &[u8], values: &mut [f32]) {
    let (scale, bytes) = row.split_at(4);
    let scale = f32::from_le_bytes([scale[0], scale[1], scale[2], scale[3]]);
    for (value, &byte) in values.iter_mut().zip(bytes) {
        *value = f32::from(byte.cast_signed()) * scale;
    }
}

for_several_targets! {
    /// Codes rows of any length into a scale and a byte for each value.
    pub(super) fn quantize_i8_rows(values: &[f32], row_len: usize, rows: &mut [u8]) {
        quantize_i8_rows_anywhere(values, row_len, rows);
    }
}

for_several_targets! {
    /// Decodes rows of a scale and bytes.
    pub(super) fn dequantize_i8_rows(rows: &[u8], row_len: usize, values: &mut [f32]) {
        dequantize_i8_rows_anywhere(rows, row_len, values);
    }
}

#[inline(always)]
pub(super) fn quantize_i8_rows_anywhere(values: &[f32], row_len: usize, rows: &mut [u8]) {
    for (values, row) in values.chunks_exact(row_len).zip(rows.chunks_exact_mut(4 + row_len)) {
        quantize_i8_row(values, row);
    }
}

#[inline(always)]
pub(super) fn dequantize_i8_rows_anywhere(rows: &[u8], row_len: usize, values: &mut [f32]) {
    for (row, values) in rows.chunks_exact(4 + row_len).zip(values.chunks_exact_mut(row_len)) {
        dequantize_i8_row(row, values);
    }
}
