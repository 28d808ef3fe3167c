//! Blocks of 256 weights.

use core::arch::x86_64::{
    __m128, __m128i, __m256, __m256i, _mm_add_epi32, _mm_cvtepi32_ps, _mm_cvtsi128_si32,
    _mm_fmadd_ps, _mm_loadu_si128, _mm_madd_epi16, _mm_set1_ps, _mm_setzero_ps, _mm_shuffle_epi32,
    _mm_unpackhi_epi16, _mm_unpacklo_epi16, _mm256_abs_epi8, _mm256_add_epi32,
    _mm256_broadcastsi128_si256, _mm256_castsi256_si128, _mm256_cvtepi32_ps,
    _mm256_extracti128_si256, _mm256_fmadd_ps, _mm256_loadu_si256, _mm256_madd_epi16,
    _mm256_maddubs_epi16, _mm256_set1_epi8, _mm256_set1_ps, _mm256_setzero_ps,
    _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_sign_epi8, _mm256_sub_epi32,
};

use super::super::activations::Large;
use super::super::layout::types;
use super::super::{GROUP, Outputs, by_tokens, points, surplus};
use super::{
    Head, TOKENS, fetch, has_eight_scales, head, is_signed, large_quants, load, shifts, total,
    total_of_four,
};

/// Rows of weights, bytes of one, rows of activations, products.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn large_here<const TYPE: u8, const BYTES: usize>(
    weights: &[u8],
    row_bytes: usize,
    x: &[&[Large]],
    out: &mut Outputs<'_>,
) {
    by_tokens!(weights, row_bytes, x, out, TOKENS, large_row::<TYPE, BYTES>);
}

/// Duplicates each half of a register, which has 8 scales for 16 integers each.
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

/// Shuffles that select the two scales of a group of 32 among eight in each half of a register. The
/// lower half of the result has the scale of the first 16 integers.
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
pub(in crate::matrix::blocks) fn of_16_minima(minima: __m256i, x: &Large) -> __m256i {
    _mm256_madd_epi16(minima, load_words(&x.sums))
}

#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::matrix::blocks) fn total_of_integers(four: __m128i) -> i32 {
    let two = _mm_add_epi32(four, _mm_shuffle_epi32::<0b1110>(four));
    _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32::<0b01>(two)))
}

/// Products of eight minima with sums of 32 activations each, two added up.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::matrix::blocks) fn of_minima(minima: __m256i, x: &Large) -> __m128i {
    // SAFETY: there are 16 bytes.
    let sums = unsafe { _mm_loadu_si128(x.sums_of_groups.as_ptr().cast()) };
    _mm_madd_epi16(_mm256_castsi256_si128(minima), sums)
}

/// Sums that minima and shifts contribute, separate from the sums of products.
#[derive(Clone, Copy)]
pub(in crate::matrix::blocks) struct Others {
    in_lanes: __m128,
    of_all: f32,
}

impl Others {
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(in crate::matrix::blocks) fn none() -> Self {
        Self { in_lanes: _mm_setzero_ps(), of_all: 0.0 }
    }

    /// Adds the minima or shifts of a block of the types that keep them apart.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    pub(in crate::matrix::blocks) fn with<const TYPE: u8>(
        mut self,
        head: &Head,
        x: &Large,
    ) -> Self {
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
    pub(in crate::matrix::blocks) fn total<const TYPE: u8>(self) -> f32 {
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
fn with_minima(head: &Head, x: &Large, sums: __m256) -> __m256 {
    let minima = _mm256_cvtepi32_ps(of_16_minima(head.minima, x));
    _mm256_fmadd_ps(_mm256_set1_ps(x.scale * -head.least), minima, sums)
}

/// Returns the amount that the surplus of a block's integers adds to its products.
#[inline]
#[target_feature(enable = "avx2")]
fn surplus_of(head: &Head, x: &Large) -> __m256i {
    of_16_minima(head.minima, x)
}

/// Products of a row of weights with rows of activations.
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
