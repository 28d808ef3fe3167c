//! Q3_K and Q6_K: each sub-block of sixteen elements has a signed scale, and each super-block a
//! scale of these.

#![expect(
    clippy::cast_possible_truncation,
    reason = "levels are bounded; what is cut off otherwise, ggml cuts off"
)]
#![allow(
    unsafe_code,
    reason = "multiversion calls the version for a processor's features after detecting them"
)]

use super::lanes::{LANES, Reals, nearest, transpose};
use super::layout::{SUPER, pack_2_bits, pack_6_bits, pack_bit, pack_scales, unpack_scales};
use super::search;
use super::weights::{self, Importance, Weights};
use crate::half_float::{f16_to_f32, f32_to_f16};

/// Elements of a sub-block.
const LEN: usize = 16;

/// Lanes of one register of AVX2, for the search whose loop compilers vectorise for AVX2 only if it
/// has no more.
const HALF: usize = LANES / 2;

/// Number of super-blocks whose scales are searched together.
const BATCH: usize = LANES;

macro_rules! quantizer {
    ($(#[$doc:meta])* $name:ident, $batch:ident, $bytes:literal) => {
        $(#[$doc])*
        ///
        /// Fills `out` with the super-blocks of whole rows.
        #[cfg_attr(feature = "simd", multiversion::multiversion(targets(
            "x86_64+avx2+avx512f+avx512bw+avx512dq+avx512vl",
            "x86_64+avx2",
        )))]
        pub(super) fn $name(values: &[f32], importance: Option<&Importance<'_>>, out: &mut [u8]) {
            let (blocks, out) = (values.as_chunks::<SUPER>().0, out.as_chunks_mut::<$bytes>().0);
            let batches = blocks.chunks(BATCH).zip(out.chunks_mut(BATCH));
            for (batch, (blocks, out)) in batches.enumerate() {
                $batch(blocks, importance, batch * BATCH, out);
            }
        }
    };
}

quantizer! {
    /// Levels of 3 bits, scales of 6 bits.
    q3, q3_batch, 110
}
quantizer! {
    /// Levels of 6 bits, scales of 8 bits.
    q6, q6_batch, 210
}

#[inline(always)]
fn q3_batch(
    blocks: &[[f32; SUPER]],
    importance: Option<&Importance<'_>>,
    first: usize,
    out: &mut [[u8; 110]],
) {
    if let Some(importance) = importance {
        return q3_weighted(blocks, importance, first, out);
    }

    for (x, out) in blocks.iter().zip(out) {
        let found = search::refining::<LEN>(4, &transpose(x));
        let (max, _) = greatest(&found.scale.0);
        let (scales, d) = if max == 0.0 {
            ([0; 12], 0)
        } else {
            let iscale = -32.0 / max;
            let level = |scale: f32| ((nearest(iscale * scale) as i8).clamp(-32, 31) + 32) as u8;
            (pack_scales(&found.scale.0.map(level)), f32_to_f16(1.0 / iscale))
        };
        q3_write(x, scales, d, |sub, at| found.level(sub, at), out);
    }
}

#[inline(always)]
fn q3_weighted(
    blocks: &[[f32; SUPER]],
    importance: &Importance<'_>,
    first: usize,
    out: &mut [[u8; 110]],
) {
    let variances: [f32; BATCH] = weights::mean_squares(2.0, blocks);
    let (mut scales, mut sums, mut iscales) =
        ([[0.0; LANES]; BATCH], [[0.0; LANES]; BATCH], [[0.0; LANES]; BATCH]);
    for (index, x) in blocks.iter().enumerate() {
        let x: [Reals; LEN] = transpose(x);
        let weights = weights::weigh(
            &x,
            &importance.lanes(LEN * (first + index)),
            Reals::all(variances[index]),
        );
        let found = search::symmetric(4, &x, &weights);
        scales[index] = found.scale.0;
        iscales[index] = found.iscale.0;
        sums[index] = weights.sums.0;
    }

    let scales: [Reals; LEN] = transpose(scales.as_flattened());
    let found = search::symmetric(
        32,
        &scales,
        &Weights { of_elements: transpose(sums.as_flattened()), sums: Reals::ZERO },
    );
    for (index, (x, out)) in blocks.iter().zip(out).enumerate() {
        let level = |sub: usize| found_level(32, found.iscale.0[index], scales[sub].0[index]);
        let packed = pack_scales(&core::array::from_fn(level));
        let searched =
            |sub: usize, at: usize| found_level(4, iscales[index][sub], x[LEN * sub + at]);
        q3_write(x, packed, f32_to_f16(found.scale.0[index]), searched, out);
    }
}

#[inline(always)]
fn q3_write(
    x: &[f32; SUPER],
    scales: [u8; 12],
    d: u16,
    searched: impl Fn(usize, usize) -> u8,
    out: &mut [u8; 110],
) {
    let stored = unpack_scales(&scales).map(|scale| f16_to_f32(d) * f32::from(scale as i8 - 32));
    let levels = round(4, x, &stored, searched);
    if let Some(packed) = out.first_chunk_mut() {
        pack_bit::<2>(&levels, packed);
    }
    if let Some(packed) = out[32..].first_chunk_mut() {
        pack_2_bits(&levels, packed);
    }
    out[96..108].copy_from_slice(&scales);
    out[108..].copy_from_slice(&d.to_le_bytes());
}

#[inline(always)]
fn q6_batch(
    blocks: &[[f32; SUPER]],
    importance: Option<&Importance<'_>>,
    first: usize,
    out: &mut [[u8; 210]],
) {
    for (index, (values, out)) in blocks.iter().zip(out).enumerate() {
        let (mut scales, mut iscales) = ([0.0; LANES], [0.0; LANES]);
        for half in 0..2 {
            let subs = HALF * half..HALF * (half + 1);
            let x: [Reals<HALF>; LEN] = transpose(&values[LEN * subs.start..LEN * subs.end]);
            let weights = match importance {
                None => weights::squares(&x),
                Some(importance) => Weights {
                    of_elements: importance.lanes(LANES * (first + index) + subs.start),
                    sums: Reals::ZERO,
                },
            };
            let found = search::symmetric(32, &x, &weights);
            scales[subs.clone()].copy_from_slice(&found.scale.0);
            iscales[subs].copy_from_slice(&found.iscale.0);
        }

        let (max, magnitude) = greatest(&scales);
        if magnitude < search::ALL_ZERO {
            *out = [0; 210];
            continue;
        }

        let iscale = -128.0 / max;
        let d = f32_to_f16(1.0 / iscale);
        let scales = scales.map(|scale| nearest(iscale * scale).min(127) as i8);
        let stored = scales.map(|scale| f16_to_f32(d) * f32::from(scale));
        let searched =
            |sub: usize, at: usize| found_level(32, iscales[sub], values[LEN * sub + at]);
        let levels = round(32, values, &stored, searched);
        let (low, rest) = out.split_at_mut(128);
        if let (Some(low), Some(high)) = (low.first_chunk_mut(), rest.first_chunk_mut()) {
            pack_6_bits(&levels, low, high);
        }

        rest[64..80].copy_from_slice(&scales.map(i8::cast_unsigned));
        rest[80..].copy_from_slice(&d.to_le_bytes());
    }
}

/// The scale of the greatest magnitude, and that.
#[inline(always)]
fn greatest(scales: &[f32; LANES]) -> (f32, f32) {
    scales.iter().fold((0.0, 0.0), |(max, magnitude), &scale| {
        if scale.abs() > magnitude { (scale, scale.abs()) } else { (max, magnitude) }
    })
}

/// A level that [`search::symmetric`] has found.
#[inline(always)]
fn found_level(half: i32, iscale: f32, x: f32) -> u8 {
    if iscale.is_nan() { 0 } else { (nearest(iscale * x).clamp(-half, half - 1) + half) as u8 }
}

/// Returns the levels for the stored scales, or the searched levels if a scale is zero.
#[inline(always)]
fn round(
    half: i32,
    x: &[f32; SUPER],
    scales: &[f32; LANES],
    searched: impl Fn(usize, usize) -> u8,
) -> [u8; SUPER] {
    let mut levels = [0; SUPER];
    let subs = x.as_chunks::<LEN>().0.iter().zip(levels.as_chunks_mut::<LEN>().0);
    for (sub, (x, levels)) in subs.enumerate() {
        if scales[sub] == 0.0 {
            *levels = core::array::from_fn(|at| searched(sub, at));
        } else {
            for at in 0..LEN {
                levels[at] = (nearest(x[at] / scales[sub]).clamp(-half, half - 1) + half) as u8;
            }
        }
    }
    levels
}
