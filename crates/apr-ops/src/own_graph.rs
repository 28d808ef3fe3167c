//! The graph that a model's file has.

use std::collections::{HashMap, HashSet};

use apr_graph::{AttributeValue, Body, Graph, ValueOrigin, WeightRef};
use apr_registry::onnx::{self, skeleton};
use apr_registry::{CheckpointReader, Limits, Result};
use apr_source::Source;
use apr_source::naming::original;

/// The graph that came with the model, with the names that its tensors have now, and the tensors
/// that it does not use.
///
/// # Errors
/// E002 where it is damaged, E007 when reading fails, E008 over the limits.
pub(crate) fn own_graph(source: &Source<'_>) -> Result<Option<(Graph, Vec<String>)>> {
    let reader = source.reader();
    let Some(mut graph) = skeleton::graph_of(reader, &Limits::default())? else { return Ok(None) };
    let auxiliary = reader.metadata().auxiliary_tensor();
    let now = || {
        reader
            .tensors()
            .iter()
            .map(|info| info.name.as_str())
            .filter(|name| Some(*name) != auxiliary)
    };

    let before = original(source, &onnx::FORMAT)?;
    let names = before.tensors().iter().map(|info| info.name.as_str()).zip(now()).collect();
    let mut renaming = Renaming { names, used: HashSet::new() };
    renaming.body(&mut graph.body);
    for function in &mut graph.functions {
        renaming.body(&mut function.body);
    }

    let unused = now().filter(|name| !renaming.used.contains(*name)).map(str::to_owned).collect();
    Ok(Some((graph, unused)))
}

struct Renaming<'n> {
    /// Names before an import to those of now.
    names: HashMap<&'n str, &'n str>,
    /// Names of now that the graph uses.
    used: HashSet<String>,
}

impl Renaming<'_> {
    fn body(&mut self, body: &mut Body) {
        for value in &mut body.values {
            if let ValueOrigin::Weight(weight) = &mut value.origin {
                self.weight(weight);
            }
        }

        for attribute in body.nodes.iter_mut().flat_map(|node| &mut node.attributes) {
            match &mut attribute.value {
                AttributeValue::Weight(weight) => self.weight(weight),
                AttributeValue::Body(body) => self.body(body),
                AttributeValue::Bodies(bodies) => {
                    bodies.iter_mut().for_each(|body| self.body(body));
                }
                _ => {}
            }
        }
    }

    fn weight(&mut self, weight: &mut WeightRef) {
        if let Some(name) = self.names.get(weight.tensor.as_str()) {
            (*name).clone_into(&mut weight.tensor);
        }
        self.used.insert(weight.tensor.clone());
    }
}
