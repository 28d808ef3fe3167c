//! Branches whose condition is known.

use std::collections::HashMap;

use apr_core::UniqueNames;
use apr_graph::{AttributeValue, Body, ConstantData, ElementType, Node, Op, ValueId, ValueOrigin};

use super::edit::{bodies_mut, constant, set_origins};

/// Replaces each `If` with a constant condition by the nodes of its branch, and returns the number
/// of such nodes.
pub(super) fn run(body: &mut Body, names: &mut UniqueNames) -> u64 {
    if !body.nodes.iter().any(|node| condition(body, node).is_some()) {
        return 0;
    }
    let mut count = 0;
    for mut node in std::mem::take(&mut body.nodes) {
        match condition(body, &node).and_then(|holds| branch(&mut node, holds)) {
            Some(branch) => {
                inline(body, &node, branch, names);
                count += 1;
            }
            None => body.nodes.push(node),
        }
    }
    set_origins(body);
    count
}

/// Returns the value of a constant condition.
fn condition(body: &Body, node: &Node) -> Option<bool> {
    let input = node.input(0).filter(|_| node.op.is("If"))?;
    let constant = constant(body, input).filter(|it| it.element == ElementType::Bool)?;
    match &constant.data {
        ConstantData::Bytes(bytes) if bytes.len() == 1 => Some(bytes[0] != 0),
        _ => None,
    }
}

/// Takes a branch out of a node, if both have the same number of outputs.
fn branch(node: &mut Node, holds: bool) -> Option<Body> {
    let name = if holds { "then_branch" } else { "else_branch" };
    let outputs = node.outputs.len();
    let attribute = node.attributes.iter_mut().find(|attribute| &*attribute.name == name)?;
    match &mut attribute.value {
        AttributeValue::Body(body) if body.outputs.len() == outputs && body.inputs.is_empty() => {
            Some(std::mem::take(&mut **body))
        }
        _ => None,
    }
}

/// Adds the nodes of a branch to the body around it. They make the outputs of the node.
fn inline(body: &mut Body, node: &Node, branch: Body, names: &mut UniqueNames) {
    let mut places: HashMap<ValueId, ValueId> = HashMap::new();
    let mut passed = Vec::new();
    for (id, output) in branch.outputs.iter().zip(&node.outputs) {
        let Some(output) = *output else { continue };
        let is_made = matches!(branch.value(*id).origin, ValueOrigin::Node(_));
        // A second output of one value, and a value that no node makes, need a copy.
        if is_made && !places.contains_key(id) {
            places.insert(*id, output);
        } else {
            passed.push((*id, output));
        }
    }
    for (id, value) in (0..).map(ValueId).zip(branch.values) {
        if places.contains_key(&id) {
            continue;
        }
        let place = match value.origin {
            ValueOrigin::Outer(of) => of,
            origin => {
                let origin = match origin {
                    ValueOrigin::Node(_) => ValueOrigin::Missing,
                    other => other,
                };
                body.add_value(names.unique(value.name), value.kind, origin)
            }
        };
        places.insert(id, place);
    }

    let place = |id: &mut ValueId| {
        if let Some(place) = places.get(&*id) {
            *id = *place;
        }
    };
    for mut node in branch.nodes {
        node.inputs.iter_mut().chain(&mut node.outputs).flatten().for_each(place);
        for value in bodies_mut(&mut node).flat_map(|inner| &mut inner.values) {
            if let ValueOrigin::Outer(of) = &mut value.origin {
                place(of);
            }
        }
        body.nodes.push(node);
    }
    for (mut input, output) in passed {
        place(&mut input);
        body.nodes.push(Node {
            name: names.unique(node.name.clone()),
            op: Op::onnx("Identity"),
            inputs: vec![Some(input)],
            outputs: vec![Some(output)],
            attributes: Vec::new(),
            doc: String::new(),
        });
    }
}
