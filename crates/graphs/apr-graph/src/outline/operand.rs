//! Names of the inputs and outputs of operators, as their documentation has them.

use crate::infer::Versions;
use crate::{Body, Function, Graph, Node, Operator};

/// Names of a node's inputs and outputs.
///
/// They are the names in its operator, in the version declared around the node, or in the function
/// that it calls.
pub(super) struct Operands<'g> {
    operator: Option<&'static Operator>,
    function: Option<&'g Body>,
}

impl<'g> Operands<'g> {
    /// `around` is the function that the node is in; `None` in the main body.
    pub(super) fn of(graph: &'g Graph, around: Option<&Function>, node: &Node) -> Self {
        let function = graph.function(&node.op).map(|function| &function.body);
        let own = around.map(|function| &function.opsets).filter(|opsets| !opsets.is_empty());
        let version = Versions::new(own.unwrap_or(&graph.opsets)).of(&node.op.domain);
        Self { operator: Operator::of(&node.op, version.unwrap_or(i64::MAX)), function }
    }

    /// Name of an input: `W`, `bias`; `None` for operators that are not known.
    pub(super) fn input(&self, position: usize) -> Option<String> {
        match self.function {
            Some(body) => body.inputs.get(position).map(|id| body.value(*id).name.clone()),
            None => Some(self.operator?.input(position)?.name.to_owned()),
        }
    }

    /// Name of an output: `Y`, `running_mean`.
    pub(super) fn output(&self, position: usize) -> Option<String> {
        match self.function {
            Some(body) => body.outputs.get(position).map(|id| body.value(*id).name.clone()),
            None => Some(self.operator?.output(position)?.name.to_owned()),
        }
    }
}
