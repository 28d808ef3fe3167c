//! Products of a graph in 8-bit integers, with the operators and names of onnxruntime's quantizers.
//!
//! | activations | what replaces `MatMul(x, w)` |
//! |---|---|
//! | dynamic: quantized in each run by their own range | `DynamicQuantizeLinear(x)`, `MatMulInteger`, `Cast`, and `Mul` by both scales |
//! | static: quantized by the range of calibration runs | `QuantizeLinear` and `DequantizeLinear` around `x`, and `DequantizeLinear` of `w` |
//!
//! Weights are quantized symmetrically, with a scale for each output channel. Runtimes replace the
//! nodes of the second form by products of integers.

mod candidates;
mod integers;
mod range;
mod rewrite;

use std::collections::BTreeMap;

use apr_core::{CheckpointReader, Result};
use apr_graph::{Graph, Node};
use serde::Serialize;

use candidates::Candidates;
pub(crate) use integers::{IntegerTensor, as_integers};
pub use range::{Calibration, Range, Ranges};
use rewrite::rewrite;

/// Chooses nodes.
type IsNode<'t> = &'t dyn Fn(&Node) -> bool;

/// The first opset whose `DequantizeLinear` takes a scale for each channel.
pub(crate) const WITH_CHANNELS: i64 = 13;

/// Result of replacing the products of a model by products of integers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct IntegerProducts {
    /// How activations are quantized.
    pub activations: Activations,
    /// Method that chose the ranges of static activations: `minmax`, `percentile:99.9`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calibration: Option<String>,
    /// Number of `Conv`, `Gemm` and `MatMul` nodes that read a weight.
    pub products: u64,
    /// Number of those that multiply integers.
    pub quantized: u64,
    /// Products that multiply floats as before.
    pub unchanged: Vec<UnchangedProduct>,
}

/// How the activations of integer products are quantized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Activations {
    /// In each run, by their own range.
    Dynamic,
    /// By the range that calibration runs measured.
    Static,
}

/// A product that was not quantized.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct UnchangedProduct {
    /// Name of the node, or of its output if the node has no name.
    pub node: String,
    /// Its operator.
    pub op: String,
    /// Reason that it was not quantized.
    pub why: String,
}

/// Replaces the products of graphs by products of integers.
///
/// `graphs` are the parts of a model by name, without functions. `reader` has the tensors that they
/// name. `keeps` returns `true` for names of tensors that stay floats, and `excludes` for nodes
/// that multiply floats. Returns the report, and the tensors that become integers by their
/// positions in `reader`.
///
/// # Errors
/// E002 for weights with NaN or infinity, and the errors of reading weights.
pub(crate) fn quantize_products(
    graphs: &mut [(String, Graph)],
    reader: &dyn CheckpointReader,
    ranges: Option<&Ranges>,
    (keeps, excludes): (&dyn Fn(&str) -> bool, IsNode<'_>),
) -> Result<(IntegerProducts, BTreeMap<usize, IntegerTensor>)> {
    let activations = match ranges {
        Some(_) => Activations::Static,
        None => Activations::Dynamic,
    };
    let candidates = Candidates::find(graphs, reader, ranges, (keeps, excludes));
    let mut tensors = candidates.quantized(reader)?;
    let mut report = IntegerProducts {
        activations,
        calibration: ranges.map(|ranges| ranges.method.to_string()),
        products: 0,
        quantized: 0,
        unchanged: Vec::new(),
    };
    for (name, graph) in graphs {
        let ranges = ranges.map(|ranges| ranges.of_part(name));
        rewrite(graph, &candidates, reader, &mut tensors, ranges, &mut report)?;
    }
    Ok((report, tensors))
}

#[cfg(test)]
mod tests {
    use apr_graph::{Dim, ElementType, GraphBuilder, Meaning};
    use apr_registry::Limits;

    use super::*;

    #[test]
    fn a_weight_without_elements_allocates_nothing() {
        const COLUMNS: u64 = 1 << 40;
        let header =
            format!(r#"{{"w":{{"dtype":"F32","shape":[0,{COLUMNS}],"data_offsets":[0,0]}}}}"#);
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend_from_slice(header.as_bytes());
        let model = apr_registry::open(file, "m.safetensors", &Limits::default()).expect("a model");

        let mut builder = GraphBuilder::new(17);
        let main = builder.body();
        let dims = [Dim::symbol("rows"), Dim::fixed(0)];
        let x = main.input("x", ElementType::F32, dims, Meaning::Unknown);
        let w = main.weight("w", ElementType::F32, [0, COLUMNS]);
        let y = main.op("MatMul", [x, w]).output("y");
        main.output("y", y, Meaning::Unknown);
        let mut graphs = [("m".to_owned(), builder.finish())];

        let made = quantize_products(&mut graphs, &*model, None, (&|_| false, &|_| false))
            .expect("a report");
        assert_eq!((made.0.products, made.0.quantized), (1, 0));
        assert_eq!(made.0.unchanged[0].why, "its weight has no elements");
        assert!(made.1.is_empty());
    }
}
