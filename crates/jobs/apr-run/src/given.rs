//! Inputs of a graph from files. The type of the graph's input decides how a file is read.

use apr_core::Escaped;
use apr_core::json::entries;
use apr_graph::{Body, Dim, Value as GraphValue, ValueOrigin, ValueType};
use apr_infer::{Tensor, Value};
use apr_registry::{Error, Result};
use serde_json::Value as Json;

use super::arrays::nested;
use super::protobuf;
use super::typed::{array, element, map};
use crate::error::{Remedy, RunError, RunResult};

/// Maximum nesting depth of lists.
const DEEPEST: usize = 32;

/// A raw input whose element type is not known yet.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Given {
    /// Array of values.
    Array(Tensor),
    /// JSON: nested lists for an array or a sequence of arrays, an object for a map, `null` for
    /// nothing.
    Json(Json),
    /// A message of ONNX: `TensorProto`, `SequenceProto`, `OptionalProto` or `MapProto`.
    Protobuf(Vec<u8>),
}

/// An array of a file.
#[derive(Debug, Clone)]
pub struct GivenArray {
    /// Name in the file, or the name that the user gave.
    pub name: Option<String>,
    /// Raw input in the file.
    pub value: Given,
    /// The file, for errors.
    pub file: String,
}

impl Given {
    /// Parses a JSON text. Returns the fields of an object with their names, or one value without a
    /// name.
    ///
    /// # Errors
    /// E001 if the text is not JSON.
    pub fn from_json(text: &str) -> Result<Vec<(Option<String>, Self)>> {
        let wrong = |error| Error::format(format!("not valid JSON: {}", apr_core::foreign(&error)));
        Ok(match serde_json::from_str(text).map_err(wrong)? {
            Json::Object(mut fields) => {
                fields.sort_keys();
                fields.into_iter().map(|(name, json)| (Some(name), Self::Json(json))).collect()
            }
            json => vec![(None, Self::Json(json))],
        })
    }

    /// A message of ONNX; a tensor may have a name.
    #[must_use]
    pub fn from_protobuf(bytes: Vec<u8>) -> (Option<String>, Self) {
        (protobuf::name(&bytes), Self::Protobuf(bytes))
    }

    /// Returns the input as a value of a type. Elements are cast to the element type.
    ///
    /// # Errors
    /// E001 if the input is not such a value, E003 for elements that are not computed with.
    pub fn value(&self, kind: &ValueType) -> Result<Value> {
        match self {
            Self::Json(json) => from_json(json, kind, DEEPEST),
            Self::Protobuf(bytes) => protobuf::value(bytes, kind, DEEPEST),
            Self::Array(tensor) => match kind {
                ValueType::Unknown => Ok(tensor.clone().into()),
                ValueType::Tensor(_) | ValueType::SparseTensor(_) => array(tensor, kind),
                ValueType::Optional(inner) => {
                    self.value(inner).map(|value| Value::Optional(Some(Box::new(value))))
                }
                ValueType::Sequence(_) | ValueType::Map(..) => {
                    Err(Error::format("the input is a sequence or a map: use .json or an ONNX .pb"))
                }
            },
        }
    }
}

/// Returns arrays as the inputs of a graph, each with the type that the graph expects.
/// `is_only_file` means that all arrays are from one file.
///
/// # Errors
/// [`RunError::Request`] for names that the graph does not have or that occur twice. E001 for
/// arrays that are not values of an input's type.
pub fn array_inputs(
    body: &Body,
    found: &[GivenArray],
    is_only_file: bool,
) -> RunResult<Vec<(String, Value)>> {
    let open: Vec<&GraphValue> = body.inputs.iter().map(|id| body.value(*id)).collect();
    let named = |name: &str| open.iter().find(|value| value.name == name).copied();
    let needed: Vec<_> = open.iter().filter(|value| value.origin == ValueOrigin::Input).collect();
    let mut inputs: Vec<(String, Value)> = Vec::with_capacity(found.len());
    for GivenArray { name, value: given, file } in found {
        let value = match name {
            Some(name) => {
                // An .npy file names no array: its reader calls it so.
                named(name).or_else(|| only(&needed).filter(|_| is_only_file && name == "array"))
            }
            None => only(&needed),
        };
        let Some(value) = value else { return Err(no_such_input(name.as_deref(), body)) };
        if inputs.iter().any(|(given, _)| *given == value.name) {
            let name = Escaped(&value.name);
            let message = format!("duplicate input '{name}'");
            return Err(RunError::with_remedy(message, Remedy::NameInput));
        }
        let named = |error: Error| error.for_tensor(&value.name).in_file(file);
        let given = given.value(&value.kind).map_err(named)?;
        check_shape(&given, &value.kind).map_err(named)?;
        inputs.push((value.name.clone(), given));
    }

    Ok(inputs)
}

/// Refuses an array that has another number of dimensions than the input, or another size than a
/// stated one: many operators would take it, and compute something else.
fn check_shape(given: &Value, kind: &ValueType) -> Result<()> {
    let (Value::Tensor(tensor), ValueType::Tensor(stated)) = (given, kind) else { return Ok(()) };
    let Some(dims) = &stated.shape else { return Ok(()) };
    let fits = |(dim, size): (&Dim, &usize)| dim.size().is_none_or(|dim| dim == *size as u64);
    if dims.len() == tensor.rank() && dims.iter().zip(tensor.shape()).all(fits) {
        return Ok(());
    }
    let message =
        format!("the input is {stated}, and the array has the shape {:?}", tensor.shape());
    Err(Error::format(message))
}

/// The only input that a model needs.
fn only<'v>(needed: &[&&'v GraphValue]) -> Option<&'v GraphValue> {
    match needed {
        [value] => Some(value),
        _ => None,
    }
}

/// A sentence about the inputs that a graph has, up to a hundred of them.
#[must_use]
pub fn inputs_of(body: &Body) -> String {
    const LISTED: usize = 100;

    let needed = body
        .inputs
        .iter()
        .map(|id| body.value(*id))
        .filter(|value| value.origin == ValueOrigin::Input);
    let count = needed.clone().count();
    let names = needed.take(LISTED).map(|value| Escaped(&value.name).to_string());
    let names = names.collect::<Vec<_>>().join(", ");
    match count.saturating_sub(LISTED) {
        0 => format!("the model has the inputs {names}"),
        more => format!("the model has the inputs {names} and {more} more"),
    }
}

fn no_such_input(name: Option<&str>, body: &Body) -> RunError {
    let has = inputs_of(body);
    let message = match name {
        Some(name) => format!("no input '{}'; {has}", Escaped(name)),
        None => format!("ambiguous input; {has}"),
    };
    RunError::with_remedy(message, Remedy::NameInput)
}

fn from_json(json: &Json, kind: &ValueType, deepest: usize) -> Result<Value> {
    let deepest =
        deepest.checked_sub(1).ok_or_else(|| Error::format("values are nested too deep"))?;
    match (kind, json) {
        (ValueType::Optional(_), Json::Null) => Ok(Value::Optional(None)),
        (ValueType::Optional(inner), _) => {
            let value = from_json(json, inner, deepest)?;
            Ok(Value::Optional(Some(Box::new(value))))
        }
        (ValueType::Sequence(inner), Json::Array(items)) => {
            let items = items.iter().map(|item| from_json(item, inner, deepest));
            Ok(Value::Sequence(items.collect::<Result<_>>()?))
        }
        (ValueType::Sequence(_), _) => Err(Error::format("a sequence is a list in JSON")),
        (ValueType::Map(key, inner), Json::Object(fields)) => {
            let keys = entries(fields).map(|(key, _)| key.clone()).collect();
            let values: Json = entries(fields).map(|(_, value)| value.clone()).collect();
            let keys = Tensor::row(keys).cast(*key)?;
            let values = nested(&values)?;
            let values = match element(inner) {
                Some(element) => values.cast(element)?,
                None => values,
            };
            map(keys, values)
        }
        (ValueType::Map(..), _) => Err(Error::format("a map is an object in JSON")),
        _ => array(&nested(json)?, kind),
    }
}

#[cfg(test)]
mod tests {
    use apr_graph::{ElementType, TensorType};

    use super::*;

    fn floats() -> ValueType {
        ValueType::Tensor(TensorType { element: Some(ElementType::F32), shape: None })
    }

    fn parsed(text: &str, kind: &ValueType) -> Result<Value> {
        let mut given = Given::from_json(text).unwrap();
        given.remove(0).1.value(kind)
    }

    #[test]
    fn lists_are_read_by_the_type_of_their_input() {
        let of = ValueType::Sequence(Box::new(floats()));
        let Value::Sequence(items) = parsed("[[1, 2], [3]]", &of).unwrap() else { panic!() };
        assert_eq!(items[1].tensor().unwrap().values::<f32>().unwrap(), [3.0]);
        assert!(parsed("[[1, 2], [3]]", &floats()).is_err());
        let of = ValueType::Optional(Box::new(floats()));
        assert!(matches!(parsed("null", &of).unwrap(), Value::Optional(None)));
        let of = ValueType::Map(ElementType::I64, Box::new(floats()));
        let Value::Map { keys, values } = parsed(r#"{"x": {"4": 0.5}}"#, &of).unwrap() else {
            panic!()
        };
        assert_eq!(keys.values::<i64>().unwrap(), [4]);
        assert_eq!(values.values::<f32>().unwrap(), [0.5]);
        assert!(parsed(r#"{"x": {"four": 0.5}}"#, &of).is_err());
    }

    #[test]
    fn an_array_has_the_dimensions_and_the_stated_sizes_of_the_input() {
        let shape = vec![Dim::symbol("batch"), Dim::fixed(2)];
        let kind =
            ValueType::Tensor(TensorType { element: Some(ElementType::F32), shape: Some(shape) });
        let of = |shape: Vec<usize>| {
            let count = shape.iter().product();
            check_shape(&Tensor::new(shape, vec![0.0_f32; count]).unwrap().into(), &kind)
        };
        assert!(of(vec![7, 2]).is_ok());
        for wrong in [vec![2], vec![7, 2, 1], vec![7, 3]] {
            let error = of(wrong).unwrap_err();
            assert!(error.message().contains("f32[batch, 2]"), "{error}");
        }
        assert!(check_shape(&Tensor::row(vec![1.0_f32]).into(), &floats()).is_ok());
    }

    #[test]
    fn an_array_is_not_a_sequence() {
        let of = ValueType::Sequence(Box::new(floats()));
        assert!(Given::Array(Tensor::row(vec![1.0_f32])).value(&of).is_err());
    }
}
