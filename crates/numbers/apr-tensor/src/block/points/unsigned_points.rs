//! IQ2 and IQ3: points of magnitudes, and signs beside them. The layouts are in
//! [`iq_dequantize`](super::super::iq_dequantize).

use super::super::k_quants::positive_scales;
use super::super::kernel::QuantizeToPoints;
use super::super::pack::{low_bits, write_f16};
use super::grid::{self, EIGHT, FOUR, Grid};
use super::tries::{FittedSubBlock, Refit, Sub, Sweep};
use super::{SUPER, odd_multiple, sum_of_squares, weigh};

pub(in super::super) struct Iq2Xxs;
pub(in super::super) struct Iq2Xs;
pub(in super::super) struct Iq2S;
pub(in super::super) struct Iq3Xxs;
pub(in super::super) struct Iq3S;

/// Signs that are stored.
///
/// Either the sign of each value is stored, or that of each but the last of eight. The number of
/// negative values is then even.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Signs {
    Each,
    Even,
}

/// Magnitudes with their weights, and the signs of eight values in a byte.
#[inline(always)]
fn magnitudes<const LEN: usize>(
    values: &[f32; LEN],
    weights: [f32; LEN],
    signs: Signs,
) -> (Sub<LEN>, [u8; 4]) {
    let mut sub =
        Sub { values: *values, roots: weights.map(crate::square_root::square_root_f32), weights };
    let mut bytes = [0; 4];
    let groups = values.as_chunks::<8>().0.iter().zip(sub.values.as_chunks_mut::<8>().0);
    for (byte, ((values, magnitudes), weights)) in
        bytes.iter_mut().zip(groups.zip(sub.weights.as_chunks::<8>().0))
    {
        // A zero is positive, whatever its sign.
        *byte = low_bits(values.map(|value| u8::from(value < 0.0)));
        *magnitudes = values.map(|value| if value >= 0.0 { value } else { -value });
        if signs == Signs::Even && byte.count_ones() % 2 == 1 {
            let least = least(values, weights);
            magnitudes[least] = -magnitudes[least];
            *byte ^= 1 << least;
        }
    }
    (sub, bytes)
}

/// Returns the position where a wrong sign costs least.
#[inline(always)]
fn least(values: &[f32; 8], weights: &[f32; 8]) -> usize {
    let cost = |i: usize| weights[i] * values[i] * values[i];
    (1..8).fold(0, |least, i| if cost(i) < cost(least) { i } else { least })
}

#[inline(always)]
fn greatest<const LEN: usize>(values: &[f32; LEN]) -> f32 {
    values
        .iter()
        .fold(values[0], |greatest, &value| if greatest > value { greatest } else { value })
}

/// Scales are stored as positive numbers: a negative one becomes positive, and all signs change.
#[inline(always)]
fn make_positive<const LEN: usize>(found: &mut FittedSubBlock<LEN>, signs: &mut [u8; 4]) {
    if found.scale < 0.0 {
        found.scale = -found.scale;
        *signs = signs.map(|signs| !signs);
    }
}

/// The numbers of the points of a sub-block.
#[inline(always)]
fn numbers<const WIDTH: usize>(grid: &Grid<WIDTH>, levels: &[u8]) -> impl Iterator<Item = u16> {
    levels.as_chunks::<WIDTH>().0.iter().map(|levels| grid.number(levels))
}

/// The weights of values without importance.
type Unweighted = fn(value: f32, spread: f32) -> f32;

/// Rules for searching the sub-blocks of a type.
struct Rules {
    signs: Signs,
    /// A sub-block whose greatest magnitude is below this is zero.
    least: f32,
    reach: u8,
    step: f32,
    refit: Refit,
    unweighted: Unweighted,
}

/// Searches each sub-block and passes the result, with its signs, to `then`.
///
/// The result is `None` for a sub-block that counts as zero.
#[inline(always)]
fn search<const LEN: usize, const WIDTH: usize>(
    rules: &Rules,
    grid: &Grid<WIDTH>,
    values: &[f32; SUPER],
    importance: Option<&[f32; SUPER]>,
    spread: f32,
    mut then: impl FnMut(usize, Option<(FittedSubBlock<LEN>, [u8; 4])>),
) {
    for (at, values) in values.as_chunks::<LEN>().0.iter().enumerate() {
        let weights = match importance {
            Some(importance) => weigh(values, &importance.as_chunks().0[at], spread),
            None => values.map(|value| (rules.unweighted)(value, spread)),
        };
        let (sub, mut signs) = magnitudes(values, weights, rules.signs);
        let extreme = greatest(&sub.values);
        if extreme < rules.least || extreme == 0.0 {
            then(at, None);
            continue;
        }

        let top = if WIDTH == EIGHT { 5.0 } else { 15.0 };
        let sweep = Sweep { extreme, reach: rules.reach, step: rules.step };
        let mut found = sub.search(grid, &sweep, extreme / top, rules.refit);
        make_positive(&mut found, &mut signs);
        then(at, Some((found, signs)));
    }
}

#[inline(always)]
fn square(value: f32, _spread: f32) -> f32 {
    value * value
}

/// Writes the unit of the scales times a correction, and returns its inverse.
///
/// Returns `None` if all scales are zero.
#[inline(always)]
fn write_unit(scales: &[f32], correction: f32, block: &mut [u8]) -> Option<f32> {
    let greatest =
        scales.iter().fold(0.0, |greatest, &scale| if greatest > scale { greatest } else { scale });
    let unit = greatest / 31.0;
    (greatest != 0.0).then(|| write_f16(block, 0, unit * correction))?;
    Some(1.0 / unit)
}

/// Writes the scales in nibbles, the first in the low one.
#[inline(always)]
fn write_nibbles(inverse_unit: f32, scales: &[f32], bytes: &mut [u8]) {
    for (byte, pair) in bytes.iter_mut().zip(scales.as_chunks::<2>().0) {
        let [low, high] = pair.map(|scale| odd_multiple::<16>(inverse_unit, scale));
        *byte = low | high << 4;
    }
}

/// Four times seven signs, from the lowest bits.
#[inline(always)]
fn four_times_seven(signs: [u8; 4]) -> u32 {
    (0..).zip(signs).fold(0, |bits, (i, signs)| bits | u32::from(signs & 127) << (7 * i))
}

impl QuantizeToPoints<66, EIGHT> for Iq2Xxs {
    fn with_grid(run: impl FnOnce(&Grid<EIGHT>)) {
        grid::iq2_xxs(run);
    }

    #[inline(always)]
    fn quantize(
        values: &[f32; SUPER],
        importance: Option<&[f32; SUPER]>,
        grid: &Grid<EIGHT>,
        block: &mut [u8; 66],
    ) {
        let spread = sum_of_squares(values) / SUPER as f32;
        let importance = importance.unwrap_or(&[1.0; SUPER]);
        let mut parts = [const { SignedSubBlock::NONE }; 8];
        let pairs = values.as_chunks().0.iter().zip(importance.as_chunks().0);
        for (part, (values, importance)) in parts.iter_mut().zip(pairs) {
            (part.sub, part.signs) =
                magnitudes(values, weigh(values, importance, spread), Signs::Even);
        }

        let starts =
            positive_scales(4, &parts.each_ref().map(|part| (&part.sub.values, &part.sub.weights)));
        let mut scales = [0.0; 8];
        for (at, (mut part, start)) in parts.into_iter().zip(starts).enumerate() {
            let extreme = start * 3.0;
            if greatest(&part.sub.values) < 1e-15 || extreme <= 0.0 {
                continue;
            }

            let sweep = Sweep { extreme, reach: 6, step: 0.1 };
            let mut found = part.sub.search(grid, &sweep, start, Refit::All);
            make_positive(&mut found, &mut part.signs);
            scales[at] = found.scale;
            let bytes = &mut block[2 + 8 * at..][..8];
            bytes
                .iter_mut()
                .zip(numbers(grid, &found.levels))
                .for_each(|(byte, number)| *byte = number as u8);
            bytes[4..].copy_from_slice(&four_times_seven(part.signs).to_le_bytes());
        }

        match write_unit(&scales, 1.0, block) {
            Some(inverse) => {
                for (bytes, &scale) in block[2..].as_chunks_mut::<8>().0.iter_mut().zip(&scales) {
                    bytes[7] |= odd_multiple::<16>(inverse, scale) << 4;
                }
            }
            None => block.fill(0),
        }
    }
}

/// A sub-block with its signs.
struct SignedSubBlock {
    sub: Sub<32>,
    signs: [u8; 4],
}

impl SignedSubBlock {
    const NONE: Self = Self {
        sub: Sub { values: [0.0; 32], weights: [0.0; 32], roots: [0.0; 32] },
        signs: [0; 4],
    };
}

impl QuantizeToPoints<74, EIGHT> for Iq2Xs {
    fn with_grid(run: impl FnOnce(&Grid<EIGHT>)) {
        grid::iq2_xs(run);
    }

    #[inline(always)]
    fn quantize(
        values: &[f32; SUPER],
        importance: Option<&[f32; SUPER]>,
        grid: &Grid<EIGHT>,
        block: &mut [u8; 74],
    ) {
        let rules = Rules {
            signs: Signs::Even,
            least: 1e-15,
            reach: 9,
            step: 0.1,
            refit: Refit::Moved,
            unweighted: square,
        };

        let spread = sum_of_squares(values) / SUPER as f32;
        let importance = importance.unwrap_or(&[1.0; SUPER]);
        let mut scales = [0.0; 16];
        search::<16, EIGHT>(&rules, grid, values, Some(importance), spread, |at, found| {
            let Some((found, signs)) = found else { return };
            scales[at] = found.scale;
            let bytes = block[2 + 4 * at..][..4].as_chunks_mut::<2>().0;
            for ((bytes, number), signs) in
                bytes.iter_mut().zip(numbers(grid, &found.levels)).zip(signs)
            {
                *bytes = (number | u16::from(signs & 127) << 9).to_le_bytes();
            }
        });
        match write_unit(&scales, 1.0, block) {
            Some(inverse) => write_nibbles(inverse, &scales, &mut block[66..]),
            None => block.fill(0),
        }
    }
}

impl QuantizeToPoints<82, EIGHT> for Iq2S {
    fn with_grid(run: impl FnOnce(&Grid<EIGHT>)) {
        grid::iq2_s(run);
    }

    #[inline(always)]
    fn quantize(
        values: &[f32; SUPER],
        importance: Option<&[f32; SUPER]>,
        grid: &Grid<EIGHT>,
        block: &mut [u8; 82],
    ) {
        let rules = Rules {
            signs: Signs::Each,
            least: 1e-8,
            reach: 9,
            step: 0.1,
            refit: Refit::Moved,
            unweighted: |value, spread| 0.25 * spread + value * value,
        };

        let spread = 2.0 * sum_of_squares(values) / SUPER as f32;
        let mut scales = [0.0; 16];
        search::<16, EIGHT>(&rules, grid, values, importance, spread, |at, found| {
            let Some((found, signs)) = found else { return };
            scales[at] = found.scale;
            for ((i, number), signs) in (2 * at..).zip(numbers(grid, &found.levels)).zip(signs) {
                block[2 + i] = number as u8;
                block[34 + i] = signs;
                block[66 + i / 4] |= ((number >> 8) as u8) << (2 * (i % 4));
            }
        });
        if let Some(inverse) = write_unit(&scales, 0.9875, block) {
            write_nibbles(inverse, &scales, &mut block[74..]);
        }
    }
}

impl QuantizeToPoints<98, FOUR> for Iq3Xxs {
    fn with_grid(run: impl FnOnce(&Grid<FOUR>)) {
        grid::iq3_xxs(run);
    }

    #[inline(always)]
    fn quantize(
        values: &[f32; SUPER],
        importance: Option<&[f32; SUPER]>,
        grid: &Grid<FOUR>,
        block: &mut [u8; 98],
    ) {
        let rules = Rules {
            signs: Signs::Even,
            least: 1e-8,
            reach: 15,
            step: 0.2,
            refit: Refit::Moved,
            unweighted: square,
        };

        let spread = 2.0 * sum_of_squares(values) / SUPER as f32;
        let mut scales = [0.0; 8];
        search::<32, FOUR>(&rules, grid, values, importance, spread, |at, found| {
            let Some((found, signs)) = found else { return };
            scales[at] = found.scale;
            let points = block[2 + 8 * at..][..8].iter_mut();
            points
                .zip(numbers(grid, &found.levels))
                .for_each(|(byte, number)| *byte = number as u8);
            block[66 + 4 * at..][..4].copy_from_slice(&four_times_seven(signs).to_le_bytes());
        });
        match write_unit(&scales, 1.0125, block) {
            Some(inverse) => {
                for (bytes, &scale) in block[66..].as_chunks_mut::<4>().0.iter_mut().zip(&scales) {
                    bytes[3] |= odd_multiple::<16>(inverse, scale) << 4;
                }
            }
            None => block.fill(0),
        }
    }
}

impl QuantizeToPoints<110, FOUR> for Iq3S {
    fn with_grid(run: impl FnOnce(&Grid<FOUR>)) {
        grid::iq3_s(run);
    }

    #[inline(always)]
    fn quantize(
        values: &[f32; SUPER],
        importance: Option<&[f32; SUPER]>,
        grid: &Grid<FOUR>,
        block: &mut [u8; 110],
    ) {
        let rules = Rules {
            signs: Signs::Each,
            least: 0.0,
            reach: 9,
            step: 0.2,
            refit: Refit::AllIfMoved,
            unweighted: square,
        };

        let spread = 2.0 * sum_of_squares(values) / SUPER as f32;

        // A sub-block of zeros takes no room for points and signs in ggml, though its reader
        // expects some: what follows in the super-block moves forward. Ours are the same bytes.
        let (mut scales, mut place) = ([0.0; 8], 0);
        search::<32, FOUR>(&rules, grid, values, importance, spread, |at, found| {
            let Some((found, signs)) = found else { return };
            scales[at] = found.scale;
            for (i, number) in numbers(grid, &found.levels).enumerate() {
                block[2 + 8 * place + i] = number as u8;
                block[66 + at] |= ((number >> 8) as u8) << i;
            }
            block[74 + 4 * place..][..4].copy_from_slice(&signs);
            place += 1;
        });
        if let Some(inverse) = write_unit(&scales, 1.033, block) {
            write_nibbles(inverse, &scales, &mut block[106..]);
        }
    }
}
