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

use std::collections::BTreeMap;

use apr_graph::{Constant, Graph, Node, Opset};

use crate::graph::DOMAIN;
use layout::{Layout, Lowering};

/// The version of ONNX's operators that graphs are written in.
const OPSET: i64 = 18;

/// What a lowering needs to know of the checkpoint's tensors.
pub trait Weights {
    /// The values of a small tensor: a shape, axes, one number.
    fn constant(&self, tensor: &str) -> Option<Constant>;

    /// How a tensor of integers is quantized.
    fn affine(&self, tensor: &str) -> Option<Affine>;
}

/// How the integers of a tensor stand for floats: `scale * (integer - zero_point)`.
#[derive(Debug, Clone, PartialEq)]
pub struct Affine {
    /// The tensor of scales, in single precision.
    pub scales: String,
    /// How many there are.
    pub count: u64,
    /// The zero points, where they are not all 0.
    pub zero_points: Option<Vec<i64>>,
    /// The dimension that they go along, where there are several.
    pub axis: usize,
}

/// The graph with the operators of ONNX.
///
/// # Errors
/// The operators that have no counterpart here, by their names, and how many of each there are:
/// ONNX has none, or none for those options or elements.
pub fn lower(graph: &Graph, weights: &dyn Weights) -> Result<Graph, BTreeMap<String, u64>> {
    let mut lowering = Lowering::new(&graph.body, weights);
    for node in &graph.body.nodes {
        if lowering.node(node).is_none() {
            *lowering.others.entry(node.op.name.to_string()).or_default() += 1;
            lowering.leave(node);
        }
    }
    let mut others = std::mem::take(&mut lowering.others);
    match lowering.finish() {
        Some(body) if others.is_empty() => {
            let opsets = vec![Opset { domain: "".into(), version: OPSET }];
            Ok(Graph { opsets, functions: Vec::new(), body })
        }
        made => {
            if made.is_none() {
                others.insert("an output that no operator makes".to_owned(), 1);
            }
            Err(others)
        }
    }
}

impl Lowering<'_> {
    /// Lowers a node; `None` where that can't be done.
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

    /// Lets a node that can't be lowered stand for its outputs, so that those behind it are judged
    /// by themselves.
    fn leave(&mut self, node: &Node) {
        for output in node.outputs.iter().flatten() {
            let name = &self.from.value(*output).name;
            let made = self.main.call(&node.op, []).output(name);
            self.set(*output, made, Layout::Natural);
        }
    }
}
