//! Experts of gpt-oss: 4-bit floats (E2M1) in blocks of 32 with an exponent each (MXFP4), one
//! tensor for all experts of a layer.
//!
//! `X_blocks` is `[experts, outputs, blocks, 16]`, the first element of a byte in its low half, and
//! `X_scales` is `[experts, outputs, blocks]`. The weight `X` is what the model computes with, and
//! has inputs as rows: `[experts, inputs, outputs]`. All values are exact in `bf16`.

use apr_core::{CheckpointReader, DType, Result, TensorInfo};
use apr_tensor::element::widen_f32;

use super::find::{Decode, Kind, Tensors, Weight};
use super::read::{Tile, bytes_of, scales_of, usize_of};
use super::stated::Stated;
use super::zero::Scaling;

pub(super) const KIND: Kind = Kind { id: super::MXFP4_EXPERTS, find };

/// Bytes of a block's elements, and its elements.
const BYTES: u64 = 16;
const BLOCK: u64 = 2 * BYTES;

fn find(tensors: &Tensors<'_>, _: &Stated, part: usize) -> Option<Result<Weight>> {
    let info = tensors.info(part);
    if let Some(name) = tensors.stem(part, "_blocks") {
        return match info.shape.dims() {
            &[experts, outputs, along, BYTES] if info.dtype == DType::U8 => {
                Some(weight(tensors, name, part, [experts, outputs, along]))
            }
            _ => {
                tensors.beside(name, &["_scales"])?;
                Some(Err(tensors.unfit(part, name, "u8 [experts, outputs, blocks, 16]")))
            }
        };
    }
    let name = tensors.stem(part, "_scales").filter(|name| name.contains(".experts."))?;
    let is_exponents = matches!(info.dtype, DType::U8 | DType::F8_E8M0);
    let is_alone = is_exponents && info.shape.dims().len() == 3 && !tensors.is_shard_alone();
    let blocks = tensors.required_of(name, name, "_blocks");
    blocks.err().filter(|_| is_alone).map(Err)
}

fn weight(
    tensors: &Tensors<'_>,
    name: &str,
    blocks: usize,
    [experts, outputs, along]: [u64; 3],
) -> Result<Weight> {
    let scales = tensors.required_of(name, name, "_scales")?;
    tensors.check(scales, name, &[DType::U8, DType::F8_E8M0], &[experts, outputs, along])?;
    let unfit = || tensors.unfit(blocks, name, "rows of a length below 2^64");
    let inputs = along.checked_mul(BLOCK).ok_or_else(unfit)?;
    Ok(Weight {
        info: TensorInfo {
            name: name.to_owned(),
            dtype: DType::BF16,
            shape: [experts, inputs, outputs].into(),
        },
        description: "MXFP4, blocks of 32".to_owned(),
        parts: vec![blocks, scales],
        decode: Box::new(Experts { blocks, scales, inputs, outputs, along }),
    })
}

struct Experts {
    blocks: usize,
    scales: usize,
    inputs: u64,
    outputs: u64,
    /// Blocks of an output's inputs.
    along: u64,
}

impl Decode for Experts {
    fn scaling(&self) -> Vec<Scaling> {
        vec![Scaling { scales: self.scales, codes: self.blocks }]
    }

    fn decode(&self, base: &dyn CheckpointReader, tile: Tile, out: &mut [f32]) -> Result<()> {
        // The rows of a tile may be of several experts.
        let (mut row, mut rest) = (tile.row, out);
        while !rest.is_empty() {
            let left = (rest.len() / tile.columns) as u64;
            let rows = left.min(self.inputs - row % self.inputs);
            let (now, later) = rest.split_at_mut(usize_of(rows)? * tile.columns);
            self.decode_inputs(base, Tile { row, rows: usize_of(rows)?, ..tile }, now)?;
            (row, rest) = (row + rows, later);
        }
        Ok(())
    }
}

impl Experts {
    /// Decodes inputs of one expert; each output stores its inputs in contiguous blocks.
    fn decode_inputs(
        &self,
        base: &dyn CheckpointReader,
        tile: Tile,
        out: &mut [f32],
    ) -> Result<()> {
        let (expert, first) = (tile.row / self.inputs, tile.row % self.inputs);
        let end = first + tile.rows as u64;
        let (from, to) = (first / BLOCK, end.div_ceil(BLOCK));
        let len = usize_of((to - from) * BYTES)?;
        let skipped = usize_of(first - from * BLOCK)?;
        let mut elements = Vec::new();
        for (column, output) in (tile.column..tile.column + tile.columns as u64).enumerate() {
            let block = (expert * self.outputs + output) * self.along + from;
            let bytes = bytes_of(base, self.blocks, block * BYTES, len)?;
            let scales = scales_of(base, self.scales, DType::F8_E8M0, block..block + (to - from))?;
            widen_f32(DType::F4_E2M1, &bytes, &mut elements);
            for (input, element) in elements.iter().enumerate().skip(skipped).take(tile.rows) {
                let scale = scales[input / usize_of(BLOCK)?];
                out[(input - skipped) * tile.columns + column] = element * scale;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Part, error, first};
    use super::*;

    /// Values that `convert_moe_packed_tensors` of transformers 5.23 returns for the codes below:
    /// two experts of 32 inputs and two outputs.
    #[rustfmt::skip]
    const OF_TRANSFORMERS: [f32; 128] = [
        -1.5, -0.1875, 0.0, 0.375, 0.0, 0.0, 1.5, -0.0,
        3.0, 0.375, 3.0, -0.125, -1.0, -0.125, 6.0, -0.25,
        -6.0, -0.75, -0.5, -0.5, 2.0, 0.25, -2.0, 0.0625,
        -0.5, -0.0625, -4.0, 0.1875, -4.0, -0.5, 0.0, 0.375,
        1.5, 0.1875, 1.5, -0.0, -0.0, -0.0, 3.0, -0.125,
        -3.0, -0.375, 6.0, -0.25, 1.0, 0.125, -1.0, -0.75,
        6.0, 0.75, -2.0, 0.0625, -2.0, -0.25, -4.0, 0.1875,
        0.5, 0.0625, 0.5, 0.5, 4.0, 0.5, 1.5, -0.0,
        -3.0, -12.0, -2.0, -48.0, 0.0, 0.0, -6.0, 8.0,
        6.0, 24.0, -12.0, 16.0, -2.0, -8.0, 1.0, 32.0,
        -12.0, -48.0, 3.0, -0.0, 4.0, 16.0, 8.0, -12.0,
        -1.0, -4.0, -0.0, -24.0, -8.0, -32.0, -2.0, -48.0,
        3.0, 12.0, -6.0, 8.0, -0.0, -0.0, -12.0, 16.0,
        -6.0, -24.0, 1.0, 32.0, 2.0, 8.0, 4.0, -4.0,
        12.0, 48.0, 8.0, -12.0, -4.0, -16.0, -0.0, -24.0,
        1.0, 4.0, -3.0, 0.0, 8.0, 32.0, -6.0, 8.0,
    ];

    /// Bytes of two experts with two outputs, a block each.
    fn codes() -> Vec<u8> {
        (0..64_u8).map(|at| at.wrapping_mul(37).wrapping_add(11)).collect()
    }

    fn parts<'a>(codes: &'a [u8], scales: &'a [u8], shape: &'a [u64]) -> [Part<'a>; 2] {
        [("e.up_blocks", "U8", &[2, 2, 1, 16], codes), ("e.up_scales", "U8", shape, scales)]
    }

    #[test]
    fn experts_are_turned_and_scaled_as_transformers_does() {
        let codes = codes();
        let found = first(&parts(&codes, &[127, 124, 128, 130], &[2, 2, 1]), "").expect("a weight");
        assert_eq!((found.name.as_str(), found.dtype), ("e.up", DType::BF16));
        assert_eq!(found.shape, [2, 32, 2]);
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&found.values), bits(&OF_TRANSFORMERS));
    }

    #[test]
    fn scales_of_another_shape_and_codes_without_scales_are_refused_by_name() {
        let codes = codes();
        let found = error(&parts(&codes, &[127; 8], &[2, 2, 2]), "");
        assert!(found.contains("E001") && found.contains("e.up_scales"), "{found}");

        let config = r#"{"quantization_config":{"quant_method":"mxfp4"}}"#;
        let found = error(&parts(&codes, &[127; 4], &[2, 2, 1])[..1], config);
        assert!(found.contains("E001") && found.contains("e.up_scales"), "{found}");
    }

    #[test]
    fn scales_without_blocks_are_refused_by_name() {
        let codes = codes();
        let with = |dtype| {
            let blocks: Part<'_> = ("m.experts.up_blocks", dtype, &[2, 2, 1, 16], &codes);
            [blocks, ("m.experts.up_scales", "U8", &[2, 2, 1], &[127; 4])]
        };
        for (parts, needed) in [(&with("U8")[1..], "is missing"), (&with("BOOL"), "u8 [experts,")] {
            let found = error(parts, "");
            assert!(found.contains("E001") && found.contains(needed), "{found}");
            assert!(found.contains("m.experts.up_blocks"), "{found}");
        }
    }

    #[test]
    fn blocks_of_other_lengths_are_not_experts() {
        let part: Part<'_> = ("e.up_blocks", "U8", &[2, 2, 2, 8], &codes());
        let found = first(&[part], "").expect("a plain tensor");
        assert_eq!((found.name.as_str(), found.dtype), ("e.up_blocks", DType::U8));
    }
}
