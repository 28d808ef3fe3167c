//! What of a SavedModel is written: a signature, whose names inputs and outputs get.

use std::collections::HashSet;

use apr_core::Metadata;
use apr_graph::{Body, Dim, TensorType, ValueId, ValueType};
use serde_json::{Map, Value};

use super::elementwise::element;
use crate::METADATA;

/// The signature that programs use when they name none.
const DEFAULT: &str = "serving_default";

/// Inputs and outputs by the names that callers use for them.
pub(super) struct Signature {
    pub(super) inputs: Vec<(ValueId, String, ValueType)>,
    pub(super) outputs: Vec<(String, ValueId)>,
}

impl Signature {
    /// The signature that the metadata has, or else all inputs and outputs under their own names.
    pub(super) fn of(body: &Body, metadata: &Metadata) -> Self {
        let own = metadata.object(METADATA);
        let signatures = own.and_then(|own| own.get("signatures")).and_then(Value::as_object);
        let found = signatures.and_then(|signatures| named(body, chosen(signatures)?));
        found.unwrap_or_else(|| {
            let name = |id: &ValueId| body.value(*id).name.clone();
            let input = |id: &ValueId| (*id, name(id), body.value(*id).kind.clone());
            Self {
                inputs: body.inputs.iter().map(input).collect(),
                outputs: body.outputs.iter().map(|id| (name(id), *id)).collect(),
            }
        })
    }

    /// Returns the callers' name of an input. Any value can be an input, even an output of a node.
    pub(super) fn input(&self, id: ValueId) -> Option<&str> {
        let found = self.inputs.iter().find(|(own, ..)| *own == id);
        found.map(|(_, name, _)| name.as_str())
    }
}

/// The signature by default, or the only one of the model's own.
fn chosen(signatures: &Map<String, Value>) -> Option<&Value> {
    if let Some(own) = signatures.get(DEFAULT) {
        return Some(own);
    }
    let mut own = signatures.iter().filter(|(name, _)| !is_internal(name));
    let (_, first) = own.next()?;
    own.next().is_none().then_some(first)
}

/// Returns `true` for a signature that TensorFlow itself calls.
fn is_internal(name: &str) -> bool {
    name.starts_with("__")
}

/// Names of the signatures of a SavedModel that [`lower`](super::lower) leaves out.
#[must_use]
pub fn signatures_left_out(metadata: &Metadata) -> Vec<&str> {
    let own = metadata.object(METADATA).and_then(|own| own.get("signatures"));
    let Some(signatures) = own.and_then(Value::as_object) else { return Vec::new() };
    let has_default = signatures.contains_key(DEFAULT);
    let others = signatures.keys().map(String::as_str);
    others.filter(|name| has_default && *name != DEFAULT && !is_internal(name)).collect()
}

/// Returns the values of a signature, or `None` if one is missing.
fn named(body: &Body, signature: &Value) -> Option<Signature> {
    let find = |info: &Value| {
        let name = info.get("name")?.as_str()?;
        let name = name.strip_suffix(":0").unwrap_or(name);
        let position = body.values.iter().position(|value| value.name == name)?;
        u32::try_from(position).ok().map(ValueId)
    };
    let entries = |key: &str| signature.get(key).and_then(Value::as_object).into_iter().flatten();
    let inputs = entries("inputs").map(|(name, info)| {
        let id = find(info)?;
        let kind = match &body.value(id).kind {
            ValueType::Unknown => stated(info),
            known => known.clone(),
        };
        Some((id, name.clone(), kind))
    });
    let inputs: Vec<(ValueId, String, ValueType)> = inputs.collect::<Option<_>>()?;
    let taken: HashSet<&String> = inputs.iter().map(|(_, name, _)| name).collect();
    let outputs = entries("outputs").map(|(name, info)| {
        // An output may be called like an input, which ONNX does not allow.
        let name = if taken.contains(name) { format!("{name}/output") } else { name.clone() };
        Some((name, find(info)?))
    });
    let outputs: Vec<(String, ValueId)> = outputs.collect::<Option<_>>()?;
    (!outputs.is_empty()).then_some(Signature { inputs, outputs })
}

/// The type that a signature states. One without sizes may have any number of them.
fn stated(info: &Value) -> ValueType {
    let sizes = info.get("shape").and_then(Value::as_array).filter(|sizes| !sizes.is_empty());
    let dim = |(position, size): (usize, &Value)| match (size.as_u64(), position) {
        (Some(size), _) => Dim::fixed(size),
        (None, 0) => Dim::symbol("batch"),
        (None, _) => Dim::Unknown,
    };
    ValueType::Tensor(TensorType {
        element: info.get("dtype").and_then(Value::as_str).and_then(element),
        shape: sizes
            .filter(|sizes| sizes.len() <= apr_graph::MAX_RANK)
            .map(|sizes| sizes.iter().enumerate().map(dim).collect()),
    })
}
