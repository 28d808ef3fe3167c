//! Products of blocks with AVX2, as ggml's kernels have them: the same bits as `scalar` gives with
//! additions that are fused.
//!
//! Bytes are multiplied without the sign of one factor, which the other one takes.

use core::arch::x86_64::{
    __m128i, __m256, __m256i, _MM_HINT_T0, _mm_add_epi32, _mm_add_ps, _mm_add_ss, _mm_and_si128,
    _mm_cvtepi8_epi16, _mm_cvtepi32_ps, _mm_cvtepu8_epi16, _mm_cvtph_ps, _mm_cvtsi32_si128,
    _mm_cvtsi128_si32, _mm_cvtss_f32, _mm_fmadd_ps, _mm_hadd_epi16, _mm_loadu_si128,
    _mm_madd_epi16, _mm_movehdup_ps, _mm_movehl_ps, _mm_prefetch, _mm_set_epi64x, _mm_set1_epi8,
    _mm_set1_ps, _mm_setzero_ps, _mm_shuffle_epi32, _mm_srli_epi16, _mm_sub_epi8,
    _mm_unpackhi_epi16, _mm_unpacklo_epi16, _mm256_abs_epi8, _mm256_add_epi32, _mm256_add_ps,
    _mm256_and_si256, _mm256_andnot_si256, _mm256_broadcastsi128_si256, _mm256_castps256_ps128,
    _mm256_castsi256_si128, _mm256_cmpeq_epi8, _mm256_cvtepi8_epi16, _mm256_cvtepi32_ps,
    _mm256_cvtepu8_epi16, _mm256_extractf128_ps, _mm256_extracti128_si256, _mm256_fmadd_ps,
    _mm256_loadu_si256, _mm256_madd_epi16, _mm256_maddubs_epi16, _mm256_or_si256, _mm256_set_m128i,
    _mm256_set1_epi8, _mm256_set1_epi16, _mm256_set1_epi32, _mm256_set1_epi64x, _mm256_set1_ps,
    _mm256_setzero_ps, _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_sign_epi8,
    _mm256_slli_epi16, _mm256_srli_epi16, _mm256_sub_epi8,
};

use super::activations::{Large, Small};
use super::layout::{
    FP4_VALUES, IQ4_VALUES, eight_scales, half_power, scales_and_minima, sixteen_scales, types,
};
use super::{GROUP, Outputs, by_tokens, is_in_pairs};

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
    by_tokens!(weights, row_bytes, x, out, small_row::<TYPE, BYTES>);
}

#[target_feature(enable = "avx2,fma,f16c")]
fn large_here<const TYPE: u8, const BYTES: usize>(
    weights: &[u8],
    row_bytes: usize,
    x: &[&[Large]],
    out: &mut Outputs<'_>,
) {
    by_tokens!(weights, row_bytes, x, out, large_row::<TYPE, BYTES>);
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(bytes: &[i8; GROUP]) -> __m256i {
    // SAFETY: there are 32 bytes.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// 32 bytes of a block from an offset on.
#[inline]
#[target_feature(enable = "avx2")]
fn load_at(block: &[u8], at: usize) -> __m256i {
    let bytes = &block[at..at + GROUP];
    // SAFETY: there are 32 bytes.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// 16 bytes of a block from an offset on.
#[inline]
#[target_feature(enable = "avx2")]
fn load_half_at(block: &[u8], at: usize) -> __m128i {
    let bytes = &block[at..at + 16];
    // SAFETY: there are 16 bytes.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

/// The half at an offset.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn half(block: &[u8], at: usize) -> f32 {
    let bits = i32::from(u16::from_le_bytes([block[at], block[at + 1]]));
    _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)))
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
fn bits(block: &[u8], at: usize) -> __m256i {
    let word = i32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
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

/// What levels stand for, by shuffling.
#[inline]
#[target_feature(enable = "avx2")]
fn values_of(levels: __m256i, values: &[i8; 16]) -> __m256i {
    // SAFETY: there are 16 bytes.
    let values = unsafe { _mm_loadu_si128(values.as_ptr().cast()) };
    _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), levels)
}

/// The integers of a block of 32.
#[inline]
#[target_feature(enable = "avx2")]
fn small_quants<const TYPE: u8>(block: &[u8]) -> __m256i {
    match TYPE {
        types::Q4_0 => _mm256_sub_epi8(nibbles(load_half_at(block, 2)), _mm256_set1_epi8(8)),
        types::Q4_1 => nibbles(load_half_at(block, 4)),
        types::Q5_0 => {
            // A level without its fifth bit is 16 too large.
            let low = nibbles(load_half_at(block, 6));
            _mm256_or_si256(low, _mm256_andnot_si256(bits(block, 2), _mm256_set1_epi8(-16)))
        }
        types::Q5_1 => {
            let low = nibbles(load_half_at(block, 8));
            _mm256_or_si256(low, _mm256_and_si256(bits(block, 4), _mm256_set1_epi8(16)))
        }
        types::Q8_0 => load_at(block, 2),
        types::MXFP4 => values_of(nibbles(load_half_at(block, 1)), &FP4_VALUES),
        _ => values_of(nibbles(load_half_at(block, 2)), &IQ4_VALUES),
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
fn fetch(block: &[u8]) {
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
        let quants = small_quants::<TYPE>(block);
        let magnitudes = _mm256_abs_epi8(quants);
        let scale = if TYPE == types::MXFP4 { half_power(block[0]) } else { half(block, 0) };
        for token in 0..TOKENS {
            let x = &x[token][at];
            let products = _mm256_cvtepi32_ps(products(quants, magnitudes, load(&x.quants)));
            sums[token] = _mm256_fmadd_ps(_mm256_set1_ps(scale * x.scale), products, sums[token]);
            if matches!(TYPE, types::Q4_1 | types::Q5_1) {
                of_minima[token] += half(block, 2) * x.sum;
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
fn total(sums: __m256) -> f32 {
    let four = _mm_add_ps(_mm256_extractf128_ps::<1>(sums), _mm256_castps256_ps128(sums));
    total_of_four(four)
}

#[inline]
#[target_feature(enable = "avx2")]
fn total_of_four(four: core::arch::x86_64::__m128) -> f32 {
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}

/// Whether the integers of a type have signs.
const fn is_signed(of: u8) -> bool {
    matches!(of, types::Q3_K | types::Q6_K | types::IQ4_XS)
}

/// The integers of half a super-block.
#[inline]
#[target_feature(enable = "avx2")]
fn large_quants<const TYPE: u8>(block: &[u8], half: usize) -> [__m256i; 4] {
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
                let level = _mm256_or_si256(low[group], _mm256_slli_epi16::<4>(high[group]));
                _mm256_sub_epi8(level, _mm256_set1_epi8(32))
            })
        }
        _ => core::array::from_fn(|group| {
            let bytes = load_half_at(block, 8 + 64 * half + 16 * group);
            values_of(self::nibbles(bytes), &IQ4_VALUES)
        }),
    }
}

/// Scales of a super-block, and what its minima are.
struct Head {
    /// Of each half 8 scales for 16 integers each, twice.
    scales: [__m256i; 2],
    /// 16 minima (`Q2_K`), or 8 in the lower half.
    minima: __m256i,
    scale: f32,
    least: f32,
}

/// Eight bytes, the first lowest.
#[inline]
#[target_feature(enable = "avx2")]
fn bytes_of(low: u64, high: u64) -> __m128i {
    _mm_set_epi64x(high.cast_signed(), low.cast_signed())
}

#[inline]
#[target_feature(enable = "avx2")]
fn halves(scales: __m256i) -> [__m256i; 2] {
    [
        _mm256_broadcastsi128_si256(_mm256_castsi256_si128(scales)),
        _mm256_broadcastsi128_si256(_mm256_extracti128_si256::<1>(scales)),
    ]
}

/// Scales for 32 integers as two for 16 each.
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
fn head<const TYPE: u8>(block: &[u8]) -> Head {
    let nothing = _mm256_setzero_si256();
    match TYPE {
        types::Q2_K => {
            let (packed, four) = (load_half_at(block, 0), _mm_set1_epi8(15));
            let scales = _mm256_cvtepi8_epi16(_mm_and_si128(packed, four));
            let minima = _mm_and_si128(_mm_srli_epi16::<4>(packed), four);
            Head {
                scales: halves(scales),
                minima: _mm256_cvtepu8_epi16(minima),
                scale: half(block, 80),
                least: half(block, 82),
            }
        }
        types::Q3_K => {
            let (low, high) = sixteen_scales(&block[96..108]);
            let scales = _mm_sub_epi8(bytes_of(low, high), _mm_set1_epi8(32));
            let scales = halves(_mm256_cvtepi8_epi16(scales));
            Head { scales, minima: nothing, scale: half(block, 108), least: 0.0 }
        }
        types::Q4_K | types::Q5_K => {
            let (scales, minima) = scales_and_minima(&block[4..16]);
            Head {
                scales: twice(_mm_cvtepu8_epi16(bytes_of(scales, 0))),
                minima: _mm256_cvtepu8_epi16(bytes_of(minima, 0)),
                scale: half(block, 0),
                least: half(block, 2),
            }
        }
        types::Q6_K => {
            let scales = halves(_mm256_cvtepi8_epi16(load_half_at(block, 192)));
            Head { scales, minima: nothing, scale: half(block, 208), least: 0.0 }
        }
        _ => {
            let low = [block[4], block[5], block[6], block[7]];
            let scales = bytes_of(eight_scales([block[2], block[3]], low), 0);
            let scales = _mm_cvtepi8_epi16(_mm_sub_epi8(scales, _mm_set1_epi8(32)));
            Head { scales: twice(scales), minima: nothing, scale: half(block, 0), least: 0.0 }
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
fn sums_of_16(x: &Large) -> __m256i {
    // SAFETY: there are sixteen integers of 16 bits.
    unsafe { _mm256_loadu_si256(x.sums.as_ptr().cast()) }
}

/// Products of eight minima with sums of 32 activations each, two added up.
#[inline]
#[target_feature(enable = "avx2")]
fn of_minima(minima: __m256i, x: &Large) -> __m128i {
    let sums = sums_of_16(x);
    let sums = _mm_hadd_epi16(_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums));
    _mm_madd_epi16(_mm256_castsi256_si128(minima), sums)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn large_row<const TYPE: u8, const BYTES: usize, const TOKENS: usize>(
    row: &[u8],
    x: [&[Large]; TOKENS],
) -> [f32; TOKENS] {
    let blocks = row.as_chunks::<BYTES>().0;
    let mut sums = [_mm256_setzero_ps(); TOKENS];
    let (mut in_lanes, mut of_all) = ([_mm_setzero_ps(); TOKENS], [0.0; TOKENS]);
    for (at, block) in blocks.iter().enumerate() {
        fetch(block);
        let head = head::<TYPE>(block);
        for token in 0..TOKENS {
            let x = &x[token][at];
            let least = -x.scale * head.least;
            match TYPE {
                types::Q2_K => {
                    let minima = _mm256_madd_epi16(head.minima, sums_of_16(x));
                    let minima = _mm256_cvtepi32_ps(minima);
                    sums[token] = _mm256_fmadd_ps(_mm256_set1_ps(least), minima, sums[token]);
                }
                types::Q4_K => {
                    let minima = _mm_cvtepi32_ps(of_minima(head.minima, x));
                    in_lanes[token] = _mm_fmadd_ps(_mm_set1_ps(least), minima, in_lanes[token]);
                }
                types::Q5_K => {
                    let four = of_minima(head.minima, x);
                    let two = _mm_add_epi32(four, _mm_shuffle_epi32::<0b1110>(four));
                    let one = _mm_add_epi32(two, _mm_shuffle_epi32::<0b01>(two));
                    of_all[token] += least * _mm_cvtsi128_si32(one) as f32;
                }
                _ => {}
            }
        }

        let mut all = [_mm256_setzero_si256(); TOKENS];
        for half in 0..2 {
            let quants = large_quants::<TYPE>(block, half);
            for group in 0..4 {
                let scale = _mm256_shuffle_epi8(head.scales[half], load(&SCALES[group]));
                let (quants, signed) = (quants[group], is_signed(TYPE));
                let magnitudes = if signed { _mm256_abs_epi8(quants) } else { quants };
                for token in 0..TOKENS {
                    let x = load(&x[token][at].quants.as_chunks().0[4 * half + group]);
                    let x = if signed { _mm256_sign_epi8(x, quants) } else { x };
                    let pairs = _mm256_maddubs_epi16(magnitudes, x);
                    all[token] = _mm256_add_epi32(all[token], _mm256_madd_epi16(scale, pairs));
                }
            }
        }
        for token in 0..TOKENS {
            let scale = _mm256_set1_ps(x[token][at].scale * head.scale);
            sums[token] = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(all[token]), sums[token]);
        }
    }

    let mut out = of_all;
    for token in 0..TOKENS {
        let others =
            if TYPE == types::Q5_K { of_all[token] } else { total_of_four(in_lanes[token]) };
        out[token] = total(sums[token]) + others;
    }
    out
}
