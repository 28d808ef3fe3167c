//! Types and small tensors.

use apr_graph::{Constant, ConstantData, Dim, TensorType, ValueType};

use super::message::Message;

/// Returns the `TypeProto` of a type, or `None` if the type is unknown.
pub(crate) fn type_proto(kind: &ValueType) -> Option<Message> {
    let mut message = Message::default();
    match kind {
        ValueType::Unknown => return None,
        ValueType::Tensor(tensor) => message.message(1, tensor_type(tensor)),
        ValueType::SparseTensor(tensor) => message.message(8, tensor_type(tensor)),
        ValueType::Sequence(inner) => message.message(4, wrapped(inner)),
        ValueType::Optional(inner) => message.message(9, wrapped(inner)),
        ValueType::Map(key, value) => {
            let mut map = Message::default();
            map.int(1, i64::from(key.onnx_code()));
            map.message(2, type_proto(value).unwrap_or_default());
            message.message(5, map);
        }
    }

    Some(message)
}

fn wrapped(inner: &ValueType) -> Message {
    let mut message = Message::default();
    message.message(1, type_proto(inner).unwrap_or_default());
    message
}

fn tensor_type(tensor: &TensorType) -> Message {
    let mut message = Message::default();
    if let Some(element) = tensor.element {
        message.int(1, i64::from(element.onnx_code()));
    }
    if let Some(shape) = &tensor.shape {
        let mut dims = Message::default();
        shape.iter().for_each(|dim| dims.message(1, dimension(dim)));
        message.message(2, dims);
    }
    message
}

fn dimension(dim: &Dim) -> Message {
    let mut message = Message::default();
    match (dim, dim.size()) {
        (_, Some(size)) => message.int(1, size.cast_signed()),
        (Dim::Unknown, None) => {}
        (Dim::Known(_), None) => message.text(2, &dim.to_string()),
    }
    message
}

/// `ValueInfoProto`.
pub(crate) fn value_info(name: &str, kind: &ValueType) -> Message {
    let mut message = Message::default();
    message.text(1, name);
    if let Some(kind) = type_proto(kind) {
        message.message(2, kind);
    }
    message
}

/// Encodes a constant as `TensorProto` with its elements inside.
///
/// The name is the constant's, or `name` if it has none.
pub(crate) fn tensor(constant: &Constant, name: &str) -> Message {
    let mut message = Message::default();
    constant.shape.iter().for_each(|&dim| message.int(1, dim.cast_signed()));
    message.int(2, i64::from(constant.element.onnx_code()));
    if let ConstantData::Texts(texts) = &constant.data {
        texts.iter().for_each(|text| message.bytes(6, text));
    }
    message.some_text(8, if name.is_empty() { &constant.name } else { name });
    if let ConstantData::Bytes(bytes) = &constant.data {
        message.bytes(9, bytes);
    }
    message
}
