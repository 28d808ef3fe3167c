//! Running quantizers over a model, one tensor at a time.

use apr_core::{CheckpointReader, DType, DTypeKind, Error, Result, TensorInfo};
use apr_tensor::element::{widen_f32, widen_f64};
use apr_view::nearest;

use super::super::role::{Role, by_name};
use super::{
    QuantType, QuantizationHooks, QuantizationInfo, QuantizedBlock, Quantizer, QuantizerRegistry,
    unsupported,
};

/// Relative energy of the error above which the information of a tensor contains a warning.
const WARN_ABOVE: f64 = 0.05;

/// Outcome for one tensor.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TensorOutcome {
    /// Position in [`CheckpointReader::tensors`].
    pub tensor: usize,
    /// Name of the tensor.
    pub name: String,
    /// Outcome for the tensor.
    pub outcome: Outcome,
}

/// Outcome of the quantization of a tensor.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// Tensor that keeps the form in the reader.
    Kept,
    /// Quantized tensor.
    Quantized {
        /// Blocks of the tensor.
        block: QuantizedBlock,
        /// Details of the quantization.
        info: QuantizationInfo,
    },
}

/// Iterator over the tensors of a model, which quantizes each one on demand.
///
/// After an error, the iterator continues with the next tensor.
pub struct QuantizedTensors<'a> {
    reader: &'a dyn CheckpointReader,
    choice: Choice<'a>,
    next: usize,
}

/// Source of the decision about each tensor.
enum Choice<'a> {
    Quantizer(&'a dyn Quantizer),
    Hooks { hooks: &'a dyn QuantizationHooks, registry: QuantizerRegistry },
}

/// Quantizes with the built-in quantizer that the hooks select for each tensor.
///
/// Each item is E001, `UnsupportedQuantization`, where they select [`QuantType::Custom`], which is
/// the business of [`quantize_with_registry`]; E001 for values that are not finite; E002 and E007
/// where bytes can't be read.
pub fn quantize_with_hooks<'a>(
    reader: &'a dyn CheckpointReader,
    hooks: &'a dyn QuantizationHooks,
) -> QuantizedTensors<'a> {
    QuantizedTensors {
        reader,
        choice: Choice::Hooks { hooks, registry: QuantizerRegistry::default() },
        next: 0,
    }
}

/// Quantizes every weight with the quantizer called `name`.
///
/// Vectors, norms and tensors that are not floats stay unchanged. So do tensors whose row length is
/// not a multiple of the block of a built-in type.
///
/// # Errors
/// E001, `UnsupportedQuantization`, if no quantizer has the name. Items are the quantizer's own
/// errors, or E002 and E007 if bytes can't be read.
pub fn quantize_with_registry<'a>(
    reader: &'a dyn CheckpointReader,
    name: &str,
    registry: &'a QuantizerRegistry,
) -> Result<QuantizedTensors<'a>> {
    let quantizer = registry.get(name).ok_or_else(|| {
        let like = nearest(name, registry.names(), 3);
        let known = if like.is_empty() { registry.names().collect() } else { like };
        unsupported(&format!("no quantizer is called '{name}'; there is {}", known.join(", ")))
    })?;
    Ok(QuantizedTensors { reader, choice: Choice::Quantizer(quantizer), next: 0 })
}

impl Iterator for QuantizedTensors<'_> {
    type Item = Result<TensorOutcome>;

    fn next(&mut self) -> Option<Self::Item> {
        let tensor = self.next;
        let info = self.reader.tensors().get(tensor)?;
        self.next += 1;
        let outcome = self.outcome(tensor, info).map_err(|error| error.for_tensor(&info.name));
        Some(outcome.map(|outcome| TensorOutcome { tensor, name: info.name.clone(), outcome }))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        // `next` counts no further than the tensors, so this does not go below 0.
        let left = self.reader.tensors().len() - self.next;
        (left, Some(left))
    }
}

impl ExactSizeIterator for QuantizedTensors<'_> {}

impl QuantizedTensors<'_> {
    fn outcome(&self, tensor: usize, info: &TensorInfo) -> Result<Outcome> {
        if !matches!(info.dtype.kind(), DTypeKind::Float | DTypeKind::MiniFloat) {
            return Ok(Outcome::Kept);
        }

        let Some(quantizer) = self.quantizer(info)? else { return Ok(Outcome::Kept) };
        let original = read_values(self.reader, tensor, info)?;
        let block = quantizer.quantize(&original, &info.shape)?;
        // A quantizer may be of others: its blocks need not go with the shape.
        block.check()?;
        let error = lost_energy(&original, &quantizer.dequantize(&block)?)?;
        let accepted = match &self.choice {
            Choice::Hooks { hooks, .. } => hooks.validate(&info.name, &original, &block),
            Choice::Quantizer(_) => true,
        };
        let info = describe(quantizer, &block, info.dtype, error, accepted);
        Ok(Outcome::Quantized { block, info })
    }

    fn quantizer(&self, info: &TensorInfo) -> Result<Option<&dyn Quantizer>> {
        match &self.choice {
            Choice::Quantizer(quantizer) => {
                let dtype = quantizer.quant_type().dtype();
                let fits = dtype
                    .is_none_or(|dtype| info.shape.row_len().is_multiple_of(dtype.block_len()));
                let is_weight = !matches!(by_name(&info.name, &info.shape), Role::Kept(_));
                Ok((fits && is_weight).then_some(*quantizer))
            }
            Choice::Hooks { hooks, registry } => {
                let Some(quant_type) = hooks.select_quantizer(&info.name, &info.shape) else {
                    return Ok(None);
                };
                let found = quant_type.quantizer().and_then(|name| registry.get(name));
                found.map(Some).ok_or_else(|| {
                    unsupported("hooks select built-in types; plug-ins are found by name")
                })
            }
        }
    }
}

fn describe(
    quantizer: &dyn Quantizer,
    block: &QuantizedBlock,
    dtype: DType,
    error: f64,
    accepted: bool,
) -> QuantizationInfo {
    let warning = if !accepted {
        Some("the result did not pass the validation".to_owned())
    } else if error > WARN_ABOVE {
        Some(format!("the error has {:.1} % of the energy of the values", error * 100.0))
    } else {
        None
    };

    QuantizationInfo {
        quant_type: block.quant_type,
        quantizer: quantizer.name().to_owned(),
        calibration_method: if block.quant_type == QuantType::Custom { "custom" } else { "minmax" }
            .to_owned(),
        calibration_samples: 0,
        original_dtype: dtype.name().to_owned(),
        #[expect(clippy::cast_possible_truncation, reason = "a share, to a few digits")]
        error: error as f32,
        warning,
    }
}

/// The values of a tensor of floats.
fn read_values(
    reader: &dyn CheckpointReader,
    tensor: usize,
    info: &TensorInfo,
) -> Result<Vec<f32>> {
    /// Number of bytes per read, a whole number of elements of every dtype.
    const READ_LEN: usize = 3 << 18;

    let len = info.byte_len()?;
    let mut piece = vec![0; usize::try_from(len).map_or(READ_LEN, |len| len.min(READ_LEN))];
    let (mut values, mut part, mut wide) = (Vec::new(), Vec::new(), Vec::new());
    let mut offset = 0;
    while offset < len {
        let take = usize::try_from(len - offset).map_or(piece.len(), |left| left.min(piece.len()));
        let bytes = &mut piece[..take];
        reader.read_tensor(tensor, offset, bytes)?;
        if info.dtype == DType::F64 {
            widen_f64(info.dtype, bytes, &mut wide);
            #[expect(clippy::cast_possible_truncation, reason = "quantizers take f32")]
            values.extend(wide.iter().map(|&value| value as f32));
        } else {
            widen_f32(info.dtype, bytes, &mut part);
            values.extend_from_slice(&part);
        }
        offset += take as u64;
    }

    Ok(values)
}

/// Returns the energy of the error divided by the energy of the values; 0 if both are all zero.
fn lost_energy(original: &[f32], restored: &[f32]) -> Result<f64> {
    if original.len() != restored.len() {
        let message =
            format!("QuantizationCorrupt: {} values became {}", original.len(), restored.len());
        return Err(Error::corrupt(message));
    }

    let square = |value: f64| value * value;
    let energy: f64 = original.iter().map(|&value| square(f64::from(value))).sum();
    let pairs = original.iter().zip(restored);
    let error: f64 = pairs.map(|(&a, &b)| square(f64::from(a) - f64::from(b))).sum();
    Ok(if error == 0.0 {
        0.0
    } else if energy == 0.0 {
        1.0
    } else {
        error / energy
    })
}
