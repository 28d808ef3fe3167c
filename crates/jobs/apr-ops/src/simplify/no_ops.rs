//! Nodes that return their input.

use apr_graph::{Body, Node, ValueId};

use super::edit::{Edit, constant, ints, is_same_shape, only_output};

/// Removes such nodes, and returns their number.
pub(super) fn run(body: &mut Body, opset: i64) -> u64 {
    let mut edit = Edit::of(body);
    let reads = super::edit::reads(body);
    for (position, node) in body.nodes.iter().enumerate() {
        let is_read = |id: ValueId| reads[id.0 as usize] > 0;
        let Some((input, output)) = passed_on(body, node, opset, is_read) else { continue };
        if edit.can_join(body, input, output) {
            edit.join(input, output);
            edit.remove(position);
        }
    }
    edit.apply(body)
}

/// Returns the input that a node returns, and its output.
fn passed_on(
    body: &Body,
    node: &Node,
    opset: i64,
    is_read: impl Fn(ValueId) -> bool,
) -> Option<(ValueId, ValueId)> {
    if !node.op.domain.is_empty() {
        return None;
    }
    let input = node.input(0)?;
    if &*node.op.name == "Dropout" {
        let (output, mask) = (node.outputs.first().copied().flatten()?, node.outputs.get(1));
        let has_mask = mask.copied().flatten().is_some_and(is_read);
        return (!has_mask && is_inference(body, node, opset)).then_some((input, output));
    }
    let output = only_output(node)?;
    let is_same = || is_same_shape(body.value(input), body.value(output));
    let passes = match &*node.op.name {
        "Identity" => true,
        "Concat" | "Sum" | "Max" | "Min" | "Mean" => node.inputs.len() == 1,
        "Cast" | "CastLike" => {
            let element = body.value(input).element();
            element.is_some() && element == body.value(output).element()
        }
        "Transpose" => {
            node.ints("perm").is_some_and(|order| order.iter().copied().eq(0..order.len() as i64))
                || body.value(input).shape().is_some_and(|shape| shape.len() <= 1)
        }
        "Reshape" | "Flatten" | "Expand" | "Squeeze" | "Unsqueeze" => is_same(),
        // With steps of 1 a slice of the same sizes has everything.
        "Slice" => is_same() && is_all(body, node.input(4), 1),
        "Tile" => opset >= 6 && is_given(body, node.input(1), 1),
        "Pad" => opset >= 11 && is_same() && is_given(body, node.input(1), 0),
        _ => false,
    };
    passes.then_some((input, output))
}

/// Returns `true` for a `Dropout` without effect.
fn is_inference(body: &Body, node: &Node, opset: i64) -> bool {
    match opset {
        12.. => node.input(2).is_none_or(|mode| ints(body, mode).is_some_and(|mode| mode == [0])),
        7.. => true,
        _ => node.int("is_test") == Some(1),
    }
}

/// Returns `true` if an input is absent or [`is_given`].
fn is_all(body: &Body, input: Option<ValueId>, number: i64) -> bool {
    input.is_none_or(|input| is_given(body, Some(input), number))
}

/// Returns `true` if an input is a constant with this number everywhere.
fn is_given(body: &Body, input: Option<ValueId>, number: i64) -> bool {
    let Some(input) = input.filter(|input| constant(body, *input).is_some()) else { return false };
    ints(body, input).is_some_and(|numbers| numbers.iter().all(|each| *each == number))
}
