//! What a model computes: its layers as nodes of the domain `keras`.
//!
//! The configuration has them: a list, or a graph of calls. A layer that is called twice is two
//! nodes; a model among the layers is a function. What a layer is configured with are attributes,
//! and so are the arguments of a call that are no tensors, behind `call_`; its variables are inputs
//! behind those that the call has.

pub(crate) mod config;
mod model;

use apr_core::{CheckpointReader, Limits, Result};
use apr_graph::{Graph, Opset};
use serde_json::Value;

use crate::METADATA;
use model::Builder;

/// The domain of the layers.
pub const DOMAIN: &str = "keras";

/// The attribute with the names of the arguments that a node's first inputs are; empty for one by
/// position. It is missing where all are.
pub(crate) const ARGUMENTS: &str = "arguments";

/// Returns the graph of a model whose configuration is in a checkpoint.
///
/// Returns `None` if there is no configuration, or if the model is of a program's own class, which
/// no file describes. Weights have the names of the file's tensors.
///
/// ```
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/keras/small.keras");
/// # let file = std::fs::read(path).expect("the fixture");
/// let limits = apr_core::Limits::default();
/// let reader = apr_keras::open(file, "small.keras", &limits)?;
/// let graphs = apr_keras::graphs_of(&reader, &limits)?.expect("a model has a graph");
/// assert!(graphs[0].1.body.nodes.iter().any(|node| node.op.to_string() == "keras::Dense"));
/// # Ok::<(), apr_core::Error>(())
/// ```
///
/// # Errors
/// E002 for a configuration that contradicts itself, E008 over the limits.
pub fn graphs_of(
    reader: &dyn CheckpointReader,
    limits: &Limits,
) -> Result<Option<Vec<(String, Graph)>>> {
    let own = reader.metadata().object(METADATA);
    let Some(config) = own.and_then(|own| own.get("model_config")) else { return Ok(None) };
    if !config::is_model(config) {
        return Ok(None);
    }
    let version = own.and_then(|own| own.get("keras_version")).and_then(Value::as_str);
    let mut graph = Builder::new(reader, limits).graph(config)?;
    graph.opsets = vec![Opset { domain: DOMAIN.into(), version: major(version) }];
    Ok(Some(vec![("model".to_owned(), graph)]))
}

/// Returns the major version of Keras.
///
/// The default is 2, because files from versions before 3 may not state it.
fn major(version: Option<&str>) -> i64 {
    let first = version.and_then(|version| version.split('.').next());
    first.and_then(|first| first.parse().ok()).filter(|number| *number > 0).unwrap_or(2)
}
