//! Blocks of 32 to 128 weights.

use core::arch::x86_64::{
    __m256, __m256i, _mm_set1_epi16, _mm_set1_epi32, _mm_set1_ps, _mm_srli_epi16,
    _mm_unpackhi_epi64, _mm_unpacklo_epi64, _mm256_abs_epi8, _mm256_add_ps, _mm256_and_si256,
    _mm256_andnot_si256, _mm256_blend_epi16, _mm256_cvtepi32_ps, _mm256_cvtph_ps, _mm256_fmadd_ps,
    _mm256_madd_epi16, _mm256_maddubs_epi16, _mm256_mul_ps, _mm256_or_si256, _mm256_set_m128,
    _mm256_set_m128i, _mm256_set1_epi8, _mm256_set1_epi16, _mm256_set1_ps, _mm256_setzero_ps,
    _mm256_shuffle_epi8, _mm256_sign_epi8, _mm256_srli_epi16, _mm256_sub_epi8,
};

use apr_tensor::block::half_of_e4m3;

use super::super::activations::Small;
use super::super::layout::{FP4_VALUES, IQ4_VALUES, half_power, types, word};
use super::super::{GROUP, Outputs, by_tokens, groups, groups_share_scale, is_in_pairs};
use super::{TOKENS, bits, fetch, half, load, load_at, load_half_at, nibbles, total, values_of};

/// Index of the byte in a word that each of 32 bytes takes, for the word in each half of a
/// register.
static FOUR_TIMES: [i8; GROUP] = {
    let mut places = [0; GROUP];
    let mut at = 0;
    while at < GROUP {
        places[at] = (at / 4 % 4) as i8;
        at += 1;
    }
    places
};

/// Values of pairs of bits in `Q2_0`, as the lower or the upper pair of a nibble.
const PAIRS: [i8; 16] = [-1, 0, 1, 2, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0];

/// The integers of a group of 32 of a block.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::matrix::blocks) fn small_quants<const TYPE: u8>(
    block: &[u8],
    group: usize,
) -> __m256i {
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
pub(in crate::matrix::blocks) fn small_scales<const TYPE: u8>(
    block: &[u8],
    group: usize,
) -> __m256 {
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

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn small_here<const TYPE: u8, const BYTES: usize>(
    weights: &[u8],
    row_bytes: usize,
    x: &[&[Small]],
    out: &mut Outputs<'_>,
) {
    by_tokens!(weights, row_bytes, x, out, TOKENS, small_row::<TYPE, BYTES>);
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
        // Bytes of Q8_0 are so many that the processor's own look-ahead keeps up.
        if TYPE != types::Q8_0 {
            fetch(block);
        }
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
