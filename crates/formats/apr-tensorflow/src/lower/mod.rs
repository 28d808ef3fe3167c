//! Graphs of TensorFlow in the operators of ONNX.
//!
//! What a signature computes is written: its nodes, with functions in the place of their calls and
//! variables as weights. Images have their channels first between convolutions ([`apr_lower`]).
//! Shapes that the graph computes are numbers where the sizes of the inputs determine them.

mod batch;
mod control;
mod convolution;
mod elementwise;
mod image;
mod indexing;
mod list;
mod matrix;
mod movement;
mod normalization;
mod reduce;
mod signature;
mod source;

use std::collections::HashSet;

use apr_core::Metadata;
use apr_graph::{Body, Graph, Node, ValueId, ValueOrigin, inline};
use apr_lower::{Order, Placed, Untranslated, Weights, Writer};

use crate::graph::DOMAIN;
use control::Functions;
use signature::Signature;
pub use signature::signatures_left_out;
use source::Source;

/// Operators that return their input, or the variable that they represent.
const PASSED: [&str; 14] = [
    "CheckNumerics",
    "DisableCopyOnRead",
    "EnsureShape",
    "Identity",
    "IdentityN",
    "PlaceholderWithDefault",
    "PreventGradient",
    "ReadVariableOp",
    "Snapshot",
    "StopGradient",
    "VarHandleOp",
    "Variable",
    "VariableV2",
    "AutoReloadVariable",
];

/// A model's graph ([`crate::graphs_of`]) with the operators of ONNX. Of a SavedModel it is the
/// signature `serving_default`, or the only one, whose names inputs and outputs have; `metadata` is
/// that of its reader.
///
/// # Errors
/// The operators that are not translated, by their names: those that ONNX lacks, and those with
/// settings that are not known here.
pub fn lower(
    graph: &Graph,
    weights: &dyn Weights,
    metadata: &Metadata,
) -> Result<Graph, Untranslated> {
    let Ok(flat) = inline(graph) else {
        return Err([("functions that can't be written in place".to_owned(), 1)].into());
    };
    let body = &flat.body;
    let signature = Signature::of(body, metadata);
    if signature.outputs.is_empty() {
        return Err([("a graph without outputs".to_owned(), 1)].into());
    }
    let functions = Functions::new(graph);
    let mut lowering = Lowering::new(body, weights, &functions, &signature);
    let outputs: Vec<ValueId> = signature.outputs.iter().map(|(_, id)| *id).collect();
    lowering.nodes(&outputs, |id| signature.input(id).is_some());
    for (name, id) in &signature.outputs {
        match lowering.value(*id, Order::Natural) {
            Some(value) => lowering.out.output(name, value),
            None => _ = lowering.untranslated.insert("an output that no node makes".into(), 1),
        }
    }
    lowering.out.finish_if(lowering.untranslated)
}

/// The values that outputs are computed from, themselves included.
fn needed(
    body: &Body,
    outputs: &[ValueId],
    is_given: impl Fn(ValueId) -> bool,
) -> HashSet<ValueId> {
    let mut needed = HashSet::new();
    let mut open = outputs.to_vec();
    while let Some(id) = open.pop() {
        if needed.insert(id)
            && !is_given(id)
            && let ValueOrigin::Node(node) = body.value(id).origin
        {
            open.extend(body.node(node).inputs.iter().flatten());
        }
    }
    needed
}

/// A graph that is being lowered.
struct Lowering<'g> {
    from: &'g Body,
    weights: &'g dyn Weights,
    functions: &'g Functions<'g>,
    out: Writer,
    /// Replacements for the values of `from`.
    values: Vec<Option<Source>>,
    untranslated: Untranslated,
    /// Number of enclosing bodies.
    depth: usize,
}

impl<'g> Lowering<'g> {
    fn new(
        from: &'g Body,
        weights: &'g dyn Weights,
        functions: &'g Functions<'g>,
        signature: &Signature,
    ) -> Self {
        let mut out = Writer::new();
        let mut values: Vec<Option<Source>> =
            from.values.iter().map(|value| Source::fixed(value, weights)).collect();
        let outputs: Vec<ValueId> = signature.outputs.iter().map(|(_, id)| *id).collect();
        let needed = needed(from, &outputs, |id| signature.input(id).is_some());
        for (id, name, kind) in &signature.inputs {
            if needed.contains(id) {
                values[id.0 as usize] = Some(Source::Made(out.input(name, kind)));
            }
        }
        Self { from, weights, functions, out, values, untranslated: Untranslated::new(), depth: 0 }
    }

    /// Lowers all nodes that the outputs need.
    ///
    /// Nodes that cannot be lowered are counted by their names.
    fn nodes(&mut self, outputs: &[ValueId], is_given: impl Fn(ValueId) -> bool) {
        let needed = needed(self.from, outputs, &is_given);
        let from = self.from;
        for node in &from.nodes {
            let is_needed = |id: &ValueId| needed.contains(id) && !is_given(*id);
            if node.outputs.iter().flatten().any(is_needed) && self.node(node).is_none() {
                *self.untranslated.entry(node.op.name.to_string()).or_default() += 1;
                self.leave(node);
            }
        }
    }

    /// Lowers a node. Returns `None` if it cannot be lowered.
    fn node(&mut self, node: &Node) -> Option<()> {
        (&*node.op.domain == DOMAIN).then_some(())?;
        let op = &*node.op.name;
        if PASSED.contains(&op) {
            return self.pass(node);
        }
        match op {
            "AvgPool"
            | "AvgPool3D"
            | "Conv2D"
            | "Conv2DBackpropInput"
            | "Conv3D"
            | "DepthwiseConv2dNative"
            | "MaxPool"
            | "MaxPool3D" => self.convolution(node),
            "If" | "StatelessIf" | "While" | "StatelessWhile" => self.control(node),
            op if op.starts_with("TensorList") => self.tensor_list(node),
            "BatchToSpaceND" | "SpaceToBatchND" => self.batch(node),
            "MatMul" | "BatchMatMul" | "BatchMatMulV2" | "BatchMatMulV3" | "Einsum" => {
                self.matrix(node)
            }
            "BiasAdd" | "FusedBatchNorm" | "FusedBatchNormV2" | "FusedBatchNormV3" | "LRN" => {
                self.normalization(node)
            }
            "DepthToSpace"
            | "SpaceToDepth"
            | "ResizeBilinear"
            | "ResizeNearestNeighbor"
            | "Pad"
            | "PadV2"
            | "MirrorPad" => self.image(node),
            _ => {
                let moved = self.movement(node).or_else(|| self.indexing(node));
                let reduced = moved.or_else(|| self.reduce(node));
                reduced.or_else(|| self.elementwise(node))
            }
        }
    }

    /// A node whose outputs are its inputs.
    fn pass(&mut self, node: &Node) -> Option<()> {
        for (position, output) in node.outputs.iter().enumerate() {
            let Some(output) = output else { continue };
            let own = self.values[node.input(position)?.0 as usize].clone()?;
            self.values[output.0 as usize] = Some(own);
        }
        Some(())
    }

    /// Adds a placeholder for a node that cannot be lowered.
    ///
    /// Later nodes are then checked on their own.
    fn leave(&mut self, node: &Node) {
        for output in node.outputs.iter().flatten() {
            let name = &self.from.value(*output).name;
            let made = self.out.main.call(&node.op, []).output(name);
            self.values[output.0 as usize] = Some(Source::Made(Placed::natural(made)));
        }
    }

    /// The first output, and its name.
    fn output(&self, node: &Node) -> Option<(ValueId, String)> {
        let id = node.outputs.first().copied().flatten()?;
        Some((id, self.from.value(id).name.clone()))
    }

    /// Sets the value of the first output.
    fn set(&mut self, node: &Node, made: ValueId, order: Order) -> Option<()> {
        let id = node.outputs.first().copied().flatten()?;
        self.values[id.0 as usize] = Some(Source::Made(Placed { id: made, order }));
        Some(())
    }

    /// Writes a node with its inputs in the natural order, under the name of the first output.
    fn plain(&mut self, node: &Node, op: &str, inputs: &[ValueId]) -> Option<()> {
        let (_, name) = self.output(node)?;
        let made = self.out.main.op(op, inputs.iter().copied()).output(&name);
        self.set(node, made, Order::Natural)
    }
}
