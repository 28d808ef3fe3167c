//! Integers read as the floats that they stand for: `scale * (quant - zero_point)`.
//!
//! The product is computed in double precision and rounded once, as TensorFlow Lite does.

use std::ops::Range;

use apr_core::{CheckpointReader, DType, Error, Result, TensorInfo};
use apr_tensor::cast::cast_float;
use apr_tensor::element::widen_f32;

use crate::strided::usize_of;

/// Elements that are computed at a time.
const AT_ONCE: u64 = 1 << 16;

/// Integers of a tensor, with the tensors of their scales and zero points.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AffineQuantization {
    /// Position of the integers.
    pub quants: usize,
    /// Position of the scales.
    pub scales: usize,
    /// Position of the zero points; 0 without one.
    pub zero_points: Option<usize>,
    /// Unit that has a scale of its own.
    pub unit: AffineUnit,
}

/// Unit of a tensor that has a scale of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AffineUnit {
    /// The whole tensor.
    Tensor,
    /// Each index of a dimension.
    Axis(usize),
    /// Block of this many elements of a row; a row has a whole number of blocks.
    Block(u64),
}

/// Affine quantization, checked against shapes and dtypes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Affine {
    pub(crate) quantization: AffineQuantization,
    /// The dtype of the floats.
    pub(crate) to: DType,
    /// The scale of element `i` is number `i / run % count`.
    run: u64,
    count: u64,
}

impl Affine {
    /// Checks that there is a scale for each unit, and a zero point for each unit if there are zero
    /// points.
    ///
    /// # Errors
    /// E001 where shapes or dtypes do not fit.
    pub(crate) fn new(
        tensors: &[TensorInfo],
        quantization: AffineQuantization,
        to: DType,
    ) -> Result<Self> {
        let info = &tensors[quantization.quants];
        let bad = |what: &str| Error::format(what.to_owned()).for_tensor(&info.name);
        let elements = info.shape.elements().ok_or_else(|| bad("it has over 2^64 elements"))?;
        let dims = info.shape.dims();
        let (run, count) = match quantization.unit {
            AffineUnit::Tensor => (elements.max(1), 1),
            AffineUnit::Axis(axis) => {
                let count = *dims
                    .get(axis)
                    .ok_or_else(|| bad("its scales are of a dimension that it does not have"))?;
                let inner =
                    dims[axis + 1..].iter().fold(1_u64, |run, &dim| run.saturating_mul(dim));
                (inner.max(1), count.max(1))
            }
            AffineUnit::Block(size) => {
                let row = dims.last().copied().unwrap_or(1);
                if size == 0 || !row.is_multiple_of(size) {
                    return Err(bad("its rows are not a whole number of blocks"));
                }
                (size, (elements / size).max(1))
            }
        };
        let fits = |position: usize| tensors[position].shape.elements() == Some(count);
        if !is_integer(info.dtype) || !tensors[quantization.scales].dtype.is_float() {
            return Err(bad("its dtype or the dtype of its scales is not valid for quantization"));
        }
        let zero_points = quantization.zero_points;
        if !fits(quantization.scales) || zero_points.is_some_and(|at| !fits(at)) {
            return Err(bad("it has another number of scales or zero points than its shape has"));
        }
        if zero_points.is_some_and(|at| !is_integer(tensors[at].dtype)) {
            return Err(bad("its zero points must be integers"));
        }
        Ok(Self { quantization, to, run, count })
    }

    /// Reads floats from byte `offset` on; both are of whole elements.
    pub(crate) fn read(
        &self,
        base: &dyn CheckpointReader,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        let width = self.to.block_bytes();
        let (mut first, mut rest) = (offset / width, buf);
        while !rest.is_empty() {
            let count = (rest.len() as u64 / width).min(AT_ONCE);
            let (head, tail) = rest.split_at_mut(usize_of(count * width)?);
            self.piece(base, first..first + count, head)?;
            (first, rest) = (first + count, tail);
        }
        Ok(())
    }

    fn piece(&self, base: &dyn CheckpointReader, range: Range<u64>, out: &mut [u8]) -> Result<()> {
        let AffineQuantization { quants, scales, zero_points, .. } = self.quantization;
        let mut integers = Vec::new();
        read_integers(base, quants, range.clone(), &mut integers)?;

        // The numbers of scales go around where the dimension is not the first.
        let (from, to) = (range.start / self.run, (range.end - 1) / self.run + 1);
        let numbers = match from / self.count == (to - 1) / self.count {
            true => from % self.count..(to - 1) % self.count + 1,
            false => 0..self.count,
        };
        let scales = read_floats(base, scales, numbers.clone())?;
        let mut zeros = Vec::new();
        if let Some(tensor) = zero_points {
            read_integers(base, tensor, numbers.clone(), &mut zeros)?;
        }
        let mut floats = Vec::with_capacity(4 * integers.len());
        for (at, quant) in range.zip(&integers) {
            let number = usize_of(at / self.run % self.count - numbers.start)?;
            let zero = zeros.get(number).copied().unwrap_or_default();
            #[expect(clippy::cast_precision_loss, reason = "integers of 32 bits at most are exact")]
            let value = f64::from(scales[number]) * (*quant as f64 - zero as f64);
            #[expect(clippy::cast_possible_truncation, reason = "rounded to single precision")]
            floats.extend((value as f32).to_le_bytes());
        }
        let mut cast = Vec::new();
        cast_float(DType::F32, self.to, &floats, &mut cast);
        out.copy_from_slice(&cast);
        Ok(())
    }
}

fn is_integer(dtype: DType) -> bool {
    matches!(dtype, DType::I8 | DType::U8 | DType::I16 | DType::U16 | DType::I32 | DType::I64)
}

/// The integers of a range of elements.
fn read_integers(
    base: &dyn CheckpointReader,
    tensor: usize,
    range: Range<u64>,
    out: &mut Vec<i64>,
) -> Result<()> {
    let dtype = base.tensors()[tensor].dtype;
    let bytes = read_elements(base, tensor, range)?;
    match dtype {
        DType::I8 => out.extend(bytes.iter().map(|byte| i64::from(byte.cast_signed()))),
        DType::U8 => out.extend(bytes.iter().map(|byte| i64::from(*byte))),
        DType::I16 => {
            out.extend(bytes.as_chunks().0.iter().map(|b| i64::from(i16::from_le_bytes(*b))));
        }
        DType::U16 => {
            out.extend(bytes.as_chunks().0.iter().map(|b| i64::from(u16::from_le_bytes(*b))));
        }
        DType::I32 => {
            out.extend(bytes.as_chunks().0.iter().map(|b| i64::from(i32::from_le_bytes(*b))));
        }
        _ => out.extend(bytes.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b))),
    }
    Ok(())
}

fn read_floats(base: &dyn CheckpointReader, tensor: usize, range: Range<u64>) -> Result<Vec<f32>> {
    let info = &base.tensors()[tensor];
    if !matches!(info.dtype, DType::F32 | DType::F16 | DType::BF16) {
        return Err(Error::format("scales have 16 or 32 bits").for_tensor(&info.name));
    }
    let bytes = read_elements(base, tensor, range)?;
    let mut floats = Vec::new();
    widen_f32(info.dtype, &bytes, &mut floats);
    Ok(floats)
}

fn read_elements(base: &dyn CheckpointReader, tensor: usize, range: Range<u64>) -> Result<Vec<u8>> {
    let width = base.tensors()[tensor].dtype.block_bytes();
    let mut bytes = vec![0; usize_of((range.end - range.start) * width)?];
    base.read_tensor(tensor, range.start * width, &mut bytes)?;
    Ok(bytes)
}
