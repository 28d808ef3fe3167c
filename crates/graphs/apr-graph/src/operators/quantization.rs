//! Integers that stand for floats.

use super::call::{Call, Rule};
use super::elementwise::like_first;
use crate::{ElementType, TensorType};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("DequantizeLinear", dequantize),
    ("DynamicQuantizeLinear", dynamic),
    ("QuantizeLinear", quantize),
];

/// The elements have the type of the zero point, or of `output_dtype`, or are `u8`.
fn quantize(call: &mut Call<'_>) -> Result<(), String> {
    let element = match call.element(2) {
        Some(element) => Some(element),
        // The zero point decides, and its type is not known yet.
        None if call.has(2) => None,
        None => call.element_attribute("output_dtype")?.or(Some(ElementType::U8)),
    };
    call.set_element(0, element);
    like_first(call)
}

/// The elements have the type of the scale, or of `output_dtype`.
fn dequantize(call: &mut Call<'_>) -> Result<(), String> {
    // Before version 19 the result is of single precision, whatever the scale is.
    let fixed = call.operator.outputs[0].types.only();
    let element = call.element_attribute("output_dtype")?.or(fixed).or_else(|| call.element(1));
    call.set_element(0, element);
    like_first(call)
}

fn dynamic(call: &mut Call<'_>) -> Result<(), String> {
    call.set(1, TensorType { element: Some(ElementType::F32), shape: Some(Vec::new()) });
    call.set(2, TensorType { element: Some(ElementType::U8), shape: Some(Vec::new()) });
    like_first(call)
}
