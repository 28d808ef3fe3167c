//! Products of blocks for any processor, with the sums that ggml's kernels for AVX2 keep.
//!
//! Products of integers are exact. Their sums over four neighbours, in each of eight lanes, are
//! multiplied with the scales and added up block after block.

use super::activations::{Large, Small};
use super::layout::{LargeWeights, SmallWeights, half, types};
use super::{GROUP, Outputs, Rows, groups, groups_share_scale, is_in_pairs, points, surplus};

/// `true` if additions are fused with multiplications, on processors that always do so in one step.
const FUSES: bool = cfg!(target_arch = "aarch64");

/// Blocks of 32: rows of weights, bytes of one, rows of activations, products.
pub(super) fn small<const TYPE: u8, const BYTES: usize>(
    weights: &[u8],
    row_bytes: usize,
    x: &Rows<'_, Small>,
    out: &mut Outputs<'_>,
) {
    for (x, out) in x.rows.iter().zip(out) {
        for (out, row) in out.iter_mut().zip(weights.chunks_exact(row_bytes)) {
            *out = small_row::<TYPE, BYTES, FUSES>(row, x);
        }
    }
}

/// Multiplies blocks of 256 elements; the arguments are the same as for `small`.
pub(super) fn large<const TYPE: u8, const BYTES: usize>(
    weights: &[u8],
    row_bytes: usize,
    x: &Rows<'_, Large>,
    out: &mut Outputs<'_>,
) {
    for (x, out) in x.rows.iter().zip(out) {
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

/// Adds products with factors for either half of the lanes.
#[inline(always)]
fn add_lanes<const FUSED: bool>(factors: [f32; 2], lanes: &[i32; LANES], sums: &mut Sums) {
    for (at, (sum, lane)) in sums.iter_mut().zip(lanes).enumerate() {
        *sum = add::<FUSED>(factors[at / 4], *lane as f32, *sum);
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

/// Returns the sum of the lanes, added up in halves.
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
    let blocks = row.as_chunks::<BYTES>().0.iter().zip(x.chunks(groups(TYPE)));
    for (at, (block, x)) in blocks.enumerate() {
        let own = if is_in_pairs(TYPE) { at % 2 } else { 0 };
        let mut of_block = [0.0; LANES];
        for (group, x) in x.iter().enumerate() {
            let SmallWeights { quants, scales, least } = SmallWeights::of::<TYPE>(block, group);
            let products = lanes(&quants, &x.quants);
            if groups_share_scale(TYPE) {
                add_lanes::<FUSED>([x.scale; 2], &products, &mut of_block);
            } else {
                add_lanes::<FUSED>(scales.map(|scale| scale * x.scale), &products, &mut sums[own]);
            }
            of_minima += least * x.sum;
        }
        if groups_share_scale(TYPE) {
            for (sum, of_block) in sums[own].iter_mut().zip(of_block) {
                *sum = add::<FUSED>(half(block, 0), of_block, *sum);
            }
        }
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
    let mut of_shifts = [0.0; LANES];
    for (block, x) in row.as_chunks::<BYTES>().0.iter().zip(x) {
        let weights = LargeWeights::of::<TYPE>(block);
        let scale = x.scale * weights.scale;
        let least = -x.scale * weights.least;
        let minima = |at: usize| i32::from(weights.minima[at]) * i32::from(x.sums[at]);
        let minima_of_group =
            |at: usize| i32::from(weights.minima[2 * at]) * i32::from(x.sums_of_groups[at]);
        match TYPE {
            types::Q2_K => {
                let minima = core::array::from_fn(|lane| minima(2 * lane) + minima(2 * lane + 1));
                add_lanes::<FUSED>([least; 2], &minima, &mut sums);
            }
            types::Q4_K => {
                for (lane, sum) in of_minima.iter_mut().enumerate() {
                    let minima = minima_of_group(2 * lane) + minima_of_group(2 * lane + 1);
                    *sum = add::<FUSED>(least, minima as f32, *sum);
                }
            }
            types::Q5_K => {
                let minima: i32 = (0..8).map(minima_of_group).sum();
                of_all = add::<FUSED>(least, minima as f32, of_all);
            }
            types::IQ1_S => {
                let shift = |at: usize| {
                    let sum = i32::from(weights.scales[at]) * i32::from(x.sums[at]);
                    if points::is_shifted_down::<TYPE>(block, 2 * at) { -sum } else { sum }
                };
                of_all = add::<FUSED>(scale, (0..16).map(shift).sum::<i32>() as f32, of_all);
            }
            types::IQ1_M => {
                let mut products = [0; LANES];
                for (at, four) in x.quants.as_chunks::<4>().0.iter().enumerate() {
                    let sum = i32::from(weights.scales[at / 4])
                        * four.iter().map(|quant| i32::from(*quant)).sum::<i32>();
                    let down = points::is_shifted_down::<TYPE>(block, at / 2);
                    products[at % LANES] += if down { -sum } else { sum };
                }
                add_lanes::<FUSED>([scale; 2], &products, &mut of_shifts);
            }
            _ => {}
        }

        let groups = weights.quants.as_chunks::<GROUP>().0.iter();
        let surplus = surplus(TYPE);
        let mut products = core::array::from_fn(|lane| match surplus {
            0 => 0,
            _ => -surplus * (minima(2 * lane) + minima(2 * lane + 1)),
        });
        for (group, (a, b)) in groups.zip(x.quants.as_chunks::<GROUP>().0).enumerate() {
            for (lane, (product, sum)) in products.iter_mut().zip(lanes(a, b)).enumerate() {
                *product += i32::from(weights.scales[2 * group + lane / 4]) * sum;
            }
        }
        add_lanes::<FUSED>([scale; 2], &products, &mut sums);
    }

    let of_minima = (of_minima[0] + of_minima[2]) + (of_minima[1] + of_minima[3]);
    total(&sums)
        + match TYPE {
            types::Q5_K => of_all,
            types::IQ1_S => points::SHIFT * of_all,
            types::IQ1_M => points::SHIFT * total(&of_shifts),
            _ => of_minima,
        }
}
