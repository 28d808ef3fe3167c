//! The loops that every byte of a tensor goes through.
//!
//! Each is written once, as a plain function that is always inlined, and compiled again for the
//! instruction sets that `multiversion` is described below. Sums are kept in a fixed number of
//! lanes that are added up in a fixed order, and the compiler neither reorders nor fuses
//! floating-point operations, so all versions return the same bits.
#![allow(
    unsafe_code,
    reason = "multiversion calls the version for a processor's features after detecting them"
)]

#[cfg(all(feature = "simd", target_arch = "x86_64"))]
mod avx2;
#[cfg(not(all(feature = "simd", target_arch = "x86_64")))]
#[path = "kernel/avx2_off.rs"]
mod avx2;
#[cfg(all(feature = "simd", target_arch = "x86_64"))]
mod avx512;
#[cfg(not(all(feature = "simd", target_arch = "x86_64")))]
#[path = "kernel/avx512_off.rs"]
mod avx512;
mod lanes;

pub(crate) use lanes::{DriftLanes, LANES, total};

use self::lanes::MomentLanes;
use crate::narrow::{CastCounts, Narrow, ToF16, narrow_anywhere};
use crate::scale::Scale;
use crate::wire::{self, Real, Wire};

/// Number of elements in a block.
///
/// A block of `f64` is short enough to stay in the first-level cache between two passes over it.
pub(crate) const BLOCK: usize = 4096;

macro_rules! for_several_targets {
    ($($function:tt)*) => {
        // AVX-512 gains half over AVX2 in `widen`.
        #[cfg_attr(feature = "simd", multiversion::multiversion(targets(
            "x86_64+avx2+avx512f+avx512bw+avx512dq+avx512vl",
            "x86_64+avx2",
        )))]
        $($function)*
    };
}

// After the macro, which it uses.
mod groups;

pub(crate) use groups::{
    Brain, Difference, HALF, Half, RoundedDifference, RoundedSum, Single, Step, Sum, fetch,
    look_up, look_up_nibbles, scale_codes, unpack_nibbles,
};

for_several_targets! {
    /// Decodes `stored` into `values`, which must be as long.
    pub(crate) fn widen<W: Wire<Value: Into<R>>, R: Real>(stored: &[W::Stored], values: &mut [R]) {
        widen_anywhere::<W, R>(stored, values);
    }
}

for_several_targets! {
    /// Adds to each sum the products of these coefficients with its column of `rows`, each of which
    /// is as long as `sums`: in the order of the rows, each product and each sum rounded.
    pub(crate) fn add_products(coefficients: &[f32], rows: &[f32], sums: &mut [f32]) {
        add_products_anywhere(coefficients, rows, sums);
    }
}

for_several_targets! {
    /// Rounds `stored` into `rounded`, which must be as long. At most `u32::MAX` elements.
    pub(crate) fn narrow<W: Wire, N: Narrow>(
        stored: &[W::Stored],
        rounded: &mut [N::Stored],
    ) -> CastCounts {
        narrow_anywhere::<W, N>(stored, rounded)
    }
}

for_several_targets! {
    /// Summarises at most [`BLOCK`] elements, at least one.
    pub(crate) fn block<W: Wire>(stored: &[W::Stored]) -> Block {
        block_anywhere::<W>(stored)
    }
}

for_several_targets! {
    /// Returns the least and the greatest finite value.
    ///
    /// Returns infinity and negative infinity if there are no finite values.
    pub(crate) fn finite_range(values: &[f64]) -> (f64, f64) {
        finite_range_anywhere(values)
    }
}

for_several_targets! {
    /// Numbers of the bins of finite values, counted from `first`; `u32::MAX` for other values.
    pub(crate) fn bin_offsets(values: &[f64], scale: &Scale, first: i64, offsets: &mut [u32]) {
        bin_offsets_anywhere(values, scale, first, offsets);
    }
}

for_several_targets! {
    /// Compares groups of values with as many others.
    fn drift_lanes(original: &[[f32; LANES]], new: &[[f32; LANES]]) -> DriftLanes {
        drift_lanes_anywhere(original, new)
    }
}

/// Widens f16 like [`widen`], with the processor's instruction if it has one.
pub(crate) fn widen_f16(stored: &[[u8; 2]], values: &mut [f32]) {
    if avx2::widen_f16(stored, values) {
        return;
    }
    widen::<wire::F16, f32>(stored, values);
}

/// Narrows to f16 like [`narrow`], with the processor's instruction if it has one.
pub(crate) fn narrow_to_f16<W: Wire<Value = f32>>(
    stored: &[W::Stored],
    rounded: &mut [[u8; 2]],
) -> CastCounts {
    if let Some(counts) = avx2::narrow_to_f16::<W>(stored, rounded) {
        return counts;
    }
    narrow::<W, ToF16>(stored, rounded)
}

/// [`block`] of values in memory.
pub(crate) fn block_of_values(values: &[f32]) -> Block {
    if let Some(lanes) = avx2::moments(values.as_chunks().0) {
        return finish_block::<wire::NativeF32>(lanes, values);
    }
    block::<wire::NativeF32>(values)
}

/// [`block`] of f16.
pub(crate) fn block_of_f16(stored: &[[u8; 2]]) -> Block {
    if let Some(lanes) = avx512::moments_of_f16(stored.as_chunks().0)
        .or_else(|| avx2::moments_of_f16(stored.as_chunks().0))
    {
        return finish_block::<wire::F16>(lanes, stored);
    }
    block_of_widened::<wire::F16>(stored)
}

/// [`block`] of bf16.
pub(crate) fn block_of_bf16(stored: &[[u8; 2]]) -> Block {
    if let Some(lanes) = avx512::moments_of_bf16(stored.as_chunks().0)
        .or_else(|| avx2::moments_of_bf16(stored.as_chunks().0))
    {
        return finish_block::<wire::Bf16>(lanes, stored);
    }
    block_of_widened::<wire::Bf16>(stored)
}

/// [`block`] of at most [`BLOCK`] elements, which would decode each of them three times.
fn block_of_widened<W: Wire<Value = f32>>(stored: &[W::Stored]) -> Block {
    let mut values = [0.0; BLOCK];
    let values = &mut values[..stored.len()];
    widen::<W, f32>(stored, values);
    block::<wire::NativeF32>(values)
}

/// Compares groups of values, of at most [`BLOCK`] values together, with as many others.
pub(crate) fn drift(original: &[[f32; LANES]], new: &[[f32; LANES]]) -> DriftLanes {
    if let Some(lanes) = avx512::drift(original, new).or_else(|| avx2::drift(original, new)) {
        return lanes;
    }
    drift_lanes(original, new)
}

/// Summary of a few elements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Block {
    pub(crate) zeros: u32,
    pub(crate) min: f64,
    pub(crate) max: f64,
    /// Mean of the elements.
    ///
    /// If the sum exceeds `f64`, or if an element is not finite, the mean is not finite. The other
    /// fields are then of no use.
    pub(crate) mean: f64,
    /// Sum of the squared differences from the mean.
    pub(crate) squares: f64,
}

#[inline(always)]
fn widen_anywhere<W: Wire<Value: Into<R>>, R: Real>(stored: &[W::Stored], values: &mut [R]) {
    for (value, &stored) in values.iter_mut().zip(stored) {
        *value = W::load(stored).into();
    }
}

#[inline(always)]
fn add_products_anywhere(coefficients: &[f32], rows: &[f32], sums: &mut [f32]) {
    // Columns whose sums stay in registers.
    const STRIP: usize = 64;

    let width = sums.len();
    for (strip, sums) in sums.chunks_mut(STRIP).enumerate() {
        let mut kept = [0.0; STRIP];
        let kept = &mut kept[..sums.len()];
        kept.copy_from_slice(sums);
        for (coefficient, row) in coefficients.iter().zip(rows.chunks_exact(width)) {
            let row = &row[strip * STRIP..][..kept.len()];
            kept.iter_mut().zip(row).for_each(|(sum, value)| *sum += coefficient * value);
        }
        sums.copy_from_slice(kept);
    }
}

#[inline(always)]
fn block_anywhere<W: Wire>(stored: &[W::Stored]) -> Block {
    finish_block::<W>(moment_lanes::<W>(stored.as_chunks().0), stored)
}

#[inline(always)]
fn moment_lanes<W: Wire>(groups: &[[W::Stored; LANES]]) -> MomentLanes<W::Value> {
    // Loops of one width each: in a common loop, the compiler halves all registers to match the
    // widest type.
    let mut min = [W::Value::INFINITY; LANES];
    let mut max = [W::Value::NEG_INFINITY; LANES];
    let mut zeros = [0; LANES];
    for group in groups {
        let values = group.map(W::load);
        for lane in 0..LANES {
            // NaN is never less or greater, hence ignored.
            min[lane] = if values[lane] < min[lane] { values[lane] } else { min[lane] };
        }
        for lane in 0..LANES {
            max[lane] = if values[lane] > max[lane] { values[lane] } else { max[lane] };
        }
        for lane in 0..LANES {
            zeros[lane] += u32::from(values[lane] == W::Value::ZERO);
        }
    }

    let (sums, squares) = (sum_lanes::<W>(groups), square_lanes::<W>(groups));
    MomentLanes { min, max, zeros, sums, squares }
}

#[inline(always)]
fn sum_lanes<W: Wire>(groups: &[[W::Stored; LANES]]) -> [f64; LANES] {
    let mut sums = [0.0; LANES];
    for group in groups {
        for lane in 0..LANES {
            sums[lane] += W::load(group[lane]).into();
        }
    }
    sums
}

#[inline(always)]
fn square_lanes<W: Wire>(groups: &[[W::Stored; LANES]]) -> [f64; LANES] {
    let mut squares = [0.0; LANES];
    for group in groups {
        for lane in 0..LANES {
            let value = W::load(group[lane]).into();
            squares[lane] += value * value;
        }
    }
    squares
}

/// Adds the elements after the last group and joins the lanes.
#[inline(always)]
fn finish_block<W: Wire>(lanes: MomentLanes<W::Value>, stored: &[W::Stored]) -> Block {
    /// Share of the sum of squares that must be left when the mean's is taken away: no more than
    /// three bits cancel.
    const LEAST_LEFT: f64 = 0.125;

    let MomentLanes { mut min, mut max, mut zeros, mut sums, mut squares } = lanes;
    for (lane, &stored) in stored.as_chunks::<LANES>().1.iter().enumerate() {
        let value = W::load(stored);
        min[lane] = if value < min[lane] { value } else { min[lane] };
        max[lane] = if value > max[lane] { value } else { max[lane] };
        zeros[lane] += u32::from(value == W::Value::ZERO);
        let value = value.into();
        sums[lane] += value;
        squares[lane] += value * value;
    }

    let (sum, squares, zeros) = (total(sums), total(squares), zeros.iter().sum());

    // A NaN or an infinity cannot leave a sum again, so the sum tells whether all elements are
    // finite.
    let mean = sum / stored.len() as f64;

    // Adding zero turns a negative zero into a positive one: which of them came first must not
    // show.
    let min = min.iter().fold(f64::INFINITY, |min, &value| min.min(value.into())) + 0.0;
    let max = max.iter().fold(f64::NEG_INFINITY, |max, &value| max.max(value.into())) + 0.0;
    if min == max && mean.is_finite() {
        // Equal elements deviate by nothing, not by the mean's rounding error.
        return Block { zeros, min, max, mean: min, squares: 0.0 };
    }

    let left = squares - sum * mean;
    let squares = if left > squares * LEAST_LEFT { left } else { deviations::<W>(stored, mean) };
    Block { zeros, min, max, mean, squares }
}

/// Sum of the squared differences from the mean, one by one.
#[cold]
fn deviations<W: Wire>(stored: &[W::Stored], mean: f64) -> f64 {
    let mut squares = [0.0; LANES];
    for group in stored.chunks(LANES) {
        for (sum, &stored) in squares.iter_mut().zip(group) {
            let difference = W::load(stored).into() - mean;
            *sum += difference * difference;
        }
    }
    total(squares)
}

#[inline(always)]
fn finite_range_anywhere(values: &[f64]) -> (f64, f64) {
    let (mut min, mut max) = ([f64::INFINITY; LANES], [f64::NEG_INFINITY; LANES]);
    let (groups, rest) = values.as_chunks::<LANES>();
    let mut last = [f64::NAN; LANES];
    last[..rest.len()].copy_from_slice(rest);
    for group in groups.iter().chain([&last]) {
        for lane in 0..LANES {
            let (value, finite) = (group[lane], group[lane].is_finite());
            min[lane] = if finite & (value < min[lane]) { value } else { min[lane] };
            max[lane] = if finite & (value > max[lane]) { value } else { max[lane] };
        }
    }

    (
        min.into_iter().fold(f64::INFINITY, f64::min),
        max.into_iter().fold(f64::NEG_INFINITY, f64::max),
    )
}

#[inline(always)]
#[expect(
    clippy::cast_possible_truncation,
    reason = "a finite value's offset is below the number of bins"
)]
fn bin_offsets_anywhere(values: &[f64], scale: &Scale, first: i64, offsets: &mut [u32]) {
    for (offset, &value) in offsets.iter_mut().zip(values) {
        // Differences of integers below 2^53 are exact. The detour through i32 has a vector
        // instruction.
        let bin = (scale.floor(value) - first as f64) as i32 as u32;
        *offset = if value.is_finite() { bin } else { u32::MAX };
    }
}

#[inline(always)]
fn drift_lanes_anywhere(original: &[[f32; LANES]], new: &[[f32; LANES]]) -> DriftLanes {
    let mut lanes = DriftLanes::default();
    for (original, new) in original.iter().zip(new) {
        lanes.add(original, new);
    }
    lanes
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::*;
    use crate::narrow::{ToBf16, ToF8E4m3, ToF8E5m2, ToF32};
    use crate::wire;

    /// Numbers of all magnitudes, from a linear congruential generator; without NaN, whose bits are
    /// not compared.
    fn noise(len: usize) -> Vec<[u8; 8]> {
        let mut state = 1_u64;
        let next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state ^ state >> 29).to_le_bytes()
        };
        let without_nan = |bytes: &[u8; 8]| {
            let (low, high) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>());
            let nan = |half: Option<&[u8; 4]>| {
                half.is_some_and(|&half| f32::from_le_bytes(half).is_nan())
            };
            let halves = bytes.as_chunks::<2>().0;
            let nan16 = halves.iter().any(|&half| half::f16::from_le_bytes(half).is_nan());
            !(f64::from_le_bytes(*bytes).is_nan() || nan(low) || nan(high) || nan16)
        };
        core::iter::repeat_with(next).filter(without_nan).take(len).collect()
    }

    fn assert_same<W: Wire<Value: Into<f64>>>(stored: &[W::Stored]) {
        let mut values = [vec![0.0_f64; stored.len()], vec![0.0; stored.len()]];
        widen::<W, f64>(stored, &mut values[0]);
        widen_anywhere::<W, f64>(stored, &mut values[1]);
        assert!(values[0].iter().zip(&values[1]).all(|(a, b)| a.to_bits() == b.to_bits()));

        fn assert_same_rounding<W: Wire, const B: usize, N: Narrow<Stored = [u8; B]>>(
            stored: &[W::Stored],
        ) {
            let mut rounded = [vec![[0; B]; stored.len()], vec![[0; B]; stored.len()]];
            let counts = [
                narrow::<W, N>(stored, &mut rounded[0]),
                narrow_anywhere::<W, N>(stored, &mut rounded[1]),
            ];
            assert_eq!((&rounded[0], counts[0]), (&rounded[1], counts[1]));
        }
        assert_same_rounding::<W, 4, ToF32>(stored);
        assert_same_rounding::<W, 2, ToF16>(stored);
        assert_same_rounding::<W, 2, ToBf16>(stored);
        assert_same_rounding::<W, 1, ToF8E4m3>(stored);
        assert_same_rounding::<W, 1, ToF8E5m2>(stored);

        for len in [1, 2, 15, 16, 17, 255, 1000, stored.len()] {
            let blocks = [block::<W>(&stored[..len]), block_anywhere::<W>(&stored[..len])];
            let bits =
                blocks.map(|b| (b.zeros, [b.min, b.max, b.mean, b.squares].map(f64::to_bits)));
            assert!(
                bits[0] == bits[1] || !blocks[0].mean.is_finite() && !blocks[1].mean.is_finite()
            );
        }
    }

    #[test]
    fn the_dispatched_comparison_returns_the_same_as_the_plain_one() {
        let noise = noise(2 * BLOCK);
        let values: Vec<f32> = noise
            .as_flattened()
            .as_chunks()
            .0
            .iter()
            .map(|&bytes| f32::from_le_bytes(bytes))
            .collect();
        for len in [0, 1, 15, 16, 17, 1000, BLOCK] {
            let (original, new) = (&values[..len], &values[values.len() - len..]);
            let lanes = drift_lanes_anywhere(original.as_chunks().0, new.as_chunks().0);
            assert_eq!(drift_lanes(original.as_chunks().0, new.as_chunks().0), lanes);
            // Of all kernels for this kind of processor, since only the widest one is chosen.
            for kernel in [avx2::drift, avx512::drift] {
                assert!(
                    kernel(original.as_chunks().0, new.as_chunks().0)
                        .is_none_or(|found| found == lanes)
                );
            }
            assert_eq!(drift(original.as_chunks().0, new.as_chunks().0), lanes);
        }
    }

    #[test]
    fn the_dispatched_moments_are_the_same_as_the_plain_ones() {
        let noise = noise(2 * BLOCK);
        let mut values: Vec<f32> = noise
            .as_flattened()
            .as_chunks()
            .0
            .iter()
            .map(|&bytes| f32::from_le_bytes(bytes))
            .collect();
        for (at, value) in values.iter_mut().enumerate().filter(|(at, _)| at % 7 == 0) {
            *value = if at % 2 == 0 { 0.0 } else { -0.0 };
        }
        let far_from_zero: Vec<f32> = (0..100_u8).map(|value| 1e6 + f32::from(value)).collect();
        for len in [1, 2, 15, 16, 17, 255, 1000, BLOCK] {
            for values in [&values[..len], &far_from_zero[..len.min(100)], &[0.1; BLOCK][..len]] {
                let blocks = [block_of_values(values), block_anywhere::<wire::NativeF32>(values)];
                let bits =
                    blocks.map(|b| (b.zeros, [b.min, b.max, b.mean, b.squares].map(f64::to_bits)));
                assert_eq!(bits[0], bits[1]);
            }
        }
        for exception in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            values[100] = exception;
            assert!(!block_of_values(&values[..BLOCK]).mean.is_finite());
        }
    }

    #[test]
    fn the_dispatched_moments_of_halves_are_the_same_as_the_plain_ones() {
        type Kernel = fn(&[[[u8; 2]; LANES]]) -> Option<MomentLanes<f32>>;
        fn assert_same<W: Wire<Value = f32, Stored = [u8; 2]>>(
            dispatched: fn(&[[u8; 2]]) -> Block,
            kernels: &[Kernel],
        ) {
            let all: Vec<[u8; 2]> = (0..=u16::MAX).map(u16::to_le_bytes).collect();
            let shuffled: Vec<[u8; 2]> =
                (0..=u16::MAX).map(|i| i.wrapping_mul(40_503).to_le_bytes()).collect();
            for stored in
                all.chunks(1000).chain(all.chunks(BLOCK)).chain(shuffled.chunks(17).take(500))
            {
                let lanes = kernels.iter().filter_map(|kernel| kernel(stored.as_chunks().0));
                let blocks = lanes.map(|lanes| finish_block::<W>(lanes, stored));
                for block in blocks.chain([dispatched(stored), block_of_widened::<W>(stored)]) {
                    let plain = block_anywhere::<W>(stored);
                    let bits =
                        |b: Block| (b.zeros, [b.min, b.max, b.mean, b.squares].map(f64::to_bits));
                    assert!(
                        bits(block) == bits(plain)
                            || !block.mean.is_finite() && !plain.mean.is_finite()
                    );
                }
            }
        }
        let kernels: [[Kernel; 2]; 2] = [
            [avx2::moments_of_f16, avx512::moments_of_f16],
            [avx2::moments_of_bf16, avx512::moments_of_bf16],
        ];
        assert_same::<wire::F16>(block_of_f16, &kernels[0]);
        assert_same::<wire::Bf16>(block_of_bf16, &kernels[1]);
    }

    #[test]
    fn f32_rounds_to_the_same_f16_in_hardware() {
        // Every exponent and sign with mantissas around ties, NaN of many payloads among them.
        let lower = [0, 1, 0x0fff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x7fff, 0x8000, 0xffff, 0xefff];
        let values: Vec<f32> = (0..=u16::MAX)
            .flat_map(|upper| lower.map(|lower| f32::from_bits(u32::from(upper) << 16 | lower)))
            .collect();
        for values in [&values[..], &values[3..1000], &values[..7], &[]] {
            let mut rounded = [vec![[0; 2]; values.len()], vec![[0; 2]; values.len()]];
            let counts = narrow_to_f16::<wire::NativeF32>(values, &mut rounded[0]);
            assert_eq!(counts, narrow_anywhere::<wire::NativeF32, ToF16>(values, &mut rounded[1]));
            assert!(rounded[0] == rounded[1]);
        }
    }

    #[test]
    fn every_f16_widens_to_the_same_bits_as_one_by_one() {
        let all: Vec<[u8; 2]> = (0..=u16::MAX).map(u16::to_le_bytes).collect();
        // Apart from NaN, which a whole group is done again for, and of lengths that are not whole
        // groups.
        for (start, end) in
            [(0, 65536), (0, 0x7c00), (0x7c00, 0x8000), (0x8000, 0xfc00), (5, 5), (5, 6), (9, 145)]
        {
            let mut values = vec![0.0; end - start];
            widen_f16(&all[start..end], &mut values);
            let mut plain = values.clone();
            widen_anywhere::<wire::F16, f32>(&all[start..end], &mut plain);
            assert!(
                values.iter().zip(&plain).all(|(a, b)| a.to_bits() == b.to_bits()),
                "{start}..{end}"
            );
        }
    }

    #[test]
    fn the_dispatched_binning_returns_the_same_as_the_plain_one() {
        let values: Vec<f64> =
            noise(1000).into_iter().map(f64::from_le_bytes).chain([f64::NAN, 0.0, -0.0]).collect();
        let (min, max) = finite_range(&values);
        assert_eq!((min, max), finite_range_anywhere(&values));
        for scale in [Scale::new(990), Scale::new(1014)] {
            let first = -(1 << 34);
            let mut offsets = [vec![0; values.len()], vec![0; values.len()]];
            bin_offsets(&values, &scale, first, &mut offsets[0]);
            bin_offsets_anywhere(&values, &scale, first, &mut offsets[1]);
            assert_eq!(offsets[0], offsets[1]);
        }
    }

    #[test]
    fn the_dispatched_version_returns_the_same_bits_as_the_plain_one() {
        let doubles = noise(BLOCK);
        let bytes = doubles.as_flattened();
        assert_same::<wire::F64>(&doubles);
        assert_same::<wire::I64>(&doubles);
        assert_same::<wire::U64>(&doubles);
        assert_same::<wire::F32>(&bytes.as_chunks().0[..BLOCK]);
        assert_same::<wire::I32>(&bytes.as_chunks().0[..BLOCK]);
        assert_same::<wire::F16>(&bytes.as_chunks().0[..BLOCK]);
        assert_same::<wire::Bf16>(&bytes.as_chunks().0[..BLOCK]);
        assert_same::<wire::I16>(&bytes.as_chunks().0[..BLOCK]);
        assert_same::<wire::I8>(&bytes.as_chunks().0[..BLOCK]);
        let gaussian: Vec<f32> =
            doubles.iter().map(|d| f32::from(d[1]) + f32::from(d[3]) * 1e-3 - 127.0).collect();
        assert_same::<wire::NativeF32>(&gaussian);
    }
}
