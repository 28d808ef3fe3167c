//! The tensors of the checkpoint as `TensorProto`: inside the file, or in one beside it.

use std::collections::HashMap;

use apr_core::{DType, Error, Result, TensorInfo};
use apr_graph::{ElementType, ValueType, WeightRef};

use super::message::{Message, Piece};
use crate::reader::narrow;

/// Tensors below this many bytes stay in the file, as with onnx's own library.
const ALWAYS_INSIDE: u64 = 1 << 10;
/// Tensors of at least this many bytes start at a page boundary, so that they can be mapped.
///
/// Pages are 64 KiB, as on Windows.
const MAPPED: u64 = 1 << 20;
const PAGE: u64 = 64 << 10;
/// Alignment of the other tensors in bytes.
const ALIGNMENT: u64 = 4 << 10;

/// The tensors that a graph may refer to, and the locations of the tensors that it did refer to.
pub(crate) struct Weights<'a> {
    tensors: &'a [TensorInfo],
    positions: HashMap<&'a str, usize>,
    used: Vec<bool>,
    outside: Option<Outside>,
}

/// A file of tensors beside the model.
pub(crate) struct Outside {
    /// Name of the file.
    pub(crate) location: String,
    /// Content of the file.
    pub(crate) pieces: Vec<Piece>,
    /// Number of bytes so far.
    len: u64,
}

impl<'a> Weights<'a> {
    /// Creates the table.
    ///
    /// `location` is the file for large tensors, if they are stored outside the model.
    pub(crate) fn new(tensors: &'a [TensorInfo], location: Option<String>) -> Self {
        let positions = tensors
            .iter()
            .enumerate()
            .map(|(position, info)| (info.name.as_str(), position))
            .collect();
        let outside = location.map(|location| Outside { location, pieces: Vec::new(), len: 0 });
        Self { tensors, positions, used: vec![false; tensors.len()], outside }
    }

    /// Returns `true` for each tensor that the graph refers to, and the external data file.
    pub(crate) fn finish(self) -> (Vec<bool>, Option<Outside>) {
        (self.used, self.outside)
    }

    /// `TensorProto` of a weight that has this type in the graph.
    pub(crate) fn tensor(
        &mut self,
        weight: &WeightRef,
        kind: &ValueType,
        name: &str,
    ) -> Result<Message> {
        let position = self.position(weight)?;
        let info = &self.tensors[position];
        let (element, dims) = stated(info, kind)?;
        let hole = hole(position, info, element, &dims)?;
        let len = hole.len();
        let mut message = Message::default();
        dims.iter().for_each(|&dim| message.int(1, dim.cast_signed()));
        message.int(2, i64::from(element.onnx_code()));
        message.some_text(8, name);
        match &mut self.outside {
            Some(outside) if len >= ALWAYS_INSIDE => {
                let offset = outside.place(hole)?;
                // In the order in which onnx's own library writes the entries.
                for (key, value) in [("offset", offset), ("length", len)] {
                    if key == "offset" {
                        message.message(13, pair("location", &outside.location));
                    }
                    message.message(13, pair(key, &value.to_string()));
                }
                message.int(14, 1);
            }
            _ => message.hole(9, hole),
        }

        Ok(message)
    }

    /// Returns the position of the tensor that a weight refers to.
    ///
    /// Each tensor can be used only once.
    fn position(&mut self, weight: &WeightRef) -> Result<usize> {
        let WeightRef { tensor, views } = weight;
        if !views.is_empty() {
            return Err(Error::format("an ONNX file stores tensors as the graph uses them")
                .for_tensor(tensor));
        }

        let Some(&position) = self.positions.get(tensor.as_str()) else {
            return Err(Error::format("missing from the checkpoint").for_tensor(tensor));
        };

        if std::mem::replace(&mut self.used[position], true) {
            return Err(
                Error::format("two values of the graph name this tensor").for_tensor(tensor)
            );
        }

        Ok(position)
    }
}

impl Outside {
    fn place(&mut self, hole: Piece) -> Result<u64> {
        let len = hole.len();
        let alignment = if len >= MAPPED { PAGE } else { ALIGNMENT };
        let offset = self.len.checked_next_multiple_of(alignment);
        let end = offset.and_then(|offset| offset.checked_add(len));
        let (Some(offset), Some(end)) = (offset, end) else {
            return Err(Error::memory("the tensors exceed 2^64 bytes"));
        };
        if offset > self.len {
            self.pieces.push(Piece::Zeros(offset - self.len));
        }
        self.pieces.push(hole);
        self.len = end;
        Ok(offset)
    }
}

/// `StringStringEntryProto`.
pub(crate) fn pair(key: &str, value: &str) -> Message {
    let mut message = Message::default();
    message.text(1, key);
    message.text(2, value);
    message
}

/// Type and dimensions of a tensor: the graph's, which may pack several elements into what the
/// checkpoint counts as one, or else the checkpoint's.
fn stated(info: &TensorInfo, kind: &ValueType) -> Result<(ElementType, Vec<u64>)> {
    let own = ElementType::from_dtype(info.dtype);
    let typed = match kind {
        ValueType::Tensor(tensor) => tensor.element.zip(tensor.shape.as_ref()),
        _ => None,
    };
    let sizes = typed.and_then(|(element, shape)| {
        let dims = shape.iter().map(apr_graph::Dim::size).collect::<Option<Vec<u64>>>()?;
        Some((element, dims))
    });
    let Some((element, dims)) = sizes else {
        let element = own.ok_or_else(|| unknown(info))?;
        return Ok((element, info.shape.dims().to_vec()));
    };
    let elements = dims.iter().try_fold(1_u64, |product, &dim| product.checked_mul(dim));
    let len = elements.and_then(|elements| element.stored_len(elements));
    let is_packed = element.bits() < 8 && info.dtype == DType::U8 && len == Some(info.byte_len()?);
    let is_same = own == Some(element) && len == Some(info.byte_len()?);
    if !is_same && !is_packed && !is_as_checkpoints_have(info, element, &dims) {
        let shape = info.shape.dims();
        let message = format!("expected {element} {dims:?}, found {} {shape:?}", info.dtype);
        return Err(Error::format(message).for_tensor(&info.name));
    }

    Ok((element, dims))
}

/// Returns `true` if the tensor has the form in which the reader returns it.
///
/// For elements below 8 bits, the reader returns integers as one byte each, and floats packed.
fn is_as_checkpoints_have(info: &TensorInfo, element: ElementType, dims: &[u64]) -> bool {
    holds(info.dtype, element) && info.shape.dims() == dims
}

/// Returns `true` if the reader returns elements of this type with this dtype.
#[must_use]
pub fn holds(dtype: DType, element: ElementType) -> bool {
    match (dtype, element) {
        (DType::F4_E2M1, ElementType::F4E2M1) => true,
        (DType::I8 | DType::U8, element) => {
            let is_signed = narrow(element).map(|narrow| narrow.is_signed);
            is_signed.map_or(element.dtype() == Some(dtype), |is| is == (dtype == DType::I8))
        }
        _ => element.dtype() == Some(dtype),
    }
}

/// The place of a tensor's elements.
fn hole(position: usize, info: &TensorInfo, element: ElementType, dims: &[u64]) -> Result<Piece> {
    let as_bytes = narrow(element).filter(|_| is_as_checkpoints_have(info, element, dims));
    Ok(match (as_bytes, info.shape.elements()) {
        (Some(narrow), Some(count)) => Piece::Packed(position, narrow, count),
        _ => Piece::Hole(position, info.byte_len()?),
    })
}

fn unknown(info: &TensorInfo) -> Error {
    let message = format!("ONNX does not support {}; `dequantize` f32 writes floats", info.dtype);
    Error::format(message).for_tensor(&info.name)
}
