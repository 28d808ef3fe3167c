//! The loops that a pass spends most of its time in, for x86 processors with AVX2, FMA and F16C
//! (2013 on).
//!
//! The compiler finds slow code for sums of several widths: these take a fifth of its time. Each
//! has a plain twin that returns the same bits: sums are kept in the same lanes, and a fused
//! multiplication and addition rounds as the two do, because the square of an `f32` is exact in
//! `f64`.
#![allow(
    unsafe_code,
    reason = "vectors are loaded and stored, and kernels called, after a look at the processor"
)]

use core::arch::x86_64::{
    __m128, __m128i, __m256, __m256d, __m256i, _CMP_EQ_OQ, _CMP_LT_OQ, _CMP_NEQ_OQ, _CMP_UNORD_Q,
    _MM_FROUND_TO_NEAREST_INT, _mm_sub_ps, _mm_unpackhi_epi64, _mm256_add_pd, _mm256_and_ps,
    _mm256_blendv_ps, _mm256_castps_si256, _mm256_castps256_ps128, _mm256_castsi256_ps,
    _mm256_cmp_ps, _mm256_cvtepu8_epi32, _mm256_cvtepu16_epi32, _mm256_cvtph_ps, _mm256_cvtps_pd,
    _mm256_cvtps_ph, _mm256_extractf128_ps, _mm256_fmadd_pd, _mm256_max_ps, _mm256_min_ps,
    _mm256_movemask_ps, _mm256_or_ps, _mm256_permutevar8x32_ps, _mm256_set1_ps, _mm256_setzero_pd,
    _mm256_setzero_ps, _mm256_setzero_si256, _mm256_slli_epi32, _mm256_srli_epi32,
    _mm256_sub_epi32, _mm256_sub_ps,
};

use super::groups::{HALF, Tables};
use super::lanes::{DriftLanes, LANES, MomentLanes};
use crate::grouped::PACKED;
use crate::half_float::f16_to_f32;
use crate::narrow::{CastCounts, ToF16, narrow_anywhere};
use crate::wire::Wire;

/// Returns `true` if the processor supports the kernels.
#[inline]
fn is_available() -> bool {
    use std::arch::is_x86_feature_detected;
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
}

/// Decodes f16 into `values`, which must have the same length.
///
/// Returns `false` if the processor does not support it.
pub(super) fn widen_f16(stored: &[[u8; 2]], values: &mut [f32]) -> bool {
    let available = is_available();
    if available {
        // SAFETY: the processor has the features.
        unsafe { widen_f16_here(stored, values) };
    }
    available
}

/// Rounds to f16 into `rounded`, which must have the same length.
///
/// Returns `None` if the processor does not support it.
pub(super) fn narrow_to_f16<W: Wire<Value = f32>>(
    stored: &[W::Stored],
    rounded: &mut [[u8; 2]],
) -> Option<CastCounts> {
    // SAFETY: the processor has the features.
    is_available().then(|| unsafe { narrow_to_f16_here::<W>(stored, rounded) })
}

/// Sums up groups of values. Returns `None` if the processor does not support it.
pub(super) fn moments(groups: &[[f32; LANES]]) -> Option<MomentLanes<f32>> {
    // SAFETY: the processor has the features.
    is_available().then(|| unsafe { moments_here(groups) })
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
    packed: &[[u8; HALF]],
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

#[target_feature(enable = "avx2,fma,f16c")]
fn look_up_nibbles_here(packed: &[[u8; HALF]], mut tables: Tables<'_>, out: &mut [[f32; PACKED]]) {
    for (bytes, out) in packed.iter().zip(out) {
        // SAFETY: both are 16 bytes, and every value of either is valid.
        let bytes = unsafe { core::mem::transmute::<[u8; HALF], __m128i>(*bytes) };
        let low =
            [_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(bytes, bytes))];
        let high = low.map(|codes| _mm256_srli_epi32::<4>(codes));
        for (codes, out) in [low, high].into_iter().zip(out.as_chunks_mut::<HALF>().0) {
            let [first, last] = halves_of(tables.next());
            for (codes, out) in codes.into_iter().zip(out.as_chunks_mut().0) {
                // The permutations ignore all but the lowest three bits; the fourth chooses.
                let values =
                    [_mm256_permutevar8x32_ps(first, codes), _mm256_permutevar8x32_ps(last, codes)];
                let is_last = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(codes));
                *out = store(_mm256_blendv_ps(values[0], values[1], is_last));
            }
        }
    }
}

/// The lower and the upper eight values of a table.
#[inline]
#[target_feature(enable = "avx2")]
fn halves_of(table: &[f32; 16]) -> [__m256; 2] {
    // SAFETY: both are 64 bytes, and every value of either is valid.
    unsafe { core::mem::transmute::<[f32; 16], [__m256; 2]>(*table) }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn widen_f16_here(stored: &[[u8; 2]], values: &mut [f32]) {
    const GROUP: usize = 64;

    let (groups, rest) = stored.as_chunks::<GROUP>();
    let (value_groups, value_rest) = values.as_chunks_mut::<GROUP>();
    for (stored, values) in groups.iter().zip(value_groups) {
        let mut nan = _mm256_setzero_ps();
        for (stored, values) in stored.as_chunks().0.iter().zip(values.as_chunks_mut().0) {
            let wide = _mm256_cvtph_ps(load_halves(stored));
            nan = _mm256_or_ps(nan, _mm256_cmp_ps::<_CMP_UNORD_Q>(wide, wide));
            *values = store(wide);
        }
        if _mm256_movemask_ps(nan) != 0 {
            // The instruction makes a signalling NaN quiet; here its bits stay.
            widen_f16_one_by_one(stored, values);
        }
    }

    widen_f16_one_by_one(rest, value_rest);
}

fn widen_f16_one_by_one(stored: &[[u8; 2]], values: &mut [f32]) {
    for (value, &stored) in values.iter_mut().zip(stored) {
        *value = f16_to_f32(u16::from_le_bytes(stored));
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn narrow_to_f16_here<W: Wire<Value = f32>>(
    stored: &[W::Stored],
    rounded: &mut [[u8; 2]],
) -> CastCounts {
    let (groups, rest) = stored.as_chunks::<8>();
    let (rounded_groups, rounded_rest) = rounded.as_chunks_mut::<8>();
    let magnitude = _mm256_set1_ps(f32::from_bits(!f32::to_bits(-0.0)));
    let (infinity, zero) = (_mm256_set1_ps(f32::INFINITY), _mm256_setzero_ps());

    // Comparisons yield -1 where they hold.
    let [mut overflowed, mut flushed, mut inexact] = [_mm256_setzero_si256(); 3];
    let less = |count, holds| _mm256_sub_epi32(count, _mm256_castps_si256(holds));
    for (stored, rounded) in groups.iter().zip(rounded_groups) {
        let value = load(&stored.map(W::load));
        let half = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(value);
        // SAFETY: both are 16 bytes, and every value of either is valid.
        *rounded = unsafe { core::mem::transmute::<__m128i, [[u8; 2]; 8]>(half) };
        let back = _mm256_cvtph_ps(half);
        let is_infinite = _mm256_cmp_ps::<_CMP_EQ_OQ>(_mm256_and_ps(back, magnitude), infinity);
        let was_finite = _mm256_cmp_ps::<_CMP_LT_OQ>(_mm256_and_ps(value, magnitude), infinity);
        overflowed = less(overflowed, _mm256_and_ps(is_infinite, was_finite));
        let is_zero = _mm256_cmp_ps::<_CMP_EQ_OQ>(back, zero);
        flushed = less(flushed, _mm256_and_ps(is_zero, _mm256_cmp_ps::<_CMP_NEQ_OQ>(value, zero)));
        inexact = less(inexact, _mm256_cmp_ps::<_CMP_NEQ_OQ>(back, value));
    }

    let mut counts = narrow_anywhere::<W, ToF16>(rest, rounded_rest);
    let sum = |lanes: __m256i| store_counts(lanes).into_iter().map(u64::from).sum::<u64>();
    counts.merge(CastCounts {
        overflowed: sum(overflowed),
        flushed: sum(flushed),
        inexact: sum(inexact),
    });
    counts
}

/// [`MomentLanes`] in registers.
struct Moments {
    min: [__m256; 2],
    max: [__m256; 2],
    zeros: [__m256i; 2],
    sums: [__m256d; 4],
    squares: [__m256d; 4],
}

impl Moments {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn new() -> Self {
        Self {
            min: [_mm256_set1_ps(f32::INFINITY); 2],
            max: [_mm256_set1_ps(f32::NEG_INFINITY); 2],
            zeros: [_mm256_setzero_si256(); 2],
            sums: [_mm256_setzero_pd(); 4],
            squares: [_mm256_setzero_pd(); 4],
        }
    }

    /// Adds the first or the second half of a group.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn add<const HALF: usize>(&mut self, values: __m256) {
        // The second operand is returned for a NaN.
        self.min[HALF] = _mm256_min_ps(values, self.min[HALF]);
        self.max[HALF] = _mm256_max_ps(values, self.max[HALF]);
        let is_zero = _mm256_cmp_ps::<_CMP_EQ_OQ>(values, _mm256_setzero_ps());
        self.zeros[HALF] = _mm256_sub_epi32(self.zeros[HALF], _mm256_castps_si256(is_zero));
        let low = _mm256_cvtps_pd(_mm256_castps256_ps128(values));
        self.sums[2 * HALF] = _mm256_add_pd(self.sums[2 * HALF], low);
        self.squares[2 * HALF] = _mm256_fmadd_pd(low, low, self.squares[2 * HALF]);
        let high = _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(values));
        self.sums[2 * HALF + 1] = _mm256_add_pd(self.sums[2 * HALF + 1], high);
        self.squares[2 * HALF + 1] = _mm256_fmadd_pd(high, high, self.squares[2 * HALF + 1]);
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn lanes(self) -> MomentLanes<f32> {
        MomentLanes {
            min: join(self.min.map(|lanes| store(lanes))),
            max: join(self.max.map(|lanes| store(lanes))),
            zeros: join(self.zeros.map(|lanes| store_counts(lanes))),
            sums: join(self.sums.map(|lanes| store_wide(lanes))),
            squares: join(self.squares.map(|lanes| store_wide(lanes))),
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn moments_here(groups: &[[f32; LANES]]) -> MomentLanes<f32> {
    let mut moments = Moments::new();
    for group in groups {
        let halves = group.as_chunks().0;
        moments.add::<0>(load(&halves[0]));
        moments.add::<1>(load(&halves[1]));
    }
    moments.lanes()
}

#[target_feature(enable = "avx2,fma,f16c")]
fn moments_of_f16_here(groups: &[[[u8; 2]; LANES]]) -> MomentLanes<f32> {
    let mut moments = Moments::new();
    for group in groups {
        let halves = group.as_chunks().0;
        moments.add::<0>(_mm256_cvtph_ps(load_halves(&halves[0])));
        moments.add::<1>(_mm256_cvtph_ps(load_halves(&halves[1])));
    }
    moments.lanes()
}

#[target_feature(enable = "avx2,fma,f16c")]
fn moments_of_bf16_here(groups: &[[[u8; 2]; LANES]]) -> MomentLanes<f32> {
    let widened =
        |stored| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(stored)));
    let mut moments = Moments::new();
    for group in groups {
        let halves = group.as_chunks().0;
        moments.add::<0>(widened(load_halves(&halves[0])));
        moments.add::<1>(widened(load_halves(&halves[1])));
    }
    moments.lanes()
}

#[target_feature(enable = "avx2,fma,f16c")]
fn drift_here(original: &[[f32; LANES]], new: &[[f32; LANES]]) -> DriftLanes {
    let magnitude = _mm256_set1_ps(f32::from_bits(!f32::to_bits(-0.0)));
    let mut max_error = [_mm256_setzero_ps(); 2];
    let mut squared_error = [_mm256_setzero_pd(); 4];
    let mut squares = [_mm256_setzero_pd(); 4];
    let mut squares_new = [_mm256_setzero_pd(); 4];
    for (original, new) in original.iter().zip(new) {
        let (halves, new_halves) = (original.as_chunks::<8>().0, new.as_chunks::<8>().0);
        for at in 0..2 {
            let error = _mm256_sub_ps(load(&halves[at]), load(&new_halves[at]));
            max_error[at] = _mm256_max_ps(_mm256_and_ps(error, magnitude), max_error[at]);
        }

        let (quarters, new_quarters) = (original.as_chunks::<4>().0, new.as_chunks::<4>().0);
        for at in 0..4 {
            let (value, new) = (load_4(&quarters[at]), load_4(&new_quarters[at]));
            let error = _mm256_cvtps_pd(_mm_sub_ps(value, new));
            squared_error[at] = _mm256_fmadd_pd(error, error, squared_error[at]);
            let value = _mm256_cvtps_pd(value);
            squares[at] = _mm256_fmadd_pd(value, value, squares[at]);
            let new = _mm256_cvtps_pd(new);
            squares_new[at] = _mm256_fmadd_pd(new, new, squares_new[at]);
        }
    }

    DriftLanes {
        squared_error: join(squared_error.map(|lanes| store_wide(lanes))),
        squares: join(squares.map(|lanes| store_wide(lanes))),
        squares_new: join(squares_new.map(|lanes| store_wide(lanes))),
        max_error: join(max_error.map(|lanes| store(lanes))),
    }
}

/// The lanes of all registers, in order.
#[inline(always)]
fn join<T: Copy + Default, const LEN: usize, const PARTS: usize>(
    parts: [[T; LEN]; PARTS],
) -> [T; LANES] {
    let mut lanes = [T::default(); LANES];
    lanes.copy_from_slice(parts.as_flattened());
    lanes
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(values: &[f32; 8]) -> __m256 {
    // SAFETY: both are 32 bytes, and every value of either is valid.
    unsafe { core::mem::transmute::<[f32; 8], __m256>(*values) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_4(values: &[f32; 4]) -> __m128 {
    // SAFETY: both are 16 bytes, and every value of either is valid.
    unsafe { core::mem::transmute::<[f32; 4], __m128>(*values) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_halves(stored: &[[u8; 2]; 8]) -> __m128i {
    // SAFETY: both are 16 bytes, and every value of either is valid.
    unsafe { core::mem::transmute::<[[u8; 2]; 8], __m128i>(*stored) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(lanes: __m256) -> [f32; 8] {
    // SAFETY: both are 32 bytes, and every value of either is valid.
    unsafe { core::mem::transmute::<__m256, [f32; 8]>(lanes) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store_wide(lanes: __m256d) -> [f64; 4] {
    // SAFETY: both are 32 bytes, and every value of either is valid.
    unsafe { core::mem::transmute::<__m256d, [f64; 4]>(lanes) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store_counts(lanes: __m256i) -> [u32; 8] {
    // SAFETY: both are 32 bytes, and every value of either is valid.
    unsafe { core::mem::transmute::<__m256i, [u32; 8]>(lanes) }
}
