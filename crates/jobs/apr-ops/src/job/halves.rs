//! Graphs that compute in halves.

use std::collections::BTreeSet;

use apr_core::Escaped;
use apr_graph::{Graph, Node, inline};
use apr_registry::{CheckpointReader, Computes, DType};
use apr_view::nearest;

use super::description::Job;
use super::error::JobError;
use super::wishes::applying;
use crate::halves::{Choices, Halves, halve};

/// A report, and the tensors that only nodes in single precision read.
pub(super) type Halved = (Halves, BTreeSet<String>);

impl Job {
    /// Returns the error about exclusions that have no effect.
    pub(super) fn idle_exclusions(&self) -> JobError {
        let of_halves = |name: &&str| ["keep_io", "exclude_op"].contains(name);
        let mut asked: Vec<_> = self.graph.asked().into_iter().filter(of_halves).collect();
        let excludes = !self.weights.exclude_nodes.is_empty();
        asked.extend(excludes.then_some("exclude_node"));
        let mut message = applying(&asked, "`precision` fp16 of a file with its own graph");
        if excludes {
            message.push_str(", and `exclude_node` to w8a8 in ONNX");
        }
        JobError::Request(message)
    }

    /// Returns `true` if exclusions are requested, and the job neither computes in halves nor in
    /// integers.
    pub(super) fn has_idle_exclusions(&self) -> bool {
        let is_half = self.weights.precision == Some(DType::F16);
        let computes_in_halves = is_half && self.computes() == Computes::Always;
        let multiplies_integers = self.integer_quantization().is_some();
        let of_halves = self.graph.keep_io || !self.graph.exclude_ops.is_empty();
        let excludes = !self.weights.exclude_nodes.is_empty();
        !computes_in_halves && (of_halves || excludes && !multiplies_integers)
    }

    /// Makes the graphs of a file compute in halves, if that precision is requested.
    ///
    /// The graphs are then without functions. `reader` has the tensors that they name.
    pub(super) fn halve(
        &self,
        graphs: &mut [(String, Graph)],
        reader: &dyn CheckpointReader,
        is_own: bool,
    ) -> Result<Option<Halved>, JobError> {
        let (asked, exclude_nodes) = (&self.graph, &self.weights.exclude_nodes);
        if self.weights.precision != Some(DType::F16) {
            return Ok(None);
        }
        if !is_own {
            let is_asked = asked.keep_io || !asked.exclude_ops.is_empty();
            return match is_asked || !exclude_nodes.is_empty() {
                true => Err(self.idle_exclusions()),
                false => Ok(None),
            };
        }
        for (_, graph) in graphs.iter_mut() {
            *graph = inline(graph)?;
        }
        self.check_excluded(graphs)?;
        let choices =
            Choices { keep_io: asked.keep_io, exclude_ops: &asked.exclude_ops, exclude_nodes };
        Ok(Some(halve(graphs, reader, choices)?))
    }

    /// Rejects operators and nodes to exclude that the graphs do not have.
    pub(super) fn check_excluded(&self, graphs: &[(String, Graph)]) -> Result<(), JobError> {
        let nodes = || graphs.iter().flat_map(|(_, graph)| &graph.body.nodes);
        let is_op = |node: &Node, op: &str| *node.op.name == *op || node.op.to_string() == op;
        let ops = &self.graph.exclude_ops;
        if let Some(op) = ops.iter().find(|op| !nodes().any(|node| is_op(node, op))) {
            let all: BTreeSet<String> = nodes().map(|node| node.op.to_string()).collect();
            let all: Vec<String> = all.into_iter().collect();
            return Err(JobError::Request(format!(
                "`exclude_op`: unknown operator {}; the graph has {}",
                Escaped::short(op),
                Escaped(&all.join(", "))
            )));
        }
        let idle = self
            .weights
            .exclude_nodes
            .iter()
            .find(|pattern| !nodes().any(|node| pattern.is_match(&node.name)));
        let Some(pattern) = idle else { return Ok(()) };
        let names = nodes().map(|node| node.name.as_str()).filter(|name| !name.is_empty());
        let near: Vec<String> = nearest(pattern.text(), names, 3)
            .into_iter()
            .map(|name| format!("'{}'", Escaped::short(name)))
            .collect();
        let near = match near.is_empty() {
            true => String::new(),
            false => format!("; nearest names: {}", near.join(", ")),
        };
        let pattern = Escaped::short(pattern.text());
        Err(JobError::Request(format!("`exclude_node` {pattern} matches no node{near}")))
    }
}
