//! Blocks of 32 weights. Groups of four weights, of which each makes a lane of a product, alternate
//! between two rows.
//!
//! The instruction multiplies bytes without a sign with bytes that have one. Activations are made
//! 128 too large, and what that adds is subtracted once for each block of weights.

use core::arch::x86_64::{
    __m256i, __m512, __m512i, _mm_load_sd, _mm256_cvtss_f32, _mm512_add_ps, _mm512_broadcastsd_pd,
    _mm512_castpd_ps, _mm512_cvtepi32_ps, _mm512_dpbusd_epi32, _mm512_fmadd_ps, _mm512_loadu_ps,
    _mm512_loadu_si512, _mm512_mul_ps, _mm512_permutexvar_epi32, _mm512_permutexvar_ps,
    _mm512_set1_epi8, _mm512_setzero_ps, _mm512_setzero_si512, _mm512_storeu_ps,
    _mm512_storeu_si512, _mm512_sub_epi32, _mm512_xor_si512,
};

use super::super::activations::Small;
use super::super::avx2::{fetch, half, load as load_group, small_quants, small_scales, total};
use super::super::{Outputs, Rows, is_in_pairs};
use super::{HALF, PAIR, ROWS, TOKENS, Tiles, halves, has_minima, pair, store, write};

/// Blocks of two rows that are unpacked at a time, so that they stay in the second-level cache.
const UNPACKED: usize = 512;
/// Amount by which activations are made too large.
const SURPLUS: i8 = i8::MIN;

multiply_pairs!(Small);

/// Places of the words of two rows that lie side by side: first ones, then second ones.
static ALTERNATING: [i32; 16] = {
    let mut places = [0; 16];
    let mut at = 0;
    while at < 16 {
        places[at] = (at / 2 + at % 2 * 8) as i32;
        at += 1;
    }
    places
};

/// The reverse of [`ALTERNATING`].
static SIDE_BY_SIDE: [i32; 16] = {
    let mut places = [0; 16];
    let mut at = 0;
    while at < 16 {
        places[at] = (at % 8 * 2 + at / 8) as i32;
        at += 1;
    }
    places
};

#[inline]
#[target_feature(enable = "avx512f")]
fn load_places(places: &[i32; 16]) -> __m512i {
    // SAFETY: there are 64 bytes.
    unsafe { _mm512_loadu_si512(places.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn alternating(first: __m256i, second: __m256i) -> __m512i {
    _mm512_permutexvar_epi32(load_places(&ALTERNATING), pair(first, second))
}

/// Two numbers, again and again.
#[inline]
#[target_feature(enable = "avx512f")]
fn repeated(two: &[f32; ROWS]) -> __m512 {
    // SAFETY: there are 8 bytes.
    _mm512_castpd_ps(_mm512_broadcastsd_pd(unsafe { _mm_load_sd(two.as_ptr().cast()) }))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_floats(floats: &[[f32; ROWS]; TOKENS]) -> __m512 {
    // SAFETY: there are 64 bytes.
    unsafe { _mm512_loadu_ps(floats.as_ptr().cast()) }
}

/// A block of 32 weights of two rows, ready to be multiplied.
#[derive(Clone, Copy)]
struct Unpacked {
    quants: __m512i,
    /// What the products start with.
    start: __m512i,
    scales: [f32; ROWS],
    least: [f32; ROWS],
}

impl Unpacked {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn none() -> Self {
        let zero = _mm512_setzero_si512();
        Self { quants: zero, start: zero, scales: [0.0; ROWS], least: [0.0; ROWS] }
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c,avx512f,avx512vnni")]
    fn set<const TYPE: u8, const BYTES: usize>(
        &mut self,
        first: &[u8; BYTES],
        second: &[u8; BYTES],
    ) {
        let zero = _mm512_setzero_si512();
        self.quants = alternating(small_quants::<TYPE>(first, 0), small_quants::<TYPE>(second, 0));
        let surplus = _mm512_dpbusd_epi32(zero, _mm512_set1_epi8(SURPLUS), self.quants);
        self.start = _mm512_sub_epi32(zero, surplus);
        self.scales = [first, second].map(|block| _mm256_cvtss_f32(small_scales::<TYPE>(block, 0)));
        if has_minima(TYPE) {
            self.least = [first, second].map(|block| half(block, 2));
        }
    }
}

/// Products of two rows of weights. Overwrites `scales`, one entry for each block: a pair that is
/// loaded from memory fills all lanes without a shuffle.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
fn products<const TYPE: u8, const COUNT: usize>(
    rows: &[Unpacked],
    x: &[Together],
    scales: &mut [[[f32; ROWS]; TOKENS]],
) -> [[f32; ROWS]; COUNT] {
    for ((block, x), scales) in rows.iter().zip(x).zip(&mut *scales) {
        let products = _mm512_mul_ps(repeated(&block.scales), load_floats(&x.scales));
        // SAFETY: there are 64 bytes.
        unsafe { _mm512_storeu_ps(scales.as_mut_ptr().cast(), products) };
    }

    let (mut sums, mut others) = ([_mm512_setzero_ps(); COUNT], [_mm512_setzero_ps(); COUNT]);
    let mut of_minima = _mm512_setzero_ps();
    for ((block, x), scales) in rows.iter().zip(x).zip(&*scales) {
        for token in 0..COUNT {
            // SAFETY: there are 64 bytes.
            let x = unsafe { _mm512_loadu_si512(x.quants[token].as_ptr().cast()) };
            let products = _mm512_dpbusd_epi32(block.start, x, block.quants);
            let products = _mm512_cvtepi32_ps(products);
            sums[token] = _mm512_fmadd_ps(repeated(&scales[token]), products, sums[token]);
        }
        if has_minima(TYPE) {
            let products = _mm512_mul_ps(repeated(&block.least), load_floats(&x.sums));
            of_minima = _mm512_add_ps(of_minima, products);
        }
        if is_in_pairs(TYPE) {
            std::mem::swap(&mut sums, &mut others);
        }
    }

    let of_minima = store(of_minima);
    let of_minima = of_minima.as_chunks::<ROWS>().0;
    core::array::from_fn(|token| {
        let mut all = sums[token];
        if is_in_pairs(TYPE) {
            all = _mm512_add_ps(all, others[token]);
        }
        let all = _mm512_permutexvar_ps(load_places(&SIDE_BY_SIDE), all);
        let [first, second] = halves(all).map(|sums| total(sums));
        [first + of_minima[token][0], second + of_minima[token][1]]
    })
}

/// A block of 32 in several rows of activations. Each number is there twice, for two rows of
/// weights.
#[derive(Clone)]
#[repr(C, align(64))]
pub(in crate::matrix::blocks) struct Together {
    /// Groups of four activations, too large by [`SURPLUS`].
    quants: [[u8; PAIR]; TOKENS],
    scales: [[f32; ROWS]; TOKENS],
    sums: [[f32; ROWS]; TOKENS],
}

impl Together {
    /// Collects all blocks of several rows.
    #[target_feature(enable = "avx2,avx512f")]
    fn of(x: &[&[Small]]) -> Vec<Self> {
        let none = Self {
            quants: [[0; PAIR]; TOKENS],
            scales: [[0.0; ROWS]; TOKENS],
            sums: [[0.0; ROWS]; TOKENS],
        };
        let mut all = vec![none; x[0].len()];
        for (token, x) in x.iter().enumerate() {
            for (block, together) in x.iter().zip(&mut all) {
                let quants = load_group(&block.quants);
                let quants = alternating(quants, quants);
                let quants = _mm512_xor_si512(quants, _mm512_set1_epi8(SURPLUS));
                let place = together.quants[token].as_mut_ptr();
                // SAFETY: there are 64 bytes.
                unsafe { _mm512_storeu_si512(place.cast(), quants) };
                together.scales[token] = [block.scale; ROWS];
                together.sums[token] = [block.sum; ROWS];
            }
        }
        all
    }
}

impl Tiles<Together> {
    #[target_feature(enable = "avx2,avx512f")]
    fn of(x: &[&[Small]]) -> Self {
        let (whole, rest) = x.as_chunks::<TOKENS>();
        Self {
            whole: whole.iter().map(|x| Together::of(x)).collect(),
            half: rest.get(..HALF).map(|x| Together::of(x)),
        }
    }
}
