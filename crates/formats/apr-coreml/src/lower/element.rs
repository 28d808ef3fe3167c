//! Types of elements, and constants of them.

use apr_core::DType;
use apr_graph::{Constant, ConstantData, ElementType};
use apr_tensor::element::widen_f32;

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

/// The numbers of a constant of integers or truths.
pub(super) fn ints(constant: &Constant) -> Option<Vec<i64>> {
    let ConstantData::Bytes(bytes) = &constant.data else { return None };
    Some(match constant.element {
        ElementType::I8 => bytes.iter().map(|byte| i64::from(i8::from_le_bytes([*byte]))).collect(),
        ElementType::U8 => bytes.iter().map(|byte| i64::from(*byte)).collect(),
        ElementType::I16 => words(bytes).map(|word| i64::from(i16::from_le_bytes(word))).collect(),
        ElementType::U16 => words(bytes).map(|word| i64::from(u16::from_le_bytes(word))).collect(),
        ElementType::U32 => words(bytes).map(|word| i64::from(u32::from_le_bytes(word))).collect(),
        _ => return constant.as_ints(),
    })
}

/// The numbers of a constant of floats.
pub(super) fn floats(constant: &Constant) -> Option<Vec<f32>> {
    match (&constant.data, constant.element) {
        (ConstantData::Bytes(bytes), ElementType::F16) => {
            let mut floats = Vec::with_capacity(bytes.len() / 2);
            widen_f32(DType::F16, bytes, &mut floats);
            Some(floats)
        }
        _ => constant.as_floats(),
    }
}

fn words<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> {
    bytes.as_chunks::<N>().0.iter().copied()
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
