//! Bodies: nodes in the order they run, and the values between them.

use std::collections::BTreeSet;

use crate::check::order;
use crate::{Meaning, Node, Value, ValueOrigin, ValueType, WeightRef};

/// Position in [`Body::values`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

/// Position in [`Body::nodes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

/// Nodes and the values between them: the model itself, a function, a branch, what a loop repeats.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Body {
    /// Name of the body (empty if it has none).
    pub name: String,
    /// Values of the body, including the values of the enclosing body that are used here
    /// ([`ValueOrigin::Outer`]).
    pub values: Vec<Value>,
    /// Nodes in order: each follows the nodes whose outputs it reads, unless a check reports
    /// otherwise.
    pub nodes: Vec<Node>,
    /// Inputs that the caller passes.
    pub inputs: Vec<ValueId>,
    /// Outputs that the caller receives.
    pub outputs: Vec<ValueId>,
    /// A note for people.
    pub doc: String,
}

impl Body {
    /// Returns the value with this id.
    ///
    /// # Panics
    /// When the id is of another body.
    #[must_use]
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0 as usize]
    }

    /// A value, to be changed.
    ///
    /// # Panics
    /// When the id is of another body.
    pub fn value_mut(&mut self, id: ValueId) -> &mut Value {
        &mut self.values[id.0 as usize]
    }

    /// Returns the node with this id.
    ///
    /// # Panics
    /// When the id is of another body.
    #[must_use]
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    /// Adds a value.
    ///
    /// # Panics
    /// With more than 2^32 values, which no memory holds.
    pub fn add_value(
        &mut self,
        name: impl Into<String>,
        kind: ValueType,
        origin: ValueOrigin,
    ) -> ValueId {
        let id =
            ValueId(u32::try_from(self.values.len()).expect("a body has fewer than 2^32 values"));
        self.values.push(Value { name: name.into(), kind, origin, meaning: Meaning::Unknown });
        id
    }

    /// Adds a node, and makes it the origin of its outputs.
    ///
    /// # Panics
    /// With more than 2^32 nodes, which no memory holds.
    pub fn add_node(&mut self, node: Node) -> NodeId {
        let id = NodeId(u32::try_from(self.nodes.len()).expect("a body has fewer than 2^32 nodes"));
        for output in node.outputs.iter().flatten() {
            self.value_mut(*output).origin = ValueOrigin::Node(id);
        }
        self.nodes.push(node);
        id
    }

    /// Sorts the nodes so that each follows the nodes whose outputs it reads.
    ///
    /// The order is otherwise unchanged. Nodes that form a cycle are placed last.
    pub fn sort_nodes(&mut self) {
        let readers = order::readers(self);
        let mut waits = vec![0_usize; self.nodes.len()];
        readers.iter().flatten().for_each(|reader| waits[*reader] += 1);
        let mut ready: BTreeSet<usize> =
            (0..waits.len()).filter(|position| waits[*position] == 0).collect();
        let mut sorted = Vec::with_capacity(waits.len());
        while let Some(position) = ready.pop_first() {
            sorted.push(position);
            for &reader in &readers[position] {
                waits[reader] -= 1;
                if waits[reader] == 0 {
                    ready.insert(reader);
                }
            }
        }
        sorted.extend((0..waits.len()).filter(|position| waits[*position] > 0));
        let mut nodes: Vec<Option<Node>> =
            std::mem::take(&mut self.nodes).into_iter().map(Some).collect();
        for position in sorted {
            if let Some(node) = nodes[position].take() {
                self.add_node(node);
            }
        }
    }

    /// Returns the weights that the body itself uses, without the weights of bodies in its nodes.
    pub fn weights(&self) -> impl Iterator<Item = (&Value, &WeightRef)> {
        self.values.iter().filter_map(|value| match &value.origin {
            ValueOrigin::Weight(weight) => Some((value, weight)),
            _ => None,
        })
    }

    /// Returns the weights that are in `Constant` nodes, with the values that the nodes output.
    pub(crate) fn constant_weights(&self) -> impl Iterator<Item = (&Value, &WeightRef)> {
        self.nodes.iter().filter_map(|node| {
            let output = node.outputs.first().copied().flatten()?;
            Some((self.value(output), node.constant_weight()?))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Op;

    #[test]
    fn nodes_are_sorted_after_the_nodes_that_they_read() {
        let mut body = Body::default();
        let values: Vec<ValueId> = (0..4)
            .map(|value| {
                body.add_value(format!("v{value}"), ValueType::Unknown, ValueOrigin::Missing)
            })
            .collect();
        // c reads b, b reads a, d reads itself.
        for (name, input, output) in
            [("c", Some(1), 2), ("a", None, 0), ("b", Some(0), 1), ("d", Some(3), 3)]
        {
            body.add_node(Node {
                name: name.to_owned(),
                op: Op::onnx("Relu"),
                inputs: input.map(|input: usize| Some(values[input])).into_iter().collect(),
                outputs: vec![Some(values[output])],
                attributes: Vec::new(),
                doc: String::new(),
            });
        }
        body.sort_nodes();
        let names: Vec<&str> = body.nodes.iter().map(|node| node.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "c", "d"]);
        assert_eq!(body.value(values[2]).origin, ValueOrigin::Node(NodeId(2)));
    }
}
