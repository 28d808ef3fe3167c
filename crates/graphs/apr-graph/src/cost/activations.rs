//! Memory of the values of a run, apart from what is kept between runs.

use std::collections::HashSet;

use super::{Calls, Counter, Sizes, memory};
use crate::check::order;
use crate::finding::node_path;
use crate::{Body, Graph, Inference, Value, ValueId};

/// Peak memory for the values of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Activations {
    /// Peak memory in bytes, without weights and without the KV cache and states that the graph
    /// takes and returns.
    pub bytes: u64,
    /// The node that runs then.
    pub at: String,
    /// Number of nodes whose sizes are not all known.
    pub unknown: u64,
}

/// Returns the memory for the values of a run that computes some of the outputs. `inference` is
/// what [`crate::infer`] returned for the graph.
///
/// Values of functions count as their nodes make them, with copies of keys and values.
#[must_use]
pub fn activations(
    graph: &Graph,
    inference: &Inference,
    sizes: Sizes<'_>,
    wanted: &dyn Fn(&Value) -> bool,
) -> Activations {
    let counter = Counter::new(graph, inference, sizes);
    let body = &graph.body;
    let needed = needed(body, wanted);
    let all = memory::Memory::new(body, sizes, true);
    let mut memory = all.without(body, |value| value.meaning.is_kept());
    let mut calls = Calls { list: &inference.calls, next: 0 };
    let mut found = Activations::default();
    for (position, node) in body.nodes.iter().enumerate() {
        // A node that is left out takes its calls off the list as well.
        let counted = counter.node(body, node, &graph.opsets, &mut calls);
        if !needed[position] {
            continue;
        }
        found.unknown = found.unknown.saturating_add(counted.totals.unknown);
        let used = memory.run(position, node, counted.peak);
        if used > found.bytes {
            (found.bytes, found.at) = (used, node_path("", position, node));
        }
    }
    found
}

/// For each node, whether some of the outputs need it.
fn needed(body: &Body, wanted: &dyn Fn(&Value) -> bool) -> Vec<bool> {
    let outputs = body.outputs.iter().copied().filter(|id| wanted(body.value(*id)));
    let mut read: HashSet<ValueId> = outputs.collect();
    let mut needed = vec![false; body.nodes.len()];
    for (position, node) in body.nodes.iter().enumerate().rev() {
        if node.outputs.iter().flatten().any(|id| read.contains(id)) {
            needed[position] = true;
            read.extend(order::reads(node));
        }
    }
    needed
}
