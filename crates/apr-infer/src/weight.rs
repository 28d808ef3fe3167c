//! Tensors of the checkpoint, decoded when and where they are used.

use std::fmt;

use apr_core::{CheckpointReader, DType, DTypeKind, Error, Result, TensorInfo};
use apr_graph::{ElementType, View, WeightRef};
use apr_tensor::{block, element};

use crate::Tensor;
use crate::constant;
use crate::matrix::Matrix;
use crate::ops::moving;

/// A tensor of the checkpoint, as a graph looks at it.
pub(crate) struct Weight<'a> {
    reader: &'a dyn CheckpointReader,
    /// Position of the tensor in the checkpoint.
    tensor: usize,
    /// Positions of the tensors that its views name, in their order.
    others: Vec<usize>,
    reference: WeightRef,
    element: ElementType,
}

impl fmt::Debug for Weight<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Weight").field("reference", &self.reference).field("element", &self.element).finish()
    }
}

/// Finds tensors of a checkpoint by their names.
pub(crate) struct Weights<'a> {
    pub(crate) reader: &'a dyn CheckpointReader,
    positions: std::collections::HashMap<String, usize>,
}

impl<'a> Weights<'a> {
    pub(crate) fn new(reader: &'a dyn CheckpointReader) -> Self {
        let named = |(position, info): (usize, &TensorInfo)| (info.name.clone(), position);
        let positions = reader.tensors().iter().enumerate().map(named).collect();
        Self { reader, positions }
    }

    /// A weight of a graph; `element` is the type that the graph computes with.
    pub(crate) fn find(&self, reference: &WeightRef, element: Option<ElementType>) -> Result<Weight<'a>> {
        let position = |name: &str| {
            let missing = || Error::format("the graph uses it, and the model does not have it").for_tensor(name);
            self.positions.get(name).copied().ok_or_else(missing)
        };
        let tensor = position(&reference.tensor)?;
        let mut others = Vec::new();
        for view in &reference.views {
            if let View::Joined { with: names, .. } | View::Stacked(names) = view {
                for name in names {
                    others.push(position(name)?);
                }
            }
        }
        let stored = ElementType::from_dtype(self.reader.tensors()[tensor].dtype).unwrap_or(ElementType::F32);
        let element = element.unwrap_or(stored);
        Ok(Weight { reader: self.reader, tensor, others, reference: reference.clone(), element })
    }
}

impl<'a> Weight<'a> {
    /// Type of the elements that the graph computes with.
    pub(crate) fn element(&self) -> ElementType {
        self.element
    }

    /// Bytes that it takes when it is decoded as a whole, before its views.
    pub(crate) fn decoded_bytes(&self) -> u64 {
        let count = |position: &usize| self.reader.tensors()[*position].shape.elements().unwrap_or(u64::MAX);
        let elements = self.others.iter().map(count).fold(count(&self.tensor), u64::saturating_add);
        elements.saturating_mul(self.element.bits().div_ceil(8))
    }

    /// The whole tensor, decoded, where it fits so many bytes.
    ///
    /// # Errors
    /// E008 where it does not.
    pub(crate) fn decode_within(&self, free_bytes: u64) -> Result<Tensor> {
        let bytes = self.decoded_bytes();
        if bytes > free_bytes {
            let message = format!("decoded as a whole, it takes {bytes} bytes, which do not fit the memory limit");
            return Err(Error::memory(message).for_tensor(&self.reference.tensor));
        }
        self.decode()
    }

    /// The whole tensor, decoded.
    pub(crate) fn decode(&self) -> Result<Tensor> {
        let mut others = self.others.iter();
        let mut tensor = self.whole(self.tensor)?;
        for view in &self.reference.views {
            tensor = match view {
                View::Transposed(order) => moving::transposed(&tensor, order)?,
                View::Slice { axis, start, len } => moving::part(&tensor, *axis, size(*start)?, size(*len)?)?,
                View::Reshaped(dims) => {
                    let shape = dims.iter().map(|&dim| size(dim)).collect::<Result<_>>()?;
                    tensor.reshaped(shape)?
                }
                View::Joined { axis, with } => {
                    let more = others.by_ref().take(with.len()).map(|&other| self.whole(other));
                    let all = std::iter::once(Ok(tensor)).chain(more).collect::<Result<Vec<_>>>()?;
                    moving::joined(&all.iter().collect::<Vec<_>>(), *axis)?
                }
                View::Stacked(with) => {
                    let more = others.by_ref().take(with.len()).map(|&other| self.whole(other));
                    let all = std::iter::once(Ok(tensor)).chain(more).collect::<Result<Vec<_>>>()?;
                    moving::stacked(&all, 0)?
                }
                View::Plus(number) => plus(tensor, *number)?,
            };
        }
        Ok(tensor)
    }

    /// A tensor of the checkpoint as elements of the graph's type.
    fn whole(&self, position: usize) -> Result<Tensor> {
        let info = &self.reader.tensors()[position];
        let named = |error: Error| error.for_tensor(&info.name);
        let shape = info.shape.dims().iter().map(|&dim| size(dim)).collect::<Result<Vec<_>>>()?;
        let bytes = Bytes::of(self.reader, position, 0, size(info.byte_len()?)?)?;
        let same = ElementType::from_dtype(info.dtype).filter(|stored| *stored == self.element);
        if let Some(element) = same {
            return constant::unpack(element, shape, bytes.get()).map_err(named);
        }
        if let Some(kept) = unpacked(info.dtype, self.element) {
            return constant::unpack(kept, shape, bytes.get())
                .map(|tensor| tensor.retyped(self.element))
                .map_err(named);
        }
        let row_len = shape.last().copied().unwrap_or(1);
        let mut values = Vec::new();
        decode(info.dtype, bytes.get(), row_len, &mut values).map_err(named)?;
        crate::ops::cast::from_floats(values, shape, self.element).map_err(named)
    }

    /// The weight as a matrix that is decoded by rows, where its views allow it.
    pub(crate) fn matrix(&self) -> Option<Matrix<'a>> {
        if self.element != ElementType::F32 && self.element != ElementType::F16 && self.element != ElementType::BF16 {
            return None;
        }
        let info = &self.reader.tensors()[self.tensor];
        let dims = |info: &TensorInfo| info.shape.dims().iter().map(|&dim| size(dim).ok()).collect::<Option<Vec<_>>>();
        let [rows, columns] = dims(info)?[..] else { return None };
        let mut matrix = Matrix::stored(self.reader, self.tensor, rows, columns);
        let mut others = self.others.iter();
        for view in &self.reference.views {
            matrix = match view {
                View::Transposed(order) if order[..] == [1, 0] => matrix.transposed(),
                View::Transposed(order) if order[..] == [0, 1] => matrix,
                View::Slice { axis, start, len } => matrix.part(*axis, size(*start).ok()?, size(*len).ok()?)?,
                View::Joined { axis, with } => {
                    let mut joined = matrix;
                    for &other in others.by_ref().take(with.len()) {
                        let [rows, columns] = dims(&self.reader.tensors()[other])?[..] else { return None };
                        joined = joined.joined(*axis, Matrix::stored(self.reader, other, rows, columns))?;
                    }
                    joined
                }
                _ => return None,
            };
        }
        Some(matrix)
    }
}

fn size(value: u64) -> Result<usize> {
    usize::try_from(value).map_err(|_| Error::memory(format!("{value} elements do not fit the memory")))
}

/// The type that small integers are kept as, where the checkpoint has them unpacked.
fn unpacked(stored: DType, element: ElementType) -> Option<ElementType> {
    match (stored, element) {
        (DType::I8, ElementType::I4 | ElementType::I2) => Some(ElementType::I8),
        (DType::U8, ElementType::U4 | ElementType::U2 | ElementType::F4E2M1) => Some(ElementType::U8),
        _ => None,
    }
}

fn plus(tensor: Tensor, number: i32) -> Result<Tensor> {
    let shape = tensor.shape().to_vec();
    let mut values = tensor.into_values::<f32>()?;
    values.iter_mut().for_each(|value| *value += number as f32);
    Tensor::new(shape, values)
}

/// Bytes of a tensor: borrowed where they lie in memory, read otherwise.
pub(crate) enum Bytes<'a> {
    Borrowed(&'a [u8]),
    Read(Vec<u8>),
}

impl<'a> Bytes<'a> {
    pub(crate) fn of(reader: &'a dyn CheckpointReader, tensor: usize, offset: usize, len: usize) -> Result<Self> {
        let flat = reader.tensor_slice(tensor).and_then(|bytes| bytes.get(offset..offset.checked_add(len)?));
        if let Some(bytes) = flat {
            return Ok(Self::Borrowed(bytes));
        }
        let mut bytes = vec![0; len];
        reader.read_tensor(tensor, offset as u64, &mut bytes)?;
        Ok(Self::Read(bytes))
    }

    pub(crate) fn get(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Read(bytes) => bytes,
        }
    }
}

/// Replaces the contents of `out` by the elements of whole rows of any dtype.
pub(crate) fn decode(dtype: DType, bytes: &[u8], row_len: usize, out: &mut Vec<f32>) -> Result<()> {
    match dtype {
        _ if block::can_dequantize(dtype) => block::dequantize(dtype, bytes, row_len, out),
        DType::F64 | DType::I32 | DType::U32 | DType::I64 | DType::U64 => {
            let mut doubles = Vec::new();
            element::widen_f64(dtype, bytes, &mut doubles);
            out.clear();
            out.extend(doubles.iter().map(|&value| value as f32));
        }
        DType::C64 => return Err(Error::format("complex numbers are not computed with")),
        _ if dtype.kind() != DTypeKind::Quantized => element::widen_f32(dtype, bytes, out),
        _ => return Err(Error::version(format!("dtype {dtype} is not decoded"))),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dtype_that_is_decoded_gives_as_many_elements_as_it_stores() {
        for &dtype in DType::ALL {
            let shape = apr_core::Shape::from([2, 256]);
            let Some(len) = dtype.stored_len(&shape) else { continue };
            let mut out = Vec::new();
            if decode(dtype, &vec![0; size(len).unwrap()], 256, &mut out).is_ok() {
                assert_eq!(out.len(), 512, "{dtype}");
            }
        }
    }
}
