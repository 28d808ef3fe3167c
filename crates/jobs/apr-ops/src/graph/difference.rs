//! What differs between the graphs of two models.

use std::collections::BTreeMap;

use apr_graph::outline::node_text;
use apr_graph::{Body, Graph, ValueId};
use serde::Serialize;

use super::{Computed, GraphOrigin};

/// Differences between the computations of two models.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct StructureDiff {
    /// Nodes, inputs and outputs that only the left model has.
    pub removed: Vec<String>,
    /// Nodes that only the right model has.
    pub added: Vec<String>,
    /// Nodes that both models have and that compute different things.
    pub changed: Vec<NodeChange>,
}

/// A node that does not do the same in two models.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeChange {
    /// Path of the node.
    pub node: String,
    /// Operation of the node in the left model: `Clip(x; max=6)`.
    pub left: String,
    /// Operation of the node in the right model.
    pub right: String,
}

impl StructureDiff {
    /// Compares the graphs of two models by the names of their nodes.
    ///
    /// Returns `None` if one graph is from a file and the other from a family: their names have
    /// nothing in common.
    #[must_use]
    pub fn new(left: &Computed, right: &Computed) -> Option<Self> {
        if (left.origin == GraphOrigin::File) != (right.origin == GraphOrigin::File) {
            return None;
        }

        let (left, right) = (nodes(left), nodes(right));
        let only = |these: &BTreeMap<String, String>, those: &BTreeMap<String, String>| {
            these.keys().filter(|name| !those.contains_key(*name)).cloned().collect()
        };
        let changed = left.iter().filter_map(|(node, text)| {
            let other = right.get(node).filter(|other| *other != text)?;
            Some(NodeChange { node: node.clone(), left: text.clone(), right: other.clone() })
        });
        Some(Self {
            changed: changed.collect(),
            removed: only(&left, &right),
            added: only(&right, &left),
        })
    }

    /// Returns `true` if the graphs do not differ.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.removed.is_empty() && self.added.is_empty() && self.changed.is_empty()
    }
}

/// Describes each node, input and output, by name.
fn nodes(computed: &Computed) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for part in &computed.parts {
        let prefix =
            if computed.parts.len() > 1 { format!("{}: ", part.name) } else { String::new() };
        add(&part.graph, &prefix, &mut found);
    }
    found
}

fn add(graph: &Graph, prefix: &str, found: &mut BTreeMap<String, String>) {
    add_body(&graph.body, prefix, found);
    for function in &graph.functions {
        add_body(&function.body, &format!("{prefix}{} ", function.op), found);
    }
    let mut ends = |what: &str, ids: &[ValueId]| {
        for id in ids {
            let value = graph.body.value(*id);
            let kind = value.tensor().map_or_else(|| "?".to_owned(), ToString::to_string);
            found.insert(format!("{prefix}{what} {}", value.name), kind);
        }
    };
    ends("input", &graph.body.inputs);
    ends("output", &graph.body.outputs);
}

fn add_body(body: &Body, prefix: &str, found: &mut BTreeMap<String, String>) {
    for node in &body.nodes {
        let made = node.outputs.iter().flatten().next().map(|id| body.value(*id).name.as_str());
        let name = if node.name.is_empty() { made.unwrap_or_default() } else { &node.name };
        found.insert(format!("{prefix}{name}"), node_text(body, node));
    }
}
