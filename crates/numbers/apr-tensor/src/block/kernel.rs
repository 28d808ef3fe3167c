//! The loops over blocks, compiled for several generations of processors.
//!
//! A type says how one block is coded; these loops do it for many, so that a version for the
//! processor at hand is chosen once a call.
#![allow(
    unsafe_code,
    reason = "multiversion calls the version for a processor's features after detecting them"
)]

use alloc::vec::Vec;

use super::lanes::{BLOCK, LANES, Lanes};
use super::points::grid::{Grid, SUPER};

/// Makes room for the blocks of values at the end of `out`.
pub(super) fn room<const N: usize, const B: usize>(
    values: usize,
    out: &mut Vec<u8>,
) -> &mut [[u8; B]] {
    let start = out.len();
    out.resize(start + values / N * B, 0);
    out[start..].as_chunks_mut().0
}

/// A type whose blocks of `N` values become `B` bytes each on their own.
pub(super) trait Quantize<const N: usize, const B: usize> {
    /// Codes finite values. Every byte of the block is written.
    fn quantize(values: &[f32; N], block: &mut [u8; B]);

    /// Quantizes the first blocks with instructions that the compiler does not generate by itself.
    ///
    /// Returns the number of these blocks.
    fn quantize_in_hardware(_values: &[[f32; N]], _blocks: &mut [[u8; B]]) -> usize {
        0
    }
}

/// A type whose blocks of `B` bytes become `N` values each on their own.
pub(super) trait Dequantize<const N: usize, const B: usize> {
    /// Decodes any bytes.
    fn dequantize(block: &[u8; B], values: &mut [f32; N]);
}

/// A type whose blocks are searched for the best scale, several side by side.
pub(super) trait QuantizeGroups<const N: usize, const B: usize> {
    /// Spread that the weights of a block's values depend on, besides the values.
    const SPREAD: Spread;

    /// Codes as many blocks as fill [`LANES`], or fewer at the end.
    fn quantize(
        values: &[[f32; N]],
        importance: Option<&Importance<'_, N>>,
        blocks: &mut [[u8; B]],
    );
}

/// A type whose super-blocks become points of a grid.
pub(super) trait QuantizeToPoints<const B: usize, const WIDTH: usize> {
    /// Calls with the type's grid, which is made at the first call.
    fn with_grid(run: impl FnOnce(&Grid<WIDTH>));

    /// Codes a super-block into bytes that are zero. Importance is the super-block's own.
    fn quantize(
        values: &[f32; SUPER],
        importance: Option<&[f32; SUPER]>,
        grid: &Grid<WIDTH>,
        block: &mut [u8; B],
    );
}

/// Spread of values around zero.
#[derive(Clone, Copy)]
pub(super) enum Spread {
    /// The mean square of the row.
    Row,
    /// Twice the mean square of the block.
    Block,
}

/// Importance of the values of a group of blocks.
pub(super) struct Importance<'a, const N: usize> {
    /// One weight per column.
    row: &'a [[f32; N]],
    /// The group's first block's number in the tensor.
    first: usize,
    /// Spread of each block.
    pub(super) spreads: Lanes,
}

impl<const N: usize> Importance<'_, N> {
    /// The weights of the blocks, block after block.
    #[inline(always)]
    pub(super) fn blocks(&self) -> impl Iterator<Item = &[f32; BLOCK]> {
        (self.first..).flat_map(|block| self.row[block % self.row.len()].as_chunks().0)
    }
}

/// Codes block after block.
pub(super) fn quantize<T: Quantize<N, B>, const N: usize, const B: usize>(
    values: &[[f32; N]],
    blocks: &mut [[u8; B]],
) {
    let done = T::quantize_in_hardware(values, blocks);
    if done < blocks.len() {
        quantize_compiled::<T, N, B>(&values[done..], &mut blocks[done..]);
    }
}

for_several_targets! {
    fn quantize_compiled<T: Quantize<N, B>, const N: usize, const B: usize>(
        values: &[[f32; N]],
        blocks: &mut [[u8; B]],
    ) {
        quantize_anywhere::<T, N, B>(values, blocks);
    }
}

for_several_targets! {
    /// Decodes block after block.
    pub(super) fn dequantize<T: Dequantize<N, B>, const N: usize, const B: usize>(
        blocks: &[[u8; B]],
        values: &mut [[f32; N]],
    ) {
        dequantize_anywhere::<T, N, B>(blocks, values);
    }
}

for_several_targets! {
    /// Adds the products of `x` with rows of as many blocks.
    pub(super) fn dots<T: Dequantize<N, B>, const N: usize, const B: usize>(
        blocks: &[[u8; B]],
        x: &[[f32; N]],
        out: &mut [f32],
    ) {
        dots_anywhere::<T, N, B>(blocks, x, out);
    }
}

for_several_targets! {
    /// Codes rows that have as many blocks as the importance, or one of any length if there is
    /// none.
    pub(super) fn quantize_groups<T: QuantizeGroups<N, B>, const N: usize, const B: usize>(
        values: &[[f32; N]],
        importance: Option<&[[f32; N]]>,
        blocks: &mut [[u8; B]],
    ) {
        quantize_groups_anywhere::<T, N, B>(values, importance, blocks);
    }
}

for_several_targets! {
    /// Codes rows that have as many super-blocks as the importance, or one of any length if there
    /// is none.
    pub(super) fn quantize_to_points<
        T: QuantizeToPoints<B, WIDTH>,
        const B: usize,
        const WIDTH: usize,
    >(
        values: &[[f32; SUPER]],
        importance: Option<&[[f32; SUPER]]>,
        grid: &Grid<WIDTH>,
        blocks: &mut [[u8; B]],
    ) {
        quantize_to_points_anywhere::<T, B, WIDTH>(values, importance, grid, blocks);
    }
}

#[inline(always)]
pub(super) fn quantize_anywhere<T: Quantize<N, B>, const N: usize, const B: usize>(
    values: &[[f32; N]],
    blocks: &mut [[u8; B]],
) {
    for (values, block) in values.iter().zip(blocks) {
        T::quantize(values, block);
        keep_blocks_apart();
    }
}

#[inline(always)]
pub(super) fn dequantize_anywhere<T: Dequantize<N, B>, const N: usize, const B: usize>(
    blocks: &[[u8; B]],
    values: &mut [[f32; N]],
) {
    for (block, values) in blocks.iter().zip(values) {
        T::dequantize(block, values);
        keep_blocks_apart();
    }
}

/// Sums of a product that are kept apart, so that additions need not wait for each other.
const SUMS: usize = 16;

/// Computes the products one row at a time.
///
/// Reading several places in turn would halve the speed.
#[inline(always)]
pub(super) fn dots_anywhere<T: Dequantize<N, B>, const N: usize, const B: usize>(
    blocks: &[[u8; B]],
    x: &[[f32; N]],
    out: &mut [f32],
) {
    let mut values = [0.0; N];
    for (row, out) in blocks.chunks_exact(x.len()).zip(out) {
        let mut sums = [0.0_f32; SUMS];
        for (block, x) in row.iter().zip(x) {
            T::dequantize(block, &mut values);
            for first in (0..N).step_by(SUMS) {
                for at in 0..SUMS {
                    sums[at] += x[first + at] * values[first + at];
                }
            }
        }
        *out += in_halves(&sums);
    }
}

/// Returns the sum of sums.
///
/// If it is inlined, the compiler keeps pairs of sums in separate registers instead of all in one,
/// which takes twice as long.
#[inline(never)]
fn in_halves(sums: &[f32; SUMS]) -> f32 {
    let eight: [f32; 8] = core::array::from_fn(|at| sums[at] + sums[at + 8]);
    let four: [f32; 4] = core::array::from_fn(|at| eight[at] + eight[at + 4]);
    four[0] + four[2] + (four[1] + four[3])
}

/// Keeps the compiler from vectorising over blocks instead of within one: it would gather and
/// scatter single values, which took five times as long for Q4_0.
#[inline(always)]
fn keep_blocks_apart() {
    core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
}

#[inline(always)]
pub(super) fn quantize_groups_anywhere<T: QuantizeGroups<N, B>, const N: usize, const B: usize>(
    values: &[[f32; N]],
    importance: Option<&[[f32; N]]>,
    blocks: &mut [[u8; B]],
) {
    let group = LANES * BLOCK / N;
    let mut row_spread = 0.0;
    let groups = values.chunks(group).zip(blocks.chunks_mut(group));
    for (number, (group_values, group_blocks)) in groups.enumerate() {
        let importance = importance.map(|row| {
            let first = number * group;
            let mut spreads = [0.0; LANES];
            let per_block = spreads.chunks_mut(N / BLOCK);
            for (block, (spreads, block_values)) in (first..).zip(per_block.zip(group_values)) {
                if let Spread::Block = T::SPREAD {
                    spreads.fill(sum_of_squares(block_values) * (2.0 / N as f32));
                } else {
                    if block % row.len() == 0 {
                        let values = values[block..][..row.len()].as_flattened();
                        row_spread = sum_of_squares(values) / values.len() as f32;
                    }
                    spreads.fill(row_spread);
                }
            }
            Importance { row, first, spreads }
        });

        T::quantize(group_values, importance.as_ref(), group_blocks);
    }
}

#[inline(always)]
pub(super) fn quantize_to_points_anywhere<
    T: QuantizeToPoints<B, WIDTH>,
    const B: usize,
    const WIDTH: usize,
>(
    values: &[[f32; SUPER]],
    importance: Option<&[[f32; SUPER]]>,
    grid: &Grid<WIDTH>,
    blocks: &mut [[u8; B]],
) {
    for (number, (values, block)) in values.iter().zip(blocks).enumerate() {
        T::quantize(values, importance.map(|row| &row[number % row.len()]), grid, block);
    }
}

/// Added up in order.
#[inline(always)]
fn sum_of_squares(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |sum, &value| sum + value * value)
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::*;
    use crate::block::{
        fp4, iq_dequantize, iq4, k_quants, low_bit, points, q8_k, rows, simple, ternary,
    };

    /// Values of many magnitudes and both signs, from a linear congruential generator, with zeros
    /// among them.
    fn values(len: usize) -> Vec<f32> {
        let mut state = 1_u64;
        let next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let [_, low, .., exponent, fraction] = state.to_le_bytes();
            let scale = f32::from_bits(u32::from(100 + exponent % 32) << 23);
            if low % 5 == 0 {
                0.0
            } else {
                (f32::from(fraction) - 128.0 + f32::from(low) / 256.0) * scale
            }
        };
        core::iter::repeat_with(next).take(len).collect()
    }

    fn assert_same_blocks<T: Quantize<N, B> + Dequantize<N, B>, const N: usize, const B: usize>() {
        let values = values(4096);
        let values = values.as_chunks().0;
        let mut blocks = [vec![[0; B]; values.len()], vec![[0; B]; values.len()]];
        quantize_anywhere::<T, N, B>(values, &mut blocks[1]);
        for quantize in [quantize::<T, N, B>, quantize_compiled::<T, N, B>] {
            quantize(values, &mut blocks[0]);
            assert_eq!(blocks[0], blocks[1]);
        }
        assert_same_values::<T, N, B>();
    }

    /// Blocks in which rounding, signs and the scale's range are decided by the last bit.
    #[test]
    fn blocks_at_the_edges_are_the_same_from_all_versions() {
        let mut blocks: Vec<[f32; 32]> = Vec::new();
        let exponents = [-149, -140, -133, -127, -126, -20, -14, 0, 15, 120, 127];
        for exponent in exponents {
            let unit = if exponent < -126 {
                f32::from_bits(1 << (exponent + 149))
            } else {
                f32::from_bits(((exponent + 127) as u32) << 23)
            };
            // Ties of both signs, neighbours of halves, and the greatest magnitude in either sign
            // and both.
            let steps: [f32; 32] = core::array::from_fn(|i| {
                let tie = (i as f32 - 15.5) * 0.062_5;
                match i % 3 {
                    0 => tie.next_up(),
                    1 => tie.next_down(),
                    _ => tie,
                }
            });
            for ends in [[1.0, 0.5], [-1.0, 0.5], [1.0, -1.0], [-1.0, 1.0], [0.0, -0.0]] {
                let mut block = steps.map(|step| step * unit);
                (block[3], block[29]) = (ends[0] * unit, ends[1] * unit);
                blocks.push(block);
                blocks.push(core::array::from_fn(|i| ends[i % 2] * unit));
            }
        }
        fn assert_same<T: Quantize<32, B>, const B: usize>(values: &[[f32; 32]]) {
            let mut blocks = [vec![[0; B]; values.len()], vec![[0; B]; values.len()]];
            quantize::<T, 32, B>(values, &mut blocks[0]);
            quantize_anywhere::<T, 32, B>(values, &mut blocks[1]);
            for (at, (found, expected)) in blocks[0].iter().zip(&blocks[1]).enumerate() {
                assert_eq!(found, expected, "{:e}", values[at][3]);
            }
        }
        assert_same::<simple::Q8_0, 34>(&blocks);
        assert_same::<simple::Q4_0, 18>(&blocks);

        // The kernel of narrower registers, which is not the one that is chosen where there are
        // wider ones.
        {
            let mut found = [vec![[0; 34]; blocks.len()], vec![[0; 34]; blocks.len()]];
            quantize_anywhere::<simple::Q8_0, 32, 34>(&blocks, &mut found[1]);
            let done = crate::block::avx2::quantize_q8_0(&blocks, &mut found[0]);
            assert_eq!(found[0][..done], found[1][..done]);
        }
    }

    fn assert_same_groups<
        T: QuantizeGroups<N, B> + Dequantize<N, B>,
        const N: usize,
        const B: usize,
    >() {
        let values = values(768 * 7);
        let importance: Vec<f32> = values[..768].iter().map(|value| value.abs()).collect();
        let (values, importance) = (values.as_chunks().0, importance.as_chunks().0);
        for importance in [None, Some(importance)] {
            let mut blocks = [vec![[0; B]; values.len()], vec![[0; B]; values.len()]];
            quantize_groups::<T, N, B>(values, importance, &mut blocks[0]);
            quantize_groups_anywhere::<T, N, B>(values, importance, &mut blocks[1]);
            assert_eq!(blocks[0], blocks[1]);
        }
        assert_same_values::<T, N, B>();
    }

    fn assert_same_points<T: QuantizeToPoints<B, WIDTH>, const B: usize, const WIDTH: usize>() {
        let values = values(768 * 4);
        let importance: Vec<f32> = values[..768].iter().map(|value| value.abs()).collect();
        let (values, importance) = (values.as_chunks().0, importance.as_chunks().0);
        T::with_grid(|grid| {
            for importance in [None, Some(importance)] {
                let mut blocks = [vec![[0; B]; values.len()], vec![[0; B]; values.len()]];
                quantize_to_points::<T, B, WIDTH>(values, importance, grid, &mut blocks[0]);
                quantize_to_points_anywhere::<T, B, WIDTH>(
                    values,
                    importance,
                    grid,
                    &mut blocks[1],
                );
                assert_eq!(blocks[0], blocks[1]);
            }
        });
    }

    fn assert_same_values<T: Dequantize<N, B>, const N: usize, const B: usize>() {
        let noise: Vec<u8> =
            values(64 * B).iter().map(|value| (value.to_bits() >> 7).to_le_bytes()[0]).collect();
        let blocks = noise.as_chunks().0;
        let mut values = [vec![[0.0; N]; blocks.len()], vec![[0.0; N]; blocks.len()]];
        dequantize::<T, N, B>(blocks, &mut values[0]);
        dequantize_anywhere::<T, N, B>(blocks, &mut values[1]);
        let [dispatched, plain] = &values;
        let pairs = dispatched.as_flattened().iter().zip(plain.as_flattened());
        assert!({ pairs }.all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()));

        let x = self::values(8 * N);
        let mut products = [vec![1.0; blocks.len() / 8], vec![1.0; blocks.len() / 8]];
        dots::<T, N, B>(blocks, x.as_chunks().0, &mut products[0]);
        dots_anywhere::<T, N, B>(blocks, x.as_chunks().0, &mut products[1]);
        let rows = plain.as_flattened().chunks_exact(8 * N);
        for ((a, b), row) in products[0].iter().zip(&products[1]).zip(rows) {
            assert!(a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan());
            assert!(b.is_nan() || *b == 1.0 + dot(&x, row));
        }
    }

    /// The sum of products as [`crate::block::dots`] documents it.
    fn dot(x: &[f32], row: &[f32]) -> f32 {
        let lane = |lane: usize| (lane..x.len()).step_by(16);
        let of = |at| lane(at).fold(0.0_f32, |sum, at| sum + x[at] * row[at]);
        let sixteen: [f32; 16] = core::array::from_fn(of);
        let eight: [f32; 8] = core::array::from_fn(|at| sixteen[at] + sixteen[at + 8]);
        let four: [f32; 4] = core::array::from_fn(|at| eight[at] + eight[at + 4]);
        four[0] + four[2] + (four[1] + four[3])
    }

    #[test]
    fn the_dispatched_versions_return_the_same_bits_as_the_plain_ones() {
        assert_same_blocks::<simple::Q8_0, 32, 34>();
        assert_same_blocks::<simple::Q4_0, 32, 18>();
        assert_same_blocks::<simple::Q4_1, 32, 20>();
        assert_same_blocks::<simple::Q5_0, 32, 22>();
        assert_same_blocks::<simple::Q5_1, 32, 24>();
        assert_same_blocks::<ternary::Tq1_0, 256, 54>();
        assert_same_blocks::<ternary::Tq2_0, 256, 66>();
        assert_same_blocks::<fp4::Mxfp4, 32, 17>();
        assert_same_blocks::<fp4::Nvfp4, 64, 36>();
        assert_same_blocks::<low_bit::Q1_0, 128, 18>();
        assert_same_blocks::<low_bit::Q2_0, 64, 18>();
        assert_same_blocks::<rows::I4Row, 32, 18>();
        assert_same_groups::<iq4::Iq4Nl, 32, 18>();
        assert_same_groups::<iq4::Iq4Xs, 256, 136>();
        assert_same_groups::<simple::Q4_0, 32, 18>();
        assert_same_groups::<simple::Q4_1, 32, 20>();
        assert_same_groups::<simple::Q5_0, 32, 22>();
        assert_same_groups::<simple::Q5_1, 32, 24>();
        assert_same_points::<points::Iq1S, 50, 8>();
        assert_same_points::<points::Iq1M, 56, 8>();
        assert_same_points::<points::Iq2Xxs, 66, 8>();
        assert_same_points::<points::Iq2Xs, 74, 8>();
        assert_same_points::<points::Iq2S, 82, 8>();
        assert_same_points::<points::Iq3Xxs, 98, 4>();
        assert_same_points::<points::Iq3S, 110, 4>();
        assert_same_values::<k_quants::Q2K, 256, 84>();
        assert_same_values::<k_quants::Q3K, 256, 110>();
        assert_same_values::<k_quants::Q4K, 256, 144>();
        assert_same_values::<k_quants::Q5K, 256, 176>();
        assert_same_values::<k_quants::Q6K, 256, 210>();
        assert_same_values::<simple::Q8_1, 32, 36>();
        assert_same_values::<q8_k::Q8K, 256, 292>();
        assert_same_values::<iq_dequantize::Iq2Xxs, 256, 66>();
        assert_same_values::<iq_dequantize::Iq2Xs, 256, 74>();
        assert_same_values::<iq_dequantize::Iq2S, 256, 82>();
        assert_same_values::<iq_dequantize::Iq3Xxs, 256, 98>();
        assert_same_values::<iq_dequantize::Iq3S, 256, 110>();
        assert_same_values::<iq_dequantize::Iq1S, 256, 50>();
        assert_same_values::<iq_dequantize::Iq1M, 256, 56>();
    }

    #[test]
    fn the_dispatched_versions_of_rows_return_the_same_bits_as_the_plain_ones() {
        for row_len in [1, 15, 64, 129, 1024] {
            let values = values(row_len * 5);
            let mut coded = [vec![0; (4 + row_len) * 5], vec![0; (4 + row_len) * 5]];
            rows::quantize_i8_rows(&values, row_len, &mut coded[0]);
            rows::quantize_i8_rows_anywhere(&values, row_len, &mut coded[1]);
            assert_eq!(coded[0], coded[1]);
            let mut back = [values.clone(), values];
            rows::dequantize_i8_rows(&coded[0], row_len, &mut back[0]);
            rows::dequantize_i8_rows_anywhere(&coded[0], row_len, &mut back[1]);
            assert_eq!(back[0], back[1]);
        }
    }
}
