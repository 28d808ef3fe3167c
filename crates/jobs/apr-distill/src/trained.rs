//! A checkpoint with trained tensors in place of its own.

use std::collections::HashMap;

use apr_core::{
    CheckpointReader, Companion, Container, DType, Error, Metadata, Result, Stored, TensorInfo,
    keys, pass_on, state_dtype,
};
use apr_prune::Configuration;
use serde_json::{Map, Value, json};

use crate::report::DistillReport;

/// Metadata key for the source of a distilled model.
pub const DISTILLATION: &str = "distillation";

/// A student after its training: trained tensors are in single precision.
pub struct Trained<'b> {
    base: Box<dyn CheckpointReader + 'b>,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    values: HashMap<usize, Vec<f32>>,
    companions: Vec<Companion>,
    configuration: Configuration,
}

impl<'b> Trained<'b> {
    /// Replaces the values of some tensors of the base, by position.
    ///
    /// The configuration of the result declares single precision.
    ///
    /// # Errors
    /// E001 if the number of elements differs from the tensor's, and for a configuration that is
    /// not a JSON object; E007 when it can't be read.
    pub fn new(
        base: Box<dyn CheckpointReader + 'b>,
        values: HashMap<usize, Vec<f32>>,
        report: &DistillReport,
    ) -> Result<Self> {
        let mut tensors = base.tensors().to_vec();
        for (position, values) in &values {
            let info = &mut tensors[*position];
            if info.shape.elements() != Some(values.len() as u64) {
                return Err(Error::format("it was trained in another shape").for_tensor(&info.name));
            }
            info.dtype = DType::F32;
        }
        let mut metadata = base.metadata().clone();
        let distillation = json!({
            "temperature": report.options.temperature,
            "alpha": report.options.alpha,
            "layers": report.layers,
            "steps": report.best_step,
            "rows": report.rows,
            "seed": report.options.seed,
            "held_out_loss": report.after.loss,
        });
        set_text(&mut metadata, &distillation.to_string());
        metadata.set(DISTILLATION, distillation);
        let change = |config: &mut Map<String, Value>| state_dtype(config, DType::F32);
        let (configuration, _) = Configuration::changed(&*base, &mut metadata, change)?;
        let companions = configuration.companions(&*base);
        Ok(Self { base, metadata, tensors, values, companions, configuration })
    }
}

/// Adds the text to the metadata of a safetensors base, where all values are strings.
fn set_text(metadata: &mut Metadata, text: &str) {
    let Some(entry) = metadata.object(keys::SAFETENSORS) else { return };
    let mut entry = entry.clone();
    let texts = entry.entry("metadata").or_insert_with(|| json!({}));
    if let Some(texts) = texts.as_object_mut() {
        texts.insert(DISTILLATION.to_owned(), text.into());
        metadata.set(keys::SAFETENSORS, entry);
    }
}

impl CheckpointReader for Trained<'_> {
    pass_on!(base: format, files, left_out, warnings);

    fn companions(&self) -> &[Companion] {
        &self.companions
    }

    fn read_companion(&self, companion: usize) -> Result<Vec<u8>> {
        self.configuration.read_companion(&*self.base, companion)
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn stored(&self, tensor: usize) -> Stored<'_> {
        match self.values.contains_key(&tensor) {
            true => Stored::derived_from(&*self.base, &[tensor]),
            false => self.base.stored(tensor),
        }
    }

    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        let Some(values) = self.values.get(&tensor) else {
            return self.base.read_tensor(tensor, offset, buf);
        };
        let past = || {
            Error::corrupt("the read ends past the tensor").for_tensor(&self.tensors[tensor].name)
        };
        let start = usize::try_from(offset).map_err(|_| past())?;
        let end = start.checked_add(buf.len()).filter(|end| *end <= values.len() * 4);
        let end = end.ok_or_else(past)?;
        let bytes: Vec<u8> = values[start / 4..end.div_ceil(4)]
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        buf.copy_from_slice(&bytes[start % 4..][..buf.len()]);
        Ok(())
    }

    fn tensor_slice(&self, tensor: usize) -> Option<&[u8]> {
        if self.values.contains_key(&tensor) { None } else { self.base.tensor_slice(tensor) }
    }

    fn container(&self) -> Container<'_> {
        self.base.container().altered()
    }
}
