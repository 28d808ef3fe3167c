//! Q8_0 and Q4_0 for x86 processors with AVX2 and F16C.
//!
//! Eight blocks at a time: their greatest magnitudes come to lie in one register, so that scales
//! and inverses are divided side by side instead of waiting for one another. Multiplications and
//! additions are not fused, so that every level is the one that the plain twin in `simple` finds.
#![allow(
    unsafe_code,
    reason = "vectors are loaded and stored, and kernels called, after a look at the processor"
)]

use core::arch::x86_64::{
    __m128i, __m256, __m256i, _CMP_EQ_OQ, _CMP_GT_OQ, _CMP_LT_OQ, _CMP_NEQ_OQ,
    _MM_FROUND_TO_NEAREST_INT, _mm_or_si128, _mm_slli_epi16, _mm256_add_ps, _mm256_and_ps,
    _mm256_blendv_ps, _mm256_castpd_ps, _mm256_castps_pd, _mm256_castsi256_si128, _mm256_cmp_ps,
    _mm256_cvtps_ph, _mm256_cvttps_epi32, _mm256_div_ps, _mm256_extracti128_si256, _mm256_max_ps,
    _mm256_min_epi32, _mm256_min_ps, _mm256_movemask_ps, _mm256_mul_ps, _mm256_or_ps,
    _mm256_packs_epi16, _mm256_packs_epi32, _mm256_packus_epi16, _mm256_permute2f128_ps,
    _mm256_permutevar8x32_epi32, _mm256_set1_epi32, _mm256_set1_ps, _mm256_setr_epi32,
    _mm256_setzero_ps, _mm256_unpackhi_pd, _mm256_unpackhi_ps, _mm256_unpacklo_pd,
    _mm256_unpacklo_ps, _mm256_xor_ps,
};

use super::extremes::of_greatest_magnitude;
use super::lanes::BELOW_HALF;

/// Blocks that are coded side by side.
const GROUP: usize = 8;

fn is_available() -> bool {
    std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("f16c")
}

/// Quantizes all whole groups of blocks of Q8_0 and returns the number of these blocks.
///
/// Returns 0 if the processor does not support it.
pub(super) fn quantize_q8_0(values: &[[f32; 32]], blocks: &mut [[u8; 34]]) -> usize {
    let (groups, _) = values.as_chunks::<GROUP>();
    if !is_available() {
        return 0;
    }
    // SAFETY: the processor has the features.
    unsafe { q8_0(groups, blocks.as_chunks_mut().0) };
    groups.len() * GROUP
}

/// Quantizes all whole groups of blocks of Q4_0 and returns the number of these blocks.
///
/// Returns 0 if the processor does not support it.
pub(super) fn quantize_q4_0(values: &[[f32; 32]], blocks: &mut [[u8; 18]]) -> usize {
    let (groups, _) = values.as_chunks::<GROUP>();
    if !is_available() {
        return 0;
    }
    // SAFETY: the processor has the features.
    unsafe { q4_0(groups, blocks.as_chunks_mut().0) };
    groups.len() * GROUP
}

#[target_feature(enable = "avx2,f16c")]
fn q8_0(groups: &[[[f32; 32]; GROUP]], block_groups: &mut [[[u8; 34]; GROUP]]) {
    let sign = _mm256_set1_ps(-0.0);
    let half = _mm256_set1_ps(BELOW_HALF);
    for (values, blocks) in groups.iter().zip(block_groups) {
        let [least, greatest] = extremes(values);
        let greatest = _mm256_max_ps(_mm256_xor_ps(least, sign), greatest);

        // A block of nothing but zeros may have a negative one in front.
        let scales =
            _mm256_div_ps(_mm256_max_ps(greatest, _mm256_setzero_ps()), _mm256_set1_ps(127.0));
        let (inverses, is_finite) = inverses(scales);

        // The inverses of zero and of scales too small to have one: all levels are 0.
        let inverses = store(_mm256_and_ps(inverses, is_finite));
        let scales = to_f16(scales);
        for ((values, block), (scale, inverse)) in
            values.iter().zip(blocks).zip(scales.into_iter().zip(inverses))
        {
            let inverse = _mm256_set1_ps(inverse);
            let levels = load(values).map(|values| {
                let multiple = _mm256_mul_ps(values, inverse);
                // Away from zero, then cut off towards it.
                _mm256_cvttps_epi32(_mm256_add_ps(
                    multiple,
                    _mm256_or_ps(half, _mm256_and_ps(multiple, sign)),
                ))
            });
            let words = [
                _mm256_packs_epi32(levels[0], levels[1]),
                _mm256_packs_epi32(levels[2], levels[3]),
            ];
            block[..2].copy_from_slice(&scale);
            block[2..]
                .copy_from_slice(&store_bytes(in_order(_mm256_packs_epi16(words[0], words[1]))));
        }
    }
}

#[target_feature(enable = "avx2,f16c")]
fn q4_0(groups: &[[[f32; 32]; GROUP]], block_groups: &mut [[[u8; 18]; GROUP]]) {
    let zero_level = _mm256_set1_ps(8.5);
    let top = _mm256_set1_epi32(15);
    for (values, blocks) in groups.iter().zip(block_groups) {
        let scales = _mm256_div_ps(of_greatest_magnitudes(values), _mm256_set1_ps(-8.0));
        let (inverses, is_finite) = inverses(scales);

        // Multiples of NaN become level 0, those of zero the middle one.
        let inverses = _mm256_blendv_ps(_mm256_set1_ps(f32::NAN), inverses, is_finite);
        let is_zero = _mm256_cmp_ps::<_CMP_EQ_OQ>(scales, _mm256_setzero_ps());
        let inverses = store(_mm256_blendv_ps(inverses, _mm256_setzero_ps(), is_zero));
        let scales = to_f16(scales);
        for ((values, block), (scale, inverse)) in
            values.iter().zip(blocks).zip(scales.into_iter().zip(inverses))
        {
            let inverse = _mm256_set1_ps(inverse);
            let levels = load(values).map(|values| {
                let level =
                    _mm256_cvttps_epi32(_mm256_add_ps(_mm256_mul_ps(values, inverse), zero_level));
                _mm256_min_epi32(level, top)
            });
            // NaN is a large negative number by now, which saturates to 0.
            let words = [
                _mm256_packs_epi32(levels[0], levels[1]),
                _mm256_packs_epi32(levels[2], levels[3]),
            ];
            let levels = in_order(_mm256_packus_epi16(words[0], words[1]));
            let (low, high) =
                (_mm256_castsi256_si128(levels), _mm256_extracti128_si256::<1>(levels));
            // SAFETY: both are 16 bytes, and every value of either is valid.
            let nibbles = unsafe {
                core::mem::transmute::<__m128i, [u8; 16]>(_mm_or_si128(
                    low,
                    _mm_slli_epi16::<4>(high),
                ))
            };
            block[..2].copy_from_slice(&scale);
            block[2..].copy_from_slice(&nibbles);
        }
    }
}

/// The value of greatest magnitude of each block, the first if there are several; positive zero if
/// all are zero.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn of_greatest_magnitudes(values: &[[f32; 32]; GROUP]) -> __m256 {
    let [least, greatest] = extremes(values);
    let below = _mm256_xor_ps(least, _mm256_set1_ps(-0.0));
    let is_greatest = _mm256_cmp_ps::<_CMP_GT_OQ>(greatest, below);
    let is_least = _mm256_cmp_ps::<_CMP_LT_OQ>(greatest, below);
    let found = _mm256_or_ps(_mm256_and_ps(greatest, is_greatest), _mm256_and_ps(least, is_least));
    let is_both = _mm256_cmp_ps::<_CMP_EQ_OQ>(greatest, below);
    let is_both =
        _mm256_and_ps(is_both, _mm256_cmp_ps::<_CMP_NEQ_OQ>(greatest, _mm256_setzero_ps()));
    if _mm256_movemask_ps(is_both) == 0 {
        return found;
    }

    let (least, greatest) = (store(least), store(greatest));
    let found =
        core::array::from_fn(|at| of_greatest_magnitude((least[at], greatest[at]), &values[at]));
    load_one(&found)
}

/// The least and the greatest value of each block. Which zero is returned is not specified.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn extremes(values: &[[f32; 32]; GROUP]) -> [__m256; 2] {
    let (mut least, mut greatest) = ([_mm256_setzero_ps(); GROUP], [_mm256_setzero_ps(); GROUP]);
    for ((values, least), greatest) in values.iter().zip(&mut least).zip(&mut greatest) {
        let [a, b, c, d] = load(values);
        *least = _mm256_min_ps(_mm256_min_ps(a, b), _mm256_min_ps(c, d));
        *greatest = _mm256_max_ps(_mm256_max_ps(a, b), _mm256_max_ps(c, d));
    }
    [reduced(least, |a, b| _mm256_min_ps(a, b)), reduced(greatest, |a, b| _mm256_max_ps(a, b))]
}

/// Combines the lanes of each register; the result for register `i` is in lane `i`.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn reduced(all: [__m256; GROUP], combine: impl Fn(__m256, __m256) -> __m256) -> __m256 {
    let [a, b, c, d, e, f, g, h] = all;
    let twos = |a, b| combine(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    let fours = |a, b| {
        let (a, b) = (_mm256_castps_pd(a), _mm256_castps_pd(b));
        combine(
            _mm256_castpd_ps(_mm256_unpacklo_pd(a, b)),
            _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)),
        )
    };

    let (first, last) = (fours(twos(a, b), twos(c, d)), fours(twos(e, f), twos(g, h)));
    combine(
        _mm256_permute2f128_ps::<0x20>(first, last),
        _mm256_permute2f128_ps::<0x31>(first, last),
    )
}

/// Returns the inverse of each scale, and a mask of the finite ones.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn inverses(scales: __m256) -> (__m256, __m256) {
    let inverses = _mm256_div_ps(_mm256_set1_ps(1.0), scales);
    let magnitude = _mm256_set1_ps(f32::from_bits(!f32::to_bits(-0.0)));
    let is_finite = _mm256_cmp_ps::<_CMP_LT_OQ>(
        _mm256_and_ps(inverses, magnitude),
        _mm256_set1_ps(f32::INFINITY),
    );
    (inverses, is_finite)
}

/// To nearest, ties to even, little-endian.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn to_f16(values: __m256) -> [[u8; 2]; GROUP] {
    let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(values);
    // SAFETY: both are 16 bytes, and every value of either is valid.
    unsafe { core::mem::transmute::<__m128i, [[u8; 2]; GROUP]>(halves) }
}

/// Undoes that packing works on each half of a register.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn in_order(packed: __m256i) -> __m256i {
    _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn load(values: &[f32; 32]) -> [__m256; 4] {
    // SAFETY: both are 128 bytes, and every value of either is valid.
    unsafe { core::mem::transmute::<[f32; 32], [__m256; 4]>(*values) }
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn load_one(values: &[f32; 8]) -> __m256 {
    // SAFETY: both are 32 bytes, and every value of either is valid.
    unsafe { core::mem::transmute::<[f32; 8], __m256>(*values) }
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn store(lanes: __m256) -> [f32; 8] {
    // SAFETY: both are 32 bytes, and every value of either is valid.
    unsafe { core::mem::transmute::<__m256, [f32; 8]>(lanes) }
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn store_bytes(bytes: __m256i) -> [u8; 32] {
    // SAFETY: both are 32 bytes, and every value of either is valid.
    unsafe { core::mem::transmute::<__m256i, [u8; 32]>(bytes) }
}
