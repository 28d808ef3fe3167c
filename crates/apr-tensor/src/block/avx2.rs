//! Q8_0 and Q4_0 for x86 processors with AVX2.
//!
//! The compiler leaves most of a block's steps to single values; these take a quarter of its time. Multiplications and
//! additions are not fused, so that every level is the one that the plain twin in `simple` finds.
#![allow(unsafe_code, reason = "vectors are loaded and stored, and kernels called, after a look at the processor")]

use core::arch::x86_64::{
    __m256, __m256i, _mm_max_ps, _mm_min_ps, _mm_or_si128, _mm_slli_epi16, _mm256_add_ps, _mm256_and_ps,
    _mm256_castps256_ps128, _mm256_castsi256_si128, _mm256_cvttps_epi32, _mm256_extractf128_ps,
    _mm256_extracti128_si256, _mm256_max_ps, _mm256_min_epi32, _mm256_min_ps, _mm256_mul_ps, _mm256_or_ps,
    _mm256_packs_epi16, _mm256_packs_epi32, _mm256_packus_epi16, _mm256_permutevar8x32_epi32, _mm256_set1_epi32,
    _mm256_set1_ps, _mm256_setr_epi32,
};

use super::extremes::of_greatest_magnitude;
use super::pack::{inverse, write_f16};
use super::simple::BELOW_HALF;

/// Codes blocks of Q8_0; false where the processor can't.
pub(super) fn quantize_q8_0(values: &[[f32; 32]], blocks: &mut [[u8; 34]]) -> bool {
    let available = std::arch::is_x86_feature_detected!("avx2");
    if available {
        // SAFETY: the processor has AVX2.
        unsafe { q8_0(values, blocks) };
    }
    available
}

/// Codes blocks of Q4_0; false where the processor can't.
pub(super) fn quantize_q4_0(values: &[[f32; 32]], blocks: &mut [[u8; 18]]) -> bool {
    let available = std::arch::is_x86_feature_detected!("avx2");
    if available {
        // SAFETY: the processor has AVX2.
        unsafe { q4_0(values, blocks) };
    }
    available
}

#[target_feature(enable = "avx2")]
fn q8_0(values: &[[f32; 32]], blocks: &mut [[u8; 34]]) {
    let sign = _mm256_set1_ps(-0.0);
    let half = _mm256_set1_ps(BELOW_HALF);
    for (values, block) in values.iter().zip(blocks) {
        let values = load(values);
        let (least, greatest) = least_and_greatest(&values);
        let scale = greatest.max(-least).abs() / 127.0;
        // Multiples of NaN become 0, as those of 0 do.
        let inverse = inverse(scale);
        let inverse = _mm256_set1_ps(if inverse.is_nan() { 0.0 } else { inverse });
        let mut levels = [_mm256_set1_epi32(0); 4];
        for at in 0..4 {
            let multiple = _mm256_mul_ps(values[at], inverse);
            // Away from zero, then cut off towards it.
            levels[at] =
                _mm256_cvttps_epi32(_mm256_add_ps(multiple, _mm256_or_ps(half, _mm256_and_ps(multiple, sign))));
        }
        write_f16(block, 0, scale);
        let words = [_mm256_packs_epi32(levels[0], levels[1]), _mm256_packs_epi32(levels[2], levels[3])];
        block[2..].copy_from_slice(&store(in_order(_mm256_packs_epi16(words[0], words[1]))));
    }
}

#[target_feature(enable = "avx2")]
fn q4_0(values: &[[f32; 32]], blocks: &mut [[u8; 18]]) {
    let zero_level = _mm256_set1_ps(8.5);
    let top = _mm256_set1_epi32(15);
    for (block_values, block) in values.iter().zip(blocks) {
        let values = load(block_values);
        let scale = of_greatest_magnitude(least_and_greatest(&values), block_values) / -8.0;
        let inverse = _mm256_set1_ps(inverse(scale));
        let mut levels = [top; 4];
        for at in 0..4 {
            let level = _mm256_cvttps_epi32(_mm256_add_ps(_mm256_mul_ps(values[at], inverse), zero_level));
            levels[at] = _mm256_min_epi32(level, top);
        }
        write_f16(block, 0, scale);
        // NaN is a large negative number by now, which saturates to 0.
        let words = [_mm256_packs_epi32(levels[0], levels[1]), _mm256_packs_epi32(levels[2], levels[3])];
        let levels = in_order(_mm256_packus_epi16(words[0], words[1]));
        let (low, high) = (_mm256_castsi256_si128(levels), _mm256_extracti128_si256::<1>(levels));
        // SAFETY: both are 16 bytes, and every value of either is valid.
        let nibbles: [u8; 16] = unsafe { core::mem::transmute(_mm_or_si128(low, _mm_slli_epi16::<4>(high))) };
        block[2..].copy_from_slice(&nibbles);
    }
}

/// Which zero is returned is not specified.
#[inline]
#[target_feature(enable = "avx2")]
fn least_and_greatest(values: &[__m256; 4]) -> (f32, f32) {
    let [a, b, c, d] = *values;
    let least = _mm256_min_ps(_mm256_min_ps(a, b), _mm256_min_ps(c, d));
    let greatest = _mm256_max_ps(_mm256_max_ps(a, b), _mm256_max_ps(c, d));
    let least = _mm_min_ps(_mm256_castps256_ps128(least), _mm256_extractf128_ps::<1>(least));
    let greatest = _mm_max_ps(_mm256_castps256_ps128(greatest), _mm256_extractf128_ps::<1>(greatest));
    // SAFETY: both are 16 bytes, and every value of either is valid.
    let (least, greatest): ([f32; 4], [f32; 4]) =
        unsafe { (core::mem::transmute(least), core::mem::transmute(greatest)) };
    let least = least.into_iter().reduce(|a, b| if a < b { a } else { b });
    let greatest = greatest.into_iter().reduce(|a, b| if a > b { a } else { b });
    (least.unwrap_or_default(), greatest.unwrap_or_default())
}

/// Undoes that packing works on each half of a register.
#[inline]
#[target_feature(enable = "avx2")]
fn in_order(packed: __m256i) -> __m256i {
    _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(values: &[f32; 32]) -> [__m256; 4] {
    // SAFETY: both are 128 bytes, and every value of either is valid.
    unsafe { core::mem::transmute(*values) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(bytes: __m256i) -> [u8; 32] {
    // SAFETY: both are 32 bytes, and every value of either is valid.
    unsafe { core::mem::transmute(bytes) }
}
