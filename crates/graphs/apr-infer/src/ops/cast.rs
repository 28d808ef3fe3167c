//! Casts between types of elements.

use apr_core::{Error, Result};
use apr_graph::{AttributeValue, ElementType};

use crate::Value;
use crate::call::Call;
use crate::cast::{Rules, cast};
use crate::mini_float::PowerRounding;
use crate::operator::{Operator, moves};
use crate::tensor::Data;

pub(super) const TABLE: &[Operator] = &[
    moves("Cast", |call| {
        let to = element(call.int("to", 0))?;
        run(call, to)
    }),
    moves("CastLike", |call| {
        let to = call.tensor(1)?.element();
        run(call, to)
    }),
    moves("BitCast", bit_cast),
];

/// The element type with a number.
pub(crate) fn element(code: i64) -> Result<ElementType> {
    let known = i32::try_from(code).ok().and_then(ElementType::from_onnx_code);
    known.ok_or_else(|| Error::format(format!("{code} is not an element type")))
}

fn run(call: &mut Call<'_>, to: ElementType) -> Result<Vec<Value>> {
    let powers = match call.text("round_mode", "up").as_str() {
        "down" => PowerRounding::Down,
        "nearest" => PowerRounding::Nearest,
        _ => PowerRounding::Up,
    };
    let rules = Rules { saturate: call.flag("saturate", true), powers };
    let tensor = call.take(0)?;
    call.room(tensor.shape(), to)?;
    Ok(vec![cast(&tensor, to, rules)?.into()])
}

fn bit_cast(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let to = element(call.int("to", 0))?;
    let tensor = call.tensor(0)?;
    if tensor.element().bits() != to.bits() || to.bits() < 8 {
        return Err(Error::format(format!(
            "{} and {to} have other numbers of bits",
            tensor.element()
        )));
    }

    let bytes: Vec<u8> = match tensor.data() {
        Data::F32(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        Data::F64(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        Data::I8(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        Data::I16(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        Data::I32(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        Data::I64(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        Data::U8(values) => values.clone(),
        Data::U16(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        Data::U32(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        Data::U64(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        Data::Text(_) => return Err(Error::format("texts have no bits")),
    };

    Ok(vec![crate::constant::unpack(to, tensor.shape().to_vec(), &bytes)?.into()])
}

/// The element type that an attribute names, or another.
pub(crate) fn element_of(call: &Call<'_>, name: &str, default: ElementType) -> Result<ElementType> {
    match call.attribute(name) {
        Some(AttributeValue::Int(0)) | None => Ok(default),
        Some(AttributeValue::Int(code)) => element(*code),
        Some(_) => Err(Error::format(format!("the attribute {name} must be an element type"))),
    }
}
