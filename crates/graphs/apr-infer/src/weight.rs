//! Tensors of the checkpoint as a graph looks at them: which ones, and through which views.

use std::fmt;

use apr_core::{CheckpointReader, DType, Error, Result, TensorInfo};
use apr_graph::{ElementType, View, WeightRef};

use crate::Tensor;
use crate::constant;
use crate::matrix::Matrix;
use crate::moving;
use crate::store::{Bytes, Store, decode, size};

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
        f.debug_struct("Weight")
            .field("reference", &self.reference)
            .field("element", &self.element)
            .finish()
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
    pub(crate) fn find(
        &self,
        reference: &WeightRef,
        element: Option<ElementType>,
    ) -> Result<Weight<'a>> {
        let position = |name: &str| {
            let missing = || {
                Error::format("the graph uses it, and the model does not have it").for_tensor(name)
            };
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

        let stored = ElementType::from_dtype(self.reader.tensors()[tensor].dtype)
            .unwrap_or(ElementType::F32);
        let element = element.unwrap_or(stored);
        Ok(Weight { reader: self.reader, tensor, others, reference: reference.clone(), element })
    }
}

impl Weight<'_> {
    /// Type of the elements that the graph computes with.
    pub(crate) fn element(&self) -> ElementType {
        self.element
    }

    /// Bytes that it takes when it is decoded as a whole, before its views.
    pub(crate) fn decoded_bytes(&self) -> u64 {
        let count = |position: &usize| {
            self.reader.tensors()[*position].shape.elements().unwrap_or(u64::MAX)
        };
        let elements = self.others.iter().map(count).fold(count(&self.tensor), u64::saturating_add);
        elements.saturating_mul(self.element.bits().div_ceil(8))
    }

    /// Decodes the whole tensor, if it fits `free_bytes` bytes.
    ///
    /// # Errors
    /// E008 if it does not fit.
    pub(crate) fn decode_within(&self, store: &Store<'_>, free_bytes: u64) -> Result<Tensor> {
        let bytes = self.decoded_bytes();
        if bytes > free_bytes {
            let message = format!("dequantized it needs {bytes} bytes, beyond the memory limit");
            return Err(Error::memory(message).for_tensor(&self.reference.tensor));
        }
        self.decode(store)
    }

    /// The whole tensor, decoded.
    pub(crate) fn decode(&self, store: &Store<'_>) -> Result<Tensor> {
        let mut others = self.others.iter();
        let mut tensor = self.whole(store, self.tensor)?;
        for view in &self.reference.views {
            tensor = match view {
                View::Transposed(order) => moving::transposed(&tensor, order)?,
                View::Slice { axis, start, len } => {
                    moving::part(&tensor, *axis, size(*start)?, size(*len)?)?
                }
                View::Reshaped(dims) => {
                    let shape = dims.iter().map(|&dim| size(dim)).collect::<Result<_>>()?;
                    tensor.reshaped(shape)?
                }
                View::Joined { axis, with } => {
                    let more =
                        others.by_ref().take(with.len()).map(|&other| self.whole(store, other));
                    let all =
                        std::iter::once(Ok(tensor)).chain(more).collect::<Result<Vec<_>>>()?;
                    moving::joined(&all.iter().collect::<Vec<_>>(), *axis)?
                }
                View::Stacked(with) => {
                    let more =
                        others.by_ref().take(with.len()).map(|&other| self.whole(store, other));
                    let all =
                        std::iter::once(Ok(tensor)).chain(more).collect::<Result<Vec<_>>>()?;
                    moving::stacked(&all, 0)?
                }
                View::Plus(number) => plus(tensor, *number)?,
            };
        }

        Ok(tensor)
    }

    /// A tensor of the checkpoint as elements of the graph's type.
    fn whole(&self, store: &Store<'_>, position: usize) -> Result<Tensor> {
        let info = &self.reader.tensors()[position];
        let named = |error: Error| error.for_tensor(&info.name);
        let shape = info.shape.dims().iter().map(|&dim| size(dim)).collect::<Result<Vec<_>>>()?;
        let bytes = store.bytes(position, 0, size(info.byte_len()?)?)?;
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
        crate::cast::from_floats(values, shape, self.element).map_err(named)
    }

    /// Returns the dimensions, if no view changes them.
    pub(crate) fn plain_shape(&self) -> Option<Vec<usize>> {
        self.dims(self.tensor).filter(|_| self.reference.views.is_empty())
    }

    /// Positions of the tensors that it is read from.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = usize> {
        std::iter::once(self.tensor).chain(self.others.iter().copied())
    }

    /// Returns bytes in stored form, for weights that views and types do not change.
    pub(crate) fn raw<'s>(
        &self,
        store: &'s Store<'_>,
        offset: usize,
        len: usize,
    ) -> Result<Bytes<'s>> {
        store.bytes(self.tensor, offset, len)
    }

    /// Returns the number of stored bytes, or `None` if views or another type change them.
    pub(crate) fn raw_len(&self) -> Option<usize> {
        let info = &self.reader.tensors()[self.tensor];
        let same = ElementType::from_dtype(info.dtype) == Some(self.element)
            && self.reference.views.is_empty();
        same.then(|| info.byte_len().ok().and_then(|len| usize::try_from(len).ok())).flatten()
    }

    /// Returns the weight as a matrix that is decoded by rows, if its views allow it.
    pub(crate) fn matrix<'s>(&self, store: &'s Store<'s>) -> Option<Matrix<'s>> {
        let [rows, columns] = self.dims(self.tensor)?[..] else { return None };
        let mut matrix = Matrix::stored(store, self.tensor, rows, columns);
        let mut others = self.others.iter();
        for view in &self.reference.views {
            matrix = match view {
                View::Transposed(order) if order[..] == [1, 0] => matrix.transposed(),
                View::Transposed(order) if order[..] == [0, 1] => matrix,
                View::Slice { axis, start, len } => {
                    matrix.part(*axis, size(*start).ok()?, size(*len).ok()?)?
                }
                View::Joined { axis, with } => {
                    others.by_ref().take(with.len()).try_fold(matrix, |joined, &other| {
                        let [rows, columns] = self.dims(other)?[..] else { return None };
                        joined.joined(*axis, Matrix::stored(store, other, rows, columns))
                    })?
                }
                _ => return None,
            };
        }

        Some(matrix)
    }

    /// The weight as a matrix with a row for each place of its first dimension.
    pub(crate) fn flat_matrix<'s>(&self, store: &'s Store<'s>) -> Option<Matrix<'s>> {
        let dims = self.plain_shape()?;
        let (&rows, inner) = dims.split_first()?;
        let block = size(self.reader.tensors()[self.tensor].dtype.block_len()).ok()?;
        // Blocks go along the last dimension.
        let whole = block == 1 || inner.last()?.is_multiple_of(block);
        let columns = inner.iter().try_fold(1_usize, |product, &dim| product.checked_mul(dim))?;
        whole.then(|| Matrix::stored(store, self.tensor, rows, columns))
    }

    fn dims(&self, tensor: usize) -> Option<Vec<usize>> {
        let dims = self.reader.tensors()[tensor].shape.dims();
        dims.iter().map(|&dim| size(dim).ok()).collect()
    }
}

/// Returns the type in which small integers are kept, if the checkpoint stores them unpacked.
fn unpacked(stored: DType, element: ElementType) -> Option<ElementType> {
    match (stored, element) {
        (DType::I8, ElementType::I4 | ElementType::I2) => Some(ElementType::I8),
        (DType::U8, ElementType::U4 | ElementType::U2 | ElementType::F4E2M1) => {
            Some(ElementType::U8)
        }
        _ => None,
    }
}

fn plus(tensor: Tensor, number: i32) -> Result<Tensor> {
    let shape = tensor.shape().to_vec();
    let mut values = tensor.into_values::<f32>()?;
    values.iter_mut().for_each(|value| *value += number as f32);
    Tensor::new(shape, values)
}
