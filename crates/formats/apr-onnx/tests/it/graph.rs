//! Graphs of real models.

use apr_core::Limits;
use apr_graph::{Body, ValueOrigin};
use apr_onnx::proto;

use crate::corpus::models_as_stored;

/// Counts the nodes, their non-empty inputs and the values without an origin, including subgraphs.
fn count(body: &Body) -> [usize; 3] {
    let own = [
        body.nodes.len(),
        body.nodes.iter().map(|node| node.inputs.iter().flatten().count()).sum(),
        body.values.iter().filter(|value| value.origin == ValueOrigin::Missing).count(),
    ];
    let inner = body.nodes.iter().flat_map(apr_graph::Node::bodies).map(count);
    inner.fold(own, |sum, more| [sum[0] + more[0], sum[1] + more[1], sum[2] + more[2]])
}

fn count_of_file(graph: &proto::Graph) -> [usize; 2] {
    let given = |node: &proto::Node| node.inputs.iter().filter(|input| !input.is_empty()).count();
    let own = [graph.nodes.len(), graph.nodes.iter().map(given).sum()];
    let attributes = graph.nodes.iter().flat_map(|node| &node.attributes);
    let inner = attributes.flat_map(|attribute| {
        attribute.graph.iter().map(|graph| &**graph).chain(&attribute.graphs)
    });
    inner.map(count_of_file).fold(own, |sum, more| [sum[0] + more[0], sum[1] + more[1]])
}

#[test]
fn all_nodes_of_a_real_model_are_in_its_graph_and_all_values_have_an_origin() {
    for (path, reader) in models_as_stored(&Limits::default()) {
        let Some(model) = reader.model() else { continue };
        let graph = reader.graph().expect("a graph").expect("a model has one");
        let main = model.graph.as_ref().expect("a graph");
        let [nodes, inputs, missing] = count(&graph.body);
        assert_eq!([nodes, inputs], count_of_file(main), "{path}");
        assert_eq!(missing, 0, "{path}");
        assert_eq!(graph.body.outputs.len(), main.outputs.len(), "{path}");
        assert_eq!(graph.functions.len(), model.functions.len(), "{path}");
    }
}
