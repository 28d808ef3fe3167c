//! The method that runs the model: one statement for each node.

use apr_core::{Error, Result, TensorInfo};
use apr_graph::{Graph, Node, Origin};

use super::emit::{Emitter, unknown};
use super::{operators, shapes};

/// The method `forward`; the class that it is of is called `__torch__.Root`.
pub(super) fn forward(graph: &Graph, tensors: &[TensorInfo]) -> Result<String> {
    if let Some(function) = graph.functions.first() {
        return Err(Error::format(format!(
            "the graph still has functions, such as {}",
            function.op
        )));
    }

    let body = &graph.body;
    let mut emitter = Emitter::new(body, tensors);
    let mut inputs = Vec::new();

    // Older files list weights among the inputs.
    let inputs_alone =
        body.inputs.iter().filter(|input| matches!(body.value(**input).origin, Origin::Input));
    for &input in inputs_alone {
        inputs.push(format!(",\n    {}: Tensor", emitter.take(input)));
    }

    for node in &body.nodes {
        self::node(&mut emitter, node).map_err(|error| of_node(&error, node))?;
    }

    let outputs =
        body.outputs.iter().map(|&output| emitter.tensor(output)).collect::<Result<Vec<_>>>()?;
    let (kind, result) = match outputs.as_slice() {
        [] => return Err(Error::format("the graph has no outputs")),
        [only] => ("Tensor".to_owned(), only.clone()),
        several => {
            let kinds = vec!["Tensor"; several.len()].join(", ");
            (format!("Tuple[{kinds}]"), format!("({})", several.join(", ")))
        }
    };

    let (inputs, lines) = (inputs.concat(), emitter.finish());
    Ok(format!(
        "  def forward(self: __torch__.Root{inputs}) -> {kind}:\n{lines}    return {result}\n"
    ))
}

fn of_node(error: &Error, node: &Node) -> Error {
    Error::new(error.code(), format!("node '{}' ({}): {}", node.name, node.op, error.message()))
}

/// Writes a node.
fn node(emitter: &mut Emitter<'_>, node: &Node) -> Result<()> {
    if !node.op.domain.is_empty() {
        return Err(unknown());
    }
    if shapes::emit(emitter, node)? {
        return Ok(());
    }
    operators::emit(emitter, node)
}
