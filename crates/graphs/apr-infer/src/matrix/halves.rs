//! The product of one row with rows of 16-bit floats, which are widened in registers: the same bits
//! as with rows that were widened before.
#![allow(
    unsafe_code,
    reason = "kernels for a processor's features are called after detecting them; vectors are \
        loaded, and memory is asked for"
)]

use apr_core::DType;

/// Returns `true` if this processor has a kernel for a dtype.
pub(super) fn can_dot(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16) && has_kernels()
}

fn has_kernels() -> bool {
    #[cfg(all(feature = "simd", target_arch = "x86_64"))]
    {
        use std::arch::is_x86_feature_detected;
        is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c")
    }
    #[cfg(not(all(feature = "simd", target_arch = "x86_64")))]
    false
}

/// Adds the products of `x` with rows of the same length to `out`. Adds nothing if there is no
/// kernel.
pub(super) fn dots(dtype: DType, x: &[f32], rows: &[u8], out: &mut [f32]) {
    #[cfg(all(feature = "simd", target_arch = "x86_64"))]
    if has_kernels() {
        match dtype {
            // SAFETY: the features are there.
            DType::F16 => unsafe { x86::dots::<true>(x, rows, out) },
            // SAFETY: the features are there.
            DType::BF16 => unsafe { x86::dots::<false>(x, rows, out) },
            _ => {}
        }
    }
    let _ = (dtype, x, rows, out);
}

#[cfg(all(feature = "simd", target_arch = "x86_64"))]
mod x86 {
    use core::arch::x86_64::{
        __m256, _mm_add_ps, _mm_add_ss, _mm_cvtss_f32, _mm_loadu_si128, _mm_movehdup_ps,
        _mm_movehl_ps, _mm256_add_ps, _mm256_castps256_ps128, _mm256_castsi256_ps,
        _mm256_cvtepu16_epi32, _mm256_cvtph_ps, _mm256_extractf128_ps, _mm256_loadu_ps,
        _mm256_mul_ps, _mm256_setzero_ps, _mm256_slli_epi32, _mm256_storeu_ps,
    };

    use apr_tensor::half_float::{bf16_to_f32, f16_to_f32};

    /// Sums of a row that are kept apart.
    const LANES: usize = 16;

    /// Adds the products one row at a time, without prefetching. Four rows in turn ran at half the
    /// speed for rows shorter than a page.
    #[target_feature(enable = "avx2,f16c")]
    pub(super) fn dots<const F16: bool>(x: &[f32], rows: &[u8], out: &mut [f32]) {
        let row_bytes = 2 * x.len();
        for (number, out) in out.iter_mut().enumerate() {
            *out += dot::<F16>(x, &rows[number * row_bytes..][..row_bytes]);
        }
    }

    /// Eight elements as single precision.
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    fn widened<const F16: bool>(bytes: &[u8; 16]) -> __m256 {
        // SAFETY: there are 16 bytes.
        let stored = unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) };
        if F16 {
            _mm256_cvtph_ps(stored)
        } else {
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(stored)))
        }
    }

    /// The product of `x` with a row.
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    fn dot<const F16: bool>(x: &[f32], row: &[u8]) -> f32 {
        let (groups, rest) = x.as_chunks::<LANES>();
        let (stored, last) = row.split_at(2 * LANES * groups.len());
        let mut sums = [_mm256_setzero_ps(); 2];
        for (x, stored) in groups.iter().zip(stored.as_chunks::<{ 2 * LANES }>().0) {
            // SAFETY: there are twice eight elements.
            let x = unsafe { [_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x.as_ptr().add(8))] };
            let halves = stored.as_chunks::<16>().0;
            for part in 0..2 {
                let product = _mm256_mul_ps(x[part], widened::<F16>(&halves[part]));
                sums[part] = _mm256_add_ps(sums[part], product);
            }
        }

        if !rest.is_empty() {
            let mut lanes = [0.0_f32; LANES];
            // SAFETY: there is room for twice eight elements.
            unsafe {
                _mm256_storeu_ps(lanes.as_mut_ptr(), sums[0]);
                _mm256_storeu_ps(lanes.as_mut_ptr().add(8), sums[1]);
            }
            for (lane, (x, stored)) in lanes.iter_mut().zip(rest.iter().zip(last.as_chunks().0)) {
                let bits = u16::from_le_bytes(*stored);
                let weight = if F16 { f16_to_f32(bits) } else { bf16_to_f32(bits) };
                *lane += x * weight;
            }
            // SAFETY: there are twice eight elements.
            sums = unsafe {
                [_mm256_loadu_ps(lanes.as_ptr()), _mm256_loadu_ps(lanes.as_ptr().add(8))]
            };
        }
        // In halves.
        let eight = _mm256_add_ps(sums[0], sums[1]);
        let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;
    use crate::matrix::row;
    use crate::matrix::sides::Right;
    use crate::workers::Alone;

    #[test]
    fn products_have_the_bits_of_rows_that_were_widened_before() {
        for depth in [1, 16, 40, 333] {
            let (count, x) = (7, (0..depth).map(|at| (at as f32).sin()).collect::<Vec<f32>>());
            let weights: Vec<f32> = (0..count * depth).map(|at| (at as f32 * 0.7).cos()).collect();
            let halves: Vec<f16> = weights.iter().map(|weight| f16::from_f32(*weight)).collect();
            let brains: Vec<bf16> = weights.iter().map(|weight| bf16::from_f32(*weight)).collect();
            let bytes = [
                halves.iter().flat_map(|half| half.to_le_bytes()).collect::<Vec<u8>>(),
                brains.iter().flat_map(|brain| brain.to_le_bytes()).collect(),
            ];
            let widened = [
                halves.iter().map(|half| half.to_f32()).collect::<Vec<f32>>(),
                brains.iter().map(|brain| brain.to_f32()).collect(),
            ];
            for (dtype, (bytes, rows)) in
                [DType::F16, DType::BF16].into_iter().zip(bytes.iter().zip(&widened))
            {
                let (mut found, mut expected) = (vec![1.0; count], vec![1.0; count]);
                if !can_dot(dtype) {
                    continue;
                }
                dots(dtype, &x, bytes, &mut found);
                let right = Right::Columns(rows, count);
                row::add_product(&x, right, &mut expected, &Alone).unwrap();
                assert_eq!(found, expected, "{dtype} {depth}");
            }
        }
    }
}
