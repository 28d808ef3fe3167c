//! Weights in codes and scales: what quantizers of other programs store in several tensors, read
//! as the one tensor that it stands for.
//!
//! ```text
//! model.layers.0.mlp.up_proj.qweight  i32 [16, 128]   ┐
//! model.layers.0.mlp.up_proj.qzeros   i32 [4, 16]     │   model.layers.0.mlp.up_proj.weight
//! model.layers.0.mlp.up_proj.scales   f16 [4, 128]    ├─▶ f16 [128, 128]
//! model.layers.0.mlp.up_proj.g_idx    i32 [128]       ┘
//! ```
//!
//! [`Coded`] is a checkpoint with the weights in place of their parts; values are computed as they
//! are read, a tile at a time. [`Apart`] is the way back: the parts under the names that the
//! weights have by then, so that a conversion keeps them byte for byte. A kind of quantization is a
//! file here: it says by which names and dtypes it is recognised, and decodes a tile.
//!
//! A part that cannot be decoded stays a tensor of its own, and reading it is E003: nothing
//! computes with codes as if they were weights.

mod apart;
mod awq;
mod bitnet;
mod bitsandbytes;
mod blocks;
mod claims;
mod coded;
mod eetq;
mod expected;
mod experts;
mod find;
mod fp4;
mod ggml;
mod gptq;
mod grids;
mod grouped;
mod hqq;
mod integers;
mod marlin24;
mod mlx;
mod mlx_lm;
mod onnx;
mod own;
mod packed;
mod plain;
mod quanto;
mod qweight;
mod read;
mod refused;
mod scaled;
mod sparse24;
mod stated;
#[cfg(test)]
mod testing;
mod zero;

/// The kind of weights in blocks of NVFP4 with a factor beside them, as GGUF files have them.
pub const NVFP4_BLOCKS: &str = "nvfp4-blocks";

/// The kind of the experts of gpt-oss, which GGUF has in blocks of the same numbers.
pub const MXFP4_EXPERTS: &str = "mxfp4-experts";

/// Kind of MLX's weights, whose experts are in one tensor.
pub const MLX_CODES: &str = "mlx";

pub use apart::{Apart, PartOrigin};
pub use blocks::{Blocks, Factors};
pub use coded::{Coded, UNDECODABLE, check_decodable};
pub use find::is_of_activations;
pub use mlx_lm::{module_of_mlx, stacked_for_mlx};
pub use stated::{drop_statement, stated_method, states_quantization};
