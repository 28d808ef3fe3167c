//! IQ1_S and IQ1_M: points of -1, 0 and 1, all moved by an eighth up or down. The layouts are in
//! [`iq_dequantize`](super::super::iq_dequantize).
//!
//! With three levels, the best one can be found: sorted values are cut in three, each cut has one
//! best scale, and there are few enough cuts to try them all.

use super::super::kernel::QuantizeToPoints;
use super::super::pack::write_f16;
use super::grid::{self, Costs, EIGHT, Grid};
use super::{SUPER, odd_multiple, sum_of_squares, weigh};
use crate::half_float::f32_to_f16;

pub(in super::super) struct Iq1S;
pub(in super::super) struct Iq1M;

/// Values of the three levels if all are moved up (`UP`), and if all are moved down (`DOWN`).
const UP: [f32; 3] = [-0.875, 0.125, 1.125];
const DOWN: [f32; 3] = [-1.125, -0.125, 0.875];

/// Cuts that are judged side by side.
const LANES: usize = 16;

type Lanes = [f32; LANES];

/// The way to cut sorted values in three that costs least.
struct Cut {
    scale: f32,
    /// Values of the lowest level, and of the lowest two.
    ends: [usize; 2],
    /// Number of the way to move the levels.
    way: usize,
}

/// Sums over a sub-block whose sorted values are cut, by which a cut is judged.
trait Cuts<const LEN: usize, const WAYS: usize> {
    /// For a first end and as many second ends as there are lanes, the weighted sums of level times
    /// value and of the level's square, for each way to move the levels. Lanes beyond the last end
    /// hold anything.
    fn sums(&self, first: usize, start: usize) -> [Fits; WAYS];
}

/// Weighted sums of level times value and of the level's square, of several cuts.
#[derive(Clone, Copy)]
struct Fits {
    products: Lanes,
    squares: Lanes,
}

/// Tries all cuts of `LEN` values and all `WAYS` to move the levels.
///
/// Returns `None` if no cut results in a scale.
#[inline(always)]
fn best_cut<T: Cuts<LEN, WAYS>, const LEN: usize, const WAYS: usize>(cuts: &T) -> Option<Cut> {
    let (mut best, mut cut) = (-f32::MAX, None);
    for first in 0..=LEN {
        let mut start = first;
        while start <= LEN {
            let fits = cuts.sums(first, start);

            // Most lanes hold nothing better: that is seen for all of them at once.
            let mut any = [false; LANES];
            for Fits { products, squares } in &fits {
                for lane in 0..LANES {
                    any[lane] |= is_better(products[lane], squares[lane], best);
                }
            }

            if any.iter().fold(false, |any, &lane| any | lane) {
                for lane in 0..LANES.min(LEN + 1 - start) {
                    for (way, Fits { products, squares }) in fits.iter().enumerate() {
                        if is_better(products[lane], squares[lane], best) {
                            let scale = products[lane] / squares[lane];
                            best = scale * products[lane];
                            cut = Some(Cut { scale, ends: [first, start + lane], way });
                        }
                    }
                }
            }

            start += LANES;
        }
    }

    cut
}

#[inline(always)]
fn is_better(products: f32, squares: f32, best: f32) -> bool {
    (squares > 0.0) & (products * products > best * squares)
}

/// Positions in the order of their values; equal ones keep theirs.
#[inline(always)]
fn sorted<const LEN: usize>(values: &[f32; LEN]) -> [u8; LEN] {
    let mut ranks = [0_u32; LEN];
    for (at, &other) in values.iter().enumerate() {
        for i in 0..LEN {
            ranks[i] += u32::from((other < values[i]) | (other == values[i]) & (at < i));
        }
    }
    let mut order = [0; LEN];
    for (at, rank) in (0..).zip(ranks) {
        order[rank as usize % LEN] = at;
    }
    order
}

/// The levels that a cut leads to.
#[inline(always)]
fn levels<const LEN: usize>(order: &[u8; LEN], ends: [usize; 2]) -> [u8; LEN] {
    let mut levels = [0; LEN];
    for (rank, &at) in order.iter().enumerate() {
        levels[usize::from(at) % LEN] = u8::from(rank >= ends[0]) + u8::from(rank >= ends[1]);
    }
    levels
}

#[inline(always)]
fn greatest_magnitude<const LEN: usize>(values: &[f32; LEN]) -> f32 {
    values.iter().fold(
        0.0,
        |greatest: f32, value| if greatest > value.abs() { greatest } else { value.abs() },
    )
}

/// A sub-block as points.
struct Fitted<const GROUPS: usize> {
    scale: f32,
    numbers: [u16; GROUPS],
}

/// Moves the groups of a sub-block to points.
///
/// Fits the scale again if one of the groups was not a point. `meanings` contains the values of the
/// levels of each group.
#[inline(always)]
fn to_points<const LEN: usize, const GROUPS: usize>(
    grid: &Grid<EIGHT>,
    values: &[f32; LEN],
    weights: &[f32; LEN],
    mut levels: [u8; LEN],
    scale: f32,
    meanings: [&[f32; 3]; GROUPS],
) -> Fitted<GROUPS> {
    let mut fitted = Fitted { scale, numbers: [0; GROUPS] };
    let mut all_points = true;
    let groups = values.as_chunks::<8>().0.iter().zip(weights.as_chunks::<8>().0).zip(meanings);
    for (at, (((values, weights), meaning), levels)) in
        groups.clone().zip(levels.as_chunks_mut::<8>().0).enumerate()
    {
        all_points &=
            grid.settle(levels, || Costs::new(values, weights, |level| scale * meaning[level]));
        fitted.numbers[at] = grid.number(levels);
    }
    if !all_points {
        let (mut products, mut squares) = (0.0, 0.0);
        for (((values, weights), meaning), levels) in groups.zip(levels.as_chunks::<8>().0) {
            add_up(values, weights, levels, |level| meaning[level], &mut products, &mut squares);
        }
        if products > 0.0 && squares > 0.0 {
            fitted.scale = products / squares;
        }
    }

    fitted
}

/// Adds a group to weighted sums of level times value and of the level's square.
#[inline(always)]
fn add_up(
    values: &[f32; 8],
    weights: &[f32; 8],
    levels: &[u8; 8],
    meaning: impl Fn(usize) -> f32,
    products: &mut f32,
    squares: &mut f32,
) {
    for ((&value, &weight), &level) in values.iter().zip(weights).zip(levels) {
        let level = meaning(usize::from(level % 3));
        *products += weight * level * value;
        *squares += weight * level * level;
    }
}

impl QuantizeToPoints<50, EIGHT> for Iq1S {
    fn with_grid(run: impl FnOnce(&Grid<EIGHT>)) {
        grid::iq1(run);
    }

    #[inline(always)]
    fn quantize(
        values: &[f32; SUPER],
        importance: Option<&[f32; SUPER]>,
        grid: &Grid<EIGHT>,
        block: &mut [u8; 50],
    ) {
        let spread = 2.0 * sum_of_squares(values) / SUPER as f32;
        let importance = importance.unwrap_or(&[1.0; SUPER]);
        let (mut scales, mut parts) = ([0.0; 8], [0_u16; 8]);
        let mut greatest = 0.0;
        let pairs = values.as_chunks::<32>().0.iter().zip(importance.as_chunks().0);
        for (at, (values, importance)) in pairs.enumerate() {
            if greatest_magnitude(values) < 1e-12 {
                continue;
            }

            let weights = weigh(values, importance, spread);
            let order = sorted(values);
            let Some(mut cut) = best_cut(&Together::of(values, &weights, &order)) else { continue };
            let mut levels = levels(&order, cut.ends);
            if cut.scale < 0.0 {
                levels = levels.map(|level| 2 - level);
                (cut.scale, cut.way) = (-cut.scale, 1 - cut.way);
            }

            let meaning = [&UP, &DOWN][cut.way];
            let fitted = to_points(grid, values, &weights, levels, cut.scale, [meaning; 4]);
            for (i, number) in fitted.numbers.into_iter().enumerate() {
                block[2 + 4 * at + i] = number as u8;
                parts[at] |= number >> 8 << (3 * i);
            }

            parts[at] |= (cut.way as u16) << 15;
            scales[at] = fitted.scale;
            greatest = if greatest > fitted.scale { greatest } else { fitted.scale };
        }

        let inverse = if greatest == 0.0 {
            // Not even the direction of the move is stored.
            parts = parts.map(|part| part & 0x7fff);
            0.0
        } else {
            let unit = greatest / 15.0;
            write_f16(block, 0, unit * 1.125);
            1.0 / unit
        };

        for ((bytes, part), scale) in
            block[34..].as_chunks_mut().0.iter_mut().zip(parts).zip(scales)
        {
            *bytes = (part | u16::from(odd_multiple::<8>(inverse, scale)) << 12).to_le_bytes();
        }
    }
}

/// Sums over the first values of a sorted sub-block, by their number. The rest is for lanes beyond
/// the last.
struct Sums<const ROOM: usize> {
    products: [f32; ROOM],
    weights: [f32; ROOM],
}

/// The sums up to several ends.
#[inline(always)]
fn lanes(sums: &[f32], start: usize) -> &Lanes {
    sums[start..].first_chunk().unwrap_or(&[0.0; LANES])
}

/// All levels are moved up, or all down.
struct Together(Sums<48>);

impl Together {
    #[inline(always)]
    fn of(values: &[f32; 32], weights: &[f32; 32], order: &[u8; 32]) -> Self {
        let mut sums = Sums { products: [0.0; 48], weights: [0.0; 48] };
        for (rank, &at) in order.iter().enumerate() {
            let at = usize::from(at) % 32;
            sums.products[rank + 1] = sums.products[rank] + weights[at] * values[at];
            sums.weights[rank + 1] = sums.weights[rank] + weights[at];
        }
        Self(sums)
    }

    #[inline(always)]
    fn moved(&self, &[low, middle, high]: &[f32; 3], first: usize, start: usize) -> Fits {
        let Sums { products, weights } = &self.0;
        let mut fits = Fits { products: [0.0; LANES], squares: [0.0; LANES] };
        let (low_product, low_square) = (products[first] * low, weights[first] * low * low);
        let (second_products, second_weights) = (lanes(products, start), lanes(weights, start));
        for lane in 0..LANES {
            fits.products[lane] = low_product
                + (second_products[lane] - products[first]) * middle
                + (products[32] - second_products[lane]) * high;
            fits.squares[lane] = low_square
                + (second_weights[lane] - weights[first]) * middle * middle
                + (weights[32] - second_weights[lane]) * high * high;
        }
        fits
    }
}

impl Cuts<32, 2> for Together {
    #[inline(always)]
    fn sums(&self, first: usize, start: usize) -> [Fits; 2] {
        [self.moved(&UP, first, start), self.moved(&DOWN, first, start)]
    }
}

/// Result of the search for 16 values.
#[derive(Clone, Copy)]
struct TernaryGroup {
    weights: [f32; 16],
    scale: f32,
    way: usize,
    numbers: [u16; 2],
}

impl TernaryGroup {
    /// Searches for 16 values. The scale is zero if all values are (nearly) zero.
    #[inline(always)]
    fn of(values: &[f32; 16], weights: [f32; 16], grid: &Grid<EIGHT>) -> Self {
        let zero = Self { weights, scale: 0.0, way: 0, numbers: [0; 2] };
        if greatest_magnitude(values) < 1e-7 {
            return zero;
        }

        let order = sorted(values);
        let Some(mut cut) = best_cut(&Apart::of(values, &weights, &order)) else { return zero };
        let mut levels = levels(&order, cut.ends);
        if cut.scale < 0.0 {
            levels = levels.map(|level| 2 - level);
            (cut.scale, cut.way) = (-cut.scale, 3 - cut.way);
        }

        let Fitted { scale, numbers } =
            to_points(grid, values, &weights, levels, cut.scale, meanings(cut.way));
        Self { weights, scale, way: cut.way, numbers }
    }

    /// Adds its values to weighted sums of level times value and of the level's square.
    ///
    /// A level is a multiple of the unit.
    #[inline(always)]
    fn add_up(
        &self,
        values: &[f32; 16],
        multiple: f32,
        grid: &Grid<EIGHT>,
        products: &mut f32,
        squares: &mut f32,
    ) {
        let groups = values.as_chunks().0.iter().zip(self.weights.as_chunks().0);
        for (((values, weights), meaning), number) in
            groups.zip(meanings(self.way)).zip(self.numbers)
        {
            add_up(
                values,
                weights,
                grid.point(number),
                |level| meaning[level] * multiple,
                products,
                squares,
            );
        }
    }
}

impl QuantizeToPoints<56, EIGHT> for Iq1M {
    fn with_grid(run: impl FnOnce(&Grid<EIGHT>)) {
        grid::iq1(run);
    }

    #[inline(always)]
    fn quantize(
        values: &[f32; SUPER],
        importance: Option<&[f32; SUPER]>,
        grid: &Grid<EIGHT>,
        block: &mut [u8; 56],
    ) {
        let spread = 2.0 * sum_of_squares(values) / SUPER as f32;
        let mut parts =
            [TernaryGroup { weights: [0.0; 16], scale: 0.0, way: 0, numbers: [0; 2] }; 16];
        let mut greatest = 0.0;
        for (at, (part, values)) in parts.iter_mut().zip(values.as_chunks().0).enumerate() {
            let weights = match importance {
                Some(importance) => weigh(values, &importance.as_chunks().0[at], spread),
                None => values.map(|value| value * value),
            };
            *part = TernaryGroup::of(values, weights, grid);
            greatest = if greatest > part.scale { greatest } else { part.scale };
            write_numbers(block, at, part.numbers, 0);
        }

        if greatest == 0.0 {
            return;
        }

        let mut unit = greatest / 15.0;
        let inverse = 1.0 / unit;
        let (mut products, mut squares) = (0.0, 0.0);
        let mut stored = [0_u16; 4];
        for (at, (part, values)) in parts.iter().zip(values.as_chunks().0).enumerate() {
            let multiple = odd_multiple::<8>(inverse, part.scale);
            stored[at / 4] |= u16::from(multiple) << (3 * (at % 4));
            write_numbers(block, at, part.numbers, part.way);
            part.add_up(values, f32::from(2 * multiple + 1), grid, &mut products, &mut squares);
        }

        if squares > 0.0 {
            unit = products / squares;
        }

        let unit = f32_to_f16(unit * 1.1125);
        for ((i, bytes), stored) in (0..).zip(block[48..].as_chunks_mut().0).zip(stored) {
            *bytes = (stored | (unit >> (4 * i) & 15) << 12).to_le_bytes();
        }
    }
}

/// Returns the values of the levels of the two halves of 16 values.
///
/// Bit 1 of the way moves the levels of the first half down, bit 0 those of the second.
#[inline(always)]
fn meanings(way: usize) -> [&'static [f32; 3]; 2] {
    [1, 0].map(|bit| if way >> bit & 1 == 1 { &DOWN } else { &UP })
}

#[inline(always)]
fn write_numbers(block: &mut [u8; 56], at: usize, numbers: [u16; 2], way: usize) {
    let [first, second] = numbers;
    block[2 * at] = first as u8;
    block[2 * at + 1] = second as u8;
    let moved = (way >> 1 << 3 | (way & 1) << 7) as u8;
    block[32 + at] = (first >> 8) as u8 | (second >> 8 << 4) as u8 | moved;
}

/// The levels of each half of 16 values are moved up or down.
struct Apart([Sums<32>; 2]);

impl Apart {
    #[inline(always)]
    fn of(values: &[f32; 16], weights: &[f32; 16], order: &[u8; 16]) -> Self {
        let mut halves = [const { Sums { products: [0.0; 32], weights: [0.0; 32] } }; 2];
        for (rank, &at) in order.iter().enumerate() {
            let at = usize::from(at) % 16;
            for (half, sums) in halves.iter_mut().enumerate() {
                let (product, weight) = if at / 8 == half {
                    (weights[at] * values[at], weights[at])
                } else {
                    (0.0, 0.0)
                };
                sums.products[rank + 1] = sums.products[rank] + product;
                sums.weights[rank + 1] = sums.weights[rank] + weight;
            }
        }

        Self(halves)
    }

    /// The sums of a half. Levels are one apart, so that the sum over three ranges is that over
    /// all, less those below each end.
    #[inline(always)]
    fn moved(
        &self,
        half: usize,
        &[low, middle, high]: &[f32; 3],
        first: usize,
        start: usize,
    ) -> Fits {
        let Sums { products, weights } = &self.0[half];
        let mut fits = Fits { products: [0.0; LANES], squares: [0.0; LANES] };
        let (to_middle, to_high) = (low * low - middle * middle, middle * middle - high * high);
        let (all_product, all_square) = (products[16] * high, weights[16] * high * high);
        let first_square = weights[first] * to_middle;
        let (second_products, second_weights) = (lanes(products, start), lanes(weights, start));
        for lane in 0..LANES {
            fits.products[lane] = all_product - (products[first] + second_products[lane]);
            fits.squares[lane] = all_square + first_square + second_weights[lane] * to_high;
        }
        fits
    }
}

impl Cuts<16, 4> for Apart {
    #[inline(always)]
    fn sums(&self, first: usize, start: usize) -> [Fits; 4] {
        let (up, down) = (self.moved(0, &UP, first, start), self.moved(0, &DOWN, first, start));
        let (up_2, down_2) = (self.moved(1, &UP, first, start), self.moved(1, &DOWN, first, start));
        [both(&up, &up_2), both(&up, &down_2), both(&down, &up_2), both(&down, &down_2)]
    }
}

#[inline(always)]
fn both(first: &Fits, second: &Fits) -> Fits {
    let mut sums = *first;
    for lane in 0..LANES {
        sums.products[lane] += second.products[lane];
        sums.squares[lane] += second.squares[lane];
    }
    sums
}
