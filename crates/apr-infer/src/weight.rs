//! Tensors of the checkpoint, decoded when and where they are used.

use std::fmt;
use std::sync::OnceLock;

use apr_core::{CheckpointReader, DType, DTypeKind, Error, Result, TensorInfo};
use apr_graph::{ElementType, View, WeightRef};
use apr_tensor::{block, element};

use crate::Tensor;
use crate::constant;
use crate::matrix::Matrix;
use crate::ops::moving;

/// The tensors of a checkpoint. Those that are kept are read once; the others whenever they are used.
pub(crate) struct Store<'a> {
    pub(crate) reader: &'a dyn CheckpointReader,
    /// For each tensor its bytes, when they were read; no places at all where nothing is kept.
    kept: Vec<OnceLock<Vec<u8>>>,
}

impl<'a> Store<'a> {
    pub(crate) fn new(reader: &'a dyn CheckpointReader) -> Self {
        Self { reader, kept: Vec::new() }
    }

    /// Keeps what is read from now on, at most so many bytes in all; nothing where the tensors take more. Returns the bytes
    /// that they take.
    pub(crate) fn keep(&mut self, tensors: &[usize], most: u64) -> u64 {
        let in_memory = |tensor: &usize| match self.reader.tensor_slice(*tensor) {
            // Floats that lie askew would have to be copied at every use.
            Some(bytes) => self.reader.tensors()[*tensor].dtype != DType::F32 || as_floats(bytes).is_some(),
            None => false,
        };
        let len = |tensor: &usize| self.reader.tensors()[*tensor].byte_len().unwrap_or(u64::MAX);
        let read = tensors.iter().filter(|tensor| !in_memory(tensor));
        let total = read.map(len).fold(0_u64, u64::saturating_add);
        if total > most {
            return 0;
        }
        self.kept.resize_with(self.reader.tensors().len(), OnceLock::new);
        total
    }

    /// Whether a tensor's bytes are in memory, now or from the first use on.
    pub(crate) fn is_in_memory(&self, tensor: usize) -> bool {
        !self.kept.is_empty() || self.reader.tensor_slice(tensor).is_some()
    }

    /// Bytes of a tensor: borrowed where they are in memory, read otherwise.
    pub(crate) fn bytes(&self, tensor: usize, offset: usize, len: usize) -> Result<Bytes<'_>> {
        let part = |bytes: &'_ [u8]| -> Option<std::ops::Range<usize>> {
            let end = offset.checked_add(len)?;
            (end <= bytes.len()).then_some(offset..end)
        };
        if let Some((bytes, range)) = self.reader.tensor_slice(tensor).and_then(|bytes| Some((bytes, part(bytes)?))) {
            return Ok(Bytes::Borrowed(&bytes[range]));
        }
        if let Some(bytes) = self.kept.get(tensor).map(|kept| self.kept_bytes(tensor, kept)).transpose()?
            && let Some(range) = part(bytes)
        {
            return Ok(Bytes::Borrowed(&bytes[range]));
        }
        let mut bytes = vec![0; len];
        self.reader.read_tensor(tensor, offset as u64, &mut bytes)?;
        Ok(Bytes::Read(bytes))
    }

    /// All elements of a tensor of `f32` that is in memory, where they lie there as the processor has them.
    pub(crate) fn floats(&self, tensor: usize) -> Option<&[f32]> {
        if let Some(floats) = self.reader.tensor_slice(tensor).and_then(as_floats) {
            return Some(floats);
        }
        // An error comes up again where the elements are read.
        as_floats(self.kept_bytes(tensor, self.kept.get(tensor)?).ok()?)
    }

    /// All bytes of a tensor that is kept.
    fn kept_bytes<'k>(&self, tensor: usize, kept: &'k OnceLock<Vec<u8>>) -> Result<&'k [u8]> {
        if let Some(bytes) = kept.get() {
            return Ok(bytes);
        }
        let mut bytes = vec![0; size(self.reader.tensors()[tensor].byte_len()?)?];
        self.reader.read_tensor(tensor, 0, &mut bytes)?;
        // Another thread may have been faster, with the same bytes.
        Ok(kept.get_or_init(|| bytes))
    }
}

/// Bytes as little-endian floats, where they are aligned, and the processor is little-endian too.
#[allow(unsafe_code, reason = "any four bytes are a float")]
fn as_floats(bytes: &[u8]) -> Option<&[f32]> {
    if cfg!(target_endian = "big") {
        return None;
    }
    // SAFETY: every pattern of bits is a float, and the middle is aligned.
    let (before, floats, after) = unsafe { bytes.align_to::<f32>() };
    (before.is_empty() && after.is_empty()).then_some(floats)
}

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

impl Weight<'_> {
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
    pub(crate) fn decode_within(&self, store: &Store<'_>, free_bytes: u64) -> Result<Tensor> {
        let bytes = self.decoded_bytes();
        if bytes > free_bytes {
            let message = format!("decoded as a whole, it takes {bytes} bytes, which do not fit the memory limit");
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
                View::Slice { axis, start, len } => moving::part(&tensor, *axis, size(*start)?, size(*len)?)?,
                View::Reshaped(dims) => {
                    let shape = dims.iter().map(|&dim| size(dim)).collect::<Result<_>>()?;
                    tensor.reshaped(shape)?
                }
                View::Joined { axis, with } => {
                    let more = others.by_ref().take(with.len()).map(|&other| self.whole(store, other));
                    let all = std::iter::once(Ok(tensor)).chain(more).collect::<Result<Vec<_>>>()?;
                    moving::joined(&all.iter().collect::<Vec<_>>(), *axis)?
                }
                View::Stacked(with) => {
                    let more = others.by_ref().take(with.len()).map(|&other| self.whole(store, other));
                    let all = std::iter::once(Ok(tensor)).chain(more).collect::<Result<Vec<_>>>()?;
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
        crate::ops::cast::from_floats(values, shape, self.element).map_err(named)
    }

    /// Its dimensions, where no view changes them.
    pub(crate) fn plain_shape(&self) -> Option<Vec<usize>> {
        self.dims(self.tensor).filter(|_| self.reference.views.is_empty())
    }

    /// Positions of the tensors that it is read from.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = usize> {
        std::iter::once(self.tensor).chain(self.others.iter().copied())
    }

    /// Bytes as they are stored, where nothing changes them on the way.
    pub(crate) fn raw<'s>(&self, store: &'s Store<'_>, offset: usize, len: usize) -> Result<Bytes<'s>> {
        store.bytes(self.tensor, offset, len)
    }

    /// Number of bytes that are stored; `None` where views or another type change them.
    pub(crate) fn raw_len(&self) -> Option<usize> {
        let info = &self.reader.tensors()[self.tensor];
        let same = ElementType::from_dtype(info.dtype) == Some(self.element) && self.reference.views.is_empty();
        same.then(|| info.byte_len().ok().and_then(|len| usize::try_from(len).ok())).flatten()
    }

    /// The weight as a matrix that is decoded by rows, where its views allow it.
    pub(crate) fn matrix<'s>(&self, store: &'s Store<'s>) -> Option<Matrix<'s>> {
        let [rows, columns] = self.dims(self.tensor)?[..] else { return None };
        let mut matrix = Matrix::stored(store, self.tensor, rows, columns);
        let mut others = self.others.iter();
        for view in &self.reference.views {
            matrix = match view {
                View::Transposed(order) if order[..] == [1, 0] => matrix.transposed(),
                View::Transposed(order) if order[..] == [0, 1] => matrix,
                View::Slice { axis, start, len } => matrix.part(*axis, size(*start).ok()?, size(*len).ok()?)?,
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

/// Bytes of a tensor.
pub(crate) enum Bytes<'a> {
    Borrowed(&'a [u8]),
    Read(Vec<u8>),
}

impl Bytes<'_> {
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
