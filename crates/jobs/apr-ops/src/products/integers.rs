//! Tensors of floats that are read as integers.

use std::collections::BTreeMap;

use apr_core::{CheckpointReader, DType, Result};
use apr_tensor::element::widen_f32;
use apr_view::chunks::fill;
use apr_view::values::not_finite;
use apr_view::{Base, Computation, Derived, Target};

/// Elements that are read at a time.
const ELEMENTS_AT_ONCE: u64 = 1 << 16;
/// The largest code of a symmetric 8-bit weight.
const LARGEST: f64 = 127.0;

/// How a tensor of floats becomes integers.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct IntegerTensor {
    /// `i8` for weights, `i32` for biases.
    dtype: DType,
    /// The scales, one for each index of the dimension along which they differ.
    pub(super) scales: Vec<f32>,
    /// Number of elements that follow each other with the same scale.
    run: u64,
}

impl IntegerTensor {
    /// Returns how a weight becomes 8-bit integers, with a scale for each index of a dimension, or
    /// one scale.
    ///
    /// A scale is the largest magnitude divided by 127, or 1 if all elements are 0, as in
    /// onnxruntime's `compute_scale_zp` for symmetric integers.
    ///
    /// # Errors
    /// E002 for NaN and infinity, and the errors of reading.
    pub(super) fn weight(
        reader: &dyn CheckpointReader,
        position: usize,
        along: Option<usize>,
    ) -> Result<Self> {
        let info = &reader.tensors()[position];
        let dims = info.shape.dims();
        let (count, run) = match along.filter(|along| *along < dims.len()) {
            Some(along) => (dims[along], dims[along + 1..].iter().product::<u64>().max(1)),
            None => (1, u64::MAX),
        };
        let mut largest = vec![0_f32; usize::try_from(count).unwrap_or_default()];
        let mut at = 0_u64;
        read_floats(reader, position, 0, u64::MAX, &mut |values| {
            for value in values {
                let scale = &mut largest[usize_of(at / run % count)];
                *scale = scale.max(value.abs());
                if !value.is_finite() {
                    return Err(not_finite(reader, position, at));
                }
                at += 1;
            }
            Ok(())
        })?;
        #[expect(clippy::cast_possible_truncation, reason = "a scale is rounded to f32")]
        let scale = |largest: f32| {
            let scale = 2.0 * f64::from(largest) / (2.0 * LARGEST);
            if scale < f64::from(f32::MIN_POSITIVE) { 1.0 } else { scale as f32 }
        };
        Ok(Self { dtype: DType::I8, scales: largest.into_iter().map(scale).collect(), run })
    }

    /// Returns how a bias becomes 32-bit integers with these scales.
    ///
    /// Returns `None` if an integer would be out of range.
    pub(super) fn bias(
        reader: &dyn CheckpointReader,
        position: usize,
        scales: Vec<f32>,
    ) -> Result<Option<Self>> {
        let bias = Self { dtype: DType::I32, scales, run: 1 };
        let (mut fits, mut at) = (true, 0_u64);
        read_floats(reader, position, 0, u64::MAX, &mut |values| {
            for value in values {
                // Also false for NaN.
                fits &= bias.quotient(*value, at).abs() < f64::from(i32::MAX);
                at += 1;
            }
            Ok(())
        })?;
        Ok(fits.then_some(bias))
    }

    fn scale(&self, element: u64) -> f32 {
        self.scales[usize_of(element / self.run % self.scales.len() as u64)]
    }

    /// Returns a rounded 32-bit integer, which is computed in double precision.
    fn quotient(&self, value: f32, element: u64) -> f64 {
        (f64::from(value) / f64::from(self.scale(element))).round_ties_even()
    }

    /// Appends the integer of an element.
    #[expect(clippy::cast_possible_truncation, reason = "codes are integers within the type")]
    fn push(&self, value: f32, element: u64, out: &mut Vec<u8>) {
        if self.dtype == DType::I8 {
            let code = (value / self.scale(element)).round_ties_even().clamp(-128.0, 127.0);
            out.push((code as i8).to_le_bytes()[0]);
        } else {
            out.extend_from_slice(&(self.quotient(value, element) as i32).to_le_bytes());
        }
    }
}

/// Position of a scale; a weight has fewer scales than memory has bytes.
fn usize_of(position: u64) -> usize {
    usize::try_from(position).unwrap_or(usize::MAX)
}

/// Calls `then` with elements of a tensor of `f32`, in order.
fn read_floats(
    reader: &dyn CheckpointReader,
    position: usize,
    first: u64,
    most: u64,
    then: &mut dyn FnMut(&[f32]) -> Result<()>,
) -> Result<()> {
    let all = reader.tensors()[position].shape.elements().unwrap_or_default();
    let end = first.saturating_add(most).min(all);
    let (mut bytes, mut values, mut at) = (Vec::new(), Vec::new(), first);
    while at < end {
        let count = (end - at).min(ELEMENTS_AT_ONCE);
        bytes.resize(usize::try_from(count * 4).unwrap_or_default(), 0);
        reader.read_tensor(position, at * 4, &mut bytes)?;
        values.clear();
        widen_f32(DType::F32, &bytes, &mut values);
        then(&values)?;
        at += count;
    }
    Ok(())
}

/// Returns a checkpoint that reads tensors of `base`, by position, as integers.
pub(crate) fn as_integers<'a>(
    base: Base<'a>,
    integers: BTreeMap<usize, IntegerTensor>,
) -> Derived<'a, IntegerTensor> {
    let mut read = Derived::new(base).as_conversion();
    for (tensor, integer) in integers {
        read.info_mut(tensor).dtype = integer.dtype;
        read.compute(tensor, integer);
    }
    read
}

impl Computation for IntegerTensor {
    fn read(&self, target: &Target<'_>, offset: u64, buf: &mut [u8]) -> Result<()> {
        fill(target.info, (offset, buf), ELEMENTS_AT_ONCE, |range, out| {
            let (mut element, count) = (range.start, range.end - range.start);
            read_floats(target.base, target.tensor, element, count, &mut |values| {
                for value in values {
                    self.push(*value, element, out);
                    element += 1;
                }
                Ok(())
            })
        })
    }
}
