//! What a model computes: its operators as nodes of the domain `tflite`.
//!
//! The model's first subgraph is a graph, and so is each other one that no operator calls. Those
//! that one calls (`IF`, `WHILE`, ...) are bodies among its attributes. Options of operators are
//! attributes under the names of the schema. A tensor with a buffer is a weight; one that is kept
//! between runs is made by a node `VARIABLE`, which files do not have.

mod bodies;
mod options;
mod types;

use apr_core::{ByteSource, CheckpointReader, Error, Limits, Result};
use apr_graph::{Graph, Opset};
use apr_skeleton::Skeleton;

use crate::FORMAT;
use crate::flatbuffer::{Flatbuffer, Table};
use crate::model::{Weights, subgraph_name};
use bodies::Bodies;

/// The domain of the operators.
pub const DOMAIN: &str = "tflite";

/// Version of the schema, which is also the version of the domain.
const VERSION: i64 = 3;

/// Returns the graphs of the TensorFlow Lite model that a checkpoint was imported from, by name.
///
/// The main graph is first. Returns `None` if the checkpoint has no TensorFlow Lite model. Weights
/// have the names of that model's tensors.
///
/// ```
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tflite/kinds.tflite");
/// # let file = std::fs::read(path).expect("the fixture");
/// let limits = apr_core::Limits::default();
/// let reader = apr_tflite::open(file, "kinds.tflite", &limits)?;
/// let graphs = apr_tflite::graphs_of(&reader, &limits)?.expect("a model has a graph");
/// let (name, graph) = &graphs[0];
/// assert_eq!(name, "model");
/// assert_eq!(graph.body.nodes[0].op.to_string(), "tflite::FULLY_CONNECTED");
/// # Ok::<(), apr_core::Error>(())
/// ```
///
/// # Errors
/// E002 for a damaged companion or file, E007 when reading fails, E008 over the limits.
pub fn graphs_of(
    reader: &dyn CheckpointReader,
    limits: &Limits,
) -> Result<Option<Vec<(String, Graph)>>> {
    let Some(skeleton) = Skeleton::of(reader, &[FORMAT.id], limits)? else { return Ok(None) };
    let graphs = read(skeleton.source(), &skeleton.limits(limits));
    graphs.map(Some).map_err(|error| error.in_file(skeleton.file()))
}

fn read(source: &dyn ByteSource, limits: &Limits) -> Result<Vec<(String, Graph)>> {
    let flatbuffer = Flatbuffer::new(source, limits);
    let model = flatbuffer.root()?;
    let weights = Weights::of(&model, source.len())?;
    let mut bodies = Bodies::new(&model, &weights)?;
    let mut graphs = Vec::new();
    let main = bodies.body(0)?;
    graphs.push(("model".to_owned(), graph_of(main)));
    for number in 1..bodies.count() {
        if bodies.is_called(number) {
            continue;
        }
        let name = subgraph_name(bodies.subgraph(number)?, number)?;
        let body = bodies.body(number)?;
        graphs.push((name, graph_of(body)));
    }
    Ok(graphs)
}

fn graph_of(body: apr_graph::Body) -> Graph {
    let opsets = vec![Opset { domain: DOMAIN.into(), version: VERSION }];
    Graph { opsets, functions: Vec::new(), body }
}

/// The subgraphs of a model.
fn subgraphs<'b>(model: &Table<'b>) -> Result<Vec<Table<'b>>> {
    let subgraphs: Vec<Table<'b>> =
        model.tables(crate::model::SUBGRAPHS)?.collect::<Result<_>>()?;
    if subgraphs.is_empty() {
        return Err(Error::corrupt("the model has no subgraph"));
    }
    Ok(subgraphs)
}
