//! Weights that are quantized while they are read, for files whose graph says what blocks mean.

use std::ops::Range;

use apr_arch::FamilyModel;
use apr_core::{CheckpointReader, DType, Error, Result, TensorInfo, counted};
use apr_quantize::{Quantization, SchemeKind, nothing_changes, plan};
use apr_tensor::block::quantize;
use apr_tensor::element::widen_f32;
use apr_view::chunks::fill;
use apr_view::{Base, Computation, Derived, Target};

use super::error::JobError;

/// Block types that nodes of a graph can represent.
const SAID: [DType; 3] = [DType::Q8_0, DType::Q4_0, DType::Q4_1];

/// Blocks that are made at a time.
const BLOCKS_AT_ONCE: u64 = 2048;

/// Returns the tensors of `base` with the dtypes of a scheme, and warnings about exceptions.
///
/// `reader` has the same tensors, under the names by which the family was detected.
///
/// # Errors
/// A scheme whose blocks no node can represent, importance weights, and the errors of the
/// quantization plan.
pub(super) fn in_blocks(
    base: &dyn CheckpointReader,
    reader: &dyn CheckpointReader,
    family: Option<&FamilyModel<'_>>,
    asked: &Quantization,
) -> Result<(Vec<TensorInfo>, Vec<String>), JobError> {
    let scheme = asked.choices.scheme;
    let is_said = SAID.iter().any(|dtype| dtype.name() == scheme.to_string());
    if !is_said || asked.weighting.is_some() {
        let file = match scheme.kind() {
            SchemeKind::Blocks => "a .gguf or .apr file",
            _ => "an .apr file",
        };
        let message = format!(
            "ONNX only supports q8_0, q4_0 and q4_1, without importance weights: quantize to \
             {scheme} in {file} first, then export that"
        );
        return Err(JobError::Request(message));
    }

    let planned = plan(reader, family, asked).map_err(JobError::unsuited)?;
    let mut warnings = planned.warnings;
    let (mut others, mut quantized) = (0, 0);
    let mut kept = Vec::new();
    let mut tensors = base.tensors().to_vec();
    for (info, target) in tensors.iter_mut().zip(planned.targets) {
        let Some(target) = target else { continue };
        let dtype = target.dtype;
        if !dtype.is_quantized() || !info.dtype.is_float() {
            kept.push(target.why.unwrap_or_else(|| format!("{} already", info.dtype)));
            continue;
        }
        let to = if SAID.contains(&dtype) { dtype } else { DType::Q8_0 };
        if to.stored_len(&info.shape).is_some() {
            others += usize::from(to != dtype);
            quantized += 1;
            info.dtype = to;
        }
    }
    if quantized == 0 {
        return Err(nothing_changes(scheme, kept.into_iter()).into());
    }

    if others > 0 {
        warnings.push(format!(
            "{} become q8_0: ONNX has no operator for the block types of {scheme}",
            counted(others as u64, "tensor")
        ));
    }
    warnings.push(
        "no quantization error is computed for this format: quantize to an .apr or .gguf file for \
         it"
        .to_owned(),
    );
    Ok((tensors, warnings))
}

/// Returns a checkpoint with these tensors over a base that stores them as floats.
///
/// Their dtypes may be block types.
pub(super) fn quantized<'a>(base: Base<'a>, tensors: Vec<TensorInfo>) -> Derived<'a, InBlocks> {
    let mut quantized = Derived::new(base).as_conversion();
    for (tensor, info) in tensors.into_iter().enumerate() {
        if info.dtype != quantized.tensors()[tensor].dtype {
            quantized.compute(tensor, InBlocks);
        }
        *quantized.info_mut(tensor) = info;
    }
    quantized
}

/// A tensor of floats, as blocks of another dtype.
pub(super) struct InBlocks;

/// Makes blocks, and appends them.
fn blocks(target: &Target<'_>, range: Range<u64>, out: &mut Vec<u8>) -> Result<()> {
    let (from, to) = (target.source().dtype, target.info.dtype);
    let of_block = to.block_len() * from.block_bytes();
    let len = (range.end - range.start) * of_block;
    let mut bytes = vec![0; usize::try_from(len).unwrap_or_default()];
    target.read_source(range.start * of_block, &mut bytes)?;
    let mut values = Vec::new();
    widen_f32(from, &bytes, &mut values);
    if values.iter().any(|value| !value.is_finite()) {
        let message = format!("NaN or infinite values, which {to} can't represent");
        return Err(Error::format(message));
    }

    // These types look at no more than a block at a time.
    let row_len = usize::try_from(to.block_len()).unwrap_or(1);
    quantize(to, &values, row_len, None, out);
    Ok(())
}

impl Computation for InBlocks {
    fn read(&self, target: &Target<'_>, offset: u64, buf: &mut [u8]) -> Result<()> {
        fill(target.info, (offset, buf), BLOCKS_AT_ONCE, |range, out| blocks(target, range, out))
    }
}
