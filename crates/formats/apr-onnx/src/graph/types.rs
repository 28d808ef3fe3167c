//! Types of values.

use apr_graph::{Dim, ElementType, TensorType, ValueType};

use crate::proto::{Dimension, Type, TypeKind};

/// Converts a type of the file. Types that the graph cannot represent become unknown.
pub(super) fn value_type(kind: &Type) -> ValueType {
    match &kind.kind {
        TypeKind::Unknown | TypeKind::Opaque(..) => ValueType::Unknown,
        TypeKind::Tensor(element, dims) => ValueType::Tensor(tensor(*element, dims.as_deref())),
        TypeKind::SparseTensor(element, dims) => {
            ValueType::SparseTensor(tensor(*element, dims.as_deref()))
        }
        TypeKind::Sequence(inner) => ValueType::Sequence(Box::new(value_type(inner))),
        TypeKind::Optional(inner) => ValueType::Optional(Box::new(value_type(inner))),
        TypeKind::Map(key, value) => match ElementType::from_onnx_code(*key) {
            Some(key) => ValueType::Map(key, Box::new(value_type(value))),
            None => ValueType::Unknown,
        },
    }
}

fn tensor(element: i32, dims: Option<&[Dimension]>) -> TensorType {
    TensorType {
        element: ElementType::from_onnx_code(element),
        shape: dims.map(|dims| dims.iter().map(dim).collect()),
    }
}

fn dim(dimension: &Dimension) -> Dim {
    match dimension.size.map(u64::try_from) {
        Some(Ok(size)) => Dim::fixed(size),
        Some(Err(_)) => Dim::Unknown,
        None if dimension.name.is_empty() => Dim::Unknown,
        None => Dim::parse(&dimension.name),
    }
}
