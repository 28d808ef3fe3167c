//! The report of a simplification.

use std::collections::BTreeMap;

use apr_graph::Body;
use serde::Serialize;

/// Result of simplifying the graph of a model.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Simplified {
    /// Name of the part, which is the name of its file: `model`, `decoder_model`.
    pub name: String,
    /// `true` if a pass changed the graph.
    pub changed: bool,
    /// Nodes before by operator, including the nodes of branches and loops.
    pub before: BTreeMap<String, u64>,
    /// Nodes after by operator.
    pub after: BTreeMap<String, u64>,
    /// Result of each pass, in the order of the passes.
    pub passes: Vec<PassReport>,
    /// Number of tensors that were computed and are stored instead of nodes.
    pub tensors_folded: u64,
    /// Bytes of the stored tensors, minus bytes of the tensors that are not used any more.
    pub bytes_added: i64,
    /// Nodes that were not folded because of the size of their output, in the order of the graph.
    pub too_large: Vec<String>,
    /// Comparison of the outputs before and after; `None` if the model does not run.
    pub compared: Option<Compared>,
}

/// Result of one pass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PassReport {
    /// Name of the pass: `fold_constants`.
    pub name: &'static str,
    /// Number of nodes and tensors that the pass removed or changed.
    #[serde(rename = "change_count")]
    pub changes: u64,
    /// Nodes after the pass minus nodes before it.
    #[serde(rename = "node_change")]
    pub nodes: i64,
}

/// Comparison of the outputs of a graph before and after, on random inputs.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Compared {
    /// Sizes of the open dimensions of the inputs by symbol, for each run.
    pub sizes: Vec<BTreeMap<String, u64>>,
    /// Number of outputs that were compared.
    #[serde(rename = "output_count")]
    pub outputs: u64,
    /// `true` if they are bit-identical.
    pub identical: bool,
    /// Largest difference, relative to the largest magnitude of its output.
    pub difference: f64,
}

impl Simplified {
    /// Returns the number of nodes before.
    #[must_use]
    pub fn nodes_before(&self) -> u64 {
        self.before.values().sum()
    }

    /// Returns the number of nodes after.
    #[must_use]
    pub fn nodes_after(&self) -> u64 {
        self.after.values().sum()
    }
}

/// Returns the number of nodes by operator, including the nodes of inner bodies.
pub(super) fn count(body: &Body) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    let mut bodies = vec![body];
    while let Some(body) = bodies.pop() {
        for node in &body.nodes {
            *counts.entry(node.op.to_string()).or_default() += 1;
            bodies.extend(node.bodies());
        }
    }
    counts
}

/// Returns the number of nodes of a body, including the nodes of inner bodies.
pub(super) fn total(body: &Body) -> u64 {
    let within = body.nodes.iter().flat_map(apr_graph::Node::bodies).map(total);
    body.nodes.len() as u64 + within.sum::<u64>()
}
