//! Activations as blocks of 8-bit integers.
#![allow(
    unsafe_code,
    reason = "multiversion calls the version for a processor's features after detecting them"
)]

use apr_tensor::half_float::{f32_to_f16, round_to_f16};

use super::{GROUP, SUPER};
use crate::targets::for_several_targets;

/// 32 activations in the form of GGML's `Q8_0`, with the sum that `Q8_1` adds.
pub(in crate::matrix) struct Small {
    pub(super) quants: [i8; GROUP],
    /// Scale, rounded to half precision as in GGML's block.
    pub(super) scale: f32,
    /// The sum of the integers, times the scale; rounded to half precision.
    pub(super) sum: f32,
}

/// 256 activations in the form of GGML's `Q8_K`, with the sums that kernels need. Each 64
/// activations are a cache line.
#[repr(C, align(64))]
pub(in crate::matrix) struct Large {
    pub(super) quants: [i8; SUPER],
    /// Sums of 16 integers each.
    pub(super) sums: [i16; SUPER / 16],
    /// Sums of 32 integers each.
    pub(super) sums_of_groups: [i16; SUPER / GROUP],
    pub(super) scale: f32,
}

/// The largest level of either sign.
const MOST: f32 = 127.0;

/// Returns the nearest integer of a number below 2^22, ties to even. The sum with `SHIFT` has no
/// bits for a fraction.
#[inline(always)]
fn nearest(value: f32) -> i32 {
    const SHIFT: f32 = 12_582_912.0;
    (value + SHIFT).to_bits().cast_signed() - SHIFT.to_bits().cast_signed()
}

/// Returns the greatest magnitude, or NaN if there is one. It compares bits, because the maximum of
/// floats is computed sequentially.
#[inline(always)]
fn greatest(values: &[f32]) -> f32 {
    f32::from_bits(values.iter().fold(0, |most, value| most.max(value.abs().to_bits())))
}

/// Returns the first value with this magnitude, or 0 if there is none. It checks 16 values at a
/// time, then searches the group that contains the value.
#[inline(always)]
fn first_of_magnitude(values: &[f32; SUPER], magnitude: f32) -> f32 {
    for values in values.as_chunks::<16>().0 {
        if values.iter().fold(false, |is_here, value| is_here | (value.abs() == magnitude)) {
            let first = values.iter().find(|value| value.abs() == magnitude);
            return first.copied().unwrap_or(0.0);
        }
    }
    0.0
}

for_several_targets! {
    /// Appends blocks of 32 and returns `true` if all numbers fit. Infinities and NaN do not fit,
    /// nor does a block whose scale or sum exceeds half precision.
    pub(super) fn quantize_small(values: &[f32], out: &mut Vec<Small>) -> bool {
        let mut fits = true;
        for values in values.as_chunks::<GROUP>().0 {
            let greatest = greatest(values);
            let inverse = MOST / greatest;
            let inverse = if inverse.is_finite() { inverse } else { 0.0 };
            let (mut quants, mut sum) = ([0; GROUP], 0);
            for (quant, value) in quants.iter_mut().zip(values) {
                let level = nearest(value * inverse);
                // That of NaN is any, and refused below.
                sum = level.wrapping_add(sum);
                *quant = level as i8;
            }

            let scale = greatest / MOST;
            let sum = round_to_f16(scale * sum as f32);
            let scale = round_to_f16(scale);
            fits &= greatest.is_finite() && scale.is_finite() && sum.is_finite();
            out.push(Small { quants, scale, sum });
        }
        fits
    }
}

/// Appends whole blocks of 32 in GGML's `Q8_0` format. Returns `false` if a number or its scale is
/// not finite.
pub(crate) fn push_q8_0(values: &[f32], out: &mut Vec<u8>) -> bool {
    let mut blocks = Vec::with_capacity(values.len() / GROUP);
    // Sums may exceed half precision, which `Q8_0` has none of.
    quantize_small(values, &mut blocks);
    let mut fits = values.iter().all(|value| value.is_finite());
    for block in blocks {
        fits &= block.scale.is_finite();
        out.extend_from_slice(&f32_to_f16(block.scale).to_le_bytes());
        out.extend(block.quants.iter().map(|quant| quant.cast_unsigned()));
    }
    fits
}

for_several_targets! {
    /// Appends blocks of 256 and returns `true` if all numbers fit. Infinities and NaN do not fit,
    /// nor do numbers so close to 0 that the inverse of their scale is infinite.
    pub(super) fn quantize_large(values: &[f32], out: &mut Vec<Large>) -> bool {
        let mut fits = true;
        for values in values.as_chunks::<SUPER>().0 {
            let greatest = greatest(values);
            // The first of the greatest ones becomes -127, whatever its sign.
            let inverse = -MOST / first_of_magnitude(values, greatest);
            let (inverse, scale) =
                if greatest == 0.0 { (0.0, 0.0) } else { (inverse, 1.0 / inverse) };
            fits &= greatest.is_finite() && inverse.is_finite();

            let mut block = Large {
                quants: [0; SUPER],
                sums: [0; SUPER / 16],
                sums_of_groups: [0; SUPER / GROUP],
                scale,
            };
            for (quant, value) in block.quants.iter_mut().zip(values) {
                *quant = nearest(value * inverse).min(MOST as i32) as i8;
            }
            for (sum, quants) in block.sums.iter_mut().zip(block.quants.as_chunks::<16>().0) {
                *sum = quants.iter().map(|quant| i16::from(*quant)).sum();
            }
            let (pairs, _) = block.sums.as_chunks::<2>();
            for (sum, halves) in block.sums_of_groups.iter_mut().zip(pairs) {
                *sum = halves[0] + halves[1];
            }
            out.push(block);
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activations_are_the_blocks_of_ggml() {
        let values: Vec<f32> = (0..256).map(|at| (at as f32 * 0.37).sin() * 3.0).collect();
        let (mut small, mut large) = (Vec::new(), Vec::new());
        assert!(quantize_small(&values, &mut small) && quantize_large(&values, &mut large));
        assert_eq!((small.len(), large.len()), (8, 1));
        for (block, values) in small.iter().zip(values.chunks(32)) {
            let greatest = values.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
            assert_eq!(block.scale, round_to_f16(greatest / 127.0));
            for (quant, value) in block.quants.iter().zip(values) {
                assert_eq!(f32::from(*quant), (value * (127.0 / greatest)).round_ties_even());
            }
        }

        let greatest = values.iter().copied().max_by(|a, b| a.abs().total_cmp(&b.abs())).unwrap();
        let scale = -127.0 / greatest;
        assert_eq!(large[0].scale, 1.0 / scale);
        for (quant, value) in large[0].quants.iter().zip(&values) {
            assert_eq!(f32::from(*quant), (value * scale).round_ties_even());
        }
        let sum: i32 = large[0].quants[16..32].iter().map(|quant| i32::from(*quant)).sum();
        assert_eq!(i32::from(large[0].sums[1]), sum);
    }

    #[test]
    fn quantizing_reports_numbers_that_do_not_fit() {
        let fits = |value: f32| {
            let mut values = [0.5; SUPER];
            values[77] = value;
            [quantize_small(&values, &mut Vec::new()), quantize_large(&values, &mut Vec::new())]
        };
        assert_eq!(fits(-1e3), [true; 2]);
        assert_eq!(fits(f32::NAN), [false; 2]);
        assert_eq!(fits(f32::NEG_INFINITY), [false; 2]);
        // A scale of Q8_0 is a half, one of Q8_K is not.
        assert_eq!(fits(1e9), [false, true]);

        let (mut small, mut large) = (Vec::new(), Vec::new());
        assert!(quantize_small(&[0.0; SUPER], &mut small));
        assert!(quantize_large(&[0.0; SUPER], &mut large));
        assert!(small.iter().all(|block| block.quants == [0; GROUP] && block.scale == 0.0));
        assert!(large[0].quants == [0; SUPER] && large[0].scale == 0.0);
        assert!(!quantize_large(&[1e-38; SUPER], &mut large));
    }
}
