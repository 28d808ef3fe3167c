//! The loops of [`avx2`](super::avx2) with registers twice as wide, for processors with AVX-512.
//!
//! A group of [`LANES`] values is one register here, so that sums are kept in the same lanes and
//! come to the same bits. Those loops of which this is no faster are not here.
#![allow(
    unsafe_code,
    reason = "vectors are loaded and stored, and kernels called, after a look at the processor"
)]

use core::arch::x86_64::{
    __m128i, __m256i, __m512, __m512d, __m512i, _CMP_EQ_OQ, _mm256_castpd_ps, _mm512_abs_ps,
    _mm512_add_pd, _mm512_castps_pd, _mm512_castps512_ps256, _mm512_castsi512_ps,
    _mm512_cmp_ps_mask, _mm512_cvtepu8_epi32, _mm512_cvtepu16_epi32, _mm512_cvtph_ps,
    _mm512_cvtps_pd, _mm512_extractf64x4_pd, _mm512_fmadd_pd, _mm512_mask_add_epi32, _mm512_max_ps,
    _mm512_min_ps, _mm512_permutexvar_ps, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_pd,
    _mm512_setzero_ps, _mm512_setzero_si512, _mm512_slli_epi32, _mm512_srli_epi32, _mm512_sub_ps,
};

use super::groups::Tables;
use super::lanes::{DriftLanes, LANES, MomentLanes};
use crate::grouped::PACKED;

/// Returns `true` if the processor supports the kernels.
#[inline]
fn is_available() -> bool {
    std::arch::is_x86_feature_detected!("avx512f")
}

/// Sums up groups of f16. Returns `None` if the processor does not support it.
pub(super) fn moments_of_f16(groups: &[[[u8; 2]; LANES]]) -> Option<MomentLanes<f32>> {
    // SAFETY: the processor has the features.
    is_available().then(|| unsafe { moments_of_f16_here(groups) })
}

/// Sums up groups of bf16. Returns `None` if the processor does not support it.
pub(super) fn moments_of_bf16(groups: &[[[u8; 2]; LANES]]) -> Option<MomentLanes<f32>> {
    // SAFETY: the processor has the features.
    is_available().then(|| unsafe { moments_of_bf16_here(groups) })
}

/// Compares groups of values. Returns `None` if the processor does not support it.
pub(super) fn drift(original: &[[f32; LANES]], new: &[[f32; LANES]]) -> Option<DriftLanes> {
    // SAFETY: the processor has the features.
    is_available().then(|| unsafe { drift_here(original, new) })
}

/// Looks up packed codes. Returns `false` if the processor does not support it.
pub(super) fn look_up_nibbles(
    packed: &[[u8; PACKED / 2]],
    tables: &[[f32; 16]],
    of: (usize, usize),
    out: &mut [[f32; PACKED]],
) -> bool {
    let available = is_available();
    if available {
        // SAFETY: the processor has the features.
        unsafe { look_up_nibbles_here(packed, Tables::new(tables, of), out) };
    }
    available
}

/// [`MomentLanes`] in registers.
struct Moments {
    min: __m512,
    max: __m512,
    zeros: __m512i,
    sums: [__m512d; 2],
    squares: [__m512d; 2],
}

impl Moments {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn new() -> Self {
        Self {
            min: _mm512_set1_ps(f32::INFINITY),
            max: _mm512_set1_ps(f32::NEG_INFINITY),
            zeros: _mm512_setzero_si512(),
            sums: [_mm512_setzero_pd(); 2],
            squares: [_mm512_setzero_pd(); 2],
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn add(&mut self, values: __m512) {
        // The second operand is returned for a NaN.
        self.min = _mm512_min_ps(values, self.min);
        self.max = _mm512_max_ps(values, self.max);
        let is_zero = _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(values, _mm512_setzero_ps());
        self.zeros = _mm512_mask_add_epi32(self.zeros, is_zero, self.zeros, _mm512_set1_epi32(1));
        for (half, (sum, squares)) in
            halves(values).into_iter().zip(self.sums.iter_mut().zip(&mut self.squares))
        {
            *sum = _mm512_add_pd(*sum, half);
            *squares = _mm512_fmadd_pd(half, half, *squares);
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn lanes(self) -> MomentLanes<f32> {
        // SAFETY: all are 64 bytes, and every value of either is valid.
        let zeros = unsafe { core::mem::transmute::<__m512i, [u32; LANES]>(self.zeros) };
        MomentLanes {
            min: store(self.min),
            max: store(self.max),
            zeros,
            sums: store_wide(self.sums),
            squares: store_wide(self.squares),
        }
    }
}

#[target_feature(enable = "avx512f")]
fn moments_of_f16_here(groups: &[[[u8; 2]; LANES]]) -> MomentLanes<f32> {
    let mut moments = Moments::new();
    for group in groups {
        moments.add(_mm512_cvtph_ps(load_halves(group)));
    }
    moments.lanes()
}

#[target_feature(enable = "avx512f")]
fn moments_of_bf16_here(groups: &[[[u8; 2]; LANES]]) -> MomentLanes<f32> {
    let mut moments = Moments::new();
    for group in groups {
        moments.add(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(
            load_halves(group),
        ))));
    }
    moments.lanes()
}

#[target_feature(enable = "avx512f")]
fn drift_here(original: &[[f32; LANES]], new: &[[f32; LANES]]) -> DriftLanes {
    let mut max_error = _mm512_setzero_ps();
    let [mut squared_error, mut squares, mut squares_new] = [[_mm512_setzero_pd(); 2]; 3];
    for (original, new) in original.iter().zip(new) {
        let (original, new) = (load(original), load(new));
        let error = _mm512_sub_ps(original, new);
        max_error = _mm512_max_ps(_mm512_abs_ps(error), max_error);
        for (sums, values) in
            [(&mut squared_error, error), (&mut squares, original), (&mut squares_new, new)]
        {
            for (sum, half) in sums.iter_mut().zip(halves(values)) {
                *sum = _mm512_fmadd_pd(half, half, *sum);
            }
        }
    }

    DriftLanes {
        squared_error: store_wide(squared_error),
        squares: store_wide(squares),
        squares_new: store_wide(squares_new),
        max_error: store(max_error),
    }
}

#[target_feature(enable = "avx512f")]
fn look_up_nibbles_here(
    packed: &[[u8; PACKED / 2]],
    mut tables: Tables<'_>,
    out: &mut [[f32; PACKED]],
) {
    for (bytes, out) in packed.iter().zip(out) {
        // SAFETY: both are 16 bytes, and every value of either is valid.
        let bytes = unsafe { core::mem::transmute::<[u8; PACKED / 2], __m128i>(*bytes) };
        // The permutation ignores all but the lowest four bits.
        let low = _mm512_cvtepu8_epi32(bytes);
        let high = _mm512_srli_epi32::<4>(low);
        for (codes, out) in [low, high].into_iter().zip(out.as_chunks_mut().0) {
            *out = store(_mm512_permutexvar_ps(codes, load(tables.next())));
        }
    }
}

/// The lower and the upper eight values.
#[inline]
#[target_feature(enable = "avx512f")]
fn halves(values: __m512) -> [__m512d; 2] {
    let upper = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(values)));
    [_mm512_cvtps_pd(_mm512_castps512_ps256(values)), _mm512_cvtps_pd(upper)]
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(values: &[f32; LANES]) -> __m512 {
    // SAFETY: both are 64 bytes, and every value of either is valid.
    unsafe { core::mem::transmute::<[f32; LANES], __m512>(*values) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_halves(stored: &[[u8; 2]; LANES]) -> __m256i {
    // SAFETY: both are 32 bytes, and every value of either is valid.
    unsafe { core::mem::transmute::<[[u8; 2]; LANES], __m256i>(*stored) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store(lanes: __m512) -> [f32; LANES] {
    // SAFETY: both are 64 bytes, and every value of either is valid.
    unsafe { core::mem::transmute::<__m512, [f32; LANES]>(lanes) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store_wide(lanes: [__m512d; 2]) -> [f64; LANES] {
    // SAFETY: both are 128 bytes, and every value of either is valid.
    unsafe { core::mem::transmute::<[__m512d; 2], [f64; LANES]>(lanes) }
}
