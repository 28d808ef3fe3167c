//! What should come out of a run: values of the main body, and values within the functions that it
//! calls.

use apr_core::{Error, Result};
use apr_graph::{Body, Function, Graph, Node, ValueId, ValueOrigin};

/// A value that is wanted.
pub(crate) enum Wanted {
    /// Value of the main body.
    Own(ValueId),
    /// Within a call, by its path. The call is needed for its outputs.
    Within { path: String, outputs: Vec<ValueId> },
}

impl Wanted {
    /// The value with a name: of a value, or of the node that makes it, after the names of the
    /// calls that it is in.
    ///
    /// # Errors
    /// E001 where there is none.
    pub(crate) fn named(graph: &Graph, name: &str) -> Result<Self> {
        let body = &graph.body;

        // Outputs first: an exporter may give another value the same name.
        let output = || body.outputs.iter().copied().find(|id| body.value(*id).name == name);
        let value = || body.values.iter().position(|value| value.name == name).map(id_at);
        let made = || body.nodes.iter().find(|node| node.name == name).and_then(first_output);
        if let Some(id) = output().or_else(value).or_else(made) {
            return Ok(Self::Own(id));
        }

        let call =
            calls(graph, body, name).find(|(_, function, rest)| has(graph, &function.body, rest));
        let (node, ..) =
            call.ok_or_else(|| Error::format(format!("no value '{name}' in the model")))?;
        Ok(Self::Within {
            path: name.to_owned(),
            outputs: node.outputs.iter().flatten().copied().collect(),
        })
    }
}

/// The output of a node that a path means: its first one by the node's own path, each by its name.
pub(crate) fn output_at(body: &Body, around: &str, node: &Node, path: &str) -> Option<usize> {
    let rest = path.strip_prefix(around)?.strip_prefix('/')?;
    let named = |id: &Option<ValueId>| id.is_some_and(|id| body.value(id).name == rest);
    node.outputs.iter().position(named).or_else(|| (node.name == rest).then_some(0))
}

/// Returns the calls of functions with whose name a path begins, and the rest of the path.
fn calls<'g>(
    graph: &'g Graph,
    body: &'g Body,
    path: &'g str,
) -> impl Iterator<Item = (&'g Node, &'g Function, &'g str)> {
    body.nodes.iter().filter_map(move |node| {
        let rest = path.strip_prefix(&node.name)?.strip_prefix('/')?;
        let function = graph.functions.iter().find(|function| function.op == node.op)?;
        Some((node, function, rest))
    })
}

/// Returns `true` if a node of a body, or of a body that it calls, computes this value.
fn has(graph: &Graph, body: &Body, name: &str) -> bool {
    let made = body
        .values
        .iter()
        .any(|value| value.name == name && matches!(value.origin, ValueOrigin::Node(_)));
    // Each call takes its name off the path, so that this ends even for functions in a circle.
    made || body.nodes.iter().any(|node| node.name == name && first_output(node).is_some())
        || calls(graph, body, name).any(|(_, function, rest)| has(graph, &function.body, rest))
}

fn first_output(node: &Node) -> Option<ValueId> {
    node.outputs.first().copied().flatten()
}

fn id_at(position: usize) -> ValueId {
    ValueId(u32::try_from(position).unwrap_or(u32::MAX))
}
