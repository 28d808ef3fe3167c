//! Products of blocks with several rows of activations, with AVX-512 and its instructions for
//! neural networks; single rows are left to [`avx2`], which is as fast with them. The bits are the
//! same.
//!
//! Two rows of weights are multiplied at a time, and lie in a register side by side. Sums of
//! integers are exact, so that their order does not matter; sums of floats are those of the eight
//! lanes of AVX2. Weights are unpacked once for all rows of activations. What has one value for
//! each row of activations, as scales and sums of minima, is computed for eight rows at once.

use core::arch::x86_64::{
    __m256, __m256i, __m512, __m512i, _mm256_castpd_ps, _mm256_castps_pd, _mm256_loadu_ps,
    _mm256_set1_ps, _mm512_castpd_ps, _mm512_castps_pd, _mm512_castps256_ps512,
    _mm512_castps512_ps256, _mm512_castsi256_si512, _mm512_extractf64x4_pd, _mm512_insertf64x4,
    _mm512_inserti64x4,
};
use core::ops::Range;

use super::activations::{Large, Small};
use super::layout::types;
use super::{Outputs, Rows, avx2, groups};

/// Defines `multiply`, which unpacks two rows of weights at a time (`Unpacked::set`) and multiplies
/// them with each tile of activations (`products`).
macro_rules! multiply_pairs {
    ($block:ty) => {
        /// Multiplies the rows of activations that fill whole tiles, and returns their number.
        #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
        pub(super) fn multiply<const TYPE: u8, const BYTES: usize>(
            weights: &[u8],
            row_bytes: usize,
            x: &Rows<'_, $block>,
            out: &mut Outputs<'_>,
        ) -> usize {
            let tiles = x.tiles.get_or_init(|| Tiles::of(&x.rows));
            let row_blocks = row_bytes / BYTES;
            let pairs = (UNPACKED / row_blocks).max(1);
            let count = pairs.min(weights.len().div_ceil(ROWS * row_bytes));
            let mut unpacked = vec![Unpacked::none(); count * row_blocks];
            let mut scales = vec![[[0.0; ROWS]; TOKENS]; row_blocks];
            for (number, weights) in weights.chunks(ROWS * pairs * row_bytes).enumerate() {
                for (rows, unpacked) in
                    weights.chunks(ROWS * row_bytes).zip(unpacked.chunks_exact_mut(row_blocks))
                {
                    // A last row without another one is multiplied twice.
                    let (first, second) = rows.split_at(row_bytes);
                    let second = if second.is_empty() { first } else { second };
                    let (first, second) = (first.as_chunks::<BYTES>(), second.as_chunks::<BYTES>());
                    let blocks = first.0.iter().zip(second.0);
                    for ((first, second), unpacked) in blocks.zip(unpacked) {
                        fetch(first);
                        fetch(second);
                        unpacked.set::<TYPE, BYTES>(first, second);
                    }
                }

                let rows = weights.len() / row_bytes;
                let start = ROWS * pairs * number;
                let of_pairs = unpacked.chunks_exact(row_blocks).take(rows.div_ceil(ROWS));
                let of_pairs = of_pairs.zip((start..).step_by(ROWS));
                let end = start + rows;
                let mut outputs = out.chunks_mut(TOKENS);
                for (tile, out) in tiles.whole.iter().zip(&mut outputs) {
                    for (blocks, row) in of_pairs.clone() {
                        let products = products::<TYPE, TOKENS>(blocks, tile, &mut scales);
                        write(out, row..end, products);
                    }
                }
                if let (Some(tile), Some(out)) = (&tiles.half, outputs.next()) {
                    for (blocks, row) in of_pairs {
                        write(out, row..end, products::<TYPE, HALF>(blocks, tile, &mut scales));
                    }
                }
            }
            tiles.rows()
        }
    };
}

mod large;
mod small;

pub(super) type LargeTiles = Tiles<large::Together>;
pub(super) type SmallTiles = Tiles<small::Together>;

/// Rows of activations, block by block.
pub(super) struct Tiles<T> {
    /// Tiles of [`TOKENS`] rows.
    whole: Vec<Vec<T>>,
    /// A tile of [`HALF`] rows.
    half: Option<Vec<T>>,
}

impl<T> Tiles<T> {
    /// Returns the number of rows.
    fn rows(&self) -> usize {
        self.whole.len() * TOKENS + if self.half.is_some() { HALF } else { 0 }
    }
}

/// Maximum number of rows of activations that are multiplied with a block at a time.
const TOKENS: usize = 8;
/// Number of rows of activations that are multiplied at a time if fewer are left.
const HALF: usize = TOKENS / 2;
/// Rows of weights that are multiplied at a time.
const ROWS: usize = 2;
/// Bytes of a register.
const PAIR: usize = 64;

/// Blocks of 32: rows of weights, bytes of one, rows of activations, products.
pub(super) fn small<const TYPE: u8, const BYTES: usize>(
    weights: &[u8],
    row_bytes: usize,
    x: &Rows<'_, Small>,
    out: &mut Outputs<'_>,
) {
    // Blocks of several groups are left to AVX2.
    let tiled = match groups(TYPE) == 1 && x.rows.len() >= HALF {
        // SAFETY: `best` found the features.
        true => unsafe { small::multiply::<TYPE, BYTES>(weights, row_bytes, x, out) },
        false => 0,
    };
    avx2::small_rows::<TYPE, BYTES>(weights, row_bytes, &x.rows[tiled..], &mut out[tiled..]);
}

/// Multiplies blocks of 256 elements; the arguments are the same as for `small`.
pub(super) fn large<const TYPE: u8, const BYTES: usize>(
    weights: &[u8],
    row_bytes: usize,
    x: &Rows<'_, Large>,
    out: &mut Outputs<'_>,
) {
    let tiled = match x.rows.len() >= HALF {
        // SAFETY: `best` found the features.
        true => unsafe { large::multiply::<TYPE, BYTES>(weights, row_bytes, x, out) },
        false => 0,
    };
    avx2::large_rows::<TYPE, BYTES>(weights, row_bytes, &x.rows[tiled..], &mut out[tiled..]);
}

/// Returns `true` if a type has minima or shifts that are added up for all rows of activations
/// together.
const fn has_minima(of: u8) -> bool {
    matches!(of, types::Q4_1 | types::Q5_1 | types::Q4_K | types::Q5_K | types::IQ1_S)
}

/// Writes the products of two rows of weights, or of one where `rows` ends with it.
#[inline]
fn write<const COUNT: usize>(
    out: &mut Outputs<'_>,
    rows: Range<usize>,
    products: [[f32; ROWS]; COUNT],
) {
    let count = rows.len().min(ROWS);
    for (out, products) in out.iter_mut().zip(products) {
        out[rows.start..rows.start + count].copy_from_slice(&products[..count]);
    }
}

/// Two registers side by side.
#[inline]
#[target_feature(enable = "avx512f")]
fn pair(lower: __m256i, upper: __m256i) -> __m512i {
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(lower), upper)
}

/// The halves of a register.
#[inline]
#[target_feature(enable = "avx512f")]
fn halves(floats: __m512) -> [__m256; 2] {
    let upper = _mm512_extractf64x4_pd::<1>(_mm512_castps_pd(floats));
    [_mm512_castps512_ps256(floats), _mm256_castpd_ps(upper)]
}

#[inline]
#[target_feature(enable = "avx512f")]
fn pair_of_floats(lower: __m256, upper: __m256) -> __m512 {
    let lower = _mm512_castps_pd(_mm512_castps256_ps512(lower));
    _mm512_castpd_ps(_mm512_insertf64x4::<1>(lower, _mm256_castps_pd(upper)))
}

/// A number in each half of a register.
#[inline]
#[target_feature(enable = "avx512f")]
fn in_halves(lower: f32, upper: f32) -> __m512 {
    pair_of_floats(_mm256_set1_ps(lower), _mm256_set1_ps(upper))
}

/// Eight numbers, twice.
#[inline]
#[target_feature(enable = "avx512f")]
fn twice(floats: &[f32; TOKENS]) -> __m512 {
    // SAFETY: there are 32 bytes.
    let floats = unsafe { _mm256_loadu_ps(floats.as_ptr()) };
    pair_of_floats(floats, floats)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store(floats: __m512) -> [f32; ROWS * TOKENS] {
    // SAFETY: both are 64 bytes, and every value of either is valid.
    unsafe { core::mem::transmute::<__m512, [f32; ROWS * TOKENS]>(floats) }
}
