//! Graphs whose products multiply integers.

use std::collections::BTreeMap;

use apr_core::Escaped;
use apr_graph::{Graph, Node, inline};
use apr_quantize::Quantization;
use apr_registry::CheckpointReader;

use super::description::Job;
use super::error::JobError;
use super::weights::multiplies_integers;
use crate::products::{
    IntegerProducts, IntegerTensor, UnchangedProduct, WITH_CHANNELS, quantize_products,
};

/// A report, and the tensors that become integers by their positions.
pub(super) type Quantized = (IntegerProducts, BTreeMap<usize, IntegerTensor>);

impl Job {
    /// Returns the quantization that turns products into products of integers, if one is requested.
    pub(super) fn integer_quantization(&self) -> Option<&Quantization> {
        let asked = self.weights.quantize.as_ref();
        asked.filter(|asked| multiplies_integers(asked.choices.scheme, self.target.format))
    }

    /// Replaces the products of graphs by products of integers, if that is requested. The graphs
    /// are then without functions. `reader` has the tensors that they name.
    pub(super) fn quantize_products(
        &self,
        graphs: &mut [(String, Graph)],
        reader: &dyn CheckpointReader,
    ) -> Result<Option<Quantized>, JobError> {
        let Some(asked) = self.integer_quantization() else { return Ok(None) };
        for (_, graph) in graphs.iter_mut() {
            *graph = inline(graph)?;
        }
        let overrides = &asked.choices.overrides;
        let names = || reader.tensors().iter().map(|info| info.name.as_str());
        let idle =
            overrides.iter().find(|(pattern, _)| !names().any(|name| pattern.is_match(name)));
        if let Some((pattern, _)) = idle {
            let pattern = Escaped::short(pattern.text());
            return Err(JobError::Request(format!("`tensor_type` {pattern} matches no tensor")));
        }
        self.check_excluded(graphs)?;
        let excluded = &self.weights.exclude_nodes;
        let excludes = |node: &Node| excluded.iter().any(|each| each.is_match(&node.name));
        let keeps = |name: &str| overrides.iter().any(|(pattern, _)| pattern.is_match(name));
        let ranges = self.weights.ranges.as_ref();
        let quantized = quantize_products(graphs, reader, ranges, (&keeps, &excludes))?;
        if quantized.0.quantized == 0 {
            let scheme = asked.choices.scheme;
            let why = match quantized.0.unchanged.first() {
                Some(UnchangedProduct { node, op, why }) => {
                    format!("of {op} '{}': {why}", Escaped::short(node))
                }
                None => "the graph has no Conv, Gemm or MatMul with a weight".to_owned(),
            };
            return Err(JobError::Request(format!("{scheme} would quantize nothing: {why}")));
        }
        Ok(Some(quantized))
    }

    /// Rejects options that products of integers do not support.
    pub(super) fn check_products(&self) -> Result<(), JobError> {
        let Some(asked) = self.integer_quantization() else { return Ok(()) };
        let choices = &asked.choices;
        let scheme = choices.scheme;
        let is_float = |(_, wanted): &(_, apr_quantize::TensorType)| {
            wanted.dtype().is_some_and(apr_registry::DType::is_float)
        };
        let message = if self.weights.precision.is_some() {
            format!("`precision` and {scheme} are two types for the same tensors")
        } else if self.weights.gate.is_some() {
            format!(
                "the error of {scheme} in a graph depends on its inputs: compare the outputs of \
                 both models"
            )
        } else if self.graph.opset.is_some_and(|opset| opset < WITH_CHANNELS) {
            format!("{scheme} needs `opset` {WITH_CHANNELS} or later")
        } else if asked.weighting.is_some()
            || choices.embedding_type.is_some()
            || choices.output_type.is_some()
            || choices.pure
            || choices.requantize
        {
            format!(
                "importance, types of embeddings and outputs, `pure` and `requantize` do not apply \
                 to {scheme} in a graph"
            )
        } else if !choices.overrides.iter().all(is_float) {
            format!("a weight of a graph is {scheme} or a float: pass f32 as its type")
        } else {
            return Ok(());
        };
        Err(JobError::Request(message))
    }

    /// Returns the first opset that quantized weights need, and the reason.
    pub(super) fn least_opset(&self) -> Option<(i64, String)> {
        self.weights.quantize.as_ref()?;
        let (least, feature) = match self.integer_quantization() {
            Some(_) => (WITH_CHANNELS, "a scale for each channel"),
            None => (super::wishes::WITH_BLOCKS, "blocks"),
        };
        Some((least, format!("opset {least}, the first with {feature} in DequantizeLinear")))
    }
}
