//! A quantization type of your own, in a crate of your own.
//!
//! `apr-ops` knows nothing of this crate. To add a type, implement
//! [`Quantizer`], register it, and name it:
//!
//! ```
//! use apr_quantize::plugin::QuantizerRegistry;
//! use custom_quantizer::BinaryQuantizer;
//!
//! let mut registry = QuantizerRegistry::default();
//! registry.register(Box::new(BinaryQuantizer));
//! assert!(registry.get("binary").is_some());
//! // quantize_with_registry(&*model, "binary", &registry)? then gives the model's tensors, one at
//! // a time.
//! ```
//!
//! The type keeps of each weight only its sign, and of every 32 weights in a row the mean
//! magnitude, which is the scale that leaves the least error (Rastegari et al., XNOR-Net, 2016):
//!
//! ```text
//! byte 0                4             8
//!      ├────────────────┼─────────────┤
//!      │ magnitude, f32 │ signs, u32  │   both little-endian; bit i is set
//!      └────────────────┴─────────────┘   where weight i is negative
//! ```
//!
//! A group ends with its row, so the last one of a row can hold less than 32 weights.
#![forbid(unsafe_code)]

use apr_core::{Error, Result, Shape};
use apr_quantize::plugin::{QuantType, QuantizedBlock, Quantizer};

/// Weights of a group.
const GROUP: usize = 32;

/// Bytes of a group.
const GROUP_BYTES: usize = 8;

/// Signs, and a magnitude for every 32 of them: 2 bits a weight.
#[derive(Debug, Clone, Copy, Default)]
pub struct BinaryQuantizer;

impl Quantizer for BinaryQuantizer {
    fn name(&self) -> &str {
        "binary"
    }

    fn quantize(&self, data: &[f32], shape: &Shape) -> Result<QuantizedBlock> {
        if shape.elements() != Some(data.len() as u64) {
            return Err(Error::format(format!(
                "{} values do not fill the shape {shape}",
                data.len()
            )));
        }

        let groups = data.chunks(row_len(shape)?).flat_map(|row| row.chunks(GROUP));
        let blocks = groups.flat_map(encode_group).collect();
        Ok(QuantizedBlock {
            quant_type: QuantType::Custom,
            shape: shape.clone(),
            blocks,
            block_size: GROUP,
        })
    }

    fn dequantize(&self, block: &QuantizedBlock) -> Result<Vec<f32>> {
        let row_len = row_len(&block.shape)?;
        let groups_per_row = row_len.div_ceil(GROUP);
        let elements = block.elements()?;
        let rows = elements / row_len;
        let (groups, rest) = block.blocks.as_chunks::<GROUP_BYTES>();
        if !rest.is_empty() || rows.checked_mul(groups_per_row) != Some(groups.len()) {
            return Err(Error::corrupt(format!(
                "{} bytes of signs do not go with {}",
                block.blocks.len(),
                block.shape
            )));
        }

        let mut values = Vec::with_capacity(elements);
        for row in groups.chunks(groups_per_row) {
            for (i, group) in row.iter().enumerate() {
                values.extend(decode_group(*group, (row_len - i * GROUP).min(GROUP)));
            }
        }

        Ok(values)
    }

    fn bits_per_weight(&self) -> f32 {
        2.0
    }
}

/// Length of a row, at least 1, so that rows can be counted.
fn row_len(shape: &Shape) -> Result<usize> {
    let row_len = usize::try_from(shape.row_len())
        .map_err(|_| Error::memory("a row does not fit into memory"))?;
    Ok(row_len.max(1))
}

fn encode_group(values: &[f32]) -> [u8; GROUP_BYTES] {
    let magnitude = values.iter().map(|value| value.abs()).sum::<f32>() / values.len() as f32;
    let signs = values
        .iter()
        .rev()
        .fold(0_u32, |signs, value| signs << 1 | u32::from(value.is_sign_negative()));
    let mut bytes = [0; GROUP_BYTES];
    bytes[..4].copy_from_slice(&magnitude.to_le_bytes());
    bytes[4..].copy_from_slice(&signs.to_le_bytes());
    bytes
}

fn decode_group(
    [a, b, c, d, signs @ ..]: [u8; GROUP_BYTES],
    len: usize,
) -> impl Iterator<Item = f32> {
    let magnitude = f32::from_le_bytes([a, b, c, d]);
    let signs = u32::from_le_bytes(signs);
    (0..len).map(move |i| if signs >> i & 1 == 1 { -magnitude } else { magnitude })
}
