//! How the tensors of a graph are stored.

use apr_registry::DType;

/// Options for storing the tensors of a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Storage {
    /// Dtype for floats of 8 to 64 bits. `None` keeps their dtype.
    pub precision: Option<DType>,
    /// Dtype for quantized tensors.
    ///
    /// If `None`, quantized tensors stay quantized if the format can represent them. The others
    /// become single precision.
    pub dequantize: Option<DType>,
    /// Form of the tensors that stay quantized.
    pub blocks: Blocks,
}

/// Form of the tensors that stay quantized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Blocks {
    /// Integers and scales that ONNX's own `DequantizeLinear` multiplies.
    #[default]
    Dequantized,
    /// Like [`Dequantized`](Self::Dequantized), with `MatMulNBits` of onnxruntime for matrix
    /// products.
    ///
    /// `MatMulNBits` multiplies without a copy of the weight in floats.
    MatMulNBits,
}
