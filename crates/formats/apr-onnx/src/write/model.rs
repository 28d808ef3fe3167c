//! The model around the graph.

use apr_core::Result;
use apr_graph::{Function, Graph, Opset};

use super::body::{Encoder, Scope};
use super::message::Message;
use super::node::attribute;
use super::weights::{Weights, pair};

/// Properties of a model's file besides the graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Properties {
    /// Minimum version of the file format. A newer version is written if the graph requires it.
    pub ir_version: i64,
    /// The program that wrote the model.
    pub producer_name: String,
    /// Version of the program that wrote the model.
    pub producer_version: String,
    /// Reverse domain name of the model's author.
    pub domain: String,
    /// Version of the model.
    pub model_version: Option<i64>,
    /// A note for people.
    pub doc: String,
    /// Free pairs of keys and values.
    pub metadata: Vec<(String, String)>,
}

impl Default for Properties {
    fn default() -> Self {
        Self {
            ir_version: 0,
            producer_name: "apr".into(),
            producer_version: env!("CARGO_PKG_VERSION").into(),
            domain: String::new(),
            model_version: None,
            doc: String::new(),
            metadata: Vec::new(),
        }
    }
}

/// Versions of ONNX's file format, each with the newest operator set of the release that brought
/// it.
const IR_VERSIONS: [(i64, i64); 12] = [
    (3, 8),
    (4, 9),
    (5, 10),
    (6, 11),
    (7, 14),
    (8, 18),
    (9, 20),
    (10, 22),
    (11, 23),
    (12, 24),
    (13, 27),
    (14, i64::MAX),
];

/// The version of the file format that fits operators of this version.
#[must_use]
pub fn ir_version(opset: i64) -> i64 {
    IR_VERSIONS.iter().find(|(_, newest)| opset <= *newest).map_or(0, |(version, _)| *version)
}

/// Encodes a graph as a `ModelProto`.
pub(crate) fn model(
    graph: &Graph,
    properties: &Properties,
    weights: &mut Weights<'_>,
) -> Result<Message> {
    let mut encoder = Encoder::new(graph, weights);
    let mut message = Message::default();
    message.int(1, version(graph, properties));
    message.some_text(2, &properties.producer_name);
    message.some_text(3, &properties.producer_version);
    message.some_text(4, &properties.domain);
    if let Some(version) = properties.model_version {
        message.int(5, version);
    }

    message.some_text(6, &properties.doc);
    message.message(7, encoder.graph(&graph.body, None)?);
    graph.opsets.iter().for_each(|opset| message.message(8, opset_import(opset)));
    properties.metadata.iter().for_each(|(key, value)| message.message(14, pair(key, value)));
    for each in &graph.functions {
        message.message(25, function(&mut encoder, each, graph)?);
    }

    Ok(message)
}

/// Returns the version of the file format to write, at least 4.
///
/// Functions require version 8, and several functions of the same name require version 10.
fn version(graph: &Graph, properties: &Properties) -> i64 {
    let by_opset = graph.opset("").map_or(0, ir_version);
    let by_functions = if graph.functions.is_empty() {
        0
    } else if graph.functions.iter().any(|function| !function.op.overload.is_empty()) {
        10
    } else {
        8
    };

    // Before version 4, every initializer had to be an input as well.
    by_opset.max(by_functions).max(properties.ir_version).max(4)
}

fn opset_import(opset: &Opset) -> Message {
    let mut message = Message::default();
    message.text(1, &opset.domain);
    message.int(2, opset.version);
    message
}

fn function(encoder: &mut Encoder<'_, '_>, function: &Function, graph: &Graph) -> Result<Message> {
    let body = &function.body;
    // A function sees nothing of the graph that calls it.
    let scope = Scope::new(body, None)?;
    let mut message = Message::default();
    message.text(1, &function.op.name);
    body.inputs.iter().for_each(|&id| message.text(4, scope.name(id)));
    body.outputs.iter().for_each(|&id| message.text(5, scope.name(id)));
    function.required.iter().for_each(|name| message.text(6, name));
    encoder.function_nodes(body, &scope, &mut message)?;
    message.some_text(8, &function.doc);

    // A function imports its operators itself, not through the model.
    let opsets = if function.opsets.is_empty() { &graph.opsets } else { &function.opsets };
    opsets.iter().for_each(|opset| message.message(9, opset_import(opset)));
    message.text(10, &function.op.domain);
    for default in &function.defaults {
        message.message(11, attribute(encoder, default, &scope)?);
    }

    message.some_text(13, &function.op.overload);
    Ok(message)
}
