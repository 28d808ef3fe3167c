//! Typed models of APRN files, as plain data (seed 004, appendix A).

use apr_core::{CheckpointReader, Error, Result, keys};
use apr_ops::elements::{Selection, elements};
use apr_registry::crypto::Unlock;
use apr_registry::{OpenOptions, open};
use serde_json::{Map, Value};
use wasm_bindgen::JsValue;
use wasm_bindgen::prelude::wasm_bindgen;

use crate::error::{Thrown, json};

/// The fields of a model of the type that is expected, as JSON: arrays are nested lists.
///
/// # Errors
/// E001 for another type and for what is no such file, E003 for a type whose payload tells nobody
/// but its own program what it holds, E004 where it is damaged, E005 without the right password,
/// E008 for an array of more than a million numbers.
#[wasm_bindgen]
pub fn load_typed(
    bytes: &[u8],
    expected: &str,
    password: Option<String>,
) -> std::result::Result<String, JsValue> {
    json(&fields(bytes, expected, password).map_err(Thrown::from)?)
}

fn fields(bytes: &[u8], expected: &str, password: Option<String>) -> Result<Value> {
    let mut options = OpenOptions::default();
    if let Some(password) = password {
        options.keys.unlock.push(Unlock::Password(password.into_bytes().into()));
    }
    let reader = open(bytes.to_vec(), "model", &options)?;
    let found = reader.metadata().text("model_type").unwrap_or(reader.format().name);
    if found != expected {
        return Err(Error::format(format!("a model of type '{found}', not '{expected}'")));
    }
    let own = reader.metadata().object(keys::APRN).and_then(|aprn| aprn.get("fields"));
    let Some(own) = own.and_then(Value::as_object) else {
        let message = format!("the fields of '{expected}' are known to its own program alone");
        return Err(Error::version(message));
    };
    let mut fields: Map<String, Value> = own.clone();
    for (position, info) in reader.tensors().iter().enumerate() {
        fields.insert(info.name.clone(), array(&*reader, position)?);
    }
    Ok(Value::Object(fields))
}

/// A tensor as nested lists; a scalar is a number.
fn array(reader: &dyn CheckpointReader, position: usize) -> Result<Value> {
    let shape = &reader.tensors()[position].shape;
    let selection = match shape.dims() {
        [] => Selection::corner(shape),
        _ => Selection::parse(":", shape)?,
    };
    let read = elements(reader, "", position, &selection)?;
    let mut values: Vec<Value> = read.values.into_iter().map(Value::from).collect();
    for &dim in shape.dims().iter().skip(1).rev() {
        let dim = usize::try_from(dim).unwrap_or(usize::MAX).max(1);
        values = values.chunks(dim).map(|row| Value::Array(row.to_vec())).collect();
    }
    Ok(match shape.dims() {
        [] => values.into_iter().next().unwrap_or_default(),
        _ => Value::Array(values),
    })
}
