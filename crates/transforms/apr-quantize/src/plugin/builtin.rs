//! The quantizers that are always there.

use apr_core::{DType, Error, Result, Shape};
use apr_tensor::block;

use super::{QuantType, QuantizedBlock, QuantizedTensor, Quantizer, corrupt, unsupported};

macro_rules! ggml_quantizers {
    ($($(#[$doc:meta])* $quantizer:ident = $quant_type:ident, $name:literal, $bits:literal;)*) => {
        $(
            $(#[$doc])*
            #[allow(non_camel_case_types, reason = "the field writes Q8_0")]
            #[derive(Debug, Clone, Copy, Default)]
            pub struct $quantizer;

            impl Quantizer for $quantizer {
                fn name(&self) -> &str {
                    $name
                }

                fn quantize(&self, data: &[f32], shape: &Shape) -> Result<QuantizedBlock> {
                    quantize(QuantType::$quant_type, DType::$quant_type, data, shape)
                }

                fn dequantize(&self, block: &QuantizedBlock) -> Result<Vec<f32>> {
                    dequantize(QuantType::$quant_type, DType::$quant_type, block)
                }

                fn bits_per_weight(&self) -> f32 {
                    $bits
                }

                fn quant_type(&self) -> QuantType {
                    QuantType::$quant_type
                }
            }
        )*
    };
}

ggml_quantizers! {
    /// 8.5 bits a weight: 32 signed bytes and an `f16` scale.
    Q8_0Quantizer = Q8_0, "q8_0", 8.5;
    /// 4.5 bits a weight: 32 nibbles and an `f16` scale.
    Q4_0Quantizer = Q4_0, "q4_0", 4.5;
    /// 5 bits a weight: 32 nibbles, an `f16` scale and an `f16` minimum.
    Q4_1Quantizer = Q4_1, "q4_1", 5.0;
}

/// 8 bits a weight: signed bytes and one `f32` scale for the whole tensor. Symmetric: values in
/// [-127, 127], the greatest magnitude becomes 127 or -127.
#[derive(Debug, Clone, Copy, Default)]
pub struct Q8TensorQuantizer;

impl Quantizer for Q8TensorQuantizer {
    fn name(&self) -> &str {
        "q8_tensor"
    }

    fn quantize(&self, data: &[f32], shape: &Shape) -> Result<QuantizedBlock> {
        check_values(data, shape)?;
        let greatest = data.iter().fold(0_f32, |greatest, value| greatest.max(value.abs()));
        let scale = greatest / 127.0;

        // A scale that is not a number of its own, too small to divide by, leaves nothing to tell
        // apart.
        let inverse = if scale.is_normal() { 1.0 / scale } else { 0.0 };
        let mut blocks = Vec::with_capacity(data.len() + 4);
        blocks.extend(scale.to_le_bytes());
        #[expect(clippy::cast_possible_truncation, reason = "clamped to what i8 holds")]
        let narrow = |value: f32| (value * inverse).round().clamp(-127.0, 127.0) as i8;
        blocks.extend(data.iter().map(|&value| narrow(value).cast_unsigned()));
        Ok(QuantizedBlock {
            quant_type: QuantType::Q8Tensor,
            shape: shape.clone(),
            blocks,
            block_size: data.len(),
        })
    }

    fn dequantize(&self, block: &QuantizedBlock) -> Result<Vec<f32>> {
        let QuantizedTensor { data, scale, .. } = QuantizedTensor::try_from(block)?;
        Ok(data.into_iter().map(|value| f32::from(value) * scale).collect())
    }

    fn bits_per_weight(&self) -> f32 {
        8.0
    }

    fn quant_type(&self) -> QuantType {
        QuantType::Q8Tensor
    }
}

/// Checks that the values fill the shape and that all are finite.
fn check_values(data: &[f32], shape: &Shape) -> Result<()> {
    if shape.elements() != Some(data.len() as u64) {
        return Err(Error::format(format!("{} values do not fill the shape {shape}", data.len())));
    }
    if data.iter().any(|value| !value.is_finite()) {
        return Err(Error::format("values that are not finite can't be quantized"));
    }
    Ok(())
}

fn quantize(
    quant_type: QuantType,
    dtype: DType,
    data: &[f32],
    shape: &Shape,
) -> Result<QuantizedBlock> {
    check_values(data, shape)?;
    let Some(len) = dtype.stored_len(shape) else {
        let message = format!(
            "rows of {} are not a multiple of {}, the block of {dtype}",
            shape.row_len(),
            dtype.block_len()
        );
        return Err(Error::format(message));
    };

    if !block::can_quantize(dtype) {
        return Err(unsupported(&format!("this build does not make {dtype}")));
    }

    let mut blocks = Vec::with_capacity(usize::try_from(len).unwrap_or(0));
    if !data.is_empty() {
        block::quantize(dtype, data, row_len(shape), None, &mut blocks);
    }

    let block_size = usize::try_from(dtype.block_len()).unwrap_or(usize::MAX);
    Ok(QuantizedBlock { quant_type, shape: shape.clone(), blocks, block_size })
}

fn dequantize(quant_type: QuantType, dtype: DType, stored: &QuantizedBlock) -> Result<Vec<f32>> {
    if stored.quant_type != quant_type {
        return Err(unsupported(&format!(
            "these are blocks of {:?}, not {quant_type:?}",
            stored.quant_type
        )));
    }

    stored.check()?;
    let mut values = Vec::new();
    if !stored.blocks.is_empty() {
        block::dequantize(dtype, &stored.blocks, row_len(&stored.shape), &mut values);
    }

    if values.len() != stored.elements()? {
        return Err(corrupt(&format!(
            "the blocks hold {} values, which does not match {}",
            values.len(),
            stored.shape
        )));
    }

    Ok(values)
}

/// Values of a row; there are as many in memory.
fn row_len(shape: &Shape) -> usize {
    usize::try_from(shape.row_len()).unwrap_or(usize::MAX)
}
