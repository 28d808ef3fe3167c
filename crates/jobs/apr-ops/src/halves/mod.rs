//! Graphs that compute in floats of 16 bits.
//!
//! | part of the graph | type |
//! |---|---|
//! | weights, constants and activations of nodes that compute in halves | `f16` |
//! | nodes of the block list, nodes that the caller excludes, and nodes that `rules` names | `f32`, with `Cast` nodes around them |
//! | inputs and outputs | `f16`, or `f32` with `keep_io` |
//!
//! The block list is onnxruntime's (`onnxruntime.transformers.float16`). Beyond it, `rules` leaves
//! nodes in `f32` whose results halves can't hold: squares that are averaged, and positions and
//! sizes that are computed from integers.

mod rewrite;
mod rules;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use apr_core::{CheckpointReader, Result};
use apr_graph::{Graph, infer};
use apr_view::NamePattern;
use serde::Serialize;

use rewrite::Rewrite;
use rules::Rules;

/// Choices for a graph that computes in halves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Choices<'c> {
    /// Inputs and outputs stay in single precision.
    pub(crate) keep_io: bool,
    /// Operators that compute in single precision, besides the block list.
    pub(crate) exclude_ops: &'c [String],
    /// Nodes that compute in single precision, by their names.
    pub(crate) exclude_nodes: &'c [NamePattern],
}

/// Result of making a model compute in halves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Default)]
#[non_exhaustive]
pub struct Halves {
    /// Number of nodes that read or make floats of 32 bits before.
    #[serde(rename = "node_count")]
    pub nodes: u64,
    /// Number of those that compute in halves.
    pub halves: u64,
    /// Number of `Cast` nodes that were added.
    pub casts: u64,
    /// `true` if inputs and outputs stay in single precision.
    pub io_kept: bool,
    /// Number of constants that became the largest or the smallest half, because they are beyond.
    pub clamped: u64,
    /// Nodes that compute in single precision, by the reason and the operator.
    pub unchanged: BTreeMap<&'static str, BTreeMap<String, u64>>,
}

/// Makes the nodes of graphs without function calls compute in halves.
///
/// `reader` has the tensors that the graphs name. Returns the report, and the names of the tensors
/// that only nodes in single precision read.
///
/// # Errors
/// The errors of reading tensors of one element.
pub(crate) fn halve(
    graphs: &mut [(String, Graph)],
    reader: &dyn CheckpointReader,
    choices: Choices<'_>,
) -> Result<(Halves, BTreeSet<String>)> {
    let mut report = Halves { io_kept: choices.keep_io, ..Halves::default() };
    let (mut halves, mut floats) = (BTreeSet::new(), BTreeSet::new());
    for (_, graph) in graphs {
        apr_bind::hold_constants(&mut graph.body);
        rewrite::hoist(&mut graph.body);
        graph.body.sort_nodes();
        infer(graph);
        rewrite::uncast(&mut graph.body);
        let ways = Rules::of(graph, reader, choices).ways();
        let mut rewrite = Rewrite::new(&mut graph.body, reader, &mut report);
        rewrite.run(&ways, choices.keep_io)?;
        halves.append(&mut rewrite.halved);
        floats.append(&mut rewrite.kept);
    }
    floats.retain(|name| !halves.contains(name));
    Ok((report, floats))
}
