//! What a node runs, and what it reads.

use apr_graph::{Body, Node, ValueId, ValueOrigin};

use crate::operator::Operator;

/// Action of a node when it runs.
#[derive(Clone, Copy)]
pub(crate) enum Action {
    Operator {
        operator: &'static Operator,
        opset: i64,
    },
    /// Position in the graph's functions.
    Function(usize),
    /// Position in the plan's chains.
    Chain(usize),
}

/// Values of a body that the bodies in one of its nodes read, at any depth.
pub(crate) fn read_by_bodies(node: &Node) -> Vec<ValueId> {
    let outer = |body: &Body| {
        let of = |value: &apr_graph::Value| match value.origin {
            ValueOrigin::Outer(id) => Some(id),
            _ => None,
        };
        body.values.iter().filter_map(of).collect::<Vec<_>>()
    };
    node.bodies().flat_map(outer).collect()
}
