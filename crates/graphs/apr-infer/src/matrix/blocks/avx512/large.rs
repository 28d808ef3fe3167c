//! Blocks of 256 weights. The halves of a register belong to two rows of weights.

use core::arch::x86_64::{
    __m512, __m512i, __mmask64, _mm256_loadu_si256, _mm256_set_epi64x, _mm256_set1_epi8,
    _mm256_set1_epi16, _mm512_abs_epi8, _mm512_add_epi32, _mm512_add_ps, _mm512_and_si512,
    _mm512_broadcast_i64x4, _mm512_cvtepi32_ps, _mm512_dpwssd_epi32, _mm512_fmadd_ps,
    _mm512_inserti64x4, _mm512_loadu_si512, _mm512_madd_epi16, _mm512_maddubs_epi16,
    _mm512_mask_add_epi8, _mm512_mask_sub_epi8, _mm512_movepi8_mask, _mm512_mul_ps,
    _mm512_or_si512, _mm512_permutexvar_epi16, _mm512_permutexvar_epi32, _mm512_set1_epi8,
    _mm512_set1_epi16, _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512,
    _mm512_shuffle_i64x2, _mm512_slli_epi16, _mm512_srli_epi16, _mm512_srlv_epi16,
    _mm512_sub_epi32, _mm512_test_epi8_mask,
};

use super::super::activations::Large;
use super::super::avx2::{fetch, has_eight_scales, head, is_signed, large_quants, shifts, total};
use super::super::avx2::{load as load_group, load_at};
use super::super::layout::types;
use super::super::{GROUP, Outputs, Rows, SUPER, points, surplus};
use super::{HALF, PAIR, ROWS, TOKENS, Tiles, halves, has_minima, in_halves, pair, store, write};

/// Groups of 32 of a super-block.
const GROUPS: usize = 8;
/// Pairs of such groups.
const PAIRS: usize = SUPER / PAIR;
/// Super-blocks of two rows that are unpacked at a time, so that they stay in the second-level
/// cache.
const UNPACKED: usize = 128;
/// Sums of minima that are kept apart.
const MINIMA: usize = 4;

multiply_pairs!(Large);

/// 32 bytes of a block from an offset on, twice.
#[inline]
#[target_feature(enable = "avx512f,avx2")]
fn twice_at(block: &[u8], at: usize) -> __m512i {
    _mm512_broadcast_i64x4(load_at(block, at))
}

/// 64 bytes of a block from an offset on.
#[inline]
#[target_feature(enable = "avx512f")]
fn pair_at(block: &[u8], at: usize) -> __m512i {
    let bytes = &block[at..at + PAIR];
    // SAFETY: there are 64 bytes.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

/// Shifts the words of the lower and of the upper half to the right.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn shifted(words: __m512i, lower: i16, upper: i16) -> __m512i {
    let both = _mm512_inserti64x4::<1>(_mm512_set1_epi16(lower), _mm256_set1_epi16(upper));
    _mm512_srlv_epi16(words, both)
}

/// Magnitudes of a type's integers, and which of them are negative.
type Levels = (__m512i, __mmask64);

/// The integers of a super-block in pairs of groups.
#[inline]
#[target_feature(enable = "avx2,avx512f,avx512bw")]
fn levels<const TYPE: u8, const BYTES: usize>(block: &[u8; BYTES]) -> [Levels; PAIRS] {
    let (two, four) = (_mm512_set1_epi8(3), _mm512_set1_epi8(15));
    let two_bits = |at: usize, half: usize| {
        let bytes = twice_at(block, at + 32 * half);
        [_mm512_and_si512(shifted(bytes, 0, 2), two), _mm512_and_si512(shifted(bytes, 4, 6), two)]
    };
    let nibbles = |at: usize| _mm512_and_si512(shifted(twice_at(block, at), 0, 4), four);
    match TYPE {
        types::Q2_K => {
            let ([a, b], [c, d]) = (two_bits(16, 0), two_bits(16, 1));
            [(a, 0), (b, 0), (c, 0), (d, 0)]
        }
        types::TQ2_0 => {
            let ([a, b], [c, d]) = (two_bits(0, 0), two_bits(0, 1));
            [(a, 0), (b, 0), (c, 0), (d, 0)]
        }
        types::Q4_K => [(nibbles(16), 0), (nibbles(48), 0), (nibbles(80), 0), (nibbles(112), 0)],
        types::Q5_K => {
            let bits = twice_at(block, 16);
            let fifth = |pair: usize| {
                let bit = pair_of_bytes(1 << (2 * pair), 2 << (2 * pair));
                let set = _mm512_test_epi8_mask(bits, bit);
                let low = nibbles(48 + 32 * pair);
                (_mm512_mask_add_epi8(low, set, low, _mm512_set1_epi8(16)), 0)
            };
            [fifth(0), fifth(1), fifth(2), fifth(3)]
        }
        types::Q6_K => {
            let half = |half: usize| {
                let low = pair_at(block, 64 * half);
                let high = two_bits(128, half);
                let low = [
                    _mm512_and_si512(low, four),
                    _mm512_and_si512(_mm512_srli_epi16::<4>(low), four),
                ];
                [
                    (_mm512_or_si512(low[0], _mm512_slli_epi16::<4>(high[0])), 0),
                    (_mm512_or_si512(low[1], _mm512_slli_epi16::<4>(high[1])), 0),
                ]
            };
            let ([a, b], [c, d]) = (half(0), half(1));
            [a, b, c, d]
        }
        of if points::has_points(of) => {
            let pair = |at: usize| points_of_pair::<TYPE, BYTES>(block, at);
            [pair(0), pair(1), pair(2), pair(3)]
        }
        _ => {
            let half = |half: usize| {
                let [a, b, c, d] = large_quants::<TYPE, BYTES>(block, half);
                [pair(a, b), pair(c, d)]
            };
            let ([a, b], [c, d]) = (half(0), half(1));
            let magnitudes = |quants| match is_signed(TYPE) {
                true => (_mm512_abs_epi8(quants), _mm512_movepi8_mask(quants)),
                false => (quants, 0),
            };
            [magnitudes(a), magnitudes(b), magnitudes(c), magnitudes(d)]
        }
    }
}

/// A byte for each half of a register.
#[inline]
#[target_feature(enable = "avx512f")]
fn pair_of_bytes(lower: u8, upper: u8) -> __m512i {
    pair(_mm256_set1_epi8(lower.cast_signed()), _mm256_set1_epi8(upper.cast_signed()))
}

/// 64 weights that are points of a grid.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn points_of_pair<const TYPE: u8, const BYTES: usize>(block: &[u8; BYTES], at: usize) -> Levels {
    let point = |point: usize| points::point::<TYPE>(block, 8 * at + point).cast_signed();
    let points = pair(
        _mm256_set_epi64x(point(3), point(2), point(1), point(0)),
        _mm256_set_epi64x(point(7), point(6), point(5), point(4)),
    );
    if points::is_ternary(TYPE) {
        return (_mm512_abs_epi8(points), _mm512_movepi8_mask(points));
    }
    let signs = |group: usize| u64::from(points::signs::<TYPE>(block, group));
    (points, signs(2 * at) | signs(2 * at + 1) << 32)
}

/// Indices of the scales, up to sixteen in each half of a register, that the words of a register
/// use, for each group.
static SCALES: [[[i16; 32]; GROUPS]; 2] = [scale_places(8), scale_places(16)];

const fn scale_places(words: usize) -> [[i16; 32]; GROUPS] {
    let mut places = [[0; 32]; GROUPS];
    let mut at = 0;
    while at < 32 * GROUPS {
        let (group, word) = (at / 32, at % 32);
        places[group][word] = ((16 * group + word % 16) / words + word / 16 * 16) as i16;
        at += 1;
    }
    places
}

/// Indices of the minima that are multiplied with the sums of a pair of groups.
static MINIMA_OF: [[i32; 16]; MINIMA] = {
    let mut places = [[0; 16]; MINIMA];
    let mut at = 0;
    while at < 16 * MINIMA {
        places[at / 16][at % 16] = (at / 16 + at % 16 / 8 * 8) as i32;
        at += 1;
    }
    places
};

/// A block of 256 weights of two rows, ready to be multiplied.
#[derive(Clone, Copy)]
struct Unpacked {
    magnitudes: [__m512i; GROUPS],
    negative: [__mmask64; GROUPS],
    /// Masks of the weights of `IQ1_M` that are shifted downwards.
    down: [__mmask64; GROUPS],
    scales: __m512i,
    minima: __m512i,
    /// Scale of either row.
    scale: __m512,
    /// What the minima of either row are multiplied with, negative.
    least: __m512,
}

impl Unpacked {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn none() -> Self {
        let (zero, zeros) = (_mm512_setzero_si512(), _mm512_setzero_ps());
        Self {
            magnitudes: [zero; GROUPS],
            negative: [0; GROUPS],
            down: [0; GROUPS],
            scales: zero,
            minima: zero,
            scale: zeros,
            least: zeros,
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c,avx512f,avx512bw")]
    fn set<const TYPE: u8, const BYTES: usize>(
        &mut self,
        first: &[u8; BYTES],
        second: &[u8; BYTES],
    ) {
        /// Selects the lower halves of two registers, or the upper ones.
        const LOWER: i32 = 0b01_00_01_00;
        const UPPER: i32 = 0b11_10_11_10;
        let masks = |first: __mmask64, second: __mmask64| {
            let low = u64::from(u32::MAX);
            [first & low | second << 32, first >> 32 | second & !low]
        };
        let both = levels::<TYPE, BYTES>(first).into_iter().zip(levels::<TYPE, BYTES>(second));
        for (number, ((first, of_first), (second, of_second))) in both.enumerate() {
            self.magnitudes[2 * number] = _mm512_shuffle_i64x2::<LOWER>(first, second);
            self.magnitudes[2 * number + 1] = _mm512_shuffle_i64x2::<UPPER>(first, second);
            if is_signed(TYPE) {
                let masks = masks(of_first, of_second);
                self.negative[2 * number..][..2].copy_from_slice(&masks);
            }
        }
        if TYPE == types::IQ1_M {
            for (group, down) in self.down.iter_mut().enumerate() {
                *down = _mm512_movepi8_mask(pair(shifts(first, group), shifts(second, group)));
            }
        }
        let (first, second) = (head::<TYPE>(first), head::<TYPE>(second));
        self.scales = pair(first.scales, second.scales);
        self.minima = pair(first.minima, second.minima);
        self.scale = in_halves(first.scale, second.scale);
        self.least = in_halves(-first.least, -second.least);
    }

    /// The scales of a group, one for each word.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn scales_of_group<const TYPE: u8>(&self, group: usize) -> __m512i {
        let places = &SCALES[usize::from(has_eight_scales(TYPE))][group];
        // SAFETY: there are 64 bytes.
        let places = unsafe { _mm512_loadu_si512(places.as_ptr().cast()) };
        _mm512_permutexvar_epi16(places, self.scales)
    }
}

/// Products of two rows of weights.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
fn products<const TYPE: u8, const COUNT: usize>(
    rows: &[Unpacked],
    x: &[Together],
    _: &mut [[[f32; ROWS]; TOKENS]],
) -> [[f32; ROWS]; COUNT] {
    let mut sums = [_mm512_setzero_ps(); COUNT];
    let mut of_shifts = [_mm512_setzero_ps(); COUNT];
    let mut of_minima = [_mm512_setzero_ps(); MINIMA];
    for (block, x) in rows.iter().zip(x) {
        let mut all = [_mm512_setzero_si512(); COUNT];
        let mut all_shifts = [_mm512_setzero_si512(); COUNT];
        for group in 0..GROUPS {
            let (levels, negative) = (block.magnitudes[group], block.negative[group]);
            let scales = block.scales_of_group::<TYPE>(group);
            let down = block.down[group];
            for token in 0..COUNT {
                let x = _mm512_broadcast_i64x4(load_group(&x.quants[token][group]));
                if TYPE == types::IQ1_M {
                    let x = with_signs(x, down);
                    let pairs = _mm512_maddubs_epi16(_mm512_set1_epi8(1), x);
                    all_shifts[token] = _mm512_dpwssd_epi32(all_shifts[token], pairs, scales);
                }
                let x = if is_signed(TYPE) { with_signs(x, negative) } else { x };
                let pairs = _mm512_maddubs_epi16(levels, x);
                all[token] = _mm512_dpwssd_epi32(all[token], pairs, scales);
            }
        }

        if has_minima(TYPE) {
            of_minima = x.with_minima::<TYPE>(block, of_minima);
        }
        for token in 0..COUNT {
            let x_scale = _mm512_set1_ps(x.scales[token]);
            let of_16_minima = || _mm512_madd_epi16(block.minima, twice(&x.sums[token]));
            if TYPE == types::Q2_K {
                let least = _mm512_mul_ps(x_scale, block.least);
                let minima = _mm512_cvtepi32_ps(of_16_minima());
                sums[token] = _mm512_fmadd_ps(least, minima, sums[token]);
            }
            let mut products = all[token];
            if surplus(TYPE) != 0 {
                products = _mm512_sub_epi32(products, of_16_minima());
            }
            let scale = _mm512_mul_ps(x_scale, block.scale);
            sums[token] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(products), sums[token]);
            if TYPE == types::IQ1_M {
                let shifts = _mm512_cvtepi32_ps(all_shifts[token]);
                of_shifts[token] = _mm512_fmadd_ps(scale, shifts, of_shifts[token]);
            }
        }
    }

    let of_minima = store(total_of_minima::<TYPE>(of_minima));
    let of_minima = of_minima.as_chunks::<TOKENS>().0;
    core::array::from_fn(|token| {
        let others = match TYPE {
            types::IQ1_M => halves(of_shifts[token]).map(|shifts| points::SHIFT * total(shifts)),
            _ => [of_minima[0][token], of_minima[1][token]],
        };
        let [first, second] = halves(sums[token]).map(|sums| total(sums));
        [first + others[0], second + others[1]]
    })
}

/// A block of 256 in several rows of activations.
#[derive(Clone)]
#[repr(C, align(64))]
pub(in crate::matrix::blocks) struct Together {
    quants: [[[i8; GROUP]; GROUPS]; TOKENS],
    /// Sums of 16 integers each.
    sums: [[i16; SUPER / 16]; TOKENS],
    /// Sums of each pair of groups, one row after the other.
    sums_of_pairs: [[i16; 2 * TOKENS]; MINIMA],
    scales: [f32; TOKENS],
}

impl Together {
    /// Collects all blocks of several rows.
    fn of(x: &[&[Large]]) -> Vec<Self> {
        let none = Self {
            quants: [[[0; GROUP]; GROUPS]; TOKENS],
            sums: [[0; SUPER / 16]; TOKENS],
            sums_of_pairs: [[0; 2 * TOKENS]; MINIMA],
            scales: [0.0; TOKENS],
        };
        let mut all = vec![none; x[0].len()];
        for (token, x) in x.iter().enumerate() {
            for (block, together) in x.iter().zip(&mut all) {
                together.quants[token].copy_from_slice(block.quants.as_chunks().0);
                together.sums[token] = block.sums;
                together.scales[token] = block.scale;
                let pairs = block.sums_of_groups.as_chunks::<2>().0;
                for (sums, pair) in together.sums_of_pairs.iter_mut().zip(pairs) {
                    sums[2 * token..][..2].copy_from_slice(pair);
                }
            }
        }
        all
    }

    /// Adds the minima of a block of two rows.
    #[inline]
    #[target_feature(enable = "avx2,avx512f,avx512bw")]
    fn with_minima<const TYPE: u8>(
        &self,
        block: &Unpacked,
        mut of_minima: [__m512; MINIMA],
    ) -> [__m512; MINIMA] {
        let least = _mm512_mul_ps(super::twice(&self.scales), block.least);
        let mut all = _mm512_setzero_si512();
        for (pair, sums) in self.sums_of_pairs.iter().enumerate() {
            // SAFETY: there are 64 bytes.
            let places = unsafe { _mm512_loadu_si512(MINIMA_OF[pair].as_ptr().cast()) };
            let minima = _mm512_permutexvar_epi32(places, block.minima);
            let products = _mm512_madd_epi16(minima, twice(sums));
            if TYPE == types::Q4_K {
                let products = _mm512_cvtepi32_ps(products);
                of_minima[pair] = _mm512_fmadd_ps(least, products, of_minima[pair]);
            }
            all = _mm512_add_epi32(all, products);
        }
        if TYPE != types::Q4_K {
            of_minima[0] = _mm512_fmadd_ps(least, _mm512_cvtepi32_ps(all), of_minima[0]);
        }
        of_minima
    }
}

impl Tiles<Together> {
    fn of(x: &[&[Large]]) -> Self {
        let (whole, rest) = x.as_chunks::<TOKENS>();
        Self {
            whole: whole.iter().map(|x| Together::of(x)).collect(),
            half: rest.get(..HALF).map(Together::of),
        }
    }
}

/// Adds up the sums in the order of AVX2's `total_of_four`.
#[inline]
#[target_feature(enable = "avx512f")]
fn total_of_minima<const TYPE: u8>(of_minima: [__m512; MINIMA]) -> __m512 {
    let [first, second, third, fourth] = of_minima;
    match TYPE {
        types::Q4_K => _mm512_add_ps(_mm512_add_ps(first, third), _mm512_add_ps(second, fourth)),
        types::IQ1_S => _mm512_mul_ps(_mm512_set1_ps(points::SHIFT), first),
        _ => first,
    }
}

/// Sixteen words, twice.
#[inline]
#[target_feature(enable = "avx512f")]
fn twice(words: &[i16; 16]) -> __m512i {
    // SAFETY: there are 32 bytes.
    _mm512_broadcast_i64x4(unsafe { _mm256_loadu_si256(words.as_ptr().cast()) })
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn with_signs(x: __m512i, negative: __mmask64) -> __m512i {
    _mm512_mask_sub_epi8(x, negative, _mm512_setzero_si512(), x)
}
