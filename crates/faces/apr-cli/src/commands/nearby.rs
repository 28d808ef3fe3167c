//! Names that are near to one that a graph or a model does not have.

use apr_graph::Graph;
use apr_graph::outline::NodeView;
use apr_registry::Escaped;
use apr_view::{nearest, nearest_or_first};

use crate::failure::Failure;

/// Paths that are compared; models of families have some thousands.
const COMPARED: usize = 50_000;
/// What a name of a value or of an output names.
pub(super) const VALUE: &str = "value";
/// Names that are shown.
const SHOWN: usize = 5;

/// Returns the error for an unknown node or value of a node, with similar names.
pub(super) fn unknown<'g>(
    what: &str,
    name: &str,
    graphs: impl Iterator<Item = &'g Graph>,
) -> Failure {
    let names = |graph: &Graph| {
        let body = &graph.body;
        let outputs = body.outputs.iter().map(|output| body.value(*output).name.clone());
        let outputs: Vec<String> = outputs.filter(|_| what == VALUE).collect();
        NodeView::paths(graph, COMPARED).into_iter().chain(outputs).collect::<Vec<_>>()
    };
    let names: Vec<String> = graphs.flat_map(names).collect();
    failure(what, name, &nearest_or_first(name, names.iter().map(String::as_str), SHOWN))
}

/// Returns the error for an unknown name, with similar names, or names that are examples.
pub(super) fn failure(what: &str, name: &str, known: &[&str]) -> Failure {
    let mut message = format!("no {what} '{}'", Escaped(name));
    if !nearest(name, known.iter().copied(), 1).is_empty() {
        message.push_str("; nearest names:");
    } else if !known.is_empty() {
        message.push_str(" and no similar name; names that exist:");
    }
    known.iter().for_each(|name| message.push_str(&format!("\n  {}", Escaped(name))));
    Failure::General(message)
}
