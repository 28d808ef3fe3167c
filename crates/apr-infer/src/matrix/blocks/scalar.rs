//! Products of blocks for any processor, with the sums that ggml's kernels for AVX2 keep.
//!
//! Products of integers are exact. Their sums over four neighbours, in each of eight lanes, are
//! multiplied with the scales and added up block after block.

use super::activations::{Large, Small};
use super::layout::{LargeWeights, SmallWeights, types};
use super::{GROUP, Outputs, is_in_pairs};

/// Whether additions are fused with multiplications: where the processor always does so in one
/// step.
const FUSES: bool = cfg!(target_arch = "aarch64");

/// Blocks of 32: rows of weights, bytes of one, rows of activations, products.
pub(super) fn small<const TYPE: u8, const BYTES: usize>(
    weights: &[u8],
    row_bytes: usize,
    x: &[&[Small]],
    out: &mut Outputs<'_>,
) {
    for (x, out) in x.iter().zip(out) {
        for (out, row) in out.iter_mut().zip(weights.chunks_exact(row_bytes)) {
            *out = small_row::<TYPE, BYTES, FUSES>(row, x);
        }
    }
}

/// The same for blocks of 256.
pub(super) fn large<const TYPE: u8, const BYTES: usize>(
    weights: &[u8],
    row_bytes: usize,
    x: &[&[Large]],
    out: &mut Outputs<'_>,
) {
    for (x, out) in x.iter().zip(out) {
        for (out, row) in out.iter_mut().zip(weights.chunks_exact(row_bytes)) {
            *out = large_row::<TYPE, BYTES, FUSES>(row, x);
        }
    }
}

/// Sums of a row that are kept apart.
pub(super) const LANES: usize = 8;

pub(super) type Sums = [f32; LANES];

/// Adds a product: rounded once (`FUSED`), or the product and the sum each.
#[inline(always)]
fn add<const FUSED: bool>(a: f32, b: f32, sum: f32) -> f32 {
    if FUSED { a.mul_add(b, sum) } else { a * b + sum }
}

#[inline(always)]
fn add_lanes<const FUSED: bool>(factor: f32, lanes: &[i32; LANES], sums: &mut Sums) {
    for (sum, lane) in sums.iter_mut().zip(lanes) {
        *sum = add::<FUSED>(factor, *lane as f32, *sum);
    }
}

/// Products of a group, four neighbours added up.
#[inline(always)]
fn lanes(a: &[i8; GROUP], b: &[i8; GROUP]) -> [i32; LANES] {
    let (a, b) = (a.as_chunks::<4>().0, b.as_chunks::<4>().0);
    core::array::from_fn(|lane| {
        (0..4).map(|at| i32::from(a[lane][at]) * i32::from(b[lane][at])).sum()
    })
}

/// In halves.
#[inline(always)]
pub(super) fn total(sums: &Sums) -> f32 {
    let four: [f32; 4] = core::array::from_fn(|at| sums[at + 4] + sums[at]);
    (four[0] + four[2]) + (four[1] + four[3])
}

/// A row of weights in blocks of 32, times a row of activations.
pub(super) fn small_row<const TYPE: u8, const BYTES: usize, const FUSED: bool>(
    row: &[u8],
    x: &[Small],
) -> f32 {
    let (mut sums, mut of_minima) = ([[0.0; LANES]; 2], 0.0);
    for (at, (block, x)) in row.as_chunks::<BYTES>().0.iter().zip(x).enumerate() {
        let weights = SmallWeights::of::<TYPE>(block);
        let own = if is_in_pairs(TYPE) { at % 2 } else { 0 };
        let products = lanes(&weights.quants, &x.quants);
        add_lanes::<FUSED>(weights.scale * x.scale, &products, &mut sums[own]);
        of_minima += weights.least * x.sum;
    }
    let [mut first, second] = sums;
    if is_in_pairs(TYPE) {
        first.iter_mut().zip(second).for_each(|(first, second)| *first += second);
    }
    total(&first) + of_minima
}

/// A row of weights in blocks of 256, times a row of activations.
pub(super) fn large_row<const TYPE: u8, const BYTES: usize, const FUSED: bool>(
    row: &[u8],
    x: &[Large],
) -> f32 {
    let (mut sums, mut of_minima, mut of_all) = ([0.0; LANES], [0.0; 4], 0.0);
    for (block, x) in row.as_chunks::<BYTES>().0.iter().zip(x) {
        let weights = LargeWeights::of::<TYPE>(block);
        let scale = x.scale * weights.scale;
        let least = -x.scale * weights.least;
        let minima = |at: usize| i32::from(weights.minima[at]) * i32::from(x.sums[at]);
        match TYPE {
            types::Q2_K => {
                let minima = core::array::from_fn(|lane| minima(2 * lane) + minima(2 * lane + 1));
                add_lanes::<FUSED>(least, &minima, &mut sums);
            }
            types::Q4_K => {
                for (lane, sum) in of_minima.iter_mut().enumerate() {
                    let minima: i32 = (4 * lane..4 * lane + 4).map(minima).sum();
                    *sum = add::<FUSED>(least, minima as f32, *sum);
                }
            }
            types::Q5_K => of_all += least * (0..16).map(minima).sum::<i32>() as f32,
            _ => {}
        }

        let groups = weights.quants.as_chunks::<GROUP>().0.iter();
        let mut products = [0; LANES];
        for (group, (a, b)) in groups.zip(x.quants.as_chunks::<GROUP>().0).enumerate() {
            for (lane, (product, sum)) in products.iter_mut().zip(lanes(a, b)).enumerate() {
                *product += i32::from(weights.scales[2 * group + lane / 4]) * sum;
            }
        }
        add_lanes::<FUSED>(scale, &products, &mut sums);
    }

    let of_minima = (of_minima[0] + of_minima[2]) + (of_minima[1] + of_minima[3]);
    total(&sums) + if TYPE == types::Q5_K { of_all } else { of_minima }
}
