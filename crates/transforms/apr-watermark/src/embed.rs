//! Putting a mark into weights while they are read.

use std::sync::Arc;

use apr_core::{CheckpointReader, DType, Error, Result, pass_on};
use apr_tensor::cast::cast_values;
use apr_tensor::element::{widen_f32, widen_f64};
use apr_view::{Computation, Derived, Target};
use serde::Serialize;

use super::carrier::{Carrier, Carriers};
use super::chips::{Chips, GROUP, GROUP_BYTES};
use super::frame::Frame;
use super::key::MarkKey;

/// Margin of each symbol of a mark in standard deviations, if no strength is given.
///
/// At 8.2, a byte is misread once in a million times. The rest is a reserve for later changes of
/// the weights.
const MARGIN: f64 = 12.0;

/// The least strength that is chosen, in parts of the standard deviation: below it, rounding to 16
/// bits would take much of the mark out of weights that were rounded so before.
const WEAKEST: f64 = 0.005;

/// Maximum strength that is chosen automatically.
const STRONGEST: f64 = 0.05;

/// Report on embedding a mark.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct EmbedReport {
    /// Id that was embedded.
    pub id: String,
    /// Bytes of the frame: id, padding and check.
    pub frame: usize,
    /// Tensors that carry it.
    pub tensor_count: usize,
    /// Weights that carry it.
    #[serde(rename = "weight_count")]
    pub weights: u64,
    /// Shift of each weight, in parts of its tensor's standard deviation.
    pub strength: f64,
    /// Euclidean norm of the change, divided by the norm of the tensors.
    pub relative_change: f64,
    /// Correlation to be expected, in standard deviations of a chance one.
    pub expected_z: f64,
}

/// Checkpoint with an embedded mark. Weights are shifted when they are read.
///
/// Weights that are zero do not change, nor do tensors that are not carriers.
pub struct Marked<'a> {
    reader: Derived<'a, Mark>,
    report: EmbedReport,
}

/// Mark of one tensor.
struct Mark {
    frame: Arc<Frame>,
    chips: Chips,
    amplitude: f64,
}

impl<'a> Marked<'a> {
    /// Marks the `carriers` of the same checkpoint.
    ///
    /// `strength` is the shift of each weight in parts of its tensor's standard deviation. Without
    /// it, a strength is chosen with which the id can be decoded with a margin.
    ///
    /// # Errors
    /// E001 for an invalid id or strength, for quantized weights, and for a model with too few
    /// weights.
    pub fn new(
        base: &'a dyn CheckpointReader,
        carriers: &Carriers,
        key: &MarkKey,
        id: &str,
        strength: Option<f64>,
    ) -> Result<Self> {
        let frame = Frame::new(key, id)?;
        // Blocks are carriers when a mark is looked for, so the survey does not leave them out.
        for carrier in carriers.list() {
            let info = &base.tensors()[carrier.tensor];
            if !info.dtype.is_float() || info.dtype.block_bytes() == 1 {
                let message = format!(
                    "{} weights are too coarse to be marked; mark the model before it is quantized",
                    info.dtype
                );
                return Err(Error::format(message).for_tensor(&info.name));
            }
        }

        let weights = carriers.weights();
        let strength = match strength {
            Some(strength) if strength > 0.0 && strength <= 1.0 => strength,
            Some(strength) => {
                return Err(Error::format(format!(
                    "strength is {strength}: expected above 0, up to 1"
                )));
            }
            None => chosen_strength(weights, frame.bytes().len())?,
        };

        let (report, frame) = (report(carriers, id, &frame, strength), Arc::new(frame));
        let mut reader = Derived::new(base);
        for Carrier { tensor, name, std, .. } in carriers.list() {
            let (frame, chips) = (Arc::clone(&frame), Chips::new(key, name));
            reader.compute(*tensor, Mark { frame, chips, amplitude: strength * std });
        }
        Ok(Self { reader, report })
    }

    /// Returns the report on the mark.
    #[must_use]
    pub fn report(&self) -> &EmbedReport {
        &self.report
    }
}

fn chosen_strength(weights: u64, symbols: usize) -> Result<f64> {
    let strength = MARGIN * (symbols as f64 / (weights as f64).max(1.0)).sqrt();
    if strength <= STRONGEST {
        return Ok(strength.max(WEAKEST));
    }
    Err(Error::format(format!(
        "{weights} weights in matrices of 4,096 or more elements are too few for this id at the \
         default strength: pass `strength` {strength:.2}"
    )))
}

fn report(carriers: &Carriers, id: &str, frame: &Frame, strength: f64) -> EmbedReport {
    let (mut change, mut norm) = (0.0, 0.0);
    for carrier in carriers.apart() {
        change += carrier.weights as f64 * (strength * carrier.std).powi(2);
        norm += carrier.l2 * carrier.l2;
    }

    let weights = carriers.weights();
    EmbedReport {
        id: id.to_owned(),
        frame: frame.bytes().len(),
        tensor_count: carriers.list().len(),
        weights,
        strength,
        relative_change: if norm > 0.0 { (change / norm).sqrt() } else { 0.0 },
        expected_z: strength * (weights as f64).sqrt(),
    }
}

impl Mark {
    /// Moves the elements in `bytes`, which are whole ones from number `first` on.
    fn apply(&self, dtype: DType, first: u64, bytes: &mut [u8]) {
        let mut chips = self.chips.clone();
        let mut signs = Signs { group: None, minus: [0; GROUP_BYTES] };
        let mut buffer = Vec::new();
        let element = usize::try_from(dtype.block_bytes()).unwrap_or(1);
        let mut at = first;
        let mut rest = bytes;
        while !rest.is_empty() {
            let (group, place) = (at / GROUP as u64, at % GROUP as u64);
            let place = usize::try_from(place).unwrap_or_default();
            let count = (GROUP - place).min(rest.len() / element);
            let (here, next) = rest.split_at_mut(count * element);
            signs.turn_to(group, &mut chips, &self.frame);
            let shift = |index: usize| {
                if signs.is_minus(place + index) { -self.amplitude } else { self.amplitude }
            };
            match dtype {
                DType::F64 => shift_f64(here, shift),
                DType::F32 => shift_f32(here, shift),
                _ => {
                    shift_narrow(
                        dtype,
                        here,
                        shift,
                        |index| uniform(self.chips.dither, at + index as u64),
                        &mut buffer,
                    );
                }
            }

            (at, rest) = (at + count as u64, next);
        }
    }
}

/// The signs of a group's elements: chips turned by the symbol's Walsh function.
struct Signs {
    group: Option<u64>,
    minus: [u8; GROUP_BYTES],
}

impl Signs {
    fn turn_to(&mut self, group: u64, chips: &mut Chips, frame: &Frame) {
        if self.group == Some(group) {
            return;
        }
        chips.read(group, &mut self.minus);
        let symbol = frame.bytes()[chips.slot(group) % frame.bytes().len()];

        // Eight places share a byte: the parity of symbol and place is Walsh's sign.
        for (minus, place) in self.minus.iter_mut().zip((0..=u8::MAX).step_by(8)) {
            let is_odd = |bit: u8| (symbol & (place + bit)).count_ones() % 2 == 1;
            *minus ^= (0..8).map(|bit| u8::from(is_odd(bit)) << bit).sum::<u8>();
        }
        self.group = Some(group);
    }

    fn is_minus(&self, place: usize) -> bool {
        self.minus[place / 8] >> (place % 8) & 1 == 1
    }
}

fn shift_f64(bytes: &mut [u8], shift: impl Fn(usize) -> f64) {
    for (index, stored) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let value = f64::from_le_bytes(*stored);
        let moved = value + shift(index);
        if value != 0.0 && moved.is_finite() {
            *stored = moved.to_le_bytes();
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "values are rounded to the dtype they are stored in"
)]
fn shift_f32(bytes: &mut [u8], shift: impl Fn(usize) -> f64) {
    for (index, stored) in bytes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let value = f32::from_le_bytes(*stored);
        let moved = (f64::from(value) + shift(index)) as f32;
        if value != 0.0 && moved.is_finite() {
            *stored = moved.to_le_bytes();
        }
    }
}

/// Moves floats of 16 bits. Their spacing may exceed the shift, and rounding to nearest would then
/// undo it: noise of one spacing's width goes on top, so that the shift survives as the average of
/// many.
#[expect(
    clippy::cast_possible_truncation,
    reason = "values are rounded to the dtype they are stored in"
)]
fn shift_narrow(
    dtype: DType,
    bytes: &mut [u8],
    shift: impl Fn(usize) -> f64,
    noise: impl Fn(usize) -> f64,
    values: &mut Vec<f32>,
) {
    widen_f32(dtype, bytes, values);
    let moved: Vec<f32> = values
        .iter()
        .enumerate()
        .map(|(index, &value)| {
            let moved = f64::from(value) + shift(index);
            (moved + noise(index) * spacing(dtype, moved)) as f32
        })
        .collect();
    let mut rounded = Vec::new();
    cast_values(&moved, dtype, &mut rounded);
    let mut kept = Vec::new();
    widen_f64(dtype, &rounded, &mut kept);
    let stored = bytes.as_chunks_mut::<2>().0.iter_mut().zip(rounded.as_chunks::<2>().0);
    for ((stored, rounded), (value, kept)) in stored.zip(values.iter().zip(&kept)) {
        if *value != 0.0 && kept.is_finite() {
            *stored = *rounded;
        }
    }
}

/// The distance between neighbouring floats of 16 bits around a value.
fn spacing(dtype: DType, value: f64) -> f64 {
    // Without sign and fraction, the power of two at or below the value is left.
    let power_of_two = f64::from_bits(value.to_bits() & 0x7ff0_0000_0000_0000);
    match dtype {
        // 10 bits of fraction; the subnormal ones are 2^-24 apart.
        DType::F16 => (power_of_two / 1024.0).max(1.0 / f64::from(1 << 24)),
        _ => power_of_two / 128.0,
    }
}

/// A number in [-0.5, 0.5) for a place in a stream: SplitMix64 (Steele, Lea and Flood 2014).
fn uniform(seed: u64, place: u64) -> f64 {
    let mut mixed = seed.wrapping_add((place + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64 - 0.5
}

impl Computation for Mark {
    fn read(&self, target: &Target<'_>, offset: u64, buf: &mut [u8]) -> Result<()> {
        let dtype = target.info.dtype;
        let element = dtype.block_bytes();
        let before = usize::try_from(offset % element).unwrap_or_default();
        let after = (before + buf.len()) as u64 % element;
        if before == 0 && after == 0 {
            target.read_source(offset, buf)?;
            self.apply(dtype, offset / element, buf);
            return Ok(());
        }

        // The range cuts elements.
        let len = (before + buf.len()) as u64;
        let len = usize::try_from(len.next_multiple_of(element))
            .map_err(|_| Error::memory("a range is larger than memory can be"))?;
        let mut whole = vec![0; len];
        target.read_source(offset - before as u64, &mut whole)?;
        self.apply(dtype, offset / element, &mut whole);
        buf.copy_from_slice(&whole[before..][..buf.len()]);
        Ok(())
    }
}

impl CheckpointReader for Marked<'_> {
    pass_on!(reader: format, metadata, tensors, stored, read_tensor, tensor_slice, container);
    pass_on!(reader: files, companions, read_companion, left_out, warnings);
}
