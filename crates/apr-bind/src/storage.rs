//! How the tensors of a graph are stored.

use apr_registry::DType;

/// How tensors are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Storage {
    /// Floats of 8 to 64 bits become this dtype; `None`: they stay what they are.
    pub precision: Option<DType>,
    /// Quantized tensors become this dtype; `None`: they stay quantized where the format can say
    /// what they mean, and become single precision otherwise.
    pub dequantize: Option<DType>,
    /// How quantized tensors stay quantized.
    pub blocks: Blocks,
}

/// How quantized tensors stay quantized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Blocks {
    /// As integers and scales that ONNX's own `DequantizeLinear` multiplies.
    #[default]
    Dequantized,
    /// The same, and matrix products by `MatMulNBits` of onnxruntime, which multiplies without a
    /// copy in floats.
    MatMulNBits,
}
