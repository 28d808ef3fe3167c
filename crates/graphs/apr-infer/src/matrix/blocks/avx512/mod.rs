//! Products of blocks with several rows of activations, with AVX-512 and its instructions for
//! neural networks; single rows are left to [`avx2`], which is as fast with them. The bits are the
//! same.
//!
//! Of super-blocks two groups of 32 lie side by side. Sums of integers are exact, so that the order
//! in which groups are added up does not matter; they are put together to the eight lanes of AVX2
//! before they become floats. Signs are masks here, and what has one value for each row of
//! activations, as scales and sums of minima, is computed for eight rows at once.

use core::arch::x86_64::{
    __m256, __m256i, __m512i, __mmask64, _mm256_abs_epi8, _mm256_add_epi32, _mm256_add_ps,
    _mm256_cvtepi32_ps, _mm256_dpbusd_epi32, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_loadu_si256,
    _mm256_madd_epi16, _mm256_mul_ps, _mm256_permutevar8x32_epi32, _mm256_set_epi64x,
    _mm256_set1_epi8, _mm256_set1_epi16, _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_ps,
    _mm256_setzero_si256, _mm256_sign_epi8, _mm256_sub_epi32, _mm512_abs_epi8, _mm512_and_si512,
    _mm512_broadcast_i64x4, _mm512_castsi256_si512, _mm512_castsi512_si256, _mm512_dpwssd_epi32,
    _mm512_extracti64x4_epi64, _mm512_inserti64x4, _mm512_loadu_si512, _mm512_maddubs_epi16,
    _mm512_mask_add_epi8, _mm512_mask_sub_epi8, _mm512_movepi8_mask, _mm512_or_si512,
    _mm512_permutexvar_epi16, _mm512_set1_epi8, _mm512_set1_epi16, _mm512_setzero_si512,
    _mm512_slli_epi16, _mm512_srli_epi16, _mm512_srlv_epi16, _mm512_test_epi8_mask,
};

use super::activations::{Large, Small};
use super::avx2::{
    self, Head, fetch, half, has_eight_scales, head, is_signed, large_quants, load as load_group,
    load_at, shifts, small_quants, small_scales, surplus_of, total, with_minima,
};
use super::layout::types;
use super::{Outputs, SUPER, groups, is_in_pairs, points, surplus};

/// Maximum number of rows of activations that are multiplied with a block at a time.
const TOKENS: usize = 8;
/// Number of rows of activations that are multiplied at a time if fewer are left.
const HALF: usize = TOKENS / 2;
/// Blocks of 256 that are unpacked at a time, so that they stay in the first-level cache.
const UNPACKED: usize = 32;
/// Weights in a register.
const PAIR: usize = 64;
/// Such groups of a super-block.
const PAIRS: usize = SUPER / PAIR;

/// Blocks of 32: rows of weights, bytes of one, rows of activations, products.
pub(super) fn small<const TYPE: u8, const BYTES: usize>(
    weights: &[u8],
    row_bytes: usize,
    x: &[&[Small]],
    out: &mut Outputs<'_>,
) {
    // Blocks of several groups are left to AVX2.
    let tiled = match groups(TYPE) {
        // SAFETY: `best` found the features.
        1 => unsafe { small_tiles::<TYPE, BYTES>(weights, row_bytes, x, out) },
        _ => 0,
    };
    avx2::small::<TYPE, BYTES>(weights, row_bytes, &x[tiled..], &mut out[tiled..]);
}

/// Multiplies blocks of 256 elements; the arguments are the same as for `small`.
pub(super) fn large<const TYPE: u8, const BYTES: usize>(
    weights: &[u8],
    row_bytes: usize,
    x: &[&[Large]],
    out: &mut Outputs<'_>,
) {
    let tiled = match x.len() < HALF {
        true => 0,
        // SAFETY: `best` found the features.
        false => unsafe { large_tiles::<TYPE, BYTES>(weights, row_bytes, x, out) },
    };
    avx2::large::<TYPE, BYTES>(weights, row_bytes, &x[tiled..], &mut out[tiled..]);
}

/// Multiplies the rows of activations that fill whole tiles, and returns their number.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
fn small_tiles<const TYPE: u8, const BYTES: usize>(
    weights: &[u8],
    row_bytes: usize,
    x: &[&[Small]],
    out: &mut Outputs<'_>,
) -> usize {
    let (whole, rest) = x.as_chunks::<TOKENS>();
    let mut outputs = out.chunks_mut(TOKENS);
    for (x, out) in whole.iter().zip(&mut outputs) {
        small_tile::<TYPE, BYTES, TOKENS>(weights, row_bytes, *x, out);
    }
    let half = rest.first_chunk::<HALF>();
    if let (Some(x), Some(out)) = (half, outputs.next()) {
        small_tile::<TYPE, BYTES, HALF>(weights, row_bytes, *x, out);
    }
    whole.len() * TOKENS + half.map_or(0, |x| x.len())
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
fn small_tile<const TYPE: u8, const BYTES: usize, const TOKENS: usize>(
    weights: &[u8],
    row_bytes: usize,
    x: [&[Small]; TOKENS],
    out: &mut Outputs<'_>,
) {
    let together = SmallTogether::of(x);
    for (number, row) in weights.chunks_exact(row_bytes).enumerate() {
        let products = small_row::<TYPE, BYTES, TOKENS>(row, x, &together);
        out.iter_mut().zip(products).for_each(|(out, product)| out[number] = product);
    }
}

/// Multiplies tiles of blocks of 256 elements. Each block is unpacked once.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
fn large_tiles<const TYPE: u8, const BYTES: usize>(
    weights: &[u8],
    row_bytes: usize,
    x: &[&[Large]],
    out: &mut Outputs<'_>,
) -> usize {
    let (whole, rest) = x.as_chunks::<TOKENS>();
    let half = rest.first_chunk::<HALF>();
    let together: Vec<_> = whole.iter().map(|x| LargeTogether::of(*x)).collect();
    let of_half = half.map(|x| LargeTogether::of(*x));

    let row_blocks = row_bytes / BYTES;
    let rows = (UNPACKED / row_blocks).max(1);
    let mut unpacked = vec![Unpacked::none(); rows * row_blocks];
    for (number, weights) in weights.chunks(rows * row_bytes).enumerate() {
        let blocks = weights.as_chunks::<BYTES>().0;
        for (block, unpacked) in blocks.iter().zip(&mut unpacked) {
            fetch(block);
            unpacked.set::<TYPE, BYTES>(block);
        }
        let first = number * rows;
        let rows = unpacked[..blocks.len()].chunks_exact(row_blocks).zip(first..);
        let mut outputs = out.chunks_mut(TOKENS);
        for ((x, together), out) in whole.iter().zip(&together).zip(&mut outputs) {
            for (row, number) in rows.clone() {
                let products = large_row::<TYPE, TOKENS>(row, *x, together);
                out.iter_mut().zip(products).for_each(|(out, product)| out[number] = product);
            }
        }
        if let (Some(x), Some(together), Some(out)) = (half, &of_half, outputs.next()) {
            for (row, number) in rows {
                let products = large_row::<TYPE, HALF>(row, *x, together);
                out.iter_mut().zip(products).for_each(|(out, product)| out[number] = product);
            }
        }
    }
    whole.len() * TOKENS + half.map_or(0, |x| x.len())
}

/// Loads 64 bytes.
#[inline]
#[target_feature(enable = "avx512f")]
fn load(bytes: &[i8; PAIR]) -> __m512i {
    // SAFETY: there are 64 bytes.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

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

/// Two groups of 32 side by side.
#[inline]
#[target_feature(enable = "avx512f")]
fn pair(lower: __m256i, upper: __m256i) -> __m512i {
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(lower), upper)
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

/// Indices of the scales, up to sixteen, that the words of a register use, for each pair of groups.
static SCALES: [[[i16; 32]; PAIRS]; 2] = [scale_places(8), scale_places(16)];

const fn scale_places(words: usize) -> [[i16; 32]; PAIRS] {
    let mut places = [[0; 32]; PAIRS];
    let mut at = 0;
    while at < 32 * PAIRS {
        places[at / 32][at % 32] = (at / words) as i16;
        at += 1;
    }
    places
}

/// Products of a row of weights in blocks of 32.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
fn small_row<const TYPE: u8, const BYTES: usize, const TOKENS: usize>(
    row: &[u8],
    x: [&[Small]; TOKENS],
    together: &[SmallTogether],
) -> [f32; TOKENS] {
    let (mut sums, mut others) = ([_mm256_setzero_ps(); TOKENS], [_mm256_setzero_ps(); TOKENS]);
    let mut of_minima = _mm256_setzero_ps();
    for (at, (block, together)) in row.as_chunks::<BYTES>().0.iter().zip(together).enumerate() {
        fetch(block);
        let quants = small_quants::<TYPE>(block, 0);
        let magnitudes = _mm256_abs_epi8(quants);
        let scales = small_scales::<TYPE>(block, 0);
        let scales = store(_mm256_mul_ps(scales, load_floats(&together.scales)));
        for token in 0..TOKENS {
            let x = _mm256_sign_epi8(load_group(&x[token][at].quants), quants);
            let products = _mm256_dpbusd_epi32(_mm256_setzero_si256(), magnitudes, x);
            let products = _mm256_cvtepi32_ps(products);
            sums[token] = _mm256_fmadd_ps(_mm256_set1_ps(scales[token]), products, sums[token]);
        }
        if has_minima(TYPE) {
            let least = _mm256_set1_ps(half(block, 2));
            let products = _mm256_mul_ps(least, load_floats(&together.sums));
            of_minima = _mm256_add_ps(of_minima, products);
        }
        if is_in_pairs(TYPE) {
            std::mem::swap(&mut sums, &mut others);
        }
    }

    let of_minima = store(of_minima);
    core::array::from_fn(|token| {
        let mut all = sums[token];
        if is_in_pairs(TYPE) {
            all = _mm256_add_ps(all, others[token]);
        }
        total(all) + of_minima[token]
    })
}

/// A block of 256 weights, ready to be multiplied.
#[derive(Clone, Copy)]
struct Unpacked {
    magnitudes: [__m512i; PAIRS],
    negative: [__mmask64; PAIRS],
    /// Masks of the weights of `IQ1_M` that are shifted downwards.
    down: [__mmask64; PAIRS],
    head: Head,
}

impl Unpacked {
    #[inline]
    #[target_feature(enable = "avx2,avx512f")]
    fn none() -> Self {
        let zero = _mm256_setzero_si256();
        Self {
            magnitudes: [_mm512_setzero_si512(); PAIRS],
            negative: [0; PAIRS],
            down: [0; PAIRS],
            head: Head { scales: zero, minima: zero, scale: 0.0, least: 0.0 },
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c,avx512f,avx512bw")]
    fn set<const TYPE: u8, const BYTES: usize>(&mut self, block: &[u8; BYTES]) {
        let levels = levels::<TYPE, BYTES>(block);
        for (number, (magnitudes, negative)) in levels.into_iter().enumerate() {
            self.magnitudes[number] = magnitudes;
            if is_signed(TYPE) {
                self.negative[number] = negative;
            }
            if TYPE == types::IQ1_M {
                self.down[number] = shifted_down(block, number);
            }
        }
        self.head = head::<TYPE>(block);
    }
}

/// Products of a row of weights in blocks of 256.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
fn large_row<const TYPE: u8, const TOKENS: usize>(
    row: &[Unpacked],
    x: [&[Large]; TOKENS],
    together: &[LargeTogether],
) -> [f32; TOKENS] {
    let mut sums = [_mm256_setzero_ps(); TOKENS];
    let mut of_shifts = [_mm256_setzero_ps(); TOKENS];
    let mut of_minima = [_mm256_setzero_ps(); MINIMA];
    for (at, (block, together)) in row.iter().zip(together).enumerate() {
        let head = &block.head;
        let mut all = [_mm512_setzero_si512(); TOKENS];
        let mut all_shifts = [_mm512_setzero_si512(); TOKENS];
        for number in 0..PAIRS {
            let (levels, negative) = (block.magnitudes[number], block.negative[number]);
            let scales = scales_of_pair::<TYPE>(head, number);
            let down = block.down[number];
            for token in 0..TOKENS {
                let x = load(&x[token][at].quants.as_chunks().0[number]);
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
            of_minima = together.with_minima::<TYPE>(head, of_minima);
        }
        let x_scales = load_floats(&together.scales);
        let scales = store(_mm256_mul_ps(x_scales, _mm256_set1_ps(head.scale)));
        for token in 0..TOKENS {
            let x = &x[token][at];
            if TYPE == types::Q2_K {
                sums[token] = with_minima(head, x, sums[token]);
            }
            let mut products = in_eight_lanes(all[token]);
            if surplus(TYPE) != 0 {
                products = _mm256_sub_epi32(products, surplus_of(head, x));
            }
            let scale = _mm256_set1_ps(scales[token]);
            sums[token] = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(products), sums[token]);
            if TYPE == types::IQ1_M {
                let shifts = _mm256_cvtepi32_ps(in_eight_lanes(all_shifts[token]));
                of_shifts[token] = _mm256_fmadd_ps(scale, shifts, of_shifts[token]);
            }
        }
    }

    let of_minima = store(total_of_minima::<TYPE>(of_minima));
    core::array::from_fn(|token| {
        let others = match TYPE {
            types::IQ1_M => points::SHIFT * total(of_shifts[token]),
            _ => of_minima[token],
        };
        total(sums[token]) + others
    })
}

/// Sums of minima that are kept apart.
const MINIMA: usize = 4;

/// Returns `true` if a type has minima or shifts that are added up for all rows of activations
/// together.
const fn has_minima(of: u8) -> bool {
    matches!(of, types::Q4_1 | types::Q5_1 | types::Q4_K | types::Q5_K | types::IQ1_S)
}

/// Scales and sums of a block of 32 in several rows of activations, one lane per row. Unused lanes
/// are 0.
struct SmallTogether {
    scales: [f32; TOKENS],
    sums: [f32; TOKENS],
}

impl SmallTogether {
    /// Collects the scales and sums of all blocks.
    fn of<const COUNT: usize>(x: [&[Small]; COUNT]) -> Vec<Self> {
        let of_block = |at: usize| {
            let mut together = Self { scales: [0.0; TOKENS], sums: [0.0; TOKENS] };
            for (token, x) in x.iter().enumerate() {
                (together.scales[token], together.sums[token]) = (x[at].scale, x[at].sum);
            }
            together
        };
        (0..x[0].len()).map(of_block).collect()
    }
}

/// Scales and sums of a block of 256 in several rows of activations, one lane per row.
struct LargeTogether {
    scales: [f32; TOKENS],
    /// Sums of each pair of groups.
    sums: [[[i16; 2]; TOKENS]; MINIMA],
}

impl LargeTogether {
    /// Collects the scales and sums of all blocks.
    fn of<const COUNT: usize>(x: [&[Large]; COUNT]) -> Vec<Self> {
        let of_block = |at: usize| {
            let mut together = Self { scales: [0.0; TOKENS], sums: [[[0; 2]; TOKENS]; MINIMA] };
            for (token, x) in x.iter().enumerate() {
                together.scales[token] = x[at].scale;
                let pairs = x[at].sums_of_groups.as_chunks().0;
                together.sums.iter_mut().zip(pairs).for_each(|(sums, pair)| sums[token] = *pair);
            }
            together
        };
        (0..x[0].len()).map(of_block).collect()
    }

    /// Adds the minima of a block.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn with_minima<const TYPE: u8>(
        &self,
        head: &Head,
        mut of_minima: [__m256; MINIMA],
    ) -> [__m256; MINIMA] {
        let least = _mm256_mul_ps(load_floats(&self.scales), _mm256_set1_ps(-head.least));
        let mut all = _mm256_setzero_si256();
        for (pair, sums) in self.sums.iter().enumerate() {
            let minima = _mm256_permutevar8x32_epi32(head.minima, _mm256_set1_epi32(pair as i32));
            // SAFETY: there are 32 bytes.
            let sums = unsafe { _mm256_loadu_si256(sums.as_ptr().cast()) };
            let products = _mm256_madd_epi16(minima, sums);
            if TYPE == types::Q4_K {
                let products = _mm256_cvtepi32_ps(products);
                of_minima[pair] = _mm256_fmadd_ps(least, products, of_minima[pair]);
            }
            all = _mm256_add_epi32(all, products);
        }
        if TYPE != types::Q4_K {
            of_minima[0] = _mm256_fmadd_ps(least, _mm256_cvtepi32_ps(all), of_minima[0]);
        }
        of_minima
    }
}

/// Adds up the sums in the order of AVX2's `total_of_four`.
#[inline]
#[target_feature(enable = "avx2")]
fn total_of_minima<const TYPE: u8>(of_minima: [__m256; MINIMA]) -> __m256 {
    let [first, second, third, fourth] = of_minima;
    match TYPE {
        types::Q4_K => _mm256_add_ps(_mm256_add_ps(first, third), _mm256_add_ps(second, fourth)),
        types::IQ1_S => _mm256_mul_ps(_mm256_set1_ps(points::SHIFT), first),
        _ => first,
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_floats(floats: &[f32; TOKENS]) -> __m256 {
    // SAFETY: there are 32 bytes.
    unsafe { _mm256_loadu_ps(floats.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(floats: __m256) -> [f32; TOKENS] {
    // SAFETY: both are 32 bytes, and every value of either is valid.
    unsafe { core::mem::transmute::<__m256, [f32; TOKENS]>(floats) }
}

/// The scales of a pair of groups, one for each word.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn scales_of_pair<const TYPE: u8>(head: &Head, number: usize) -> __m512i {
    let places = &SCALES[usize::from(has_eight_scales(TYPE))][number];
    // SAFETY: there are 64 bytes.
    let places = unsafe { _mm512_loadu_si512(places.as_ptr().cast()) };
    _mm512_permutexvar_epi16(places, _mm512_castsi256_si512(head.scales))
}

/// Returns the mask of the weights in a pair of groups of `IQ1_M` that are shifted downwards.
#[inline]
#[target_feature(enable = "avx2,avx512f,avx512bw")]
fn shifted_down(block: &[u8], number: usize) -> __mmask64 {
    _mm512_movepi8_mask(pair(shifts(block, 2 * number), shifts(block, 2 * number + 1)))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn with_signs(x: __m512i, negative: __mmask64) -> __m512i {
    _mm512_mask_sub_epi8(x, negative, _mm512_setzero_si512(), x)
}

/// Adds up the halves.
#[inline]
#[target_feature(enable = "avx512f,avx2")]
fn in_eight_lanes(sums: __m512i) -> __m256i {
    _mm256_add_epi32(_mm512_castsi512_si256(sums), _mm512_extracti64x4_epi64::<1>(sums))
}
