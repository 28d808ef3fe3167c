//! Types of elements.

use apr_graph::ElementType;

/// Returns the element type that an ONNX graph uses for elements of this type of a model.
///
/// Floats become single precision. Small integers become 32-bit integers, and unsigned ones of 32
/// and 64 bits 64-bit integers, which all operators support.
pub(super) fn computed(element: ElementType) -> ElementType {
    match element {
        ElementType::I8 | ElementType::I16 | ElementType::U8 | ElementType::U16 => ElementType::I32,
        ElementType::U32 | ElementType::U64 => ElementType::I64,
        element if element.is_float() => ElementType::F32,
        ElementType::F8E4M3 | ElementType::F8E5M2 | ElementType::F8E8M0 => ElementType::F32,
        element => element,
    }
}

/// Returns `true` for floats that ONNX graphs of this version do not have.
///
/// They are read in single precision.
pub(super) fn is_new(element: ElementType) -> bool {
    matches!(element, ElementType::F8E4M3 | ElementType::F8E5M2 | ElementType::F8E8M0)
}

/// The type that a setting names.
pub(super) fn named(name: &str) -> Option<ElementType> {
    crate::openvino::element::Kind::of(name).element()
}
