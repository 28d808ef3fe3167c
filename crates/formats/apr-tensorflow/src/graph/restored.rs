//! Which key of the checkpoint a variable of a SavedModel is read from.
//!
//! Variables of one program may have one name: the function that restores the model says which is
//! which. `RestoreV2` reads keys in order, and each `AssignVariableOp` writes what it read to an
//! argument; the caller gives the node of the variable for it.

use std::collections::HashMap;

use apr_core::Result;
use apr_core::protobuf::Walker;

use super::attributes;
use super::body::owner;
use super::nodes::{FunctionDef, NodeDef};
use crate::constants::TensorProto;
use crate::open::VALUE;

/// Keys, as the reader's tensors are called, by the nodes of the variables.
///
/// # Errors
/// E002 for damaged attributes, E007 when reading fails, E008 over the limit.
pub(super) fn restored(
    walker: &mut Walker<'_>,
    nodes: &[NodeDef],
    functions: &[FunctionDef],
) -> Result<HashMap<String, String>> {
    let mut restoring: HashMap<&str, HashMap<usize, String>> = HashMap::new();
    for function in functions {
        if let Some(restore) = function.nodes.iter().find(|node| node.op == "RestoreV2") {
            restoring.insert(function.name.as_str(), arguments(walker, function, restore)?);
        }
    }
    let mut keys = HashMap::new();
    if restoring.is_empty() {
        return Ok(keys);
    }
    for node in nodes.iter().filter(|node| node.op.ends_with("PartitionedCall")) {
        for attribute in &node.attributes {
            let (name, value) = attributes::entry(walker, *attribute)?;
            let function = value.function.filter(|_| name == "f");
            let Some(found) = function.and_then(|function| restoring.get(function.as_str())) else {
                continue;
            };
            for (position, key) in found {
                if let Some(input) = node.inputs.get(*position) {
                    walker.keep((input.len() + key.len()) as u64)?;
                    keys.insert(owner(input).to_owned(), key.clone());
                }
            }
        }
    }
    Ok(keys)
}

/// The keys that a function writes to its arguments, by their positions.
fn arguments(
    walker: &mut Walker<'_>,
    function: &FunctionDef,
    restore: &NodeDef,
) -> Result<HashMap<usize, String>> {
    let by_name: HashMap<&str, &NodeDef> =
        function.nodes.iter().map(|node| (node.name.as_str(), node)).collect();
    let names = restore.inputs.get(1).and_then(|names| by_name.get(owner(names)));
    let mut texts = Vec::new();
    for attribute in names.iter().flat_map(|names| &names.attributes) {
        let (name, value) = attributes::entry(walker, *attribute)?;
        if let Some(tensor) = value.tensor.filter(|_| name == "value") {
            texts = TensorProto::read(walker, tensor)?.texts(walker)?;
        }
    }
    let positions: HashMap<&str, usize> =
        (0..).zip(&function.arguments).map(|(at, (name, _))| (name.as_str(), at)).collect();
    let mut keys = HashMap::new();
    for node in function.nodes.iter().filter(|node| node.op == "AssignVariableOp") {
        let [handle, value, ..] = node.inputs.as_slice() else { continue };
        // What was read may pass through a node.
        let value = match by_name.get(owner(value)) {
            Some(node) if node.op == "Identity" => node.inputs.first().unwrap_or(value),
            _ => value,
        };
        let number = value.strip_prefix(restore.name.as_str()).and_then(|rest| {
            let number = rest.strip_prefix(":tensors:")?;
            number.parse::<usize>().ok()
        });
        let key = number.and_then(|number| texts.get(number));
        let key = key.and_then(|key| std::str::from_utf8(key).ok());
        if let (Some(position), Some(key)) = (positions.get(handle.as_str()), key) {
            keys.insert(*position, key.strip_suffix(VALUE).unwrap_or(key).to_owned());
        }
    }
    Ok(keys)
}
