//! Weights that are quantized while they are read, for files whose graph says what blocks mean.

use apr_arch::FamilyModel;
use apr_core::{
    CheckpointReader, Container, DType, Error, Result, Stored, TensorInfo, counted, pass_on,
};
use apr_quantize::{Quantization, SchemeKind, nothing_changes, plan};
use apr_tensor::block::quantize;
use apr_tensor::element::widen_f32;
use apr_view::Base;

use super::error::JobError;

/// Block types that nodes of a graph can represent.
const SAID: [DType; 3] = [DType::Q8_0, DType::Q4_0, DType::Q4_1];

/// Blocks that are made at a time.
const BLOCKS_AT_ONCE: u64 = 2048;

/// A checkpoint of which some tensors are seen in blocks.
pub(super) struct Quantized<'a> {
    base: Base<'a>,
    tensors: Vec<TensorInfo>,
}

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
            "ONNX has operators for q8_0, q4_0 and q4_1 only, without importance weights: \
             quantize to {scheme} in {file} first, and export that"
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

impl<'a> Quantized<'a> {
    /// Creates a checkpoint with these tensors over a base that stores them as floats.
    ///
    /// Their dtypes may be block types.
    pub(super) fn new(base: Base<'a>, tensors: Vec<TensorInfo>) -> Self {
        Self { base, tensors }
    }

    fn is_changed(&self, tensor: usize) -> bool {
        self.tensors[tensor].dtype != self.base.tensors()[tensor].dtype
    }

    /// Makes the blocks from `first` on, and appends them.
    fn blocks(&self, tensor: usize, first: u64, count: u64, out: &mut Vec<u8>) -> Result<()> {
        let (from, to) = (&self.base.tensors()[tensor], self.tensors[tensor].dtype);
        let of_block = to.block_len() * from.dtype.block_bytes();
        let mut bytes = vec![0; usize::try_from(count * of_block).unwrap_or_default()];
        self.base.read_tensor(tensor, first * of_block, &mut bytes)?;
        let mut values = Vec::new();
        widen_f32(from.dtype, &bytes, &mut values);
        if values.iter().any(|value| !value.is_finite()) {
            let message = format!("NaN or infinite values, which {to} can't represent");
            return Err(Error::format(message).for_tensor(&from.name));
        }

        // These types look at no more than a block at a time.
        let row_len = usize::try_from(to.block_len()).unwrap_or(1);
        quantize(to, &values, row_len, None, out);
        Ok(())
    }
}

impl CheckpointReader for Quantized<'_> {
    pass_on!(base: format, metadata, files, companions, read_companion, left_out, warnings);

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn stored(&self, tensor: usize) -> Stored<'_> {
        if self.is_changed(tensor) {
            let stored = Stored::derived_from(&*self.base, &[tensor]);
            stored.converted_from(&*self.base, tensor, true)
        } else {
            self.base.stored(tensor)
        }
    }

    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        if !self.is_changed(tensor) {
            return self.base.read_tensor(tensor, offset, buf);
        }

        let bytes = self.tensors[tensor].dtype.block_bytes();
        let (mut filled, mut blocks) = (0, Vec::new());
        while filled < buf.len() {
            let at = offset + filled as u64;
            let left = (buf.len() - filled) as u64;
            let count = (at % bytes + left).div_ceil(bytes).min(BLOCKS_AT_ONCE);
            blocks.clear();
            self.blocks(tensor, at / bytes, count, &mut blocks)?;
            let made = &blocks[usize::try_from(at % bytes).unwrap_or_default()..];
            let len = made.len().min(buf.len() - filled);
            buf[filled..filled + len].copy_from_slice(&made[..len]);
            filled += len;
        }

        Ok(())
    }

    fn tensor_slice(&self, tensor: usize) -> Option<&[u8]> {
        if self.is_changed(tensor) { None } else { self.base.tensor_slice(tensor) }
    }

    fn container(&self) -> Container<'_> {
        self.base.container().altered()
    }
}
