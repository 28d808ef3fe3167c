//! Graphs of Core ML in the operators of ONNX.
//!
//! The layers of a network and the operations of a program become a few operators each, as
//! `NeuralNetwork.proto` and coremltools' definitions of MIL describe them. Halves of a program are
//! computed in single precision; inputs and outputs keep their types.

mod call;
mod element;
mod length;
mod network;
mod program;

use apr_graph::{AttributeValue, Graph, Node};
use apr_lower::{Gelu, Untranslated, Weights};

/// A model's graph ([`crate::graphs_of`]) with the operators of ONNX.
///
/// ```
/// /// A network asks for no weights before it runs.
/// struct Nothing;
///
/// impl apr_lower::Weights for Nothing {
///     fn constant(&self, _: &str) -> Option<apr_graph::Constant> {
///         None
///     }
/// }
///
/// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/coreml/lowered");
/// # let file = std::fs::read(format!("{folder}/images.mlmodel")).expect("the fixture");
/// let limits = apr_core::Limits::default();
/// let reader = apr_coreml::open(file, "images.mlmodel", &limits)?;
/// let graphs = apr_coreml::graphs_of(&reader, &limits)?.expect("a model has a graph");
/// let lowered = apr_coreml::lower::lower(&graphs[0].1, &Nothing).expect("known layers");
/// assert!(lowered.body.nodes.iter().any(|node| node.op.is("Conv")));
/// # Ok::<(), apr_core::Error>(())
/// ```
///
/// # Errors
/// The layers or operations that are not translated, by their names: those that ONNX lacks, and
/// those with settings that are not known here.
pub fn lower(graph: &Graph, weights: &dyn Weights) -> Result<Graph, Untranslated> {
    let is_program = |node: &Node| node.attribute(call::PARAMETERS).is_some_and(is_list);
    // A program names the parameters of its operations.
    match graph.body.nodes.iter().any(is_program) {
        true => program::lower(&graph.body, weights),
        false => network::lower(&graph.body),
    }
}

fn is_list(value: &AttributeValue) -> bool {
    matches!(value, AttributeValue::Texts(_))
}

/// The formula of GELU that a mode of coremltools names.
fn gelu(mode: &str) -> Option<Gelu> {
    match mode {
        "EXACT" => Some(Gelu::Exact),
        "TANH_APPROXIMATION" => Some(Gelu::Tanh),
        "SIGMOID_APPROXIMATION" => Some(Gelu::Sigmoid),
        _ => None,
    }
}

/// Counts an operator that is not translated.
fn count(untranslated: &mut Untranslated, node: &Node) {
    *untranslated.entry(node.op.name.to_string()).or_default() += 1;
}
