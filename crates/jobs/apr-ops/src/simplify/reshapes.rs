//! Reshapes of reshapes, and reshapes to a computed shape that is nearly known.

use apr_core::UniqueNames;
use apr_graph::{Body, Constant, Dim, Node, Op, ValueId, ValueOrigin, ValueType};

use super::edit::{constant, ints, maker, only_output, reads};
use super::facts::Facts;

/// The first version of ONNX's operators in which the shape is an input.
const WITH_SHAPES: i64 = 5;

/// Simplifies reshapes, and returns the number of changes.
pub(super) fn run(body: &mut Body, facts: &Facts, opset: i64, names: &mut UniqueNames) -> u64 {
    if opset < WITH_SHAPES {
        return 0;
    }
    let mut changes = 0;
    for position in 0..body.nodes.len() {
        if let Some(shape) = nearly_known(body, &body.nodes[position], facts) {
            let shape = shape_value(body, names, &shape);
            body.nodes[position].inputs[1] = Some(shape);
            changes += 1;
        }
    }

    let reads = reads(body);
    for position in 0..body.nodes.len() {
        let Some((input, shape)) = joined(body, &body.nodes[position], &reads) else { continue };
        let shape = match shape {
            Shape::Own(value) => value,
            Shape::Computed(sizes) => shape_value(body, names, &sizes),
        };
        let node = &mut body.nodes[position];
        node.op = Op::onnx("Reshape");
        node.inputs = vec![Some(input), Some(shape)];
        node.attributes.retain(|attribute| &*attribute.name == "allowzero");
        changes += 1;
    }
    changes
}

fn shape_value(body: &mut Body, names: &mut UniqueNames, sizes: &[i64]) -> ValueId {
    let constant = Constant::ints(sizes);
    let kind = ValueType::tensor(constant.element, [Dim::fixed(sizes.len() as u64)]);
    body.add_value(names.unique("shape"), kind, ValueOrigin::Constant(constant))
}

/// Returns the shape that a node computes for a `Reshape`, if sizes are known up to one, which
/// follows from the others, or are dimensions of the input at the same place.
fn nearly_known(body: &Body, node: &Node, facts: &Facts) -> Option<Vec<i64>> {
    if !node.op.is("Reshape") || node.int("allowzero").is_some_and(|allows| allows != 0) {
        return None;
    }
    let shape = node.input(1)?;
    maker(body, shape)?;
    let dims = facts.elements(shape)?;
    with_one_open(dims).or_else(|| copied(dims, body.value(node.input(0)?).shape()?))
}

/// Returns sizes in which 0 is the size of the input at the same place.
fn copied(dims: &[Dim], input: &[Dim]) -> Option<Vec<i64>> {
    let size = |(at, dim): (usize, &Dim)| match dim.as_integer() {
        Some(size) => (size > 0).then_some(size),
        None => (*dim != Dim::Unknown && input.get(at) == Some(dim)).then_some(0),
    };
    dims.iter().enumerate().map(size).collect()
}

/// Returns sizes of which at most one is -1, which follows from the number of elements.
fn with_one_open(dims: &[Dim]) -> Option<Vec<i64>> {
    let sizes: Vec<i64> = dims
        .iter()
        .map(|dim| match dim.as_integer() {
            Some(size) => (size > 0 || size == -1).then_some(size),
            None => Some(-1),
        })
        .collect::<Option<_>>()?;
    (sizes.iter().filter(|size| **size == -1).count() <= 1).then_some(sizes)
}

enum Shape {
    /// A value of the body.
    Own(ValueId),
    Computed(Vec<i64>),
}

/// Returns the input and the shape for a reshape of a reshape that nothing else reads.
fn joined(body: &Body, node: &Node, reads: &[u32]) -> Option<(ValueId, Shape)> {
    let output = only_output(node)?;
    let between = node.input(0).filter(|_| is_reshape(node))?;
    let before = maker(body, between).filter(|before| is_reshape(before))?;
    if reads[between.0 as usize] != 1 {
        return None;
    }
    let input = before.input(0)?;
    let own = node.input(1).filter(|shape| {
        let is_plain = || ints(body, *shape).is_some_and(|sizes| !sizes.contains(&0));
        node.op.is("Reshape") && constant(body, *shape).is_some() && is_plain()
    });
    let computed = || with_one_open(body.value(output).shape()?).map(Shape::Computed);
    Some((input, own.map(Shape::Own).or_else(computed)?))
}

/// Returns `true` if a node keeps all elements in their order.
fn is_reshape(node: &Node) -> bool {
    ["Reshape", "Flatten", "Squeeze", "Unsqueeze"].iter().any(|name| node.op.is(name))
}
