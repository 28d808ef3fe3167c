//! Transposes of transposes.

use apr_graph::{Attribute, AttributeValue, Body, Node, ValueId};

use super::edit::{maker, only_output, reads};

/// Joins such transposes, and returns their number. A joined transpose without effect is for
/// [`no_ops`](super::no_ops), and a node that nothing reads any more for [`dead`](super::dead).
pub(super) fn run(body: &mut Body) -> u64 {
    let reads = reads(body);
    let mut changes = 0;
    for position in 0..body.nodes.len() {
        let Some((input, order)) = joined(body, &body.nodes[position], &reads) else { continue };
        let node = &mut body.nodes[position];
        node.inputs = vec![Some(input)];
        node.attributes.retain(|attribute| &*attribute.name != "perm");
        let value = AttributeValue::Ints(order);
        node.attributes.push(Attribute { name: "perm".into(), value });
        changes += 1;
    }
    changes
}

/// Returns the input and the order for a transpose of a transpose.
fn joined(body: &Body, node: &Node, reads: &[u32]) -> Option<(ValueId, Vec<i64>)> {
    let last = order(body, node)?;
    let between = node.input(0)?;
    let before = maker(body, between)?;
    let (first, input) = (order(body, before)?, before.input(0)?);
    only_output(before)?;
    let order: Vec<i64> = last
        .iter()
        .map(|&at| first.get(usize::try_from(at).ok()?).copied())
        .collect::<Option<_>>()?;
    let is_back = order.iter().copied().eq(0..order.len() as i64);
    // If others read the value between, two nodes stay two.
    (order.len() == first.len() && (is_back || reads[between.0 as usize] == 1))
        .then_some((input, order))
}

/// Returns the order of a `Transpose`.
fn order(body: &Body, node: &Node) -> Option<Vec<i64>> {
    if !node.op.is("Transpose") {
        return None;
    }
    match node.ints("perm") {
        Some(order) => Some(order.to_vec()),
        None => {
            let rank = body.value(node.input(0)?).shape()?.len() as i64;
            Some((0..rank).rev().collect())
        }
    }
}
