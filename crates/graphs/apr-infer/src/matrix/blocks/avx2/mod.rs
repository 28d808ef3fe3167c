//! Products of blocks with AVX2, as ggml's kernels have them: the same bits as `scalar` gives with
//! additions that are fused.
//!
//! Bytes are multiplied without the sign of one factor, which the other one takes.

use core::arch::x86_64::{
    __m128, __m128i, __m256, __m256i, _MM_HINT_T1, _mm_add_ps, _mm_add_ss, _mm_cvtph_ps,
    _mm_cvtsi32_si128, _mm_cvtss_f32, _mm_loadu_si128, _mm_movehdup_ps, _mm_movehl_ps,
    _mm_prefetch, _mm_srli_epi16, _mm256_and_si256, _mm256_broadcastsi128_si256,
    _mm256_castps256_ps128, _mm256_cmpeq_epi8, _mm256_extractf128_ps, _mm256_loadu_si256,
    _mm256_or_si256, _mm256_set_m128i, _mm256_set1_epi8, _mm256_set1_epi32, _mm256_set1_epi64x,
    _mm256_shuffle_epi8,
};

pub(in crate::matrix::blocks) use self::small::{small_quants, small_scales};
pub(in crate::matrix::blocks) use self::unpack::{
    Head, has_eight_scales, head, is_signed, large_quants, shifts,
};
use super::activations::{Large, Small};
use super::{GROUP, Outputs, Rows};

mod large;
mod small;
mod unpack;

/// Rows of activations that are multiplied with a block at a time.
const TOKENS: usize = 4;

/// Blocks of 32: rows of weights, bytes of one, rows of activations, products.
pub(in crate::matrix::blocks) fn small<const TYPE: u8, const BYTES: usize>(
    weights: &[u8],
    row_bytes: usize,
    x: &Rows<'_, Small>,
    out: &mut Outputs<'_>,
) {
    small_rows::<TYPE, BYTES>(weights, row_bytes, &x.rows, out);
}

/// Multiplies blocks of 256 elements; the arguments are the same as for `small`.
pub(in crate::matrix::blocks) fn large<const TYPE: u8, const BYTES: usize>(
    weights: &[u8],
    row_bytes: usize,
    x: &Rows<'_, Large>,
    out: &mut Outputs<'_>,
) {
    large_rows::<TYPE, BYTES>(weights, row_bytes, &x.rows, out);
}

/// Multiplies some of the rows of activations, in blocks of 32.
pub(in crate::matrix::blocks) fn small_rows<const TYPE: u8, const BYTES: usize>(
    weights: &[u8],
    row_bytes: usize,
    x: &[&[Small]],
    out: &mut Outputs<'_>,
) {
    // SAFETY: `best` found the features.
    unsafe { small::small_here::<TYPE, BYTES>(weights, row_bytes, x, out) }
}

/// Multiplies some of the rows of activations, in blocks of 256.
pub(in crate::matrix::blocks) fn large_rows<const TYPE: u8, const BYTES: usize>(
    weights: &[u8],
    row_bytes: usize,
    x: &[&[Large]],
    out: &mut Outputs<'_>,
) {
    // SAFETY: `best` found the features.
    unsafe { large::large_here::<TYPE, BYTES>(weights, row_bytes, x, out) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::matrix::blocks) fn load(bytes: &[i8; GROUP]) -> __m256i {
    // SAFETY: there are 32 bytes.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// 32 bytes of a block from an offset on.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::matrix::blocks) fn load_at(block: &[u8], at: usize) -> __m256i {
    let bytes = &block[at..at + GROUP];
    // SAFETY: there are 32 bytes.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// 16 bytes of a block from an offset on.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::matrix::blocks) fn load_half_at(block: &[u8], at: usize) -> __m128i {
    let bytes = &block[at..at + 16];
    // SAFETY: there are 16 bytes.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

/// The half at an offset.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(in crate::matrix::blocks) fn half(block: &[u8], at: usize) -> f32 {
    half_of(u16::from_le_bytes([block[at], block[at + 1]]))
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn half_of(bits: u16) -> f32 {
    _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits))))
}

/// Low nibbles of 16 bytes, then high ones.
#[inline]
#[target_feature(enable = "avx2")]
fn nibbles(bytes: __m128i) -> __m256i {
    let both = _mm256_set_m128i(_mm_srli_epi16::<4>(bytes), bytes);
    _mm256_and_si256(both, _mm256_set1_epi8(15))
}

/// 32 bits as bytes that are 255 or 0.
#[inline]
#[target_feature(enable = "avx2")]
fn bits(word: u32) -> __m256i {
    let word = word.cast_signed();
    // Each byte eight times, of which all bits but one are set.
    let spread = load(&SPREAD);
    let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(word), spread);
    let others = _mm256_set1_epi64x(0x7fbf_dfef_f7fb_fdfe);
    _mm256_cmpeq_epi8(_mm256_or_si256(bytes, others), _mm256_set1_epi8(-1))
}

/// Index of the byte in a word that each of 32 bytes takes.
static SPREAD: [i8; GROUP] = {
    let mut places = [0; GROUP];
    let mut at = 0;
    while at < GROUP {
        places[at] = (at / 8) as i8;
        at += 1;
    }
    places
};

/// Looks up the values of levels with a shuffle.
#[inline]
#[target_feature(enable = "avx2")]
fn values_of(levels: __m256i, values: &[i8; 16]) -> __m256i {
    // SAFETY: there are 16 bytes.
    let values = unsafe { _mm_loadu_si128(values.as_ptr().cast()) };
    _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), levels)
}

/// Prefetch distance in bytes. Each byte is read from memory once, and processors stop prefetching
/// at the end of each page.
const AHEAD: usize = 4096;

/// Prefetches the bytes that are [`AHEAD`] bytes after a block into the second-level cache. The
/// first-level cache can't track enough pending loads.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::matrix::blocks) fn fetch(block: &[u8]) {
    for line in (0..block.len()).step_by(64) {
        let place = block.as_ptr().wrapping_add(AHEAD + line);
        _mm_prefetch::<_MM_HINT_T1>(place.cast());
    }
}

/// Returns the sum of the lanes, added up in halves.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::matrix::blocks) fn total(sums: __m256) -> f32 {
    let four = _mm_add_ps(_mm256_extractf128_ps::<1>(sums), _mm256_castps256_ps128(sums));
    total_of_four(four)
}

#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::matrix::blocks) fn total_of_four(four: __m128) -> f32 {
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}
