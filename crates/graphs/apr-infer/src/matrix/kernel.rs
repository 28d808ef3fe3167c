//! The innermost loops of matrix products.
//!
//! The plain one is for any processor. With AVX2 or AVX-512, a multiplication and an addition are
//! rounded once; elsewhere they are rounded one after the other.
#![allow(
    unsafe_code,
    reason = "kernels for a processor's features are called after detecting them; vectors are \
        loaded"
)]

/// Function that computes a tile from rows, their distance, a packed strip of columns and the tile.
pub(super) type Direct = fn(&[f32], usize, &[f32], Tile<'_, '_>);

/// A way to multiply: how large its tiles are, and its loops.
#[derive(Clone, Copy)]
pub(super) struct Kernel {
    /// Rows of a tile.
    pub(super) rows: usize,
    /// Columns of a tile.
    pub(super) columns: usize,
    /// Computes the product of a packed strip of rows and one of columns for a tile.
    pub(super) tile: fn(&[f32], &[f32], Tile<'_, '_>),
    /// Computes the product for a whole tile with rows that are not packed.
    ///
    /// The second argument is the distance between rows.
    pub(super) direct: Option<Direct>,
    /// Function that transposes rows: `out[at * strip + lane]` becomes element `at` of row `lane`.
    pub(super) turn: fn(Lines<'_>, usize, &mut [f32]),
}

/// Rows of a matrix in memory: `count` of them, `step` apart, of `depth` elements each.
#[derive(Clone, Copy)]
pub(crate) struct Lines<'a> {
    pub(crate) values: &'a [f32],
    pub(crate) count: usize,
    pub(crate) step: usize,
    pub(crate) depth: usize,
}

/// Turns rows into columns, which are `strip` apart.
pub(crate) fn turned(lines: Lines<'_>, strip: usize, out: &mut [f32]) {
    (best().turn)(lines, strip, out);
}

/// Destination of a tile: the rows that exist, up to all rows of the tile, and `width` of their
/// columns.
pub(super) struct Tile<'a, 'r> {
    pub(super) rows: &'a mut [&'r mut [f32]],
    pub(super) first: usize,
    pub(super) width: usize,
    /// `true` if sums are added to the existing values, `false` if they overwrite them.
    pub(super) adds: bool,
}

impl Tile<'_, '_> {
    /// Puts the rows of a whole tile into the part of it that counts.
    #[inline(always)]
    fn put<const COLUMNS: usize>(self, sums: &[[f32; COLUMNS]]) {
        let Tile { rows, first, width, adds } = self;
        for (row, sums) in rows.iter_mut().zip(sums) {
            let out = &mut row[first..][..width];
            if adds {
                out.iter_mut().zip(sums).for_each(|(out, sum)| *out += sum);
            } else {
                out.copy_from_slice(&sums[..width]);
            }
        }
    }
}

/// The kernel for this processor.
pub(super) fn best() -> Kernel {
    #[cfg(all(feature = "simd", target_arch = "x86_64"))]
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
pub(super) const PLAIN: Kernel = Kernel { rows: 4, columns: 8, tile: multiply, direct: None, turn };

fn multiply(a: &[f32], b: &[f32], tile: Tile<'_, '_>) {
    let mut sums = [[0.0_f32; 8]; 4];
    for (a, b) in a.as_chunks::<4>().0.iter().zip(b.as_chunks::<8>().0) {
        for (sums, a) in sums.iter_mut().zip(a) {
            sums.iter_mut().zip(b).for_each(|(sum, b)| *sum += a * b);
        }
    }
    tile.put(&sums);
}

fn turn(lines: Lines<'_>, strip: usize, out: &mut [f32]) {
    for lane in 0..lines.count {
        let row = &lines.values[lane * lines.step..][..lines.depth];
        out[lane..].iter_mut().step_by(strip).zip(row).for_each(|(out, value)| *out = *value);
    }
}

#[cfg(all(feature = "simd", target_arch = "x86_64"))]
mod x86 {
    use core::arch::x86_64::{
        __m512, __mmask16, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_set1_ps, _mm256_setzero_ps,
        _mm256_storeu_ps, _mm512_add_ps, _mm512_castpd_ps, _mm512_castps_pd, _mm512_fmadd_ps,
        _mm512_loadu_ps, _mm512_mask_storeu_ps, _mm512_set1_ps, _mm512_setzero_ps,
        _mm512_shuffle_f32x4, _mm512_storeu_ps, _mm512_unpackhi_pd, _mm512_unpackhi_ps,
        _mm512_unpacklo_pd, _mm512_unpacklo_ps,
    };

    use super::{Kernel, Lines, Tile, turn};

    /// For processors with AVX2 and FMA.
    pub(super) const AVX2: Kernel = Kernel { rows: 6, columns: 16, tile: avx2, direct: None, turn };
    /// For processors with AVX-512.
    pub(super) const AVX512: Kernel =
        Kernel { rows: ROWS, columns: 32, tile: avx512, direct: Some(direct), turn: turn_avx512 };

    const ROWS: usize = 12;
    /// Elements of a register.
    const LANES: usize = 16;

    fn avx2(a: &[f32], b: &[f32], tile: Tile<'_, '_>) {
        // SAFETY: `best` found the features.
        unsafe { avx2_here(a, b, tile) }
    }

    #[target_feature(enable = "avx2,fma")]
    fn avx2_here(a: &[f32], b: &[f32], tile: Tile<'_, '_>) {
        // Twelve sums, two vectors of columns and one of rows: 15 of the 16 registers.
        let mut sums = [[_mm256_setzero_ps(); 2]; 6];
        for (a, b) in a.as_chunks::<6>().0.iter().zip(b.as_chunks::<16>().0) {
            // SAFETY: there are twice eight elements.
            let (left, right) =
                unsafe { (_mm256_loadu_ps(b.as_ptr()), _mm256_loadu_ps(b.as_ptr().add(8))) };
            for row in 0..6 {
                let a = _mm256_set1_ps(a[row]);
                sums[row][0] = _mm256_fmadd_ps(a, left, sums[row][0]);
                sums[row][1] = _mm256_fmadd_ps(a, right, sums[row][1]);
            }
        }

        let mut flat = [[0.0_f32; 16]; 6];
        for (flat, sums) in flat.iter_mut().zip(sums) {
            // SAFETY: there is room for twice eight elements.
            unsafe {
                _mm256_storeu_ps(flat.as_mut_ptr(), sums[0]);
                _mm256_storeu_ps(flat.as_mut_ptr().add(8), sums[1]);
            }
        }

        tile.put(&flat);
    }

    fn avx512(a: &[f32], b: &[f32], tile: Tile<'_, '_>) {
        // SAFETY: `best` found the features.
        unsafe {
            match tile.rows.len() {
                0..=2 => rows_here::<2>(a, b, tile),
                3..=4 => rows_here::<4>(a, b, tile),
                5..=8 => rows_here::<8>(a, b, tile),
                _ => rows_here::<ROWS>(a, b, tile),
            }
        }
    }

    fn direct(a: &[f32], step: usize, b: &[f32], tile: Tile<'_, '_>) {
        // SAFETY: `best` found the features.
        unsafe { direct_here(a, step, b, tile) }
    }

    #[target_feature(enable = "avx512f")]
    fn direct_here(a: &[f32], step: usize, b: &[f32], tile: Tile<'_, '_>) {
        // 24 sums, two vectors of columns and one of rows: 27 of the 32 registers.
        let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
        let b = b.as_chunks::<32>().0;
        let rows: [&[f32]; ROWS] = core::array::from_fn(|row| &a[row * step..][..b.len()]);
        for (at, b) in b.iter().enumerate() {
            // SAFETY: there are twice sixteen elements.
            let (left, right) =
                unsafe { (_mm512_loadu_ps(b.as_ptr()), _mm512_loadu_ps(b.as_ptr().add(LANES))) };
            for row in 0..ROWS {
                // SAFETY: each row is as long as there are positions.
                let a = _mm512_set1_ps(unsafe { *rows[row].get_unchecked(at) });
                sums[row][0] = _mm512_fmadd_ps(a, left, sums[row][0]);
                sums[row][1] = _mm512_fmadd_ps(a, right, sums[row][1]);
            }
        }

        write(sums, tile);
    }

    /// Computes the first rows of a strip. Missing rows cost nothing.
    #[target_feature(enable = "avx512f")]
    fn rows_here<const COUNT: usize>(a: &[f32], b: &[f32], tile: Tile<'_, '_>) {
        let mut sums = [[_mm512_setzero_ps(); 2]; COUNT];
        for (a, b) in a.as_chunks::<ROWS>().0.iter().zip(b.as_chunks::<32>().0) {
            // SAFETY: there are twice sixteen elements.
            let (left, right) =
                unsafe { (_mm512_loadu_ps(b.as_ptr()), _mm512_loadu_ps(b.as_ptr().add(LANES))) };
            for row in 0..COUNT {
                let a = _mm512_set1_ps(a[row]);
                sums[row][0] = _mm512_fmadd_ps(a, left, sums[row][0]);
                sums[row][1] = _mm512_fmadd_ps(a, right, sums[row][1]);
            }
        }
        write(sums, tile);
    }

    /// Writes sums from registers into a tile. The sums are passed by value, because a loop that
    /// borrows them would keep them in memory.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn write<const COUNT: usize>(sums: [[__m512; 2]; COUNT], tile: Tile<'_, '_>) {
        if tile.width == 32 && tile.rows.len() == COUNT {
            for (row, sums) in tile.rows.iter_mut().zip(sums) {
                let out = &mut row[tile.first..][..32];
                // SAFETY: there are twice sixteen elements.
                unsafe {
                    let (left, right) = (out.as_mut_ptr(), out.as_mut_ptr().add(LANES));
                    let mut sums = sums;
                    if tile.adds {
                        sums[0] = _mm512_add_ps(_mm512_loadu_ps(left), sums[0]);
                        sums[1] = _mm512_add_ps(_mm512_loadu_ps(right), sums[1]);
                    }
                    _mm512_storeu_ps(left, sums[0]);
                    _mm512_storeu_ps(right, sums[1]);
                }
            }

            return;
        }

        let mut flat = [[0.0_f32; 32]; COUNT];
        for (flat, sums) in flat.iter_mut().zip(sums) {
            // SAFETY: there is room for twice sixteen elements.
            unsafe {
                _mm512_storeu_ps(flat.as_mut_ptr(), sums[0]);
                _mm512_storeu_ps(flat.as_mut_ptr().add(LANES), sums[1]);
            }
        }

        tile.put(&flat);
    }

    fn turn_avx512(lines: Lines<'_>, strip: usize, out: &mut [f32]) {
        let Lines { values, count: lanes, step, depth } = lines;
        let whole = depth - depth % LANES;
        for first in (0..lanes).step_by(LANES) {
            let count = LANES.min(lanes - first);
            for at in (0..whole).step_by(LANES) {
                let (from, to) = (&values[first * step + at..], &mut out[at * strip + first..]);
                // SAFETY: `best` found the feature.
                unsafe { turn_square(from, step, to, strip, count) };
            }
        }

        for lane in 0..lanes {
            for at in whole..depth {
                out[at * strip + lane] = values[lane * step + at];
            }
        }
    }

    /// Turns up to sixteen rows of sixteen elements: they become columns.
    #[target_feature(enable = "avx512f")]
    fn turn_square(from: &[f32], from_step: usize, to: &mut [f32], to_step: usize, count: usize) {
        let mut rows = [_mm512_setzero_ps(); LANES];
        for number in 0..count {
            let row = &from[number * from_step..][..LANES];
            // SAFETY: there are sixteen elements.
            rows[number] = unsafe { _mm512_loadu_ps(row.as_ptr()) };
        }

        let written = ((1_u32 << count) - 1) as __mmask16;

        // Pairs of rows, then fours, within quarters of the registers.
        let mut fours = [_mm512_setzero_ps(); LANES];
        for group in [0, 4, 8, 12] {
            let [a, b, c, d] = [rows[group], rows[group + 1], rows[group + 2], rows[group + 3]];
            let low = [
                _mm512_castps_pd(_mm512_unpacklo_ps(a, b)),
                _mm512_castps_pd(_mm512_unpacklo_ps(c, d)),
            ];
            let high = [
                _mm512_castps_pd(_mm512_unpackhi_ps(a, b)),
                _mm512_castps_pd(_mm512_unpackhi_ps(c, d)),
            ];
            fours[group] = _mm512_castpd_ps(_mm512_unpacklo_pd(low[0], low[1]));
            fours[group + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low[0], low[1]));
            fours[group + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(high[0], high[1]));
            fours[group + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(high[0], high[1]));
        }

        // Now register 4 g + c has column c of each quarter, of rows 4 g to 4 g + 3; quarters are
        // put in order.
        for column in 0..4 {
            let [a, b, c, d] =
                [fours[column], fours[4 + column], fours[8 + column], fours[12 + column]];
            let low = [
                _mm512_shuffle_f32x4::<0b1000_1000>(a, b),
                _mm512_shuffle_f32x4::<0b1000_1000>(c, d),
            ];
            let high = [
                _mm512_shuffle_f32x4::<0b1101_1101>(a, b),
                _mm512_shuffle_f32x4::<0b1101_1101>(c, d),
            ];
            let turned = [
                _mm512_shuffle_f32x4::<0b1000_1000>(low[0], low[1]),
                _mm512_shuffle_f32x4::<0b1000_1000>(high[0], high[1]),
                _mm512_shuffle_f32x4::<0b1101_1101>(low[0], low[1]),
                _mm512_shuffle_f32x4::<0b1101_1101>(high[0], high[1]),
            ];
            for quarter in 0..4 {
                let to = &mut to[(quarter * 4 + column) * to_step..][..count];
                // SAFETY: there is room for those elements that are written.
                unsafe { _mm512_mask_storeu_ps(to.as_mut_ptr(), written, turned[quarter]) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the kernels that this processor can run.
    fn kernels() -> Vec<Kernel> {
        let mut found = vec![PLAIN, best()];
        #[cfg(all(feature = "simd", target_arch = "x86_64"))]
        if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma")
        {
            found.push(x86::AVX2);
        }
        found
    }

    #[test]
    fn every_kernel_multiplies_small_integers_exactly() {
        for (kernel, height, width) in kernels()
            .into_iter()
            .flat_map(|kernel| (1..=kernel.rows).map(move |height| (kernel, height, 5 + height)))
        {
            let (depth, width) = (7, width.min(kernel.columns));
            let a: Vec<f32> = (0..kernel.rows * depth).map(|n| (n % 5) as f32 - 2.0).collect();
            let b: Vec<f32> = (0..kernel.columns * depth).map(|n| (n % 7) as f32 - 3.0).collect();
            for (width, adds) in
                [(width, true), (kernel.columns, true), (width, false), (kernel.columns, false)]
            {
                let mut out = vec![1.0; kernel.rows * kernel.columns];
                let mut rows: Vec<_> = out.chunks_mut(kernel.columns).take(height).collect();
                (kernel.tile)(&a, &b, Tile { rows: &mut rows, first: 0, width, adds });
                for (at, found) in out.iter().enumerate() {
                    let (row, column) = (at / kernel.columns, at % kernel.columns);
                    let of =
                        |at: usize| a[at * kernel.rows + row] * b[at * kernel.columns + column];
                    let is_inside = row < height && column < width;
                    let sum: f32 = if is_inside { (0..depth).map(of).sum() } else { 0.0 };
                    assert_eq!(*found, if adds || !is_inside { 1.0 + sum } else { sum });
                }
                let Some(direct) = kernel.direct.filter(|_| height == kernel.rows) else {
                    continue;
                };
                let mut apart = vec![9.0; kernel.rows * 10];
                (0..kernel.rows * depth)
                    .for_each(|at| apart[at % kernel.rows * 10 + at / kernel.rows] = a[at]);
                let mut own = vec![1.0; out.len()];
                let mut rows: Vec<_> = own.chunks_mut(kernel.columns).collect();
                direct(&apart, 10, &b, Tile { rows: &mut rows, first: 0, width, adds });
                assert_eq!(own, out);
            }
        }
    }

    #[test]
    fn strips_are_turned() {
        let sizes = [(16, 32), (37, 16), (5, 32), (40, 7), (64, 12), (33, 29)];
        for (kernel, (depth, lanes)) in
            kernels().into_iter().flat_map(|kernel| sizes.map(|size| (kernel, size)))
        {
            let rows: Vec<f32> = (0..depth * lanes).map(|n| n as f32).collect();
            let mut out = vec![-1.0; depth * 32];
            (kernel.turn)(Lines { values: &rows, count: lanes, step: depth, depth }, 32, &mut out);
            for (at, value) in out.into_iter().enumerate() {
                let (place, lane) = (at / 32, at % 32);
                assert_eq!(value, if lane < lanes { rows[lane * depth + place] } else { -1.0 });
            }
        }
    }
}
