//! Parts of a body as a body of their own, without what they don't need.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use crate::{Body, Node, NodeId, Value, ValueId, ValueOrigin};

/// A part of a body.
pub(super) struct Part<'a> {
    /// Range of nodes. Nodes that are not needed are left out of the result.
    pub(super) nodes: Range<usize>,
    /// Inputs of the part.
    pub(super) inputs: &'a [ValueId],
    /// Outputs of the part.
    pub(super) outputs: &'a [ValueId],
}

impl Part<'_> {
    /// The part as a body. `given` are values that nodes outside of it make, and that are among its
    /// inputs.
    pub(super) fn of(&self, whole: &Body, given: &[ValueId]) -> Body {
        let needed = needed(whole, self.nodes.clone(), self.outputs);
        let mut body = Body { name: whole.name.clone(), doc: whole.doc.clone(), ..Body::default() };
        let mut places: HashMap<ValueId, ValueId> = HashMap::new();
        let inputs: HashSet<ValueId> = given.iter().copied().collect();
        let mut place = |body: &mut Body, id: ValueId| {
            *places.entry(id).or_insert_with(|| {
                let mut value: Value = whole.value(id).clone();
                if inputs.contains(&id) {
                    value.origin = ValueOrigin::Input;
                }
                body.values.push(value);
                ValueId(u32::try_from(body.values.len() - 1).unwrap_or(u32::MAX))
            })
        };

        body.inputs = self.inputs.iter().map(|id| place(&mut body, *id)).collect();
        for at in needed {
            let node: &Node = &whole.nodes[at];
            let mut moved = node.clone();
            for id in moved.inputs.iter_mut().chain(&mut moved.outputs).flatten() {
                *id = place(&mut body, *id);
            }
            let number = NodeId(u32::try_from(body.nodes.len()).unwrap_or(u32::MAX));
            for output in moved.outputs.iter().flatten() {
                body.value_mut(*output).origin = ValueOrigin::Node(number);
            }
            body.nodes.push(moved);
        }
        body.outputs = self.outputs.iter().map(|id| place(&mut body, *id)).collect();
        body
    }
}

/// Nodes that some values need, in order.
fn needed(body: &Body, nodes: Range<usize>, outputs: &[ValueId]) -> Vec<usize> {
    let mut wanted: HashSet<ValueId> = outputs.iter().copied().collect();
    let mut needed = Vec::new();
    for at in nodes.rev() {
        let node = &body.nodes[at];
        if node.outputs.iter().flatten().any(|id| wanted.contains(id)) {
            wanted.extend(node.inputs.iter().flatten());
            needed.push(at);
        }
    }
    needed.reverse();
    needed
}

/// Values that the needed ones of some nodes read.
pub(super) fn read(body: &Body, nodes: Range<usize>, outputs: &[ValueId]) -> HashSet<ValueId> {
    let needed = needed(body, nodes, outputs);
    let inputs = needed.into_iter().flat_map(|at| body.nodes[at].inputs.iter().flatten().copied());
    inputs.chain(outputs.iter().copied()).collect()
}

/// Returns the values that nodes before a position produce and that needed nodes after it read.
///
/// The values are in the order in which they are produced.
pub(super) fn read_across(body: &Body, place: usize) -> Vec<ValueId> {
    let read = read(body, place..body.nodes.len(), &body.outputs);
    let made = body.nodes[..place].iter().flat_map(|node| node.outputs.iter().flatten().copied());
    made.filter(|id| read.contains(id)).collect()
}
