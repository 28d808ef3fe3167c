//! Q8_0 for x86 processors with AVX-512: [`avx2`](super::avx2) with registers twice as wide.
//!
//! Sixteen blocks at a time. Multiplications and additions are not fused here either, so that every
//! level is the one that the plain twin in `simple` finds.
#![allow(
    unsafe_code,
    reason = "vectors are loaded and stored, and kernels called, after a look at the processor"
)]

use core::arch::x86_64::{
    __m128i, __m256i, __m512, _CMP_LT_OQ, _MM_FROUND_TO_NEAREST_INT, _mm512_abs_ps, _mm512_add_ps,
    _mm512_and_si512, _mm512_castpd_ps, _mm512_castps_pd, _mm512_castps_si512, _mm512_castsi512_ps,
    _mm512_cmp_ps_mask, _mm512_cvtps_ph, _mm512_cvtsepi32_epi8, _mm512_cvttps_epi32, _mm512_div_ps,
    _mm512_maskz_mov_ps, _mm512_max_ps, _mm512_mul_ps, _mm512_or_si512, _mm512_set1_ps,
    _mm512_setzero_ps, _mm512_shuffle_f32x4, _mm512_unpackhi_pd, _mm512_unpackhi_ps,
    _mm512_unpacklo_pd, _mm512_unpacklo_ps,
};

use super::lanes::BELOW_HALF;

/// Blocks that are coded side by side.
const GROUP: usize = 16;

/// Quantizes all whole groups of blocks of Q8_0 and returns the number of these blocks.
///
/// Returns 0 if the processor does not support it.
pub(super) fn quantize_q8_0(values: &[[f32; 32]], blocks: &mut [[u8; 34]]) -> usize {
    let (groups, _) = values.as_chunks::<GROUP>();
    if !std::arch::is_x86_feature_detected!("avx512f") {
        return 0;
    }
    // SAFETY: the processor has the features.
    unsafe { q8_0(groups, blocks.as_chunks_mut().0) };
    groups.len() * GROUP
}

#[target_feature(enable = "avx512f")]
fn q8_0(groups: &[[[f32; 32]; GROUP]], block_groups: &mut [[[u8; 34]; GROUP]]) {
    let sign = _mm512_castps_si512(_mm512_set1_ps(-0.0));
    let half = _mm512_castps_si512(_mm512_set1_ps(BELOW_HALF));
    for (values, blocks) in groups.iter().zip(block_groups) {
        let scales = _mm512_div_ps(greatest_magnitudes(values), _mm512_set1_ps(127.0));
        let inverses = _mm512_div_ps(_mm512_set1_ps(1.0), scales);

        // The inverses of zero and of scales too small to have one: all levels are 0.
        let is_finite = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(inverses, _mm512_set1_ps(f32::INFINITY));
        let inverses = store(_mm512_maskz_mov_ps(is_finite, inverses));
        let scales = to_f16(scales);
        for ((values, block), (scale, inverse)) in
            values.iter().zip(blocks).zip(scales.into_iter().zip(inverses))
        {
            let inverse = _mm512_set1_ps(inverse);
            block[..2].copy_from_slice(&scale);
            for (values, levels) in load(values).into_iter().zip(block[2..].as_chunks_mut::<16>().0)
            {
                let multiple = _mm512_mul_ps(values, inverse);
                // Away from zero, then cut off towards it.
                let half =
                    _mm512_or_si512(half, _mm512_and_si512(_mm512_castps_si512(multiple), sign));
                let level = _mm512_cvttps_epi32(_mm512_add_ps(multiple, _mm512_castsi512_ps(half)));
                // SAFETY: both are 16 bytes, and every value of either is valid.
                *levels = unsafe {
                    core::mem::transmute::<__m128i, [u8; 16]>(_mm512_cvtsepi32_epi8(level))
                };
            }
        }
    }
}

/// The greatest magnitude of each block.
#[inline]
#[target_feature(enable = "avx512f")]
fn greatest_magnitudes(values: &[[f32; 32]; GROUP]) -> __m512 {
    let mut all = [_mm512_setzero_ps(); GROUP];
    for (values, greatest) in values.iter().zip(&mut all) {
        let [a, b] = load(values);
        *greatest = _mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b));
    }

    // Each step joins two registers to one, in which half as many lanes are left of each block.
    let twos = |a, b| _mm512_max_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    let fours = |a, b| {
        let (a, b) = (_mm512_castps_pd(a), _mm512_castps_pd(b));
        _mm512_max_ps(
            _mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
            _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)),
        )
    };

    let quarters = |a, b| {
        _mm512_max_ps(
            _mm512_shuffle_f32x4::<0b10_00_10_00>(a, b),
            _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b),
        )
    };

    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = all;
    let (first, second) = (fours(twos(a, b), twos(c, d)), fours(twos(e, f), twos(g, h)));
    let (third, fourth) = (fours(twos(i, j), twos(k, l)), fours(twos(m, n), twos(o, p)));
    quarters(quarters(first, second), quarters(third, fourth))
}

/// To nearest, ties to even, little-endian.
#[inline]
#[target_feature(enable = "avx512f")]
fn to_f16(values: __m512) -> [[u8; 2]; GROUP] {
    let halves = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(values);
    // SAFETY: both are 32 bytes, and every value of either is valid.
    unsafe { core::mem::transmute::<__m256i, [[u8; 2]; GROUP]>(halves) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(values: &[f32; 32]) -> [__m512; 2] {
    // SAFETY: both are 128 bytes, and every value of either is valid.
    unsafe { core::mem::transmute::<[f32; 32], [__m512; 2]>(*values) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store(lanes: __m512) -> [f32; GROUP] {
    // SAFETY: both are 64 bytes, and every value of either is valid.
    unsafe { core::mem::transmute::<__m512, [f32; GROUP]>(lanes) }
}
