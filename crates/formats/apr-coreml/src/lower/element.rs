//! Types of elements, and constants of them.

use apr_graph::{Constant, ConstantData, ElementType};
use apr_lower::{floats, ints};

/// Returns the element type that an ONNX graph uses for elements of this type of a program.
///
/// Half precision becomes single precision, and small integers become 32-bit integers, which all
/// operators support.
pub(super) fn computed(element: ElementType) -> ElementType {
    match element {
        ElementType::F16 => ElementType::F32,
        ElementType::I8 | ElementType::I16 | ElementType::U8 | ElementType::U16 => ElementType::I32,
        element => element,
    }
}

/// Converts a constant to the element type of the computation. Returns `None` for texts.
///
/// Also returns `None` for values that do not fit the type.
pub(super) fn computed_constant(constant: &Constant) -> Option<Constant> {
    let element = computed(constant.element);
    let bytes = match &constant.data {
        ConstantData::Bytes(bytes) if element == constant.element => bytes.clone(),
        ConstantData::Bytes(_) if element == ElementType::F32 => {
            floats(constant)?.iter().flat_map(|float| float.to_le_bytes()).collect()
        }
        ConstantData::Bytes(_) => {
            let narrow = |int: i64| i32::try_from(int).ok();
            let ints: Option<Vec<i32>> = ints(constant)?.into_iter().map(narrow).collect();
            ints?.iter().flat_map(|int| int.to_le_bytes()).collect()
        }
        ConstantData::Texts(_) => return None,
    };
    let (name, shape) = (String::new(), constant.shape.clone());
    Some(Constant { name, element, shape, data: ConstantData::Bytes(bytes) })
}
