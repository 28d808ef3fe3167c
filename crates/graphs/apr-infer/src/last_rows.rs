//! The rows of the last tokens: where nobody reads the logits of earlier ones, what comes behind
//! the last attention is computed for the last tokens alone.

use apr_graph::{Body, Node, ValueId, ValueOrigin};

use crate::action::{Action, read_by_bodies};
use crate::constant;
use crate::plan::BodyPlan;
use crate::tensor::Tensor;

/// Rows that are kept of several. Two, since the products of a single row are added up in another
/// order.
pub(crate) const KEPT: usize = 2;

/// Nodes that compute each row of their result (of the last dimension but one) from the same row of
/// what they read, and whose results lead to one value alone.
pub(crate) struct LastRows {
    /// `true` for each of these nodes, by position in the body.
    nodes: Vec<bool>,
    /// Number of rows that the nodes read, which is more than are kept.
    rows: usize,
}

/// Inputs of a node that have the rows of its result.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RowInputs {
    First,
    All,
}

impl LastRows {
    /// Returns the nodes of a plan that lead to `value` alone, which has `rows` rows. Returns
    /// `None` if there are no such nodes, or no rows to omit.
    pub(crate) fn of(
        body: &Body,
        plan: &BodyPlan,
        value: ValueId,
        others: &[ValueId],
        rows: usize,
    ) -> Option<Self> {
        if rows <= KEPT {
            return None;
        }
        let mut nodes = vec![false; body.nodes.len()];
        // What has to stay as it is, and what leads to the value.
        let mut whole = vec![false; body.values.len()];
        let mut leads = whole.clone();
        others.iter().for_each(|id| whole[id.0 as usize] = true);
        leads[value.0 as usize] = true;
        let in_chain: Vec<usize> =
            plan.chains.iter().flat_map(|chain| &chain.links).map(|link| link.node).collect();

        // From the back: all readers of a value come before what makes it.
        for planned in plan.nodes.iter().rev() {
            let position = planned.node;
            let node = &body.nodes[position];
            let made = || node.outputs.iter().flatten().map(|id| id.0 as usize);
            let is_alone = matches!(planned.action, Action::Operator { .. })
                && !in_chain.contains(&position)
                && made().all(|id| leads[id] && !whole[id]);
            let inputs = row_inputs(body, node).filter(|_| is_alone);
            nodes[position] = inputs.is_some();
            for (at, id) in node.inputs.iter().enumerate() {
                let Some(id) = id else { continue };
                match inputs {
                    Some(inputs) if at == 0 || inputs == RowInputs::All => {
                        leads[id.0 as usize] = true;
                    }
                    _ => whole[id.0 as usize] = true,
                }
            }
            read_by_bodies(node).iter().for_each(|id| whole[id.0 as usize] = true);
        }
        nodes.contains(&true).then_some(Self { nodes, rows })
    }

    /// Returns the last rows of an input of a node, if the node must read only those.
    pub(crate) fn cut(
        &self,
        body: &Body,
        position: usize,
        input: usize,
        read: &Tensor,
    ) -> Option<apr_core::Result<Tensor>> {
        if !self.nodes[position] {
            return None;
        }
        let inputs = row_inputs(body, &body.nodes[position])?;
        let axis = read.rank().checked_sub(2)?;
        let has_rows = input == 0 || inputs == RowInputs::All;
        (has_rows && read.shape()[axis] == self.rows)
            .then(|| crate::moving::part(read, axis, self.rows - KEPT, KEPT))
    }
}

/// Returns the vectors from which a value is computed row by row, as logits are.
pub(crate) fn vectors_of(body: &Body, value: ValueId) -> Option<ValueId> {
    let mut id = value;
    // Files may have nodes that read each other's values.
    for _ in 0..body.nodes.len() {
        let ValueOrigin::Node(maker) = body.value(id).origin else { return None };
        let node = body.node(maker);
        match (row_inputs(body, node), node.inputs.first().copied().flatten()) {
            (Some(RowInputs::First), first) => return first,
            (Some(RowInputs::All), Some(first)) => id = first,
            _ => return None,
        }
    }
    None
}

/// Returns the inputs of a node that have the rows of its result, if each row of the result is
/// computed from the same row of these inputs.
fn row_inputs(body: &Body, node: &Node) -> Option<RowInputs> {
    if !node.op.domain.is_empty() {
        return None;
    }
    match &*node.op.name {
        // Times a vector, rows would become elements.
        "MatMul" => {
            let by = node.inputs.get(1).copied().flatten();
            let dims = by.and_then(|id| body.value(id).shape());
            dims.is_some_and(|dims| dims.len() >= 2).then_some(RowInputs::First)
        }
        "LayerNormalization" | "RMSNormalization" | "SimplifiedLayerNormalization" => {
            (node.int("axis").unwrap_or(-1) == -1).then_some(RowInputs::First)
        }
        "ReduceMean" => {
            let keeps = node.int("keepdims").unwrap_or(1) == 1;
            let axes = node.inputs.get(1).copied().flatten();
            let axes = axes.and_then(|id| match &body.value(id).origin {
                ValueOrigin::Constant(axes) => constant::tensor(axes).ok()?.integers().ok(),
                _ => None,
            });
            let axes = axes.or_else(|| node.ints("axes").map(<[i64]>::to_vec));
            (keeps && axes.as_deref() == Some(&[-1])).then_some(RowInputs::First)
        }
        "Add" | "Sub" | "Mul" | "Div" | "Pow" | "Min" | "Max" | "Sqrt" | "Reciprocal" | "Neg"
        | "Exp" | "Erf" | "Tanh" | "Sigmoid" | "Relu" | "Gelu" | "Swish" | "Clip" | "Cast"
        | "Identity" => Some(RowInputs::All),
        _ => None,
    }
}
