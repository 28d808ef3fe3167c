//! Q4_0, Q4_1, Q5_0 and Q5_1 with importance weights: the scale (and minimum) that costs least of a
//! few dozen.

use super::kernel::{Importance, QuantizeGroups, Spread};
use super::lanes::{
    BLOCK, Columns, LANES, Lanes, SMALLEST_GREATEST, Weights, nearest_i32, without_small,
};
use super::pack::{fifth_bits, nibbles, write_f16};
use super::simple::{Q4_0, Q4_1, Q5_0, Q5_1};

/// Levels of the values of a few blocks.
type Levels = [[i32; LANES]; BLOCK];

#[inline(always)]
fn block_levels(levels: &Levels, lane: usize) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    for (level, column) in block.iter_mut().zip(levels) {
        *level = column[lane] as u8;
    }
    block
}

/// Scales for levels from -`HALF` to `HALF` - 1, and the levels, counted from 0.
#[inline(always)]
fn search_signed<const HALF: i32>(columns: &Columns, weights: &Weights) -> (Lanes, Levels) {
    let greatest = columns.first_of_greatest_magnitude();
    let half = HALF as f32;
    let mut factor = [0.0; LANES];
    for lane in 0..LANES {
        factor[lane] = -half / greatest[lane];
    }

    let mut best_factor = factor;
    let (products, squares) = fit_signed::<HALF>(columns, weights, &factor);
    let (mut scale, mut best) = ([0.0; LANES], [0.0; LANES]);
    for lane in 0..LANES {
        scale[lane] = if squares[lane] == 0.0 { 0.0 } else { products[lane] / squares[lane] };
        best[lane] = scale[lane] * products[lane];
    }

    for step in (-9..=9_i8).filter(|&step| step != 0) {
        for lane in 0..LANES {
            factor[lane] = -(half + 0.1 * f32::from(step)) / greatest[lane];
        }
        let (products, squares) = fit_signed::<HALF>(columns, weights, &factor);
        for lane in 0..LANES {
            let better = (squares[lane] > 0.0)
                & (products[lane] * products[lane] > best[lane] * squares[lane]);
            let fitted = products[lane] / squares[lane];
            best_factor[lane] = if better { factor[lane] } else { best_factor[lane] };
            scale[lane] = if better { fitted } else { scale[lane] };
            best[lane] = if better { fitted * products[lane] } else { best[lane] };
        }
    }

    let levels = signed_levels::<HALF>(columns, &best_factor, &greatest);
    (without_small(scale, &greatest), levels)
}

/// Levels that factors lead to, counted from 0.
#[inline(always)]
fn signed_levels<const HALF: i32>(columns: &Columns, factor: &Lanes, greatest: &Lanes) -> Levels {
    let mut levels = [[0; LANES]; BLOCK];
    for (levels, values) in levels.iter_mut().zip(&columns.0) {
        for lane in 0..LANES {
            let level = HALF + nearest_i32(factor[lane] * values[lane]).clamp(-HALF, HALF - 1);
            // A block that counts as zero has level 0 throughout, which its scale of zero makes
            // zero.
            levels[lane] = if greatest[lane].abs() < SMALLEST_GREATEST { 0 } else { level };
        }
    }
    levels
}

/// Weighted sums of level times value and of the level's square.
#[inline(always)]
fn fit_signed<const HALF: i32>(
    columns: &Columns,
    weights: &Weights,
    factor: &Lanes,
) -> (Lanes, Lanes) {
    let (mut products, mut squares) = ([0.0; LANES], [0.0; LANES]);
    for (values, weights) in columns.0.iter().zip(&weights.0) {
        for lane in 0..LANES {
            let level = nearest_i32(factor[lane] * values[lane]).clamp(-HALF, HALF - 1) as f32;
            products[lane] += weights[lane] * values[lane] * level;
            squares[lane] += weights[lane] * level * level;
        }
    }
    (products, squares)
}

/// The state of [`search_above_least`].
struct Best {
    error: Lanes,
    scale: Lanes,
    least: Lanes,
    rounding: Rounding,
}

/// Scales and minima for levels from 0 to `TOP`, and the levels.
#[inline(always)]
fn search_above_least<const TOP: i32>(
    columns: &Columns,
    weights: &Weights,
) -> (Lanes, Lanes, Levels) {
    let sums = Sums::of(columns, weights);
    let mut rounding = Rounding { factor: [0.0; LANES], least: sums.least };
    for lane in 0..LANES {
        rounding.factor[lane] = TOP as f32 / (sums.greatest[lane] - sums.least[lane]);
    }

    let scale = rounding.factor.map(|factor| 1.0 / factor);
    let error = squared_error::<TOP>(columns, weights, &rounding, &scale, &sums.least);
    let mut best = Best { error, scale, least: sums.least, rounding };
    for step in 0..=36_u8 {
        // The reference goes on from the best minimum so far.
        rounding.least = best.least;
        for lane in 0..LANES {
            let top = -0.9 + 0.05 * f32::from(step) + TOP as f32;
            rounding.factor[lane] = top / (sums.greatest[lane] - rounding.least[lane]);
        }
        best.try_rounding::<TOP>(columns, weights, &sums, &rounding);
    }

    let mut levels = [[0; LANES]; BLOCK];
    for (levels, values) in levels.iter_mut().zip(&columns.0) {
        for lane in 0..LANES {
            let level = level_above::<TOP>(
                values[lane],
                best.rounding.factor[lane],
                best.rounding.least[lane],
            );
            levels[lane] = if sums.is_flat(lane) { 0 } else { level };
        }
    }

    for lane in 0..LANES {
        if sums.is_flat(lane) {
            best.scale[lane] = 0.0;
            best.least[lane] = sums.least[lane];
        }
    }

    (best.scale, best.least, levels)
}

/// Sums over blocks that are computed before a search.
struct Sums {
    /// Least values of the blocks, at most zero.
    least: Lanes,
    greatest: Lanes,
    weights: Lanes,
    weighted_values: Lanes,
}

impl Sums {
    /// Returns `true` if a block has no range, and therefore neither scale nor levels.
    #[inline(always)]
    fn is_flat(&self, lane: usize) -> bool {
        self.greatest[lane] <= self.least[lane]
    }

    #[inline(always)]
    fn of(columns: &Columns, weights: &Weights) -> Self {
        let [first, ..] = columns.0;
        let mut sums = Self {
            least: first,
            greatest: first,
            weights: [0.0; LANES],
            weighted_values: [0.0; LANES],
        };

        for (values, weights) in columns.0.iter().zip(&weights.0) {
            for lane in 0..LANES {
                let value = values[lane];
                sums.least[lane] = if value < sums.least[lane] { value } else { sums.least[lane] };
                sums.greatest[lane] =
                    if value > sums.greatest[lane] { value } else { sums.greatest[lane] };
                sums.weights[lane] += weights[lane];
                sums.weighted_values[lane] += weights[lane] * value;
            }
        }

        for least in &mut sums.least {
            *least = if *least > 0.0 { 0.0 } else { *least };
        }

        sums
    }

    /// Slopes and starts of the lines that fit levels best, and the determinants, which are
    /// positive where there is one. Given are the weighted sums of levels, of their squares, and of
    /// levels times values.
    #[inline(always)]
    fn lines(&self, sum: &Lanes, squares: &Lanes, products: &Lanes) -> [Lanes; 3] {
        let (mut scale, mut least, mut determinant) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
        for lane in 0..LANES {
            determinant[lane] = self.weights[lane] * squares[lane] - sum[lane] * sum[lane];
            let slope =
                self.weights[lane] * products[lane] - self.weighted_values[lane] * sum[lane];
            let start = squares[lane] * self.weighted_values[lane] - sum[lane] * products[lane];
            let (slope, start) = (slope / determinant[lane], start / determinant[lane]);
            let through_zero = products[lane] / squares[lane];
            scale[lane] = if start > 0.0 { through_zero } else { slope };
            least[lane] = if start > 0.0 { 0.0 } else { start };
        }
        [scale, least, determinant]
    }
}

#[inline(always)]
fn level_above<const TOP: i32>(value: f32, factor: f32, least: f32) -> i32 {
    nearest_i32(factor * (value - least)).clamp(0, TOP)
}

/// Parameters of rounding values to levels: the factor and the minimum.
#[derive(Clone, Copy)]
struct Rounding {
    factor: Lanes,
    least: Lanes,
}

/// Weighted sum of the squared differences between values and a line through their levels.
#[inline(always)]
fn squared_error<const TOP: i32>(
    columns: &Columns,
    weights: &Weights,
    rounding: &Rounding,
    scale: &Lanes,
    least: &Lanes,
) -> Lanes {
    let mut error = [0.0; LANES];
    for (values, weights) in columns.0.iter().zip(&weights.0) {
        for lane in 0..LANES {
            let level =
                level_above::<TOP>(values[lane], rounding.factor[lane], rounding.least[lane])
                    as f32;
            let difference = scale[lane] * level + least[lane] - values[lane];
            error[lane] += weights[lane] * (difference * difference);
        }
    }
    error
}

impl Best {
    /// Replaces scale and minimum by the line that fits the levels best, if the error is lower.
    #[inline(always)]
    fn try_rounding<const TOP: i32>(
        &mut self,
        columns: &Columns,
        weights: &Weights,
        sums: &Sums,
        rounding: &Rounding,
    ) {
        let (mut sum, mut squares, mut products) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
        for (values, weights) in columns.0.iter().zip(&weights.0) {
            for lane in 0..LANES {
                let level =
                    level_above::<TOP>(values[lane], rounding.factor[lane], rounding.least[lane])
                        as f32;
                let weighted = weights[lane] * level;
                sum[lane] += weighted;
                squares[lane] += weighted * level;
                products[lane] += weighted * values[lane];
            }
        }

        let [scale, least, determinant] = sums.lines(&sum, &squares, &products);
        let error = squared_error::<TOP>(columns, weights, rounding, &scale, &least);
        for lane in 0..LANES {
            let better = (determinant[lane] > 0.0) & (error[lane] < self.error[lane]);
            self.error[lane] = if better { error[lane] } else { self.error[lane] };
            self.scale[lane] = if better { scale[lane] } else { self.scale[lane] };
            self.least[lane] = if better { least[lane] } else { self.least[lane] };
            self.rounding.factor[lane] =
                if better { rounding.factor[lane] } else { self.rounding.factor[lane] };
            self.rounding.least[lane] =
                if better { rounding.least[lane] } else { self.rounding.least[lane] };
        }
    }
}

/// The types' common part: the weights are importance times the root of the square plus the row's
/// mean square.
#[inline(always)]
fn columns_and_weights(
    values: &[[f32; 32]],
    importance: Option<&Importance<'_, 32>>,
) -> (Columns, Weights) {
    let columns = Columns::of(values);
    let weights = match importance {
        Some(importance) => Columns::of(importance.blocks()).weights(&columns, &importance.spreads),
        None => columns.squares(),
    };
    (columns, weights)
}

impl QuantizeGroups<32, 18> for Q4_0 {
    const SPREAD: Spread = Spread::Row;

    #[inline(always)]
    fn quantize(
        values: &[[f32; 32]],
        importance: Option<&Importance<'_, 32>>,
        blocks: &mut [[u8; 18]],
    ) {
        let (columns, weights) = columns_and_weights(values, importance);
        let (scales, levels) = search_signed::<8>(&columns, &weights);
        for (lane, block) in blocks.iter_mut().enumerate() {
            write_f16(block, 0, scales[lane]);
            block[2..].copy_from_slice(&nibbles(&block_levels(&levels, lane)));
        }
    }
}

impl QuantizeGroups<32, 22> for Q5_0 {
    const SPREAD: Spread = Spread::Row;

    #[inline(always)]
    fn quantize(
        values: &[[f32; 32]],
        importance: Option<&Importance<'_, 32>>,
        blocks: &mut [[u8; 22]],
    ) {
        let (columns, weights) = columns_and_weights(values, importance);
        let (scales, levels) = search_signed::<16>(&columns, &weights);
        for (lane, block) in blocks.iter_mut().enumerate() {
            let levels = block_levels(&levels, lane);
            write_f16(block, 0, scales[lane]);
            block[2..6].copy_from_slice(&fifth_bits(&levels));
            block[6..].copy_from_slice(&nibbles(&levels));
        }
    }
}

impl QuantizeGroups<32, 20> for Q4_1 {
    const SPREAD: Spread = Spread::Row;

    #[inline(always)]
    fn quantize(
        values: &[[f32; 32]],
        importance: Option<&Importance<'_, 32>>,
        blocks: &mut [[u8; 20]],
    ) {
        let (columns, weights) = columns_and_weights(values, importance);
        let (scales, least, levels) = search_above_least::<15>(&columns, &weights);
        for (lane, block) in blocks.iter_mut().enumerate() {
            write_f16(block, 0, scales[lane]);
            write_f16(block, 2, least[lane]);
            block[4..].copy_from_slice(&nibbles(&block_levels(&levels, lane)));
        }
    }
}

impl QuantizeGroups<32, 24> for Q5_1 {
    const SPREAD: Spread = Spread::Row;

    #[inline(always)]
    fn quantize(
        values: &[[f32; 32]],
        importance: Option<&Importance<'_, 32>>,
        blocks: &mut [[u8; 24]],
    ) {
        let (columns, weights) = columns_and_weights(values, importance);
        let (scales, least, levels) = search_above_least::<31>(&columns, &weights);
        for (lane, block) in blocks.iter_mut().enumerate() {
            let levels = block_levels(&levels, lane);
            write_f16(block, 0, scales[lane]);
            write_f16(block, 2, least[lane]);
            block[4..8].copy_from_slice(&fifth_bits(&levels));
            block[8..].copy_from_slice(&nibbles(&levels));
        }
    }
}
