//! The innermost loops of matrix products.
//!
//! Each is written once, as a plain function, and compiled again for processors with AVX2 or AVX-512. There a
//! multiplication and an addition are rounded once; elsewhere they are rounded one after the other.
#![allow(unsafe_code, reason = "versions for a processor's features are called after detecting them")]

/// A way to multiply: how large its tiles are, and its loop.
#[derive(Clone, Copy)]
pub(super) struct Kernel {
    /// Rows of a tile.
    pub(super) rows: usize,
    /// Columns of a tile.
    pub(super) columns: usize,
    /// Adds the product of a packed strip of rows and one of columns to a tile. `out` is cut so that the tile begins at its
    /// first element; its rows are `stride` apart. Only `height` rows and `width` columns are written.
    pub(super) tile: fn(&[f32], &[f32], Tile<'_>),
}

/// Where a tile goes.
pub(super) struct Tile<'a> {
    pub(super) out: &'a mut [f32],
    pub(super) stride: usize,
    pub(super) height: usize,
    pub(super) width: usize,
}

/// The kernel for this processor.
pub(super) fn best() -> Kernel {
    #[cfg(all(feature = "std", target_arch = "x86_64"))]
    {
        use std::arch::is_x86_feature_detected;
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("fma") {
            return x86::AVX512;
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            return x86::AVX2;
        }
    }
    PLAIN
}

/// For any processor.
pub(super) const PLAIN: Kernel = Kernel { rows: 4, columns: 8, tile: |a, b, tile| multiply::<4, 8, false>(a, b, tile) };

#[cfg(all(feature = "std", target_arch = "x86_64"))]
mod x86 {
    use super::{Kernel, Tile, multiply};

    /// For processors with AVX2 and FMA.
    pub(super) const AVX2: Kernel = Kernel { rows: 6, columns: 16, tile: avx2 };
    /// For processors with AVX-512.
    pub(super) const AVX512: Kernel = Kernel { rows: 12, columns: 32, tile: avx512 };

    fn avx2(a: &[f32], b: &[f32], tile: Tile<'_>) {
        // SAFETY: `best` found the features.
        unsafe { avx2_here(a, b, tile) }
    }

    #[target_feature(enable = "avx2,fma")]
    fn avx2_here(a: &[f32], b: &[f32], tile: Tile<'_>) {
        multiply::<6, 16, true>(a, b, tile);
    }

    fn avx512(a: &[f32], b: &[f32], tile: Tile<'_>) {
        // SAFETY: `best` found the features.
        unsafe { avx512_here(a, b, tile) }
    }

    #[target_feature(enable = "avx512f,avx2,fma")]
    fn avx512_here(a: &[f32], b: &[f32], tile: Tile<'_>) {
        multiply::<12, 32, true>(a, b, tile);
    }
}

#[inline(always)]
fn multiply<const ROWS: usize, const COLUMNS: usize, const FUSED: bool>(a: &[f32], b: &[f32], tile: Tile<'_>) {
    let mut sums = [[0.0_f32; COLUMNS]; ROWS];
    let (a, b) = (a.as_chunks::<ROWS>().0, b.as_chunks::<COLUMNS>().0);
    for (a, b) in a.iter().zip(b) {
        for row in 0..ROWS {
            for column in 0..COLUMNS {
                sums[row][column] = if FUSED {
                    a[row].mul_add(b[column], sums[row][column])
                } else {
                    a[row] * b[column] + sums[row][column]
                };
            }
        }
    }
    let Tile { out, stride, height, width } = tile;
    for (row, sums) in sums.iter().enumerate().take(height) {
        let out = &mut out[row * stride..][..width];
        for (out, sum) in out.iter_mut().zip(sums) {
            *out += sum;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_multiplies_small_integers_exactly() {
        for kernel in [PLAIN, best()] {
            let depth = 7;
            let a: Vec<f32> = (0..kernel.rows * depth).map(|n| (n % 5) as f32 - 2.0).collect();
            let b: Vec<f32> = (0..kernel.columns * depth).map(|n| (n % 7) as f32 - 3.0).collect();
            let mut out = vec![1.0; kernel.rows * kernel.columns];
            let tile = Tile { out: &mut out, stride: kernel.columns, height: kernel.rows, width: kernel.columns };
            (kernel.tile)(&a, &b, tile);
            for row in 0..kernel.rows {
                for column in 0..kernel.columns {
                    let of = |at: usize| a[at * kernel.rows + row] * b[at * kernel.columns + column];
                    let sum: f32 = (0..depth).map(of).sum();
                    assert_eq!(out[row * kernel.columns + column], 1.0 + sum);
                }
            }
        }
    }
}
