//! Quantized tensors, read as the floats they stand for.

use apr_core::{ByteSource, DType, Error, Result};

use crate::view::{PartTensor, View};

/// Elements dequantized at a time.
const BATCH: usize = 1 << 14;

/// Bytes that a channel's scale and zero point take while they are read.
const SCALE_BYTES: u64 = 32;

/// Scales and zero points.
#[derive(Debug, Clone)]
pub(crate) enum Scales {
    One(f32, i64),
    /// A scale and zero point per channel, and the number of consecutive elements of one channel.
    Channels(Vec<(f32, i64)>, u64),
}

impl Scales {
    /// Reads scales and zero points of the channels along an axis of `shape`. `budget` is what
    /// those of all tensors may still take, in bytes.
    pub(crate) fn read(
        source: &dyn ByteSource,
        [scales, zero_points]: [&PartTensor<'_>; 2],
        shape: &[u64],
        axis: usize,
        budget: &mut u64,
    ) -> Result<Self> {
        if zero_points.dtype == DType::F32 {
            let message =
                "this is a quantized tensor whose zero points are not integers, which is not read";
            return Err(Error::version(message));
        }

        let (channels, inner) =
            shape.get(axis..).and_then(<[u64]>::split_first).ok_or_else(disagree)?;
        let fits = |part: &PartTensor<'_>, dtype| {
            part.shape == [*channels] && part.dtype == dtype && part.is_distinct()
        };
        if !(fits(scales, DType::F64) && fits(zero_points, DType::I64)) {
            return Err(disagree());
        }

        // Nothing asks for the scale of an element.
        if shape.contains(&0) {
            return Ok(Self::One(0.0, 0));
        }

        let left = channels.checked_mul(SCALE_BYTES).and_then(|bytes| budget.checked_sub(bytes));
        *budget = left.ok_or_else(|| {
            Error::memory(
                "the scales of quantized tensors up to this one exceed the limit of an index",
            )
        })?;
        let (scales, zero_points) = (bytes(source, scales)?, bytes(source, zero_points)?);
        let pairs = scales.as_chunks().0.iter().zip(zero_points.as_chunks().0);
        let pairs =
            pairs.map(|(scale, zero_point)| pair(*scale, *zero_point)).collect::<Result<_>>()?;
        let inner = inner
            .iter()
            .try_fold(1_u64, |inner, &dim| inner.checked_mul(dim))
            .ok_or_else(disagree)?;
        Ok(Self::Channels(pairs, inner))
    }

    /// Returns the scale and zero point of the element at this position in the tensor.
    fn at(&self, element: u64) -> (f32, i64) {
        match self {
            Self::One(scale, zero_point) => (*scale, *zero_point),
            Self::Channels(channels, inner) => {
                // Neither is 0: tensors without elements have no channels here.
                let channel = element / inner % channels.len() as u64;
                usize::try_from(channel)
                    .ok()
                    .and_then(|at| channels.get(at))
                    .copied()
                    .unwrap_or_default()
            }
        }
    }
}

fn disagree() -> Error {
    Error::corrupt("its scales, zero points and axis do not match")
}

fn bytes(source: &dyn ByteSource, part: &PartTensor<'_>) -> Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(part.view.len).map_err(|_| disagree())?];
    part.view.read(source, 0, &mut bytes)?;
    Ok(bytes)
}

#[allow(clippy::cast_possible_truncation, reason = "PyTorch keeps doubles and computes in floats")]
fn pair(scale: [u8; 8], zero_point: [u8; 8]) -> Result<(f32, i64)> {
    let zero_point = i32::try_from(i64::from_le_bytes(zero_point)).map_err(|_| disagree())?;
    Ok((f64::from_le_bytes(scale) as f32, zero_point.into()))
}

/// A tensor of small integers and their scales, as the floats that `dequantize()` gives.
#[derive(Debug, Clone)]
pub(crate) struct Quantized {
    pub(crate) view: View,
    /// Dtype of the integers: I8, U8 or I32.
    dtype: DType,
    scales: Scales,
    /// Bytes of the floats.
    pub(crate) len: u64,
}

impl Quantized {
    /// Creates a quantized tensor, or returns `None` if the byte length of its floats overflows.
    pub(crate) fn new(view: View, dtype: DType, scales: Scales) -> Option<Self> {
        let len = (view.len / dtype.block_bytes()).checked_mul(4)?;
        Some(Self { view, dtype, scales, len })
    }

    /// Returns the scale, as bits, and the zero point, if they are the same for all elements.
    pub(crate) fn only_scale(&self) -> Option<(u32, i64)> {
        match self.scales {
            Scales::One(scale, zero_point) => Some((scale.to_bits(), zero_point)),
            Scales::Channels(..) => None,
        }
    }

    /// Fills `buf` with bytes of the floats from `start` on, which must be there.
    pub(crate) fn read(&self, source: &dyn ByteSource, start: u64, buf: &mut [u8]) -> Result<()> {
        let width = self.dtype.block_bytes();
        let (mut position, mut rest) = (start, buf);
        let (mut stored, mut floats) = (Vec::new(), Vec::new());
        while !rest.is_empty() {
            let first = position / 4;
            let skip = usize::try_from(position % 4).unwrap_or_default();
            let count = (rest.len() + skip).div_ceil(4).min(BATCH);
            stored.resize(count * usize::try_from(width).unwrap_or(1), 0);
            self.view.read(source, first * width, &mut stored)?;
            floats.clear();
            self.dequantize(first, &stored, &mut floats);
            let piece = (floats.len() - skip).min(rest.len());
            let (head, tail) = rest.split_at_mut(piece);
            head.copy_from_slice(&floats[skip..skip + piece]);
            position += piece as u64;
            rest = tail;
        }

        Ok(())
    }

    /// The floats of the stored elements from `first` on.
    fn dequantize(&self, first: u64, stored: &[u8], floats: &mut Vec<u8>) {
        let float = |(q, element): (i64, u64)| {
            let (scale, zero_point) = self.scales.at(element);
            // As PyTorch: the difference is an integer, the product a float.
            #[allow(clippy::cast_precision_loss, reason = "the rounding is PyTorch's")]
            let difference = (q - zero_point) as f32;
            (difference * scale).to_le_bytes()
        };

        match self.dtype {
            DType::I8 => floats.extend(
                stored.iter().map(|&q| q.cast_signed().into()).zip(first..).flat_map(float),
            ),
            DType::U8 => {
                floats.extend(stored.iter().map(|&q| q.into()).zip(first..).flat_map(float));
            }
            _ => {
                let (numbers, _) = stored.as_chunks();
                floats.extend(
                    numbers
                        .iter()
                        .map(|&q| i32::from_le_bytes(q).into())
                        .zip(first..)
                        .flat_map(float),
                );
            }
        }
    }
}
