//! A tensor in the types that are tried.

use std::sync::Arc;

use apr_core::{CheckpointReader, DType, Error, Result, TensorInfo};
use apr_quantize::{Layout, Rounding, TensorType};
use apr_tensor::block::{dequantize, quantize};
use apr_tensor::cast::cast_values;
use apr_tensor::element::widen_f32;
use apr_tensor::half_float::f32_to_f16;
use apr_view::values::read;

/// Elements that are compared at a time.
const STEP: usize = 1 << 20;

/// A tensor whose type is chosen, alone or with others.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub(crate) position: usize,
    pub(crate) info: TensorInfo,
    /// Importance of its columns: of a stack, that of its matrices one after another.
    pub(crate) importance: Option<Arc<[f32]>>,
    /// Factor for the scales before they are stored, in layouts that have such a factor.
    pub(crate) global: f32,
    pub(crate) elements: u64,
    row_len: usize,
}

/// A tensor as it is stored in a trial.
pub(crate) struct Encoded {
    pub(crate) dtype: DType,
    pub(crate) bytes: Vec<u8>,
}

impl Member {
    pub(crate) fn new(
        position: usize,
        info: &TensorInfo,
        importance: Option<Arc<[f32]>>,
        global: f32,
    ) -> Self {
        Self {
            position,
            info: info.clone(),
            importance,
            global,
            elements: info.shape.elements().unwrap_or_default(),
            row_len: usize::try_from(info.shape.row_len()).unwrap_or(usize::MAX).max(1),
        }
    }

    /// The tensor in single precision.
    pub(crate) fn values(&self, reader: &dyn CheckpointReader) -> Result<Vec<f32>> {
        let values = read(reader, self.position, 0..self.elements)?;
        #[expect(clippy::cast_possible_truncation, reason = "quantizers take single precision")]
        let values: Vec<f32> = values.into_iter().map(|value| value as f32).collect();
        match values.iter().all(|value| value.is_finite()) {
            true => Ok(values),
            false => Err(Error::format("NaN or infinite values").for_tensor(&self.info.name)),
        }
    }

    /// Bytes that the tensor takes in a file as a type, each part a multiple of `alignment`.
    pub(crate) fn stored_len(&self, wanted: TensorType, alignment: u64) -> Result<u64> {
        match wanted {
            TensorType::Layout(layout) => layout.stored_len(&self.info, alignment),
            TensorType::Dtype(dtype) => {
                let len = dtype.stored_len(&self.info.shape).unwrap_or(u64::MAX);
                Ok(len.checked_next_multiple_of(alignment).unwrap_or(u64::MAX))
            }
        }
    }

    /// The values as another type.
    pub(crate) fn encoded(&self, values: &[f32], wanted: TensorType) -> Encoded {
        match wanted {
            TensorType::Layout(layout) => {
                let rounding = self.rounding(layout);
                let (dtype, mut bytes) = (rounding.held_dtype(), Vec::new());
                for row in values.chunks(self.row_len) {
                    let mut held = Vec::new();
                    cast_values(&rounding.held(row, self.importance.as_deref()), dtype, &mut held);
                    bytes.extend(held);
                }
                Encoded { dtype, bytes }
            }
            TensorType::Dtype(dtype @ DType::F16) => {
                let halves = values.iter().flat_map(|value| f32_to_f16(*value).to_le_bytes());
                Encoded { dtype, bytes: halves.collect() }
            }
            TensorType::Dtype(dtype) if dtype.is_quantized() => {
                let mut bytes = Vec::new();
                for (values, importance) in self.matrices(values) {
                    quantize(dtype, values, self.row_len, importance, &mut bytes);
                }
                Encoded { dtype, bytes }
            }
            TensorType::Dtype(dtype) => {
                let mut bytes = Vec::new();
                cast_values(values, dtype, &mut bytes);
                Encoded { dtype, bytes }
            }
        }
    }

    fn rounding(&self, layout: Layout) -> Rounding {
        layout.rounding(self.info.dtype, self.global)
    }

    /// Matrices of a stack, each with the importance of its columns.
    fn matrices<'u>(
        &'u self,
        values: &'u [f32],
    ) -> impl Iterator<Item = (&'u [f32], Option<&'u [f32]>)> {
        let rows_of = |importance: &Arc<[f32]>| importance.len() / self.row_len;
        let matrices = self.importance.as_ref().map_or(1, rows_of).max(1);
        values.chunks(values.len().div_ceil(matrices).max(1)).enumerate().map(|(at, values)| {
            let importance = self.importance.as_deref();
            (values, importance.map(|all| &all[at * self.row_len..(at + 1) * self.row_len]))
        })
    }

    /// Squares of the errors of an encoded tensor, each weighed by the mean square of its inputs.
    pub(crate) fn error(&self, values: &[f32], encoded: &Encoded) -> f64 {
        let Encoded { dtype, bytes } = encoded;
        let rows = (STEP / self.row_len).max(1);
        let row_bytes = bytes.len() / (values.len() / self.row_len).max(1);
        let (mut error, mut back) = (0.0, Vec::new());
        let mut offset = 0;
        for (matrix, importance) in self.matrices(values) {
            for values in matrix.chunks(rows * self.row_len) {
                let len = values.len() / self.row_len * row_bytes;
                let bytes = &bytes[offset..offset + len];
                match dtype.is_quantized() {
                    true => dequantize(*dtype, bytes, self.row_len, &mut back),
                    false => widen_f32(*dtype, bytes, &mut back),
                }
                offset += len;
                error += self.squares(values, &back, importance);
            }
        }
        error
    }

    fn squares(&self, values: &[f32], back: &[f32], importance: Option<&[f32]>) -> f64 {
        let weight = |at: usize| {
            importance.map_or(1.0, |importance| f64::from(importance[at % self.row_len]))
        };
        let pairs = values.iter().zip(back).enumerate();
        pairs.map(|(at, (a, b))| weight(at) * (f64::from(*a) - f64::from(*b)).powi(2)).sum()
    }
}
