//! What the chips and the weights have in common.

use serde::Serialize;

use super::chips::{Chips, GROUP, GROUP_BYTES, SLOTS};
use super::frame::{Frame, LENGTHS};
use super::key::MarkKey;

/// Groups whose chips are made at a time.
const BATCH: usize = 64;

/// Sums of weights under their chips, for each slot and each place in a group.
///
/// Parts may be added in any grouping; equal parts in equal order give the same bits.
#[derive(Debug, Clone)]
pub struct Correlation {
    /// `[SLOTS][GROUP]`.
    sums: Vec<f64>,
    /// Sum of squares of each slot.
    squares: [f64; SLOTS],
    weights: u64,
}

/// A symbol as it was read.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SymbolScore {
    /// Value of the symbol.
    pub byte: u8,
    /// Correlation of the symbol, in standard deviations of a chance correlation.
    pub z: f64,
    /// Correlation of the second-best byte.
    pub runner_up: f64,
}

/// The frame that weights and chips suggest most.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Reading {
    /// Symbols of the frame.
    pub symbols: Vec<SymbolScore>,
    /// The correlation of the whole, in standard deviations of a chance one of the same frame.
    pub z: f64,
    /// Natural logarithm of an upper bound on the probability of a chance hit.
    ///
    /// A chance hit is an equal or better result of a key that is unrelated to the model, in any
    /// frame.
    pub ln_chance: f64,
    /// The id, if the frame's check holds.
    pub id: Option<String>,
}

impl Default for Correlation {
    fn default() -> Self {
        Self { sums: vec![0.0; SLOTS * GROUP], squares: [0.0; SLOTS], weights: 0 }
    }
}

impl Correlation {
    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.sums.fill(0.0);
        (self.squares, self.weights) = ([0.0; SLOTS], 0);
    }

    /// Adds elements of a tensor, normalized ([`Carrier::normalize`](super::Carrier::normalize)),
    /// from the group of 256 with this number on.
    pub fn add(&mut self, chips: &mut Chips, first_group: u64, values: &[f32]) {
        let mut bits = [0; BATCH * GROUP_BYTES];
        let batches = values.chunks(BATCH * GROUP).zip((first_group..).step_by(BATCH));
        for (values, batch) in batches {
            chips.read(batch, &mut bits);
            let groups = values.chunks(GROUP).zip(bits.as_chunks::<GROUP_BYTES>().0).zip(batch..);
            for ((values, bits), group) in groups {
                let slot = chips.slot(group);
                let sums = &mut self.sums[slot * GROUP..][..GROUP];
                self.squares[slot] += add_group(values, bits, sums);
            }
        }
        self.weights += values.len() as u64;
    }

    /// Adds another part.
    pub fn merge(&mut self, other: &Self) {
        self.sums.iter_mut().zip(&other.sums).for_each(|(sum, other)| *sum += other);
        self.squares.iter_mut().zip(&other.squares).for_each(|(sum, other)| *sum += other);
        self.weights += other.weights;
    }

    /// Elements that were added.
    #[must_use]
    pub fn weights(&self) -> u64 {
        self.weights
    }

    /// Returns the correlation with a frame, in standard deviations of a chance one; 0 without
    /// weights.
    #[must_use]
    pub fn score(&self, frame: &Frame) -> f64 {
        let spectrum = self.spectrum();

        // A frame shorter than the slots comes several times.
        let slots = spectrum.chunks_exact(GROUP).zip(frame.bytes().iter().cycle());
        let sum: f64 = slots.map(|(slot, &byte)| slot[usize::from(byte)]).sum();
        in_deviations(sum, self.squares.iter().sum())
    }

    /// Reads the frame without knowing any of it.
    #[must_use]
    pub fn read(&self, key: &MarkKey) -> Reading {
        let spectrum = self.spectrum();
        let mut readings = LENGTHS.map(|length| self.read_frame(&spectrum, length, key));
        // A check that holds by chance is rarer than what separates two lengths.
        readings.sort_by(|a, b| {
            (a.id.is_none(), a.ln_chance)
                .partial_cmp(&(b.id.is_none(), b.ln_chance))
                .unwrap_or(std::cmp::Ordering::Equal)
        });
        let [best, ..] = readings;
        best
    }

    fn read_frame(&self, spectrum: &[f64], length: usize, key: &MarkKey) -> Reading {
        let mut sum = 0.0;
        let symbols: Vec<SymbolScore> = (0..length)
            .map(|place| {
                let (score, best) = self.read_symbol(spectrum, place, length);
                sum += best;
                score
            })
            .collect();
        let z = in_deviations(sum, self.squares.iter().sum());

        // Any of 256^length frames, of any of the lengths, would have done.
        let frames = length as f64 * (GROUP as f64).ln() + (LENGTHS.len() as f64).ln();

        // A bound on a probability above 1 says nothing.
        let ln_chance = (frames - z * z / 2.0).min(0.0);
        let bytes: Vec<u8> = symbols.iter().map(|symbol| symbol.byte).collect();
        Reading { symbols, z, ln_chance, id: Frame::id_of(key, &bytes) }
    }

    /// The symbol at a place of the frame, and its correlation, which is not in deviations.
    fn read_symbol(&self, spectrum: &[f64], place: usize, length: usize) -> (SymbolScore, f64) {
        let mut sums = [0.0; GROUP];
        let mut squares = 0.0;

        // A frame shorter than the slots has each symbol in several of them.
        for slot in (place..SLOTS).step_by(length) {
            sums.iter_mut().zip(&spectrum[slot * GROUP..]).for_each(|(sum, slot)| *sum += slot);
            squares += self.squares[slot];
        }

        let (mut best, mut next) = ((0_u8, f64::NEG_INFINITY), f64::NEG_INFINITY);
        for (byte, &sum) in (0..=u8::MAX).zip(&sums) {
            if sum > best.1 {
                (best, next) = ((byte, sum), best.1);
            } else if sum > next {
                next = sum;
            }
        }

        let [z, runner_up] = [best.1, next].map(|sum| in_deviations(sum, squares));
        (SymbolScore { byte: best.0, z, runner_up }, best.1)
    }

    /// The correlation of each slot with each of the 256 symbols.
    fn spectrum(&self) -> Vec<f64> {
        let mut spectrum = self.sums.clone();
        spectrum.chunks_exact_mut(GROUP).for_each(walsh_hadamard);
        spectrum
    }
}

/// Adds a group's values to the sums of their positions, and returns their sum of squares.
///
/// Values are negated if the chip's bit is set.
#[inline]
fn add_group(values: &[f32], bits: &[u8; GROUP_BYTES], sums: &mut [f64]) -> f64 {
    let mut squares = [0.0_f32; 8];
    for ((values, &byte), sums) in values.chunks(8).zip(bits).zip(sums.chunks_exact_mut(8)) {
        for (place, ((value, sum), square)) in values.iter().zip(sums).zip(&mut squares).enumerate()
        {
            // Chips are random bits, which no processor predicts: the sign is turned without a
            // branch.
            let sign = u32::from(byte >> place & 1) << 31;
            *sum += f64::from(f32::from_bits(value.to_bits() ^ sign));
            *square += value * value;
        }
    }
    squares.iter().copied().map(f64::from).sum()
}

fn in_deviations(sum: f64, squares: f64) -> f64 {
    if squares > 0.0 { sum / squares.sqrt() } else { 0.0 }
}

/// Replaces 2^n values by their correlations with the Walsh functions in natural order (Fino and
/// Algazi 1976).
fn walsh_hadamard(values: &mut [f64]) {
    let mut half = 1;
    while half < values.len() {
        for pair in values.chunks_exact_mut(2 * half) {
            let (low, high) = pair.split_at_mut(half);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
}
