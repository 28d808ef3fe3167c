//! Q2_K, Q4_K and Q5_K: each sub-block has a scale and a minimum, and each super-block a scale of
//! either.

#![expect(
    clippy::cast_possible_truncation,
    reason = "levels are bounded; what is cut off otherwise, ggml cuts off"
)]
#![allow(
    unsafe_code,
    reason = "multiversion calls the version for a processor's features after detecting them"
)]

use super::lanes::{LANES, Reals, nearest, transpose};
use super::layout::{
    SUPER, pack_2_bits, pack_4_bits, pack_bit, pack_scales_and_mins, unpack_scales_and_mins,
};
use super::search::{self, Sweep};
use super::weights::{self, Importance, Weights};
use crate::half_float::{f16_to_f32, f32_to_f16};

/// Number of super-blocks that are searched together. Their scales and minima fill the lanes.
const BATCH: usize = LANES / 2;

/// Scales that are tried for elements with importance weights.
const WEIGHTED_SWEEP: Sweep = Sweep { first: -0.9, step: 0.05, steps: 36, absolute: false };

/// A type with `SUBS` sub-blocks of `LEN` elements in `BYTES` bytes.
pub(super) trait Affine<const LEN: usize, const SUBS: usize, const BYTES: usize> {
    const MAX_LEVEL: u8;
    const MAX_SCALE: u8;
    const SWEEP: Sweep;
    /// The mean square of a super-block is multiplied by it before it joins the importance weights.
    const VARIANCE_FACTOR: f32;

    fn plain_weights(x: &[Reals; LEN]) -> Weights<LEN>;

    /// Writes all of a super-block but the levels, and returns the scales and minima that can be
    /// read from it.
    fn write_scales(scales: &Scales<SUBS>, block: &mut [u8; BYTES]) -> ([u8; SUBS], [u8; SUBS]);

    fn write_levels(levels: &[u8; SUPER], block: &mut [u8; BYTES]);
}

/// The quantized scales and minima of a super-block, and the scales of these.
pub(super) struct Scales<const SUBS: usize> {
    scales: [u8; SUBS],
    mins: [u8; SUBS],
    d: u16,
    dmin: u16,
}

pub(super) enum Q2 {}
pub(super) enum Q4 {}
pub(super) enum Q5 {}

impl Affine<16, 16, 84> for Q2 {
    const MAX_LEVEL: u8 = 3;
    const MAX_SCALE: u8 = 15;
    const SWEEP: Sweep = Sweep { first: -0.5, step: 0.1, steps: 15, absolute: true };
    const VARIANCE_FACTOR: f32 = 1.0;

    #[inline(always)]
    fn plain_weights(x: &[Reals; 16]) -> Weights<16> {
        weights::magnitudes(x)
    }

    #[inline(always)]
    fn write_scales(scales: &Scales<16>, block: &mut [u8; 84]) -> ([u8; 16], [u8; 16]) {
        let (mut stored, mut stored_mins) = ([0; 16], [0; 16]);
        for at in 0..16 {
            let packed = scales.scales[at] | scales.mins[at] << 4;
            block[at] = packed;
            (stored[at], stored_mins[at]) = (packed & 15, packed >> 4);
        }
        block[80..82].copy_from_slice(&scales.d.to_le_bytes());
        block[82..].copy_from_slice(&scales.dmin.to_le_bytes());
        (stored, stored_mins)
    }

    #[inline(always)]
    fn write_levels(levels: &[u8; SUPER], block: &mut [u8; 84]) {
        if let Some(packed) = block[16..].first_chunk_mut() {
            pack_2_bits(levels, packed);
        }
    }
}

impl Affine<32, 8, 144> for Q4 {
    const MAX_LEVEL: u8 = 15;
    const MAX_SCALE: u8 = 63;
    const SWEEP: Sweep = Sweep { first: -1.0, step: 0.1, steps: 20, absolute: false };
    const VARIANCE_FACTOR: f32 = 2.0;

    #[inline(always)]
    fn plain_weights(x: &[Reals; 32]) -> Weights<32> {
        weights::magnitudes_above_mean(x)
    }

    #[inline(always)]
    fn write_scales(scales: &Scales<8>, block: &mut [u8; 144]) -> ([u8; 8], [u8; 8]) {
        write_six_bit_scales(scales, &scales.scales, &scales.mins, block)
    }

    #[inline(always)]
    fn write_levels(levels: &[u8; SUPER], block: &mut [u8; 144]) {
        if let Some(packed) = block[16..].first_chunk_mut() {
            pack_4_bits(levels, packed);
        }
    }
}

impl Affine<32, 8, 176> for Q5 {
    const MAX_LEVEL: u8 = 31;
    const MAX_SCALE: u8 = 63;
    const SWEEP: Sweep = Sweep { first: -0.5, step: 0.1, steps: 15, absolute: false };
    const VARIANCE_FACTOR: f32 = 2.0;

    #[inline(always)]
    fn plain_weights(x: &[Reals; 32]) -> Weights<32> {
        weights::magnitudes_above_mean(x)
    }

    #[inline(always)]
    fn write_scales(scales: &Scales<8>, block: &mut [u8; 176]) -> ([u8; 8], [u8; 8]) {
        let bounded = |levels: &[u8; 8]| levels.map(|level| level.min(63));
        write_six_bit_scales(scales, &bounded(&scales.scales), &bounded(&scales.mins), block)
    }

    #[inline(always)]
    fn write_levels(levels: &[u8; SUPER], block: &mut [u8; 176]) {
        if let Some(packed) = block[16..].first_chunk_mut() {
            pack_bit::<4>(levels, packed);
        }
        if let Some(packed) = block[48..].first_chunk_mut() {
            pack_4_bits(levels, packed);
        }
    }
}

#[inline(always)]
fn write_six_bit_scales(
    both: &Scales<8>,
    scales: &[u8; 8],
    mins: &[u8; 8],
    block: &mut [u8],
) -> ([u8; 8], [u8; 8]) {
    let packed = pack_scales_and_mins(scales, mins);
    block[..2].copy_from_slice(&both.d.to_le_bytes());
    block[2..4].copy_from_slice(&both.dmin.to_le_bytes());
    block[4..16].copy_from_slice(&packed);
    unpack_scales_and_mins(&packed)
}

/// Results of the searches for the sub-blocks of a batch, in their order.
struct FittedBatch {
    scales: [f32; BATCH * LANES],
    mins: [f32; BATCH * LANES],
    iscales: [f32; BATCH * LANES],
    offsets: [f32; BATCH * LANES],
    /// Sums of the importance weights.
    sums: [f32; BATCH * LANES],
}

#[cfg_attr(
    feature = "simd",
    multiversion::multiversion(targets(
        "x86_64+avx2+avx512f+avx512bw+avx512dq+avx512vl",
        "x86_64+avx2",
    ))
)]
/// Fills `out` with the super-blocks of whole rows.
pub(super) fn quantize<
    K: Affine<LEN, SUBS, BYTES>,
    const LEN: usize,
    const SUBS: usize,
    const BYTES: usize,
>(
    values: &[f32],
    importance: Option<&Importance<'_>>,
    out: &mut [u8],
) {
    let mut found = FittedBatch {
        scales: [0.0; BATCH * LANES],
        mins: [0.0; BATCH * LANES],
        iscales: [0.0; BATCH * LANES],
        offsets: [0.0; BATCH * LANES],
        sums: [0.0; BATCH * LANES],
    };
    let batches = values.chunks(BATCH * SUPER).zip(out.chunks_mut(BATCH * BYTES));
    for (batch, (values, out)) in batches.enumerate() {
        let scales = match importance {
            None => {
                search_plain::<K, LEN, SUBS, BYTES>(values, &mut found);
                plain_scales::<K, LEN, SUBS, BYTES>(&found)
            }
            Some(importance) => {
                search_weighted::<K, LEN, SUBS, BYTES>(
                    values,
                    importance,
                    batch * BATCH * SUBS,
                    &mut found,
                );
                weighted_scales::<K, LEN, SUBS, BYTES>(&found)
            }
        };

        let blocks = values.as_chunks::<SUPER>().0.iter().zip(out.as_chunks_mut::<BYTES>().0);
        for (index, (x, block)) in blocks.enumerate() {
            let stored = K::write_scales(&scales[index], block);
            let steps = (f16_to_f32(scales[index].d), f16_to_f32(scales[index].dmin));
            let levels = round::<LEN, SUBS>(K::MAX_LEVEL, x, steps, &stored, &found, index * SUBS);
            K::write_levels(&levels, block);
        }
    }
}

/// Sixteen sub-blocks from `first` on, one of each lane. Lanes without a sub-block are zero.
#[inline(always)]
fn lanes_of<const LEN: usize>(values: &[f32], first: usize) -> [Reals; LEN] {
    let rest = &values[LEN * first..];
    if let Some(full) = rest.get(..LEN * LANES) {
        return transpose(full);
    }
    let mut padded = [[0.0; LEN]; LANES];
    padded.as_flattened_mut()[..rest.len()].copy_from_slice(rest);
    transpose(padded.as_flattened())
}

impl FittedBatch {
    #[inline(always)]
    fn keep(&mut self, first: usize, result: &search::Affine) {
        self.scales[first..first + LANES].copy_from_slice(&result.scale.0);
        self.mins[first..first + LANES].copy_from_slice(&result.min.0);
        self.iscales[first..first + LANES].copy_from_slice(&result.iscale.0);
        self.offsets[first..first + LANES].copy_from_slice(&result.offset.0);
    }
}

#[inline(always)]
fn search_plain<
    K: Affine<LEN, SUBS, BYTES>,
    const LEN: usize,
    const SUBS: usize,
    const BYTES: usize,
>(
    values: &[f32],
    found: &mut FittedBatch,
) {
    for first in (0..values.len() / LEN).step_by(LANES) {
        let x: [Reals; LEN] = lanes_of(values, first);
        found.keep(first, &search::affine(K::MAX_LEVEL, &K::SWEEP, &x, &K::plain_weights(&x)));
    }
}

#[inline(always)]
fn search_weighted<
    K: Affine<LEN, SUBS, BYTES>,
    const LEN: usize,
    const SUBS: usize,
    const BYTES: usize,
>(
    values: &[f32],
    importance: &Importance<'_>,
    first_of_batch: usize,
    found: &mut FittedBatch,
) {
    let variances: [f32; BATCH] = weights::mean_squares(K::VARIANCE_FACTOR, values.as_chunks().0);
    for first in (0..values.len() / LEN).step_by(LANES) {
        let x: [Reals; LEN] = lanes_of(values, first);
        let mut variance = Reals::ZERO;
        for lane in 0..LANES {
            variance.0[lane] = variances[(first + lane) / SUBS];
        }
        let weights = weights::weigh(&x, &importance.lanes(first_of_batch + first), variance);
        found.keep(first, &search::affine(K::MAX_LEVEL, &WEIGHTED_SWEEP, &x, &weights));
        found.sums[first..first + LANES].copy_from_slice(&weights.sums.0);
    }
}

/// The greatest scale and minimum become the greatest integer.
#[inline(always)]
fn plain_scales<
    K: Affine<LEN, SUBS, BYTES>,
    const LEN: usize,
    const SUBS: usize,
    const BYTES: usize,
>(
    found: &FittedBatch,
) -> [Scales<SUBS>; BATCH] {
    core::array::from_fn(|index| {
        let (scales, d) = plain_levels(K::MAX_SCALE, &found.scales.as_chunks().0[index]);
        let (mins, dmin) = plain_levels(K::MAX_SCALE, &found.mins.as_chunks().0[index]);
        Scales { scales, mins, d, dmin }
    })
}

/// Integers for the scales or minima of a super-block, and the scale of these.
#[inline(always)]
fn plain_levels<const SUBS: usize>(max_scale: u8, values: &[f32; SUBS]) -> ([u8; SUBS], u16) {
    let max = values.iter().fold(0.0, |max, &value| if value > max { value } else { max });
    let steps = f32::from(max_scale);
    let iscale = if max > 0.0 { steps / max } else { 0.0 };
    let bound = if max_scale == 15 { u8::MAX } else { max_scale };
    let mut levels = [0; SUBS];
    for at in 0..SUBS {
        levels[at] = (nearest(iscale * values[at]) as u8).min(bound);
    }
    (levels, f32_to_f16(max / steps))
}

/// Scales and minima are found as levels are, with the weights of their sub-blocks.
#[inline(always)]
fn weighted_scales<
    K: Affine<LEN, SUBS, BYTES>,
    const LEN: usize,
    const SUBS: usize,
    const BYTES: usize,
>(
    found: &FittedBatch,
) -> [Scales<SUBS>; BATCH] {
    let (mut x, mut weights) = ([Reals::ZERO; SUBS], [Reals::ZERO; SUBS]);
    for sub in 0..SUBS {
        for index in 0..BATCH {
            x[sub].0[index] = found.scales[index * SUBS + sub];
            x[sub].0[BATCH + index] = found.mins[index * SUBS + sub];
            weights[sub].0[index] = found.sums[index * SUBS + sub];
            weights[sub].0[BATCH + index] = found.sums[index * SUBS + sub];
        }
    }
    let result = search::positive(K::MAX_SCALE, &x, &weights);
    core::array::from_fn(|index| Scales {
        scales: result.bytes(index),
        mins: result.bytes(BATCH + index),
        d: f32_to_f16(result.scale.0[index]),
        dmin: f32_to_f16(result.scale.0[BATCH + index]),
    })
}

/// Returns the levels for the stored scales and minima.
///
/// If the stored scale is zero, returns the levels that the search found.
#[inline(always)]
fn round<const LEN: usize, const SUBS: usize>(
    max_level: u8,
    x: &[f32; SUPER],
    (d, dmin): (f32, f32),
    (scales, mins): &([u8; SUBS], [u8; SUBS]),
    found: &FittedBatch,
    first: usize,
) -> [u8; SUPER] {
    let mut levels = [0; SUPER];
    let subs = x.as_chunks::<LEN>().0.iter().zip(levels.as_chunks_mut::<LEN>().0);
    for (sub, (x, levels)) in subs.enumerate() {
        let (scale, min) = (d * f32::from(scales[sub]), dmin * f32::from(mins[sub]));
        if scale == 0.0 {
            let (iscale, offset) = (found.iscales[first + sub], found.offsets[first + sub]);
            for at in 0..LEN {
                levels[at] = nearest(iscale * (x[at] - offset)).clamp(0, max_level.into()) as u8;
            }
        } else {
            for at in 0..LEN {
                levels[at] = nearest((x[at] + min) / scale).clamp(0, max_level.into()) as u8;
            }
        }
    }

    levels
}
