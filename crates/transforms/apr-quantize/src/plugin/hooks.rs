//! Deciding tensor by tensor.

use apr_core::Shape;

use super::super::role::{Role, by_name};
use super::{QuantType, QuantizedBlock};

/// Decides about each tensor.
pub trait QuantizationHooks {
    /// Returns the dtype for a tensor before it is quantized, or `None` to leave it unchanged.
    fn select_quantizer(&self, layer_name: &str, shape: &Shape) -> Option<QuantType>;

    /// Returns `true` if the result is good enough.
    ///
    /// If it is not, the tensor stays quantized and its information contains a warning.
    fn validate(&self, layer_name: &str, original: &[f32], quantized: &QuantizedBlock) -> bool {
        let _ = (layer_name, original, quantized);
        true
    }
}

/// Quantization of every suitable weight to the same type.
///
/// Vectors, norms and rows that blocks do not divide are unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct UniformQuantization {
    /// Type of the quantized weights.
    pub quant_type: QuantType,
}

impl QuantizationHooks for UniformQuantization {
    fn select_quantizer(&self, layer_name: &str, shape: &Shape) -> Option<QuantType> {
        suits(self.quant_type, layer_name, shape).then_some(self.quant_type)
    }
}

/// Quantization with other types for token embeddings and output, where small errors hurt more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct MixedPrecisionHooks {
    /// For all other weights.
    pub default_type: QuantType,
    /// For token embeddings, often of more bits.
    pub embedding_type: QuantType,
    /// For the output matrix.
    pub output_type: QuantType,
}

impl QuantizationHooks for MixedPrecisionHooks {
    fn select_quantizer(&self, layer_name: &str, shape: &Shape) -> Option<QuantType> {
        let quant_type = match by_name(layer_name, shape) {
            Role::TokenEmbedding => self.embedding_type,
            Role::Output => self.output_type,
            Role::Matrix | Role::Kept(_) => self.default_type,
        };
        suits(quant_type, layer_name, shape).then_some(quant_type)
    }
}

fn suits(quant_type: QuantType, name: &str, shape: &Shape) -> bool {
    let fits =
        quant_type.dtype().is_none_or(|dtype| shape.row_len().is_multiple_of(dtype.block_len()));
    fits && !matches!(by_name(name, shape), Role::Kept(_))
}
