//! A method that runs a graph: one statement for each node.

use apr_core::{Error, Result, TensorInfo};
use apr_graph::{Body, Graph, Node, ValueId, ValueOrigin};

use crate::emit::{Emitter, unknown};
use crate::{operators, shapes};

/// Name of the class of methods until its final name is known.
pub(crate) const ROOT: &str = "__torch__.Root";

/// A method of the class [`ROOT`].
pub(crate) fn method(name: &str, graph: &Graph, tensors: &[TensorInfo]) -> Result<String> {
    if let Some(function) = graph.functions.first() {
        return Err(Error::format(format!(
            "the graph still has functions, such as {}",
            function.op
        )));
    }

    let body = &graph.body;
    let mut emitter = Emitter::new(body, tensors);
    let mut inputs = Vec::new();
    for input in inputs_alone(body) {
        inputs.push(format!(",\n    {}: Tensor", emitter.take(input)));
    }

    for node in &body.nodes {
        self::node(&mut emitter, node)?;
    }

    let outputs =
        body.outputs.iter().map(|&output| emitter.tensor(output)).collect::<Result<Vec<_>>>()?;
    let result = match outputs.as_slice() {
        [] => return Err(Error::format("the graph has no outputs")),
        [only] => only.clone(),
        several => format!("({})", several.join(", ")),
    };

    let (inputs, kind, lines) = (inputs.concat(), result_type(body), emitter.finish());
    Ok(format!("  def {name}(self: {ROOT}{inputs}) -> {kind}:\n{lines}    return {result}\n"))
}

/// The inputs of a body; older files list weights among them.
pub(crate) fn inputs_alone(body: &Body) -> impl Iterator<Item = ValueId> {
    let is_input = |input: &ValueId| matches!(body.value(*input).origin, ValueOrigin::Input);
    body.inputs.iter().copied().filter(is_input)
}

/// Returns the result type of the method.
pub(crate) fn result_type(body: &Body) -> String {
    match body.outputs.len() {
        1 => "Tensor".to_owned(),
        several => format!("Tuple[{}]", vec!["Tensor"; several].join(", ")),
    }
}

fn of_node(error: &Error, node: &Node) -> Error {
    Error::new(error.code(), format!("node '{}' ({}): {}", node.name, node.op, error.message()))
}

/// Writes a node; errors name it.
pub(crate) fn node(emitter: &mut Emitter<'_>, node: &Node) -> Result<()> {
    unnamed(emitter, node).map_err(|error| of_node(&error, node))
}

fn unnamed(emitter: &mut Emitter<'_>, node: &Node) -> Result<()> {
    if !node.op.domain.is_empty() {
        return Err(unknown());
    }
    if shapes::emit(emitter, node)? {
        return Ok(());
    }
    operators::emit(emitter, node)
}
