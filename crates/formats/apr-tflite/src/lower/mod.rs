//! Graphs in the operators of ONNX.
//!
//! Images are `[batch, height, width, channels]` in TensorFlow Lite, and `[batch, channels, height,
//! width]` for ONNX's convolutions and pools. A value has both orders where both are asked for, so
//! that a chain of convolutions is transposed at its ends alone. Weights are looked at in the other
//! order.
//!
//! Operators over quantized integers are computed as the schema defines them, in floats: their
//! inputs are dequantized and their outputs quantized, each by a node of its own.

mod elementwise;
mod image;
mod layout;
mod matrix;
mod pieces;
mod quantized;
mod shape;

use apr_graph::{Graph, Node};
use apr_lower::{Order, Untranslated};

use crate::graph::DOMAIN;
use layout::Lowering;

/// Access to the checkpoint's tensors for a lowering.
pub trait Weights: apr_lower::Weights {
    /// Returns the quantization of an integer tensor, if any.
    fn affine(&self, tensor: &str) -> Option<Affine>;
}

/// Quantization of a tensor: its floats are `scale * (integer - zero_point)`.
#[derive(Debug, Clone, PartialEq)]
pub struct Affine {
    /// The tensor of scales, in single precision.
    pub scales: String,
    /// Number of scales.
    pub count: u64,
    /// Zero points, if they are not all 0.
    pub zero_points: Option<Vec<i64>>,
    /// Dimension of the scales, if there are several.
    pub axis: usize,
}

/// The graph with the operators of ONNX.
///
/// # Errors
/// The operators that are not translated, by their names: those that ONNX lacks, and those with
/// options or elements that are not known here.
pub fn lower(graph: &Graph, weights: &dyn Weights) -> Result<Graph, Untranslated> {
    let body = &graph.body;
    let mut lowering = Lowering::new(body, weights);
    for node in &body.nodes {
        if lowering.node(node).is_none() {
            *lowering.untranslated.entry(node.op.name.to_string()).or_default() += 1;
            lowering.leave(node);
        }
    }
    for id in &body.outputs {
        match lowering.value(*id, Order::Natural) {
            Some(value) => lowering.out.output(&body.value(*id).name, value),
            None => _ = lowering.untranslated.insert("an output that no operator makes".into(), 1),
        }
    }
    lowering.out.finish_if(lowering.untranslated)
}

impl Lowering<'_> {
    /// Lowers a node. Returns `None` if it cannot be lowered.
    fn node(&mut self, node: &Node) -> Option<()> {
        (&*node.op.domain == DOMAIN).then_some(())?;
        match &*node.op.name {
            "AVERAGE_POOL_2D"
            | "CONV_2D"
            | "DEPTHWISE_CONV_2D"
            | "DEPTH_TO_SPACE"
            | "MAX_POOL_2D"
            | "RESIZE_BILINEAR"
            | "RESIZE_NEAREST_NEIGHBOR"
            | "SPACE_TO_DEPTH"
            | "TRANSPOSE_CONV" => self.image(node),
            "FULLY_CONNECTED" | "BATCH_MATMUL" => self.matrix(node),
            _ => {
                let moved = self.shape(node).or_else(|| self.pieces(node));
                moved.or_else(|| self.elementwise(node))
            }
        }
    }

    /// Adds a placeholder for a node that cannot be lowered.
    ///
    /// Later nodes are then checked on their own.
    fn leave(&mut self, node: &Node) {
        for output in node.outputs.iter().flatten() {
            let name = &self.from.value(*output).name;
            let made = self.out.main.call(&node.op, []).output(name);
            self.set(*output, made, Order::Natural);
        }
    }
}
