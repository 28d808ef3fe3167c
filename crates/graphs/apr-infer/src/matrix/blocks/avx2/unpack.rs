//! Integers, scales and minima of blocks of 256 weights.

use core::arch::x86_64::{
    __m128i, __m256i, _mm_and_si128, _mm_cvtepu8_epi16, _mm_set_epi64x, _mm_set1_epi8,
    _mm_srai_epi16, _mm_srli_epi16, _mm_sub_epi8, _mm_sub_epi16, _mm_unpacklo_epi8, _mm_xor_si128,
    _mm256_add_epi8, _mm256_and_si256, _mm256_blend_epi32, _mm256_broadcastsi128_si256,
    _mm256_cmpeq_epi8, _mm256_cmpeq_epi16, _mm256_cvtepi8_epi16, _mm256_cvtepu8_epi16,
    _mm256_max_epu8, _mm256_or_si256, _mm256_set_epi64x, _mm256_set1_epi8, _mm256_set1_epi16,
    _mm256_set1_epi32, _mm256_setzero_si256, _mm256_sign_epi8, _mm256_slli_epi16,
    _mm256_srli_epi16, _mm256_sub_epi8, _mm256_xor_si256, _mm256_zextsi128_si256,
};

use super::super::layout::{
    IQ4_VALUES, eight_scales, scales_and_minima, sixteen_scales, types, word,
};
use super::super::points;
use super::{bits, half, half_of, load_at, load_half_at, nibbles, values_of};

/// Returns `true` if the integers of a type are signed.
pub(in crate::matrix::blocks) const fn is_signed(of: u8) -> bool {
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
    if points::has_even_signs(TYPE) {
        let sign = |at: usize| points::even_signs_of::<TYPE>(block, 4 * group + at).cast_signed();
        return _mm256_sign_epi8(points, _mm256_set_epi64x(sign(3), sign(2), sign(1), sign(0)));
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
pub(in crate::matrix::blocks) fn large_quants<const TYPE: u8, const BYTES: usize>(
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

/// Scales and minima of a super-block.
#[derive(Clone, Copy)]
pub(in crate::matrix::blocks) struct Head {
    /// 16 scales for 16 integers each, or 8 for 32 in the lower half.
    pub(in crate::matrix::blocks) scales: __m256i,
    /// 16 minima, or 8 in the lower half (`Q4_K`, `Q5_K`, `IQ1_S`), or 16 scales times the
    /// surplus.
    pub(in crate::matrix::blocks) minima: __m256i,
    pub(in crate::matrix::blocks) scale: f32,
    pub(in crate::matrix::blocks) least: f32,
}

/// Returns `true` if a super-block has eight scales, for 32 integers each.
pub(in crate::matrix::blocks) const fn has_eight_scales(of: u8) -> bool {
    matches!(of, types::Q4_K | types::Q5_K | types::IQ4_XS)
}

/// Eight bytes, the first lowest.
#[inline]
#[target_feature(enable = "avx2")]
fn bytes_of(low: u64, high: u64) -> __m128i {
    _mm_set_epi64x(high.cast_signed(), low.cast_signed())
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(in crate::matrix::blocks) fn head<const TYPE: u8>(block: &[u8]) -> Head {
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

/// The signs of the shifts of `IQ1_M` for a group of weights.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::matrix::blocks) fn shifts(block: &[u8], group: usize) -> __m256i {
    // Each quarter of a register has a bit of its own.
    let bit = |at: u32| (0x0001_0001_0001_0001_u64 << at).cast_signed();
    let bits = _mm256_set_epi64x(bit(15), bit(11), bit(7), bit(3));
    let word = points::half_word(block, 32 + 2 * group).cast_signed();
    let down = _mm256_cmpeq_epi16(_mm256_and_si256(_mm256_set1_epi16(word), bits), bits);
    _mm256_or_si256(down, _mm256_set1_epi8(1))
}
