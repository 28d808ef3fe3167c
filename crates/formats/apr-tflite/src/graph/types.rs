//! Types of tensors.

use apr_core::Result;
use apr_graph::{Dim, ElementType, TensorType, ValueType};

use crate::flatbuffer::Table;

/// Fields of `Tensor` by their numbers in the schema.
mod field {
    pub(super) const SHAPE: u64 = 0;
    pub(super) const TYPE: u64 = 1;
    pub(super) const QUANTIZATION: u64 = 4;
    pub(super) const SHAPE_SIGNATURE: u64 = 7;
    pub(super) const HAS_RANK: u64 = 8;

    pub(super) const SCALE: u64 = 2;
    pub(super) const ZERO_POINT: u64 = 3;
}

/// Element types by the numbers of `TensorType`. Resources and variants are not tensors.
const ELEMENTS: [Option<ElementType>; 19] = [
    Some(ElementType::F32),
    Some(ElementType::F16),
    Some(ElementType::I32),
    Some(ElementType::U8),
    Some(ElementType::I64),
    Some(ElementType::Text),
    Some(ElementType::Bool),
    Some(ElementType::I16),
    Some(ElementType::C64),
    Some(ElementType::I8),
    Some(ElementType::F64),
    Some(ElementType::C128),
    Some(ElementType::U64),
    None,
    None,
    Some(ElementType::U32),
    Some(ElementType::U16),
    Some(ElementType::I4),
    Some(ElementType::BF16),
];

/// Maximum number of dimensions of a shape.
const MOST_DIMENSIONS: u64 = apr_graph::MAX_RANK as u64;

/// Returns the type of a tensor that is not a weight.
///
/// A dimension that the caller chooses is named `batch` if it is the first of an input.
///
/// # Errors
/// The errors of reading.
pub(super) fn of_tensor(tensor: &Table<'_>, is_input: bool) -> Result<ValueType> {
    let number = usize::from(tensor.u8(field::TYPE)?);
    let Some(element) = ELEMENTS.get(number).copied().flatten() else {
        return Ok(ValueType::Unknown);
    };
    let signature = tensor.list(field::SHAPE_SIGNATURE, 4)?;
    let shape = if signature.len > 0 { signature } else { tensor.list(field::SHAPE, 4)? };
    // Converters write no shape both for a scalar and for what has an unknown one.
    let is_unknown = shape.len == 0 && tensor.u8(field::HAS_RANK)? == 0 && !is_input;
    if is_unknown || shape.len > MOST_DIMENSIONS {
        return Ok(ValueType::Tensor(TensorType { element: Some(element), shape: None }));
    }
    let dim = |(position, size): (usize, &i32)| match u64::try_from(*size) {
        Ok(size) => Dim::fixed(size),
        Err(_) if is_input && position == 0 => Dim::symbol("batch"),
        Err(_) => Dim::Unknown,
    };
    let shape = shape.i32s()?;
    Ok(ValueType::tensor(element, shape.iter().enumerate().map(dim)))
}

/// Scale and zero point of a tensor of integers that has one for all of its elements.
///
/// # Errors
/// Those of reading.
pub(super) fn scale_of(tensor: &Table<'_>) -> Result<Option<(f32, i64)>> {
    let Some(quantization) = tensor.table(field::QUANTIZATION)? else { return Ok(None) };
    let scale = quantization.list(field::SCALE, 4)?;
    if scale.len != 1 {
        return Ok(None);
    }
    let scale = scale.i32s()?.first().map(|bits| f32::from_bits(bits.cast_unsigned()));
    let zero_point = quantization.list(field::ZERO_POINT, 8)?;
    let zero_point = if zero_point.len == 1 { zero_point.i64s()? } else { Vec::new() };
    Ok(scale.map(|scale| (scale, zero_point.first().copied().unwrap_or_default())))
}
