//! The interface for quantization types of your own.
//!
//! A [`Quantizer`] turns the values of a tensor into blocks and back; a [`QuantizerRegistry`] finds
//! it by name; [`QuantizationHooks`] decide tensor by tensor. [`quantize_with_registry`] and
//! [`quantize_with_hooks`] run over a model and hold one tensor at a time, as `f32` and as blocks.
//! They never start by themselves.
//!
//! Messages about a type that can't be made start with `UnsupportedQuantization` (E001), those
//! about values that became NaN or infinite with `QuantizationCorrupt` (E002).
//!
//! ```
//! use apr_core::{Result, Shape};
//! use apr_quantize::plugin::{QuantType, QuantizedBlock, Quantizer, QuantizerRegistry};
//!
//! /// Keeps the sign alone.
//! struct Signs;
//!
//! impl Quantizer for Signs {
//!     fn name(&self) -> &str {
//!         "signs"
//!     }
//!
//!     fn quantize(&self, data: &[f32], shape: &Shape) -> Result<QuantizedBlock> {
//!         let blocks = data
//!             .chunks(8)
//!             .map(|eight| eight.iter().rev().fold(0, |byte, v| byte << 1 | u8::from(*v < 0.0)));
//!         Ok(QuantizedBlock {
//!             quant_type: QuantType::Custom,
//!             shape: shape.clone(),
//!             blocks: blocks.collect(),
//!             block_size: 8,
//!         })
//!     }
//!
//!     fn dequantize(&self, block: &QuantizedBlock) -> Result<Vec<f32>> {
//!         let values = block
//!             .blocks
//!             .iter()
//!             .flat_map(|byte| (0..8).map(move |i| 1.0 - 2.0 * f32::from(byte >> i & 1)));
//!         Ok(values.take(block.elements()?).collect())
//!     }
//!
//!     fn bits_per_weight(&self) -> f32 {
//!         1.0
//!     }
//! }
//!
//! let mut registry = QuantizerRegistry::default();
//! registry.register(Box::new(Signs));
//! let signs = registry.get("signs").expect("just registered");
//! let block = signs.quantize(&[0.5, -2.0, 1.0], &Shape::from([3]))?;
//! assert_eq!(signs.dequantize(&block)?, [1.0, -1.0, 1.0]);
//! # Ok::<(), apr_core::Error>(())
//! ```

mod builtin;
mod hooks;
mod pass;
mod registry;

#[cfg(test)]
mod tests;

use apr_core::{DType, Error, Result, Shape};
use serde::Serialize;

pub use builtin::{Q4_0Quantizer, Q4_1Quantizer, Q8_0Quantizer, Q8TensorQuantizer};
pub use hooks::{MixedPrecisionHooks, QuantizationHooks, UniformQuantization};
pub use pass::{
    Outcome, QuantizedTensors, TensorOutcome, quantize_with_hooks, quantize_with_registry,
};
pub use registry::QuantizerRegistry;

/// Quantization types of the plug-in interface, each with its byte code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[allow(non_camel_case_types, reason = "the field writes Q8_0")]
#[repr(u8)]
pub enum QuantType {
    /// ggml's blocks of 32 with a scale, 8 bits a value.
    Q8_0 = 0x01,
    /// ggml's blocks of 32 with a scale, 4 bits a value.
    Q4_0 = 0x02,
    /// ggml's blocks of 32 with a scale and a minimum, 4 bits a value.
    Q4_1 = 0x03,
    /// The whole tensor with one scale, 8 bits a value.
    Q8Tensor = 0x10,
    /// Type of a plug-in's blocks.
    Custom = 0xFF,
}

impl QuantType {
    /// Returns the type of a byte code.
    ///
    /// # Errors
    /// E001, `UnsupportedQuantization`, for an unknown code.
    pub fn from_code(code: u8) -> Result<Self> {
        [Self::Q8_0, Self::Q4_0, Self::Q4_1, Self::Q8Tensor, Self::Custom]
            .into_iter()
            .find(|known| known.code() == code)
            .ok_or_else(|| unsupported(&format!("no type has the number {code:#04x}")))
    }

    /// Returns the byte code of the type.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Returns the GGML dtype, or `None` if GGML has no such type.
    #[must_use]
    pub const fn dtype(self) -> Option<DType> {
        match self {
            Self::Q8_0 => Some(DType::Q8_0),
            Self::Q4_0 => Some(DType::Q4_0),
            Self::Q4_1 => Some(DType::Q4_1),
            Self::Q8Tensor | Self::Custom => None,
        }
    }

    /// The name under which the built-in quantizer is registered; plug-ins have names of their own.
    #[must_use]
    pub const fn quantizer(self) -> Option<&'static str> {
        match self {
            Self::Q8_0 => Some("q8_0"),
            Self::Q4_0 => Some("q4_0"),
            Self::Q4_1 => Some("q4_1"),
            Self::Q8Tensor => Some("q8_tensor"),
            Self::Custom => None,
        }
    }
}

/// A tensor in blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuantizedBlock {
    /// Type that determines how the blocks are read.
    pub quant_type: QuantType,
    /// Outermost first.
    pub shape: Shape,
    /// The blocks, row by row. Of [`QuantType::Q8Tensor`]: the scale as little-endian `f32`, then
    /// one signed byte a value.
    pub blocks: Vec<u8>,
    /// Values of a block: 32 for ggml's types, all of them for [`QuantType::Q8Tensor`].
    pub block_size: usize,
}

impl QuantizedBlock {
    /// Number of values.
    ///
    /// # Errors
    /// E002, `QuantizationCorrupt`, for a shape of more values than memory can hold.
    pub fn elements(&self) -> Result<usize> {
        let elements = self.shape.elements().and_then(|elements| usize::try_from(elements).ok());
        elements.ok_or_else(|| corrupt(&format!("the shape {} has too many values", self.shape)))
    }

    /// Checks that the number of blocks matches the shape. Plug-ins check their own blocks.
    ///
    /// # Errors
    /// E002, `QuantizationCorrupt`.
    pub fn check(&self) -> Result<()> {
        let elements = self.elements()?;
        let (block_size, bytes) = match self.quant_type.dtype() {
            Some(dtype) => (dtype.block_len(), dtype.stored_len(&self.shape)),
            None if self.quant_type == QuantType::Q8Tensor => {
                (elements as u64, (elements as u64).checked_add(4))
            }
            None => return Ok(()),
        };

        if self.block_size as u64 != block_size {
            return Err(corrupt(&format!(
                "blocks of {} values instead of {block_size}",
                self.block_size
            )));
        }

        if bytes != Some(self.blocks.len() as u64) {
            return Err(corrupt(&format!(
                "{} bytes of blocks do not match shape {}",
                self.blocks.len(),
                self.shape
            )));
        }

        Ok(())
    }
}

/// A tensor with one scale, as `r = scale * (q - zero_point)`.
#[derive(Debug, Clone, PartialEq)]
pub struct QuantizedTensor {
    /// [`QuantType::Q8Tensor`].
    pub quant_type: QuantType,
    /// Outermost first.
    pub shape: Shape,
    /// `q`, row by row.
    pub data: Vec<i8>,
    /// Factor for `q`.
    pub scale: f32,
    /// Number subtracted from `q` before scaling; 0, since the built-in quantizer is symmetric.
    pub zero_point: i32,
}

impl TryFrom<&QuantizedBlock> for QuantizedTensor {
    type Error = Error;

    /// Takes scale and values apart.
    ///
    /// # Errors
    /// E001, `UnsupportedQuantization`, for a type other than [`QuantType::Q8Tensor`]; E002 for
    /// blocks that do not go with the shape.
    fn try_from(block: &QuantizedBlock) -> Result<Self> {
        if block.quant_type != QuantType::Q8Tensor {
            return Err(unsupported(&format!("{:?} has more than one scale", block.quant_type)));
        }

        block.check()?;
        let Some((scale, values)) = block.blocks.split_first_chunk() else {
            return Err(corrupt("there is no scale"));
        };
        Ok(Self {
            quant_type: block.quant_type,
            shape: block.shape.clone(),
            data: values.iter().map(|byte| byte.cast_signed()).collect(),
            scale: f32::from_le_bytes(*scale),
            zero_point: 0,
        })
    }
}

/// Quantization details of a tensor, for the model's metadata.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct QuantizationInfo {
    /// Quantization type of the tensor.
    pub quant_type: QuantType,
    /// Name of the quantizer.
    pub quantizer: String,
    /// Method that chose the scales: `minmax` for the built-in types, any text for plug-ins.
    pub calibration_method: String,
    /// Number of calibration samples; the interface does not use any.
    pub calibration_samples: u32,
    /// Dtype of the stored original: `f32`, `bf16`.
    pub original_dtype: String,
    /// Energy of the error divided by the energy of the values: 0 for no error, 1 for no
    /// information.
    pub error: f32,
    /// Warning about the quality of the tensor, if there is one.
    pub warning: Option<String>,
}

/// Turns values into blocks and back.
pub trait Quantizer: Send + Sync {
    /// Name by which it is found.
    fn name(&self) -> &str;

    /// Quantizes a tensor, given row by row.
    ///
    /// # Errors
    /// E001 for a shape or values that it can't quantize.
    fn quantize(&self, data: &[f32], shape: &Shape) -> Result<QuantizedBlock>;

    /// Restores the values as precisely as the blocks allow.
    ///
    /// # Errors
    /// E001 for blocks of another type; E002 for blocks that do not match their shape.
    fn dequantize(&self, block: &QuantizedBlock) -> Result<Vec<f32>>;

    /// Bits that a value takes, scales included, for an estimate of the size.
    fn bits_per_weight(&self) -> f32;

    /// The type of the blocks it makes.
    fn quant_type(&self) -> QuantType {
        QuantType::Custom
    }
}

fn unsupported(message: &str) -> Error {
    Error::format(format!("UnsupportedQuantization: {message}"))
}

fn corrupt(message: &str) -> Error {
    Error::corrupt(format!("QuantizationCorrupt: {message}"))
}
