//! The structure of a graph as people see it: groups by name, repeated ones folded.
//!
//! Nodes are grouped by their paths: `layers.3/attention/scores` lies in `attention` in `layers.3`.
//! A node that calls a function is a group of the function's nodes. Neighbours that do the same,
//! such as the layers of a model, are folded into one item that says how often it comes:
//! `layers.0-79`, 80 times. So do patterns of neighbours: five layers of one kind and one of
//! another, four times over.

mod bound;
mod build;
mod context;
mod costs;
mod fold;
mod look;
mod members;
mod operand;
mod scene;

use crate::Graph;

pub use build::OutlineOptions;
pub use look::{AttributeView, NodeView, ValueEnd, ValueView, node_text};
pub use scene::{Edge, End, Item, ItemKind, Port, Scene, WeightUse};

/// Returns the structure of a graph.
///
/// If nested function calls would make the outline far larger than the graph, it contains only the
/// upper levels ([`Scene::is_partial`]).
///
/// ```
/// use apr_graph::outline::{OutlineOptions, outline};
/// use apr_graph::{Dim, ElementType, GraphBuilder, Meaning};
///
/// let mut graph = GraphBuilder::new(17);
/// let main = graph.body();
/// let mut x = main.input("x", ElementType::F32, [Dim::symbol("n")], Meaning::Unknown);
/// for layer in 0..80 {
///     x = main.scope(&format!("layers.{layer}"), |main| main.op("Relu", [x]).output("act"));
/// }
/// main.output("y", x, Meaning::Unknown);
///
/// let scene = outline(&graph.finish(), OutlineOptions::default());
/// let names: Vec<_> = scene.items.iter().map(|item| item.name.as_str()).collect();
/// assert_eq!(names, ["x", "layers.0-79/act", "y"]);
/// assert_eq!(scene.items[1].times, 80);
/// ```
#[must_use]
pub fn outline(graph: &Graph, options: OutlineOptions) -> Scene {
    bound::bounded(build::Outliner::new(graph, options).main())
}
