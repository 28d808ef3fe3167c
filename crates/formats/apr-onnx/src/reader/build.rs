//! From a tensor's message to where its elements are.

use std::sync::OnceLock;

use apr_core::protobuf::{Element, Runs, Span, Walker};
use apr_core::{DType, Error, Limits, Result, Shape, StoredRange};
use apr_graph::ElementType;

use super::content::{Content, Narrow, Packed};
use super::external::{ExternalLocation, Files};
use super::numbers::Numbers;
use super::sparse::Sparse;
use crate::proto::{SparseTensor, Tensor, shape};

/// A tensor that the checkpoint can give, or why it can't.
pub(crate) enum Built {
    /// A tensor with these elements.
    Tensor(DType, Shape, Content),
    /// No dtype here holds such elements.
    LeftOut(&'static str),
}

/// The elements of a tensor.
///
/// # Errors
/// E001 for a malformed tensor and a location outside the folder, E002 where data are missing, E003
/// for an unknown type, E007 where another file can't be read.
pub(crate) fn dense(tensor: &Tensor, files: &mut Files<'_>) -> Result<Built> {
    let at = |error: Error| error.at(tensor.span.offset);
    let dims = tensor.shape()?;
    let kind = element(tensor.data_type).map_err(at)?;
    if kind == ElementType::Text {
        return Ok(Built::LeftOut("text"));
    }

    let shape = Shape::from(dims);
    let too_large =
        || at(Error::format(format!("its shape {shape} has more elements than can be counted")));
    let count = shape.elements().ok_or_else(too_large)?;
    let packed_len = kind.stored_len(count).ok_or_else(too_large)?;

    // What no dtype holds is found too: the graph reads it, and its skeleton keeps it.
    let packed = packed(tensor, kind, count, packed_len, files).map_err(at)?;
    packed.check_len(packed_len).map_err(at)?;
    let dtype = match dtype_of(kind) {
        Ok(dtype) => dtype,
        Err(why) => return Ok(Built::LeftOut(why)),
    };
    if fills_no_byte(kind, count) {
        return Ok(Built::LeftOut(
            "an odd number of 4-bit floats, which does not fill whole bytes",
        ));
    }

    let content = match narrow(kind) {
        Some(narrow) => Content::narrow(packed, narrow, count),
        None => Content::whole(packed, packed_len),
    };
    Ok(Built::Tensor(dtype, shape, content))
}

/// The type of a tensor's elements.
pub(crate) fn element(code: i32) -> Result<ElementType> {
    if code == 0 {
        return Err(Error::format("the tensor has no data type"));
    }
    let message = || {
        format!("the tensor has elements of type {code}, which this version of apr does not know")
    };
    ElementType::from_onnx_code(code).ok_or_else(|| Error::version(message()))
}

/// The dtype that holds the elements.
fn dtype_of(kind: ElementType) -> Result<DType, &'static str> {
    match kind {
        ElementType::Text => Err("text"),
        ElementType::C128 => Err("complex numbers of 128 bits"),
        ElementType::U4 | ElementType::U2 => Ok(DType::U8),
        ElementType::I4 | ElementType::I2 => Ok(DType::I8),
        ElementType::F4E2M1 => Ok(DType::F4_E2M1),
        kind => kind.dtype().ok_or("elements that no dtype holds"),
    }
}

/// Returns `true` if the elements are 4-bit floats and the last one fills half a byte.
///
/// No dtype holds such elements.
pub(crate) fn fills_no_byte(kind: ElementType, count: u64) -> bool {
    kind == ElementType::F4E2M1 && count % 2 == 1
}

/// Returns the packing of integers below 8 bits, or `None` for other types.
pub(crate) fn narrow(kind: ElementType) -> Option<Narrow> {
    match kind {
        ElementType::U4 => Some(Narrow { bits: 4, is_signed: false }),
        ElementType::I4 => Some(Narrow { bits: 4, is_signed: true }),
        ElementType::U2 => Some(Narrow { bits: 2, is_signed: false }),
        ElementType::I2 => Some(Narrow { bits: 2, is_signed: true }),
        _ => None,
    }
}

/// The elements of a dense tensor as `raw_data` would have them.
pub(crate) fn packed_of(tensor: &Tensor, files: &mut Files<'_>) -> Result<Packed> {
    let kind = element(tensor.data_type)?;
    let count = Shape::from(tensor.shape()?).elements();
    let len = count.and_then(|count| kind.stored_len(count));
    let (count, len) =
        count.zip(len).ok_or_else(|| Error::format("its elements can't be counted"))?;
    packed(tensor, kind, count, len, files)
}

/// The elements as `raw_data` would have them.
fn packed(
    tensor: &Tensor,
    kind: ElementType,
    count: u64,
    len: u64,
    files: &mut Files<'_>,
) -> Result<Packed> {
    if tensor.is_segment {
        return Err(Error::version("the tensor is cut into segments, which no program reads"));
    }

    let source = files.sources[0].clone();
    let mut walker = Walker::new(&source, &Limits::default());
    if let Some(place) = ExternalLocation::of(tensor, &mut walker)? {
        return Ok(Packed::Flat(files.find(&place, len)?));
    }

    let (runs, numbers, width, per_element) = field(tensor, kind);
    let is_typed = !runs.is_empty() && tensor.raw.is_none_or(|raw| raw.len == 0);
    // Without any field there are no data: right for an empty tensor, too short for others.
    if !is_typed {
        let Span { offset, len } =
            tensor.raw.unwrap_or(Span { offset: tensor.span.offset, len: 0 });
        return Ok(Packed::Flat(StoredRange { file: 0, offset, len }));
    }

    // Floats side by side are what `raw_data` has.
    if let (Some(_), Some(Span { offset, len })) = (numbers.width(), runs.packed()) {
        return Ok(Packed::Flat(StoredRange { file: 0, offset, len }));
    }

    // Of integers below a byte, each number in the field holds one packed byte.
    let count = if kind.bits() < 8 { len } else { count * per_element };
    let is_truth = kind == ElementType::Bool;
    Ok(Packed::Numbers(Numbers::new(runs.clone(), numbers, width, count, is_truth)?))
}

/// Returns the field that holds elements of a type.
///
/// The tuple has the numbers of the field, their encoding, the bytes that each number becomes, and
/// the numbers per element.
fn field(tensor: &Tensor, kind: ElementType) -> (&Runs, Element, u64, u64) {
    let typed = &tensor.typed;
    let bytes = kind.bits().div_ceil(8);
    match kind {
        ElementType::F32 => (&typed.floats, Element::Fixed32, 4, 1),
        ElementType::C64 => (&typed.floats, Element::Fixed32, 4, 2),
        ElementType::F64 => (&typed.doubles, Element::Fixed64, 8, 1),
        ElementType::C128 => (&typed.doubles, Element::Fixed64, 8, 2),
        ElementType::I64 => (&typed.int64, Element::Varint, 8, 1),
        ElementType::U32 | ElementType::U64 => (&typed.uint64, Element::Varint, bytes, 1),
        _ => (&typed.int32, Element::Varint, bytes, 1),
    }
}

/// The elements of a sparse tensor, as a dense one.
///
/// # Errors
/// As for a dense one, and E001 where values and indices do not fit each other.
pub(crate) fn sparse(tensor: &SparseTensor, files: &mut Files<'_>) -> Result<Built> {
    let at = |error: Error| error.at(tensor.values.span.offset);
    let (dtype, count, values) = match dense(&tensor.values, files)? {
        Built::Tensor(dtype, shape, content) => {
            (dtype, shape.elements().unwrap_or_default(), content)
        }
        left_out @ Built::LeftOut(_) => return Ok(left_out),
    };

    if dtype.block_len() > 1 {
        return Ok(Built::LeftOut("sparse 4-bit floats"));
    }

    let Built::Tensor(DType::I64, index_shape, indices) = dense(&tensor.indices, files)? else {
        return Err(at(Error::format("the indices of a sparse tensor are not 64-bit integers")));
    };
    let dims = shape(&tensor.dims).map_err(at)?;
    let per_position = match *index_shape.dims() {
        [positions] if positions == count => 1,
        [positions, rank] if positions == count && rank == dims.len() as u64 && rank > 0 => rank,
        _ => {
            let message = format!("it has {count} values, but indices of shape {index_shape}");
            return Err(at(Error::format(message)));
        }
    };

    let whole = Shape::from(dims);
    let width = dtype.block_bytes();
    let len = whole.elements().and_then(|count| count.checked_mul(width));
    let len = len.ok_or_else(|| {
        at(Error::format(format!("its shape {whole} has more elements than can be counted")))
    })?;
    let shape = whole.dims().to_vec();
    let sparse = Sparse { values, indices, shape, per_position, width, positions: OnceLock::new() };
    Ok(Built::Tensor(dtype, whole, Content::whole(Packed::Sparse(Box::new(sparse)), len)))
}
