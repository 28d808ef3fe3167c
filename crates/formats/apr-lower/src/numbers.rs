//! The numbers of constants.

use apr_core::DType;
use apr_graph::{Constant, ConstantData, ElementType};
use apr_tensor::element::widen_f32;

/// Returns the numbers of a constant of integers or truths, or `None` for others.
///
/// ```
/// use apr_graph::{Constant, ConstantData, ElementType};
///
/// let data = ConstantData::Bytes(vec![255, 1]);
/// let bytes = Constant { element: ElementType::I8, shape: vec![2], data, name: String::new() };
/// assert_eq!(apr_lower::ints(&bytes), Some(vec![-1, 1]));
/// ```
#[must_use]
pub fn ints(constant: &Constant) -> Option<Vec<i64>> {
    let ConstantData::Bytes(bytes) = &constant.data else { return None };
    Some(match constant.element {
        ElementType::I8 => bytes.iter().map(|byte| i64::from(i8::from_le_bytes([*byte]))).collect(),
        ElementType::U8 => bytes.iter().map(|byte| i64::from(*byte)).collect(),
        ElementType::I16 => words(bytes).map(|word| i64::from(i16::from_le_bytes(word))).collect(),
        ElementType::U16 => words(bytes).map(|word| i64::from(u16::from_le_bytes(word))).collect(),
        ElementType::U32 => words(bytes).map(|word| i64::from(u32::from_le_bytes(word))).collect(),
        ElementType::U64 => {
            let all = words(bytes).map(|word| i64::try_from(u64::from_le_bytes(word)).ok());
            return all.collect();
        }
        _ => return constant.as_ints(),
    })
}

/// Returns the numbers of a constant of floats, in single precision, or `None` for others.
///
/// ```
/// use apr_graph::{Constant, ConstantData, ElementType};
///
/// let data = ConstantData::Bytes(vec![0, 0x3c]);
/// let half = Constant { element: ElementType::F16, shape: vec![1], data, name: String::new() };
/// assert_eq!(apr_lower::floats(&half), Some(vec![1.0]));
/// ```
#[must_use]
pub fn floats(constant: &Constant) -> Option<Vec<f32>> {
    let widened = |dtype| {
        let ConstantData::Bytes(bytes) = &constant.data else { return None };
        let mut floats = Vec::new();
        widen_f32(dtype, bytes, &mut floats);
        Some(floats)
    };
    match constant.element {
        ElementType::F16 => widened(DType::F16),
        ElementType::BF16 => widened(DType::BF16),
        ElementType::F64 => match &constant.data {
            ConstantData::Bytes(bytes) => Some(words(bytes).map(narrowed).collect()),
            ConstantData::Texts(_) => None,
        },
        _ => constant.as_floats(),
    }
}

#[expect(clippy::cast_possible_truncation, reason = "rounded to single precision")]
fn narrowed(word: [u8; 8]) -> f32 {
    f64::from_le_bytes(word) as f32
}

fn words<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> {
    bytes.as_chunks::<N>().0.iter().copied()
}
