//! Names that are near to one that a graph does not have.

use apr_graph::Graph;
use apr_graph::outline::NodeView;
use apr_registry::Escaped;
use apr_view::nearest;

use crate::failure::Failure;

/// Paths that are compared; models of families have some thousands.
const COMPARED: usize = 50_000;
/// Names that are shown.
const SHOWN: usize = 5;

/// Returns the error for an unknown node or value of a node, with similar names.
pub(super) fn unknown<'g>(
    what: &str,
    name: &str,
    graphs: impl Iterator<Item = &'g Graph>,
) -> Failure {
    let paths: Vec<String> = graphs.flat_map(|graph| NodeView::paths(graph, COMPARED)).collect();
    let similar = nearest(name, paths.iter().map(String::as_str), SHOWN);
    let mut message = format!("no {what} '{}'", Escaped(name));
    if !similar.is_empty() {
        message.push_str("; similar names:");
    }
    similar.iter().for_each(|name| message.push_str(&format!("\n  {}", Escaped(name))));
    Failure::General(message)
}
