//! Values in ONNX's messages: `TensorProto`, `SequenceProto`, `OptionalProto` and `MapProto`, as
//! the inputs of its tests are (<https://github.com/onnx/onnx/blob/main/onnx/onnx-data.proto>).

use apr_core::protobuf::decode_varint;
use apr_graph::{ElementType, ValueType};
use apr_infer::{Tensor, Value};
use apr_registry::{Error, Result};

use super::typed::{array, element, map};

/// A field of a message.
#[derive(Clone, Copy)]
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

fn cut_off() -> Error {
    Error::corrupt("truncated ONNX message")
}

/// Returns the fields of a message with their numbers. Values of 32 and 64 bits are returned as
/// bytes.
fn fields(mut rest: &[u8]) -> impl Iterator<Item = Result<(u64, Field<'_>)>> {
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let field = next(&mut rest);
        if field.is_err() {
            rest = &[];
        }
        Some(field)
    })
}

fn next<'a>(rest: &mut &'a [u8]) -> Result<(u64, Field<'a>)> {
    let key = varint(rest)?;
    let len = match key & 7 {
        0 => return Ok((key >> 3, Field::Number(varint(rest)?))),
        1 => 8,
        2 => varint(rest)?,
        5 => 4,
        other => return Err(Error::format(format!("a field of ONNX has wire type {other}"))),
    };
    let len = usize::try_from(len).map_err(|_| cut_off())?;
    let (bytes, after) = rest.split_at_checked(len).ok_or_else(cut_off)?;
    *rest = after;
    Ok((key >> 3, Field::Bytes(bytes)))
}

fn varint(rest: &mut &[u8]) -> Result<u64> {
    let (value, len) = decode_varint(rest).ok_or_else(cut_off)?;
    let len = usize::try_from(len).map_err(|_| cut_off())?;
    *rest = rest.get(len..).ok_or_else(cut_off)?;
    Ok(value)
}

/// Adds a number, or several that are packed.
fn add(numbers: &mut Vec<u64>, field: Field<'_>) -> Result<()> {
    match field {
        Field::Number(number) => numbers.push(number),
        Field::Bytes(mut bytes) => {
            while !bytes.is_empty() {
                numbers.push(varint(&mut bytes)?);
            }
        }
    }
    Ok(())
}

/// Returns the name of a message that is a tensor. Other messages have no name in this field.
pub(super) fn name(bytes: &[u8]) -> Option<String> {
    let name = |field: Result<(u64, Field<'_>)>| match field {
        Ok((8, Field::Bytes(name))) => String::from_utf8(name.to_vec()).ok(),
        _ => None,
    };
    fields(bytes).filter_map(name).find(|name| !name.is_empty())
}

/// The value of a type that a message is.
pub(super) fn value(bytes: &[u8], kind: &ValueType, deepest: usize) -> Result<Value> {
    let deepest =
        deepest.checked_sub(1).ok_or_else(|| Error::format("values are nested too deep"))?;
    match kind {
        ValueType::Sequence(inner) => {
            let items = messages(bytes)?.into_iter().map(|item| value(item, inner, deepest));
            Ok(Value::Sequence(items.collect::<Result<_>>()?))
        }
        ValueType::Optional(inner) => match messages(bytes)?.last() {
            Some(item) => {
                value(item, inner, deepest).map(|value| Value::Optional(Some(Box::new(value))))
            }
            None => Ok(Value::Optional(None)),
        },
        ValueType::Map(key, inner) => entries(bytes, *key, inner),
        _ => array(&tensor(bytes)?, kind),
    }
}

/// Returns the contents of a sequence or an optional value. Tensors, sequences, maps and optional
/// values have fields of their own.
fn messages(bytes: &[u8]) -> Result<Vec<&[u8]>> {
    let mut found = Vec::new();
    for field in fields(bytes) {
        match field? {
            (3 | 5..=7, Field::Bytes(message)) => found.push(message),
            (4, _) => return Err(Error::version("sparse tensors are not supported as input")),
            _ => {}
        }
    }
    Ok(found)
}

/// A map: its keys, and a sequence of its values, each of one element.
fn entries(bytes: &[u8], key: ElementType, inner: &ValueType) -> Result<Value> {
    let (mut texts, mut ints, mut values) = (Vec::new(), Vec::new(), Vec::new());
    for field in fields(bytes) {
        match field? {
            (3, field) => add(&mut ints, field)?,
            (4, Field::Bytes(text)) => texts.push(String::from_utf8_lossy(text).into_owned()),
            (5, Field::Bytes(sequence)) => values.extend(messages(sequence)?),
            _ => {}
        }
    }
    let keys = match key {
        ElementType::Text => Tensor::row(texts),
        _ => Tensor::row(ints.into_iter().map(|key| key as i64).collect()),
    };
    let element = element(inner).unwrap_or(ElementType::F32);
    let mut numbers = Vec::with_capacity(values.len());
    for value in values {
        let one = tensor(value)?.cast(ElementType::F64)?;
        match one.values::<f64>()? {
            [number] => numbers.push(*number),
            _ => return Err(Error::version("maps of arrays are not supported as input")),
        }
    }
    map(keys, Tensor::row(numbers).cast(element)?)
}

/// A `TensorProto`.
fn tensor(bytes: &[u8]) -> Result<Tensor> {
    let (mut dims, mut code, mut raw) = (Vec::new(), 0, None);
    let (mut numbers, mut words, mut texts) = (Vec::new(), Vec::new(), Vec::new());
    for field in fields(bytes) {
        match field? {
            (1, field) => add(&mut dims, field)?,
            (2, Field::Number(number)) => code = number,
            (4 | 10, Field::Bytes(bytes)) => words.extend_from_slice(bytes),
            (5 | 7 | 11, field) => add(&mut numbers, field)?,
            (6, Field::Bytes(text)) => texts.push(String::from_utf8_lossy(text).into_owned()),
            (9, Field::Bytes(bytes)) => raw = Some(bytes),
            (13, _) => return Err(Error::version("external data is not supported as input")),
            _ => {}
        }
    }

    let element = i32::try_from(code).ok().and_then(ElementType::from_onnx_code);
    let element = element.ok_or_else(|| Error::format(format!("unknown data type {code}")))?;
    let size =
        |dim: u64| usize::try_from(dim).map_err(|_| Error::format("a dimension is too large"));
    let shape = dims.into_iter().map(size).collect::<Result<Vec<_>>>()?;
    if element == ElementType::Text {
        return Tensor::new(shape, texts);
    }
    let numbers = little_endian(element, &numbers);
    let bytes = raw.unwrap_or(if words.is_empty() { &numbers } else { &words });
    Tensor::unpack(element, shape, bytes)
}

/// Returns the numbers of a field as the bytes of elements. Elements of less than a byte are
/// already packed.
fn little_endian(element: ElementType, numbers: &[u64]) -> Vec<u8> {
    let width = usize::try_from(element.bits().div_ceil(8)).unwrap_or(8).clamp(1, 8);
    numbers.iter().flat_map(|number| number.to_le_bytes().into_iter().take(width)).collect()
}

#[cfg(test)]
mod tests {
    use apr_graph::TensorType;

    use super::*;

    /// `[1.5]` as `TensorProto`.
    const TENSOR: [u8; 10] = [0x08, 1, 0x10, 1, 0x4a, 4, 0, 0, 0xc0, 0x3f];

    fn floats() -> ValueType {
        ValueType::Tensor(TensorType { element: Some(ElementType::F32), shape: None })
    }

    #[test]
    fn messages_are_read_by_type() {
        let one = value(&TENSOR, &floats(), 8).unwrap();
        assert_eq!(one.tensor().unwrap().values::<f32>().unwrap(), [1.5]);
        let sequence = [&[0x10, 1, 0x1a, 10][..], &TENSOR, &[0x1a, 10], &TENSOR].concat();
        let of = ValueType::Sequence(Box::new(floats()));
        let Value::Sequence(items) = value(&sequence, &of, 8).unwrap() else { panic!() };
        assert_eq!(items.len(), 2);
        let of = ValueType::Optional(Box::new(floats()));
        assert!(matches!(value(&[0x10, 1], &of, 8).unwrap(), Value::Optional(None)));
    }

    #[test]
    fn truncated_or_invalid_messages_are_errors() {
        for len in 1..TENSOR.len() {
            assert!(value(&TENSOR[..len], &floats(), 8).is_err(), "{len}");
        }
        assert!(value(&[0x0b], &floats(), 8).is_err());
        assert!(
            value(&[0x4a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f], &floats(), 8)
                .is_err()
        );
    }
}
