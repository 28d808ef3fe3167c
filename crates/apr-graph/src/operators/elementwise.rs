//! Operators that treat each element by itself: outputs have the shape of the input, or the inputs'
//! shapes together.

use super::call::{Call, Rule, broadcast, show};
use crate::Dim;

pub(super) const RULES: &[(&str, Rule)] = &[
    ("Abs", like_first),
    ("Acos", like_first),
    ("Acosh", like_first),
    ("Add", together),
    ("And", together),
    ("Asin", like_first),
    ("Asinh", like_first),
    ("Atan", like_first),
    ("Atanh", like_first),
    ("Bernoulli", cast),
    ("BitCast", bit_cast),
    ("BitShift", together),
    ("BitwiseAnd", together),
    ("BitwiseNot", like_first),
    ("BitwiseOr", together),
    ("BitwiseXor", together),
    ("Cast", cast),
    ("CastLike", like_first),
    ("Ceil", like_first),
    ("Celu", like_first),
    ("Clip", like_first),
    ("Cos", like_first),
    ("Cosh", like_first),
    ("CumProd", like_first),
    ("CumSum", like_first),
    ("Div", together),
    ("Dropout", dropout),
    ("Elu", like_first),
    ("Equal", together),
    ("Erf", like_first),
    ("Exp", like_first),
    ("Floor", like_first),
    ("Gelu", like_first),
    ("Greater", together),
    ("GreaterOrEqual", together),
    ("HardSigmoid", like_first),
    ("HardSwish", like_first),
    ("Hardmax", like_first),
    ("IsInf", like_first),
    ("IsNaN", like_first),
    ("LRN", like_first),
    ("LeakyRelu", like_first),
    ("Less", together),
    ("LessOrEqual", together),
    ("Log", like_first),
    ("LogSoftmax", softmax),
    ("LpNormalization", like_first),
    ("Max", together),
    ("Mean", together),
    ("Min", together),
    ("Mish", like_first),
    ("Mod", together),
    ("Mul", together),
    ("Neg", like_first),
    ("Not", like_first),
    ("Or", together),
    ("PRelu", like_first),
    ("Pow", together),
    ("RandomNormalLike", cast),
    ("RandomUniformLike", cast),
    ("Reciprocal", like_first),
    ("RegexFullMatch", like_first),
    ("Relu", like_first),
    ("ReverseSequence", like_first),
    ("Round", like_first),
    ("Selu", like_first),
    ("Shrink", like_first),
    ("Sigmoid", like_first),
    ("Sign", like_first),
    ("Sin", like_first),
    ("Sinh", like_first),
    ("Softmax", softmax),
    ("Softplus", like_first),
    ("Softsign", like_first),
    ("Sqrt", like_first),
    ("StringConcat", together),
    ("Sub", together),
    ("Sum", together),
    ("SwiGLU", together),
    ("Swish", like_first),
    ("Tan", like_first),
    ("Tanh", like_first),
    ("TensorScatter", like_first),
    ("ThresholdedRelu", like_first),
    ("Trilu", like_first),
    ("Where", together),
    ("Xor", together),
];

/// The output has the shape of the first input.
pub(super) fn like_first(call: &mut Call<'_>) -> Result<(), String> {
    if let Some(shape) = call.shape(0) {
        call.set_shape(0, shape.to_vec());
    }
    Ok(())
}

/// The output has the shape that the inputs have together.
pub(super) fn together(call: &mut Call<'_>) -> Result<(), String> {
    if call.operator.setting("broadcast").is_some() {
        // Before version 7 the second input was widened to the first, if it was asked for.
        return like_first(call);
    }
    let mut shape: Vec<Dim> = Vec::new();
    for position in 0..call.inputs.len() {
        let Some(other) = call.shape(position) else { return Ok(()) };
        shape = broadcast(&shape, other)
            .map_err(|error| format!("shapes {} and {}: {error}", show(&shape), show(other)))?;
    }
    call.set_shape(0, shape);
    Ok(())
}

/// The elements have the type that `to` or `dtype` says; without it, the input's.
pub(super) fn cast(call: &mut Call<'_>) -> Result<(), String> {
    let to = if call.operator.setting("to").is_some() { "to" } else { "dtype" };
    let element = match call.text(to) {
        // Before version 6 by name.
        Some(name) => element_by_name(name),
        None => call.element_attribute(to)?.or_else(|| call.element(0)),
    };
    call.set_element(0, element);
    like_first(call)
}

fn element_by_name(name: &str) -> Option<crate::ElementType> {
    use crate::ElementType as E;

    let named = [
        ("FLOAT", E::F32),
        ("DOUBLE", E::F64),
        ("FLOAT16", E::F16),
        ("INT8", E::I8),
        ("INT16", E::I16),
        ("INT32", E::I32),
        ("INT64", E::I64),
        ("UINT8", E::U8),
        ("UINT16", E::U16),
        ("UINT32", E::U32),
        ("UINT64", E::U64),
        ("BOOL", E::Bool),
    ];
    named
        .into_iter()
        .find(|(other, _)| name.eq_ignore_ascii_case(other))
        .map(|(_, element)| element)
}

/// The same bits as elements of another type of the same width.
fn bit_cast(call: &mut Call<'_>) -> Result<(), String> {
    let to = call.element_attribute("to")?;
    if let (Some(from), Some(to)) = (call.element(0), to)
        && from.bits() != to.bits()
    {
        return Err(format!("{from} has {} bits, and {to} has {}", from.bits(), to.bits()));
    }
    call.set_element(0, to);
    like_first(call)
}

/// The second output says which elements were kept.
fn dropout(call: &mut Call<'_>) -> Result<(), String> {
    if let Some(shape) = call.shape(0) {
        let shape = shape.to_vec();
        call.set_shape(1, shape.clone());
        call.set_shape(0, shape);
    }
    Ok(())
}

fn softmax(call: &mut Call<'_>) -> Result<(), String> {
    if let (Some(shape), Some(axis)) = (call.shape(0), call.int("axis"))
        && !shape.is_empty()
    {
        super::call::axis(axis, shape.len())?;
    }
    like_first(call)
}
