//! Products of blocks with AVX2, as ggml's kernels have them: the same bits as `scalar` gives with
//! additions that are fused.
//!
//! Bytes are multiplied without the sign of one factor, which the other one takes.

use core::arch::x86_64::{
    __m128, __m128i, __m256, __m256i, _MM_HINT_T0, _mm_add_epi32, _mm_add_ps, _mm_add_ss,
    _mm_and_si128, _mm_cvtepi32_ps, _mm_cvtepu8_epi16, _mm_cvtph_ps, _mm_cvtsi32_si128,
    _mm_cvtsi128_si32, _mm_cvtss_f32, _mm_fmadd_ps, _mm_loadu_si128, _mm_madd_epi16,
    _mm_movehdup_ps, _mm_movehl_ps, _mm_prefetch, _mm_set_epi64x, _mm_set1_epi8, _mm_set1_epi16,
    _mm_set1_epi32, _mm_set1_ps, _mm_setzero_ps, _mm_shuffle_epi32, _mm_srai_epi16, _mm_srli_epi16,
    _mm_sub_epi8, _mm_sub_epi16, _mm_unpackhi_epi16, _mm_unpackhi_epi64, _mm_unpacklo_epi8,
    _mm_unpacklo_epi16, _mm_unpacklo_epi64, _mm_xor_si128, _mm256_abs_epi8, _mm256_add_epi8,
    _mm256_add_epi32, _mm256_add_ps, _mm256_and_si256, _mm256_andnot_si256, _mm256_blend_epi16,
    _mm256_blend_epi32, _mm256_broadcastsi128_si256, _mm256_castps256_ps128,
    _mm256_castsi256_si128, _mm256_cmpeq_epi8, _mm256_cmpeq_epi16, _mm256_cvtepi8_epi16,
    _mm256_cvtepi32_ps, _mm256_cvtepu8_epi16, _mm256_cvtph_ps, _mm256_extractf128_ps,
    _mm256_extracti128_si256, _mm256_fmadd_ps, _mm256_loadu_si256, _mm256_madd_epi16,
    _mm256_maddubs_epi16, _mm256_max_epu8, _mm256_mul_ps, _mm256_or_si256, _mm256_set_epi64x,
    _mm256_set_m128, _mm256_set_m128i, _mm256_set1_epi8, _mm256_set1_epi16, _mm256_set1_epi32,
    _mm256_set1_epi64x, _mm256_set1_ps, _mm256_setzero_ps, _mm256_setzero_si256,
    _mm256_shuffle_epi8, _mm256_sign_epi8, _mm256_slli_epi16, _mm256_srli_epi16, _mm256_sub_epi8,
    _mm256_sub_epi32, _mm256_xor_si256, _mm256_zextsi128_si256,
};

use apr_tensor::block::half_of_e4m3;

use super::activations::{Large, Small};
use super::layout::{
    FP4_VALUES, IQ4_VALUES, eight_scales, half_power, scales_and_minima, sixteen_scales, types,
    word,
};
use super::{GROUP, Outputs, by_tokens, groups, groups_share_scale, is_in_pairs, points, surplus};

/// Rows of activations that are multiplied with a block at a time.
const TOKENS: usize = 4;

/// Blocks of 32: rows of weights, bytes of one, rows of activations, products.
pub(super) fn small<const TYPE: u8, const BYTES: usize>(
    weights: &[u8],
    row_bytes: usize,
    x: &[&[Small]],
    out: &mut Outputs<'_>,
) {
    // SAFETY: `best` found the features.
    unsafe { small_here::<TYPE, BYTES>(weights, row_bytes, x, out) }
}

/// The same for blocks of 256.
pub(super) fn large<const TYPE: u8, const BYTES: usize>(
    weights: &[u8],
    row_bytes: usize,
    x: &[&[Large]],
    out: &mut Outputs<'_>,
) {
    // SAFETY: `best` found the features.
    unsafe { large_here::<TYPE, BYTES>(weights, row_bytes, x, out) }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn small_here<const TYPE: u8, const BYTES: usize>(
    weights: &[u8],
    row_bytes: usize,
    x: &[&[Small]],
    out: &mut Outputs<'_>,
) {
    by_tokens!(weights, row_bytes, x, out, TOKENS, small_row::<TYPE, BYTES>);
}

#[target_feature(enable = "avx2,fma,f16c")]
fn large_here<const TYPE: u8, const BYTES: usize>(
    weights: &[u8],
    row_bytes: usize,
    x: &[&[Large]],
    out: &mut Outputs<'_>,
) {
    by_tokens!(weights, row_bytes, x, out, TOKENS, large_row::<TYPE, BYTES>);
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load(bytes: &[i8; GROUP]) -> __m256i {
    // SAFETY: there are 32 bytes.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// 32 bytes of a block from an offset on.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load_at(block: &[u8], at: usize) -> __m256i {
    let bytes = &block[at..at + GROUP];
    // SAFETY: there are 32 bytes.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// 16 bytes of a block from an offset on.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load_half_at(block: &[u8], at: usize) -> __m128i {
    let bytes = &block[at..at + 16];
    // SAFETY: there are 16 bytes.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

/// The half at an offset.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn half(block: &[u8], at: usize) -> f32 {
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

/// Which byte of a word each of 32 bytes takes.
static SPREAD: [i8; GROUP] = {
    let mut places = [0; GROUP];
    let mut at = 0;
    while at < GROUP {
        places[at] = (at / 8) as i8;
        at += 1;
    }
    places
};

/// Which byte of a word in each half of a register each of 32 bytes takes.
static FOUR_TIMES: [i8; GROUP] = {
    let mut places = [0; GROUP];
    let mut at = 0;
    while at < GROUP {
        places[at] = (at / 4 % 4) as i8;
        at += 1;
    }
    places
};

/// What levels stand for, by shuffling.
#[inline]
#[target_feature(enable = "avx2")]
fn values_of(levels: __m256i, values: &[i8; 16]) -> __m256i {
    // SAFETY: there are 16 bytes.
    let values = unsafe { _mm_loadu_si128(values.as_ptr().cast()) };
    _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), levels)
}

/// What pairs of bits stand for in `Q2_0`, as the lower or the upper pair of a nibble.
const PAIRS: [i8; 16] = [-1, 0, 1, 2, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0];

/// The integers of a group of 32 of a block.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn small_quants<const TYPE: u8>(block: &[u8], group: usize) -> __m256i {
    match TYPE {
        types::NVFP4 => {
            let bytes = load_half_at(block, 4 + 16 * group);
            let (low, high) = (bytes, _mm_srli_epi16::<4>(bytes));
            let both =
                _mm256_set_m128i(_mm_unpackhi_epi64(low, high), _mm_unpacklo_epi64(low, high));
            values_of(_mm256_and_si256(both, _mm256_set1_epi8(15)), &FP4_VALUES)
        }
        types::Q1_0 => {
            let clear = _mm256_andnot_si256(bits(word(block, 2 + 4 * group)), _mm256_set1_epi8(-1));
            _mm256_or_si256(clear, _mm256_set1_epi8(1))
        }
        types::Q2_0 => {
            let [low, high] = [2, 6].map(|at| word(block, at + 8 * group).cast_signed());
            let bytes = _mm256_set_m128i(_mm_set1_epi32(high), _mm_set1_epi32(low));
            let bytes = _mm256_shuffle_epi8(bytes, load(&FOUR_TIMES));
            let nibbles = _mm256_blend_epi16::<0b1010_1010>(bytes, _mm256_srli_epi16::<4>(bytes));
            values_of(_mm256_and_si256(nibbles, _mm256_set1_epi16(0x0c03)), &PAIRS)
        }
        types::Q4_0 => _mm256_sub_epi8(nibbles(load_half_at(block, 2)), _mm256_set1_epi8(8)),
        types::Q4_1 => nibbles(load_half_at(block, 4)),
        types::Q5_0 => {
            // A level without its fifth bit is 16 too large.
            let low = nibbles(load_half_at(block, 6));
            _mm256_or_si256(low, _mm256_andnot_si256(bits(word(block, 2)), _mm256_set1_epi8(-16)))
        }
        types::Q5_1 => {
            let low = nibbles(load_half_at(block, 8));
            _mm256_or_si256(low, _mm256_and_si256(bits(word(block, 4)), _mm256_set1_epi8(16)))
        }
        types::Q8_0 => load_at(block, 2),
        types::MXFP4 => values_of(nibbles(load_half_at(block, 1)), &FP4_VALUES),
        _ => values_of(nibbles(load_half_at(block, 2)), &IQ4_VALUES),
    }
}

/// The scales of a group of 32.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn small_scales<const TYPE: u8>(block: &[u8], group: usize) -> __m256 {
    match TYPE {
        types::MXFP4 => _mm256_set1_ps(half_power(block[0])),
        types::NVFP4 => {
            let [first, second] = [0, 1].map(|at| half_of_e4m3(block[2 * group + at]));
            _mm256_set_m128(_mm_set1_ps(second), _mm_set1_ps(first))
        }
        _ => {
            // All lanes at once: a register that one half is inserted into waits for its last use.
            let bits = i16::from_le_bytes([block[0], block[1]]);
            _mm256_cvtph_ps(_mm_set1_epi16(bits))
        }
    }
}

/// Sums of four products each.
#[inline]
#[target_feature(enable = "avx2")]
fn products(quants: __m256i, magnitudes: __m256i, x: __m256i) -> __m256i {
    let pairs = _mm256_maddubs_epi16(magnitudes, _mm256_sign_epi8(x, quants));
    _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
}

/// How far ahead of what is used bytes are asked for: each comes from memory once, and processors
/// stop looking ahead at the end of each page.
const AHEAD: usize = 4096;

/// Asks for the bytes that lie as far ahead of a block as [`AHEAD`] says.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn fetch(block: &[u8]) {
    for line in (0..block.len()).step_by(64) {
        let place = block.as_ptr().wrapping_add(AHEAD + line);
        _mm_prefetch::<_MM_HINT_T0>(place.cast());
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn small_row<const TYPE: u8, const BYTES: usize, const TOKENS: usize>(
    row: &[u8],
    x: [&[Small]; TOKENS],
) -> [f32; TOKENS] {
    let blocks = row.as_chunks::<BYTES>().0;
    let (mut sums, mut others) = ([_mm256_setzero_ps(); TOKENS], [_mm256_setzero_ps(); TOKENS]);
    let mut of_minima = [0.0; TOKENS];
    for (at, block) in blocks.iter().enumerate() {
        fetch(block);
        let mut of_block = [_mm256_setzero_ps(); TOKENS];
        for group in 0..groups(TYPE) {
            let quants = small_quants::<TYPE>(block, group);
            let magnitudes = _mm256_abs_epi8(quants);
            let scales = small_scales::<TYPE>(block, group);
            for token in 0..TOKENS {
                let x = &x[token][groups(TYPE) * at + group];
                let products = _mm256_cvtepi32_ps(products(quants, magnitudes, load(&x.quants)));
                let x_scale = _mm256_set1_ps(x.scale);
                if groups_share_scale(TYPE) {
                    of_block[token] = _mm256_fmadd_ps(x_scale, products, of_block[token]);
                } else {
                    let scales = _mm256_mul_ps(scales, x_scale);
                    sums[token] = _mm256_fmadd_ps(scales, products, sums[token]);
                }
                if matches!(TYPE, types::Q4_1 | types::Q5_1) {
                    of_minima[token] += half(block, 2) * x.sum;
                }
            }
        }
        if groups_share_scale(TYPE) {
            let scale = _mm256_set1_ps(half(block, 0));
            for token in 0..TOKENS {
                sums[token] = _mm256_fmadd_ps(scale, of_block[token], sums[token]);
            }
        }
        if is_in_pairs(TYPE) {
            std::mem::swap(&mut sums, &mut others);
        }
    }

    let mut out = of_minima;
    for token in 0..TOKENS {
        let mut all = sums[token];
        if is_in_pairs(TYPE) {
            all = _mm256_add_ps(all, others[token]);
        }
        out[token] = total(all) + of_minima[token];
    }
    out
}

/// In halves.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn total(sums: __m256) -> f32 {
    let four = _mm_add_ps(_mm256_extractf128_ps::<1>(sums), _mm256_castps256_ps128(sums));
    total_of_four(four)
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn total_of_four(four: __m128) -> f32 {
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}

/// Whether the integers of a type have signs.
pub(super) const fn is_signed(of: u8) -> bool {
    matches!(of, types::Q3_K | types::IQ4_XS) || points::has_points(of)
}

/// 32 weights that are points of a grid.
#[inline]
#[target_feature(enable = "avx2")]
fn points_of_group<const TYPE: u8, const BYTES: usize>(
    block: &[u8; BYTES],
    group: usize,
) -> __m256i {
    let point = |at: usize| points::point::<TYPE>(block, 4 * group + at).cast_signed();
    let points = _mm256_set_epi64x(point(3), point(2), point(1), point(0));
    if points::is_ternary(TYPE) {
        return points;
    }
    let signs = bits(points::signs::<TYPE>(block, group));
    _mm256_sub_epi8(_mm256_xor_si256(points, signs), signs)
}

/// The digits to base 3 of bytes that are fractions of 256, multiplied by a power of 3.
#[inline]
#[target_feature(enable = "avx2")]
fn thirds(bytes: __m256i) -> __m256i {
    let reaches = |least: u8| {
        let least = _mm256_set1_epi8(least.cast_signed());
        _mm256_cmpeq_epi8(_mm256_max_epu8(bytes, least), bytes)
    };
    // A third is 85.33, and what is true is -1.
    let both = _mm256_add_epi8(reaches(86), reaches(171));
    _mm256_sub_epi8(_mm256_setzero_si256(), both)
}

/// The digits of half a super-block of `TQ1_0`, in the order of its weights.
#[inline]
#[target_feature(enable = "avx2")]
fn half_of_thirds(block: &[u8], half: usize) -> [__m256i; 4] {
    let times_3 = |bytes| _mm256_add_epi8(bytes, _mm256_add_epi8(bytes, bytes));
    let times_9 = |bytes| times_3(times_3(bytes));
    let first = load_at(block, 0);
    if half == 0 {
        return [first, times_3(first), times_9(first), times_9(times_3(first))]
            .map(|bytes| thirds(bytes));
    }

    // In both halves of a register, of which the upper one takes the next digit.
    let second = _mm256_broadcastsi128_si256(load_half_at(block, 32));
    let second = _mm256_blend_epi32::<0b1111_0000>(second, times_3(second));
    let third = _mm256_set1_epi32(word(block, 48).cast_signed());
    let third = _mm256_blend_epi32::<0b1010_1010>(third, times_3(third));
    let third = _mm256_blend_epi32::<0b1100_1100>(third, times_9(third));
    let last = _mm256_blend_epi32::<0b1111_0000>(times_9(times_9(second)), third);
    [times_9(times_9(first)), second, times_9(second), last].map(|bytes| thirds(bytes))
}

/// The integers of half a super-block.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn large_quants<const TYPE: u8, const BYTES: usize>(
    block: &[u8; BYTES],
    half: usize,
) -> [__m256i; 4] {
    let (two, four) = (_mm256_set1_epi8(3), _mm256_set1_epi8(15));
    let pairs = |at: usize| {
        let bytes = load_at(block, at + 32 * half);
        [
            _mm256_and_si256(bytes, two),
            _mm256_and_si256(_mm256_srli_epi16::<2>(bytes), two),
            _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), two),
            _mm256_and_si256(_mm256_srli_epi16::<6>(bytes), two),
        ]
    };
    let nibbles = |at: usize| {
        let bytes = load_at(block, at);
        [_mm256_and_si256(bytes, four), _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), four)]
    };
    // Those bits of bytes that belong to this half, lowest.
    let upper = |at: usize| {
        let bytes = load_at(block, at);
        if half == 0 { bytes } else { _mm256_srli_epi16::<4>(bytes) }
    };
    match TYPE {
        types::Q2_K => pairs(16),
        types::Q3_K => {
            let (low, bits, bit) = (pairs(32), upper(0), _mm256_set1_epi8(4));
            let high = [
                _mm256_slli_epi16::<2>(bits),
                _mm256_slli_epi16::<1>(bits),
                bits,
                _mm256_srli_epi16::<1>(bits),
            ];
            core::array::from_fn(|group| {
                let level = _mm256_or_si256(low[group], _mm256_and_si256(high[group], bit));
                _mm256_sub_epi8(level, bit)
            })
        }
        types::Q4_K => {
            let ([first, second], [third, fourth]) =
                (nibbles(16 + 64 * half), nibbles(48 + 64 * half));
            [first, second, third, fourth]
        }
        types::Q5_K => {
            let ([first, second], [third, fourth]) =
                (nibbles(48 + 64 * half), nibbles(80 + 64 * half));
            let (bits, bit) = (upper(16), _mm256_set1_epi8(16));
            let low = [first, second, third, fourth];
            let high = [
                _mm256_slli_epi16::<4>(bits),
                _mm256_slli_epi16::<3>(bits),
                _mm256_slli_epi16::<2>(bits),
                _mm256_slli_epi16::<1>(bits),
            ];
            core::array::from_fn(|group| {
                _mm256_or_si256(low[group], _mm256_and_si256(high[group], bit))
            })
        }
        types::Q6_K => {
            let ([first, third], [second, fourth]) = (nibbles(64 * half), nibbles(64 * half + 32));
            let (low, high) = ([first, second, third, fourth], pairs(128));
            core::array::from_fn(|group| {
                _mm256_or_si256(low[group], _mm256_slli_epi16::<4>(high[group]))
            })
        }
        types::TQ1_0 => half_of_thirds(block, half),
        types::TQ2_0 => pairs(0),
        of if points::has_points(of) => {
            let points = |group: usize| points_of_group::<TYPE, BYTES>(block, 4 * half + group);
            [points(0), points(1), points(2), points(3)]
        }
        _ => core::array::from_fn(|group| {
            let bytes = load_half_at(block, 8 + 64 * half + 16 * group);
            values_of(self::nibbles(bytes), &IQ4_VALUES)
        }),
    }
}

/// Scales of a super-block, and what its minima are.
#[derive(Clone, Copy)]
pub(super) struct Head {
    /// 16 scales for 16 integers each, or 8 for 32 in the lower half.
    pub(super) scales: __m256i,
    /// 16 minima, or 8 in the lower half (`Q4_K`, `Q5_K`, `IQ1_S`), or 16 scales times the
    /// surplus.
    pub(super) minima: __m256i,
    pub(super) scale: f32,
    pub(super) least: f32,
}

/// Whether a super-block has eight scales, for 32 integers each.
pub(super) const fn has_eight_scales(of: u8) -> bool {
    matches!(of, types::Q4_K | types::Q5_K | types::IQ4_XS)
}

/// Eight bytes, the first lowest.
#[inline]
#[target_feature(enable = "avx2")]
fn bytes_of(low: u64, high: u64) -> __m128i {
    _mm_set_epi64x(high.cast_signed(), low.cast_signed())
}

/// Of each half 8 scales for 16 integers each, twice.
#[inline]
#[target_feature(enable = "avx2")]
fn halves(scales: __m256i) -> [__m256i; 2] {
    [
        _mm256_broadcastsi128_si256(_mm256_castsi256_si128(scales)),
        _mm256_broadcastsi128_si256(_mm256_extracti128_si256::<1>(scales)),
    ]
}

/// Scales for 32 integers as two for 16 each, otherwise the same.
#[inline]
#[target_feature(enable = "avx2")]
fn twice(scales: __m128i) -> [__m256i; 2] {
    [
        _mm256_broadcastsi128_si256(_mm_unpacklo_epi16(scales, scales)),
        _mm256_broadcastsi128_si256(_mm_unpackhi_epi16(scales, scales)),
    ]
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn head<const TYPE: u8>(block: &[u8]) -> Head {
    let nothing = _mm256_setzero_si256();
    match TYPE {
        types::Q2_K => {
            let (packed, four) = (load_half_at(block, 0), _mm_set1_epi8(15));
            let scales = _mm256_cvtepi8_epi16(_mm_and_si128(packed, four));
            let minima = _mm_and_si128(_mm_srli_epi16::<4>(packed), four);
            Head {
                scales,
                minima: _mm256_cvtepu8_epi16(minima),
                scale: half(block, 80),
                least: half(block, 82),
            }
        }
        types::Q3_K => {
            let (low, high) = sixteen_scales(&block[96..108]);
            let scales = _mm_sub_epi8(bytes_of(low, high), _mm_set1_epi8(32));
            let scales = _mm256_cvtepi8_epi16(scales);
            Head { scales, minima: nothing, scale: half(block, 108), least: 0.0 }
        }
        types::Q4_K | types::Q5_K => {
            let (scales, minima) = scales_and_minima(&block[4..16]);
            Head {
                scales: _mm256_cvtepu8_epi16(bytes_of(scales, 0)),
                minima: _mm256_cvtepu8_epi16(bytes_of(minima, 0)),
                scale: half(block, 0),
                least: half(block, 2),
            }
        }
        types::Q6_K => {
            let scales = _mm256_cvtepi8_epi16(load_half_at(block, 192));
            let minima = _mm256_slli_epi16::<5>(scales);
            Head { scales, minima, scale: half(block, 208), least: 0.0 }
        }
        types::TQ1_0 | types::TQ2_0 => {
            let scale = half(block, if TYPE == types::TQ1_0 { 52 } else { 64 });
            let ones = _mm256_set1_epi16(1);
            Head { scales: ones, minima: ones, scale, least: 0.0 }
        }
        of if points::has_points(of) => {
            let (first, second) = points::scales::<TYPE>(block);
            let scales = _mm_unpacklo_epi8(bytes_of(first, 0), bytes_of(second, 0));
            let scales = _mm256_cvtepu8_epi16(scales);
            let (bits, factor) = points::unit::<TYPE>(block);
            let scale = half_of(bits) * factor;
            match TYPE {
                types::IQ1_S => {
                    let down = _mm_srai_epi16::<15>(load_half_at(block, 34));
                    let minima = _mm_cvtepu8_epi16(bytes_of(first, 0));
                    let minima = _mm_sub_epi16(_mm_xor_si128(minima, down), down);
                    Head { scales, minima: _mm256_zextsi128_si256(minima), scale, least: -scale }
                }
                _ => Head { scales, minima: nothing, scale, least: 0.0 },
            }
        }
        _ => {
            let low = [block[4], block[5], block[6], block[7]];
            let scales = bytes_of(eight_scales([block[2], block[3]], low), 0);
            let scales = _mm256_cvtepi8_epi16(_mm_sub_epi8(scales, _mm_set1_epi8(32)));
            Head { scales, minima: nothing, scale: half(block, 0), least: 0.0 }
        }
    }
}

/// Of eight scales in each half of a register, the two of a group of 32: for the first 16 integers
/// in the lower half.
static SCALES: [[i8; GROUP]; 4] = {
    let mut places = [[0; GROUP]; 4];
    let mut group = 0;
    while group < 4 {
        let mut at = 0;
        while at < GROUP {
            places[group][at] = (4 * group + at / 16 * 2 + at % 2) as i8;
            at += 1;
        }
        group += 1;
    }
    places
};

#[inline]
#[target_feature(enable = "avx2")]
fn load_words(words: &[i16; 16]) -> __m256i {
    // SAFETY: there are 32 bytes.
    unsafe { _mm256_loadu_si256(words.as_ptr().cast()) }
}

/// Products of 16 minima with sums of 16 activations each, two added up.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn of_16_minima(minima: __m256i, x: &Large) -> __m256i {
    _mm256_madd_epi16(minima, load_words(&x.sums))
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn total_of_integers(four: __m128i) -> i32 {
    let two = _mm_add_epi32(four, _mm_shuffle_epi32::<0b1110>(four));
    _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32::<0b01>(two)))
}

/// The signs of the shifts of `IQ1_M` for a group of weights.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn shifts(block: &[u8], group: usize) -> __m256i {
    // Each quarter of a register has a bit of its own.
    let bit = |at: u32| (0x0001_0001_0001_0001_u64 << at).cast_signed();
    let bits = _mm256_set_epi64x(bit(15), bit(11), bit(7), bit(3));
    let word = points::half_word(block, 32 + 2 * group).cast_signed();
    let down = _mm256_cmpeq_epi16(_mm256_and_si256(_mm256_set1_epi16(word), bits), bits);
    _mm256_or_si256(down, _mm256_set1_epi8(1))
}

/// Products of eight minima with sums of 32 activations each, two added up.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn of_minima(minima: __m256i, x: &Large) -> __m128i {
    // SAFETY: there are 16 bytes.
    let sums = unsafe { _mm_loadu_si128(x.sums_of_groups.as_ptr().cast()) };
    _mm_madd_epi16(_mm256_castsi256_si128(minima), sums)
}

/// Sums of what minima and shifts take, beside those of the products.
#[derive(Clone, Copy)]
pub(super) struct Others {
    in_lanes: __m128,
    of_all: f32,
}

impl Others {
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn none() -> Self {
        Self { in_lanes: _mm_setzero_ps(), of_all: 0.0 }
    }

    /// Adds the minima or shifts of a block of the types that keep them apart.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn with<const TYPE: u8>(mut self, head: &Head, x: &Large) -> Self {
        let least = x.scale * -head.least;
        match TYPE {
            types::Q4_K => {
                let minima = _mm_cvtepi32_ps(of_minima(head.minima, x));
                self.in_lanes = _mm_fmadd_ps(_mm_set1_ps(least), minima, self.in_lanes);
            }
            types::Q5_K | types::IQ1_S => {
                let minima = total_of_integers(of_minima(head.minima, x));
                self.of_all = least.mul_add(minima as f32, self.of_all);
            }
            _ => {}
        }
        self
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn total<const TYPE: u8>(self) -> f32 {
        match TYPE {
            types::Q5_K => self.of_all,
            types::IQ1_S => points::SHIFT * self.of_all,
            _ => total_of_four(self.in_lanes),
        }
    }
}

/// Adds the minima of a block of `Q2_K`, in the lanes of its products.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(super) fn with_minima(head: &Head, x: &Large, sums: __m256) -> __m256 {
    let minima = _mm256_cvtepi32_ps(of_16_minima(head.minima, x));
    _mm256_fmadd_ps(_mm256_set1_ps(x.scale * -head.least), minima, sums)
}

/// What the integers of a block being too large adds to its products.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn surplus_of(head: &Head, x: &Large) -> __m256i {
    of_16_minima(head.minima, x)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn large_row<const TYPE: u8, const BYTES: usize, const TOKENS: usize>(
    row: &[u8],
    x: [&[Large]; TOKENS],
) -> [f32; TOKENS] {
    let blocks = row.as_chunks::<BYTES>().0;
    let mut sums = [_mm256_setzero_ps(); TOKENS];
    let mut others = [Others::none(); TOKENS];
    let mut of_shifts = [_mm256_setzero_ps(); TOKENS];
    for (at, block) in blocks.iter().enumerate() {
        fetch(block);
        let head = head::<TYPE>(block);
        for token in 0..TOKENS {
            let x = &x[token][at];
            if TYPE == types::Q2_K {
                sums[token] = with_minima(&head, x, sums[token]);
            }
            others[token] = others[token].with::<TYPE>(&head, x);
        }

        let scales = match TYPE {
            of if has_eight_scales(of) => twice(_mm256_castsi256_si128(head.scales)),
            _ => halves(head.scales),
        };
        let mut all = [_mm256_setzero_si256(); TOKENS];
        let mut all_shifts = [_mm256_setzero_si256(); TOKENS];
        if surplus(TYPE) != 0 {
            for token in 0..TOKENS {
                let surplus = surplus_of(&head, &x[token][at]);
                all[token] = _mm256_sub_epi32(all[token], surplus);
            }
        }
        for (half, scales) in scales.into_iter().enumerate() {
            let quants = large_quants::<TYPE, BYTES>(block, half);
            for group in 0..4 {
                let scale = _mm256_shuffle_epi8(scales, load(&SCALES[group]));
                let (quants, signed) = (quants[group], is_signed(TYPE));
                let magnitudes = if signed { _mm256_abs_epi8(quants) } else { quants };
                let shifts = match TYPE {
                    types::IQ1_M => shifts(block, 4 * half + group),
                    _ => _mm256_setzero_si256(),
                };
                for token in 0..TOKENS {
                    let x = load(&x[token][at].quants.as_chunks().0[4 * half + group]);
                    if TYPE == types::IQ1_M {
                        let x = _mm256_sign_epi8(x, shifts);
                        let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), x);
                        let products = _mm256_madd_epi16(scale, pairs);
                        all_shifts[token] = _mm256_add_epi32(all_shifts[token], products);
                    }
                    let x = if signed { _mm256_sign_epi8(x, quants) } else { x };
                    let pairs = _mm256_maddubs_epi16(magnitudes, x);
                    all[token] = _mm256_add_epi32(all[token], _mm256_madd_epi16(scale, pairs));
                }
            }
        }
        for token in 0..TOKENS {
            let scale = _mm256_set1_ps(x[token][at].scale * head.scale);
            sums[token] = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(all[token]), sums[token]);
            if TYPE == types::IQ1_M {
                let all = _mm256_cvtepi32_ps(all_shifts[token]);
                of_shifts[token] = _mm256_fmadd_ps(scale, all, of_shifts[token]);
            }
        }
    }

    let mut out = [0.0; TOKENS];
    for token in 0..TOKENS {
        let shifts = points::SHIFT * total(of_shifts[token]);
        out[token] = total(sums[token])
            + if TYPE == types::IQ1_M { shifts } else { others[token].total::<TYPE>() };
    }
    out
}
