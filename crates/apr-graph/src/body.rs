//! Bodies: nodes in the order they run, and the values between them.

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
    /// Name; empty where nobody gave one.
    pub name: String,
    /// All values, those of the body around included that are used here ([`ValueOrigin::Outer`]).
    pub values: Vec<Value>,
    /// The nodes; each comes after what it reads, unless a check says otherwise.
    pub nodes: Vec<Node>,
    /// What the caller gives.
    pub inputs: Vec<ValueId>,
    /// What the caller gets.
    pub outputs: Vec<ValueId>,
    /// A note for people.
    pub doc: String,
}

impl Body {
    /// A value.
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

    /// A node.
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

    /// The weights that it uses by itself, without those of bodies in its nodes.
    pub fn weights(&self) -> impl Iterator<Item = (&Value, &WeightRef)> {
        self.values.iter().filter_map(|value| match &value.origin {
            ValueOrigin::Weight(weight) => Some((value, weight)),
            _ => None,
        })
    }
}
