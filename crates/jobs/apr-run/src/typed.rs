//! Values of the types that a graph says.

use apr_graph::{ElementType, ValueType};
use apr_infer::{Tensor, Value};
use apr_registry::{Error, Result};

/// Returns the element type, if the type declares one.
pub(super) fn element(kind: &ValueType) -> Option<ElementType> {
    match kind {
        ValueType::Tensor(tensor) | ValueType::SparseTensor(tensor) => tensor.element,
        _ => None,
    }
}

/// Casts a tensor to the element type of a type.
pub(super) fn array(tensor: &Tensor, kind: &ValueType) -> Result<Value> {
    tensor.cast(element(kind).unwrap_or(tensor.element())).map(Value::from)
}

/// A map of keys and values of one type.
///
/// # Errors
/// E001 where they are not as many, or keys are there twice.
pub(super) fn map(keys: Tensor, values: Tensor) -> Result<Value> {
    if keys.len() != values.len() {
        return Err(Error::format(format!("{} keys have {} values", keys.len(), values.len())));
    }
    Ok(Value::Map { keys, values })
}
