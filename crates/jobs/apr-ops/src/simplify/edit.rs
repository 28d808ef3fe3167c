//! Changes of a body that a pass collects and then makes together.

use std::collections::{HashMap, HashSet};

use apr_graph::{AttributeValue, Body, Constant, Dim, Node, NodeId, Value, ValueId, ValueOrigin};

/// Nodes to remove, and values that replace others.
#[derive(Default)]
pub(super) struct Edit {
    replaced: HashMap<ValueId, ValueId>,
    removed: HashSet<usize>,
    outputs: HashSet<ValueId>,
}

impl Edit {
    pub(super) fn of(body: &Body) -> Self {
        Self { outputs: body.outputs.iter().copied().collect(), ..Self::default() }
    }

    /// Returns the value that replaces another.
    pub(super) fn now(&self, mut value: ValueId) -> ValueId {
        while let Some(by) = self.replaced.get(&value) {
            value = *by;
        }
        value
    }

    /// Returns `true` for an output of the body.
    pub(super) fn is_output(&self, value: ValueId) -> bool {
        self.outputs.contains(&self.now(value))
    }

    pub(super) fn remove(&mut self, node: usize) {
        self.removed.insert(node);
    }

    /// Returns `true` if [`join`](Self::join) is possible.
    pub(super) fn can_join(&self, body: &Body, kept: ValueId, other: ValueId) -> bool {
        // An output keeps its name, and a node must make it.
        let is_made = matches!(body.value(self.now(kept)).origin, ValueOrigin::Node(_));
        !self.is_output(other) || is_made && !self.is_output(kept)
    }

    /// Replaces `other`, whose node is removed, by `kept`, which has the same elements. If `other`
    /// is an output, the node that makes `kept` makes `other` instead.
    pub(super) fn join(&mut self, kept: ValueId, other: ValueId) {
        let (kept, other) = (self.now(kept), self.now(other));
        if kept == other {
            return;
        }
        let (from, to) = if self.is_output(other) { (kept, other) } else { (other, kept) };
        self.replaced.insert(from, to);
    }

    /// Makes the changes, and returns the number of removed nodes.
    pub(super) fn apply(self, body: &mut Body) -> u64 {
        if self.removed.is_empty() && self.replaced.is_empty() {
            return 0;
        }
        let nodes = std::mem::take(&mut body.nodes);
        for (position, mut node) in nodes.into_iter().enumerate() {
            if self.removed.contains(&position) {
                continue;
            }
            let ids = node.inputs.iter_mut().chain(&mut node.outputs).flatten();
            ids.for_each(|id| *id = self.now(*id));
            for inner in bodies_mut(&mut node) {
                for value in &mut inner.values {
                    if let ValueOrigin::Outer(of) = &mut value.origin {
                        *of = self.now(*of);
                    }
                }
            }
            body.nodes.push(node);
        }
        set_origins(body);
        self.removed.len() as u64
    }
}

/// Sets the origins of all values that nodes make.
pub(crate) fn set_origins(body: &mut Body) {
    for value in &mut body.values {
        if matches!(value.origin, ValueOrigin::Node(_)) {
            value.origin = ValueOrigin::Missing;
        }
    }
    for (position, node) in (0..).zip(&body.nodes) {
        for output in node.outputs.iter().flatten() {
            body.values[output.0 as usize].origin = ValueOrigin::Node(NodeId(position));
        }
    }
}

/// Returns the number of readers of each value: nodes, bodies in nodes, and outputs.
pub(crate) fn reads(body: &Body) -> Vec<u32> {
    let mut reads = vec![0_u32; body.values.len()];
    let mut read = |id: ValueId| reads[id.0 as usize] = reads[id.0 as usize].saturating_add(1);
    body.outputs.iter().copied().for_each(&mut read);
    for node in &body.nodes {
        node.inputs.iter().flatten().copied().for_each(&mut read);
        for value in node.bodies().flat_map(|inner| &inner.values) {
            if let ValueOrigin::Outer(of) = value.origin {
                read(of);
            }
        }
    }
    reads
}

/// Returns the bodies in the attributes of a node, to change them.
pub(crate) fn bodies_mut(node: &mut Node) -> impl Iterator<Item = &mut Body> {
    node.attributes.iter_mut().flat_map(|attribute| match &mut attribute.value {
        AttributeValue::Body(body) => std::slice::from_mut(&mut **body),
        AttributeValue::Bodies(bodies) => bodies.as_mut_slice(),
        _ => &mut [],
    })
}

/// Returns the output of a node that has one.
pub(super) fn only_output(node: &Node) -> Option<ValueId> {
    match node.outputs[..] {
        [Some(output)] => Some(output),
        _ => None,
    }
}

/// Returns the node that makes a value.
pub(super) fn maker(body: &Body, value: ValueId) -> Option<&Node> {
    match body.value(value).origin {
        ValueOrigin::Node(node) => Some(body.node(node)),
        _ => None,
    }
}

/// Returns the constant of a value that no caller replaces.
pub(super) fn constant(body: &Body, value: ValueId) -> Option<&Constant> {
    match &body.value(value).origin {
        ValueOrigin::Constant(constant) if !body.inputs.contains(&value) => Some(constant),
        _ => None,
    }
}

/// Returns the integers of a constant.
pub(super) fn ints(body: &Body, value: ValueId) -> Option<Vec<i64>> {
    constant(body, value)?.as_ints()
}

/// Returns `true` if two values have the same type and shape for all sizes.
pub(super) fn is_same_shape(one: &Value, other: &Value) -> bool {
    let known = |value: &Value| {
        let shape = value.shape()?;
        (!shape.contains(&Dim::Unknown)).then(|| shape.to_vec())
    };
    one.element().is_some()
        && one.element() == other.element()
        && known(one).is_some_and(|shape| known(other).as_deref() == Some(&shape))
}

/// Returns the first node that reads the output of a node that follows it.
pub(super) fn first_unordered(body: &Body) -> Option<&Node> {
    let mut position = 0..;
    body.nodes.iter().find(|node| {
        let at = position.next().unwrap_or(u32::MAX);
        let within = node.bodies().flat_map(|inner| &inner.values);
        let outer = within.filter_map(|value| match value.origin {
            ValueOrigin::Outer(of) => Some(of),
            _ => None,
        });
        let mut read = node.inputs.iter().flatten().copied().chain(outer);
        read.any(|id| matches!(body.value(id).origin, ValueOrigin::Node(NodeId(of)) if of >= at))
    })
}
