//! NVFP4 as llama.cpp has it: weights in blocks of ggml's type, and one factor beside them.
//!
//! ```text
//! X.weight       nvfp4 [.., out, in]   blocks of 64, four scales (E4M3) in each
//! X.scale        f32   [1]             of stacked experts [E], one for each; 1 where there is none
//! X.input_scale  f32   [1]             of the activations, never of the weight
//! ```
//!
//! The value of a block's element is exact, so that the product with the factor is rounded once.
//! A weight with neither of the two is a tensor like any other of its dtype, and is none of these.

use apr_core::{CheckpointReader, DType, Result, TensorInfo};
use apr_tensor::block::dequantize;

use super::find::{Decode, Kind, Tensors, Weight};
use super::read::{Tile, bytes_of, scales_of, usize_of};
use super::stated::Stated;
use super::zero::Scaling;

pub(super) const KIND: Kind = Kind { id: super::NVFP4_BLOCKS, find };

fn find(tensors: &Tensors<'_>, _: &Stated, blocks: usize) -> Option<Result<Weight>> {
    if tensors.info(blocks).dtype != DType::NVFP4 {
        return None;
    }
    let stem = tensors.stem(blocks, ".weight")?;
    let scale = tensors.beside(stem, &[".scale"]);
    let of_activations: Vec<usize> = tensors.of_activations(stem).collect();
    let is_alone = scale.is_none() && of_activations.is_empty();
    (!is_alone).then(|| weight(tensors, (blocks, scale), of_activations))
}

fn weight(
    tensors: &Tensors<'_>,
    (blocks, scale): (usize, Option<usize>),
    of_activations: Vec<usize>,
) -> Result<Weight> {
    let info = tensors.info(blocks);
    let (name, dims) = (&info.name, info.shape.dims());
    let unfit = || tensors.unfit(blocks, name, "rows of whole blocks of 64");
    let (&columns, outer) = dims.split_last().ok_or_else(unfit)?;
    let (&rows, experts) = outer.split_last().ok_or_else(unfit)?;
    if !columns.is_multiple_of(DType::NVFP4.block_len()) {
        return Err(unfit());
    }
    let matrices: u64 =
        experts.iter().try_fold(1_u64, |all, &dim| all.checked_mul(dim)).ok_or_else(unfit)?;
    if let Some(scale) = scale {
        let found = tensors.info(scale);
        if found.dtype != DType::F32 || found.shape.elements() != Some(matrices) {
            let needed = match matrices {
                1 => "one f32".to_owned(),
                _ => format!("an f32 for each matrix of {}", info.shape),
            };
            return Err(tensors.unfit(scale, name, &needed));
        }
    }
    Ok(Weight {
        info: TensorInfo { dtype: DType::F32, ..info.clone() },
        description: "NVFP4 in ggml's blocks, times a factor".to_owned(),
        parts: [blocks].into_iter().chain(scale).chain(of_activations).collect(),
        decode: Box::new(Blocks { blocks, scale, rows, columns }),
    })
}

struct Blocks {
    blocks: usize,
    scale: Option<usize>,
    /// Rows of one matrix.
    rows: u64,
    columns: u64,
}

impl Decode for Blocks {
    fn scaling(&self) -> Vec<Scaling> {
        let scaling = |scales| Scaling { scales, codes: self.blocks };
        self.scale.into_iter().map(scaling).collect()
    }

    fn decode(&self, base: &dyn CheckpointReader, tile: Tile, out: &mut [f32]) -> Result<()> {
        let (len, width) = (DType::NVFP4.block_len(), DType::NVFP4.block_bytes());
        let start = tile.row * self.columns + tile.column;
        let end = start + out.len() as u64;
        let (first, last) = (start / len, end.div_ceil(len));
        let bytes = bytes_of(base, self.blocks, first * width, usize_of((last - first) * width)?)?;
        let mut elements = Vec::new();
        dequantize(DType::NVFP4, &bytes, usize_of((last - first) * len)?, &mut elements);
        let skipped = usize_of(start - first * len)?;
        for (value, element) in out.iter_mut().zip(elements.iter().skip(skipped)) {
            *value = *element;
        }

        let Some(scale) = self.scale else { return Ok(()) };
        let (matrix, rows) = (tile.row / self.rows, tile.rows as u64);
        let matrices = matrix..(tile.row + rows).div_ceil(self.rows);
        let factors = scales_of(base, scale, DType::F32, matrices)?;
        for (row, values) in (tile.row..).zip(out.chunks_mut(tile.columns)) {
            let factor = factors.get(usize_of(row / self.rows - matrix)?).copied();
            let factor = factor.unwrap_or(1.0);
            values.iter_mut().for_each(|value| *value *= factor);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use apr_core::{Error, Limits};
    use apr_tensor::element::widen_f32;
    use apr_testkit::gguf::{GgufBuilder, GgufEntry};

    use super::super::Coded;
    use super::super::testing::f32s;
    use super::*;

    /// The codes 1 to 15 and 0, as a block has them.
    const RUN: [u8; 8] = [0x91, 0xa2, 0xb3, 0xc4, 0xd5, 0xe6, 0xf7, 0x08];
    /// Expected values.
    #[rustfmt::skip]
    const VALUES: [f32; 16] = [
        0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0, 0.0,
    ];

    /// A row of 64 with the scales 1, 2, 1 and 2.
    fn row() -> Vec<u8> {
        [vec![0x38, 0x40, 0x38, 0x40], RUN.repeat(4)].concat()
    }

    fn model(entries: &[(&str, u32, &[u64], Vec<u8>)]) -> Box<dyn CheckpointReader> {
        let builder = entries.iter().fold(GgufBuilder::new(), |builder, entry| {
            let (name, kind, dims, bytes) = entry;
            builder.entry(GgufEntry::new(name, *kind, dims, bytes))
        });
        let file = apr_registry::open(builder.build(), "m.gguf", &Limits::default());
        Coded::over(file.expect("a model"))
    }

    fn values(model: &dyn CheckpointReader) -> Result<Vec<f32>> {
        let len = usize_of(model.tensors()[0].byte_len()?)?;
        let mut bytes = vec![0; len];
        model.read_tensor(0, 0, &mut bytes)?;
        for step in [1, 7, 60] {
            let mut pieces = bytes.clone();
            for (number, piece) in pieces.chunks_mut(step).enumerate() {
                piece.fill(0);
                model.read_tensor(0, (number * step) as u64, piece)?;
            }
            assert_eq!(pieces, bytes, "in pieces of {step}");
        }
        let mut values = Vec::new();
        widen_f32(DType::F32, &bytes, &mut values);
        Ok(values)
    }

    #[test]
    fn each_matrix_of_a_stack_has_its_factor() {
        let experts: &[u64] = &[64, 2, 3];
        let model = model(&[
            ("up.weight", 40, experts, row().repeat(6)),
            ("up.scale", 0, &[3], f32s(&[0.1, 1.0, 3.0])),
            ("up.input_scale", 0, &[3], f32s(&[7.0; 3])),
            ("norm.weight", 0, &[1], f32s(&[1.0])),
        ]);
        let names: Vec<&str> = model.tensors().iter().map(|info| &*info.name).collect();
        assert_eq!(names, ["up.weight", "norm.weight"]);
        assert_eq!(model.tensors()[0].shape.dims(), [3, 2, 64]);
        let coding = model.stored(0).coding().map(|coding| coding.names().count());
        assert_eq!(coding, Some(3));
        let known = [0.1_f32, 1.0, 3.0].iter().flat_map(|factor| {
            let scales = [1.0_f32, 2.0].repeat(4);
            let of = move |scale| VALUES.map(|value| value * scale * factor);
            scales.into_iter().flat_map(of)
        });
        assert_eq!(values(&*model).expect("values"), known.collect::<Vec<_>>());
    }

    #[test]
    fn a_weight_without_factors_is_a_tensor_of_its_dtype() {
        let alone = model(&[("up.weight", 40, &[64, 1], row())]);
        assert_eq!(alone.tensors()[0].dtype, DType::NVFP4);
        // What belongs to activations alone changes no value.
        let entries =
            [("up.weight", 40, &[64, 1][..], row()), ("up.input_scale", 0, &[1], f32s(&[7.0]))];
        let model = model(&entries);
        assert_eq!((model.tensors().len(), model.tensors()[0].dtype), (1, DType::F32));
        assert_eq!(values(&*model).expect("values")[..16], VALUES);
    }

    #[test]
    fn factors_that_do_not_fit_are_refused_by_name() {
        let error = |dims: &[u64], factors: &[f32]| -> Error {
            let scale = ("up.scale", 0, dims, f32s(factors));
            let model = model(&[("up.weight", 40, &[64, 1], row()), scale]);
            values(&*model).expect_err("an error")
        };
        let found = error(&[2], &[1.0, 1.0]).to_string();
        assert!(found.contains("'up.scale' is f32 [2]"), "{found}");
        let found = error(&[1], &[f32::NAN]).to_string();
        assert!(found.contains("'up.scale' is NaN"), "{found}");
    }
}
