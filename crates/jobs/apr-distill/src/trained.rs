//! A checkpoint with trained tensors in place of its own.

use std::collections::HashMap;

use apr_core::{CheckpointReader, DType, Error, Metadata, Result, keys, state_dtype};
use apr_prune::Configuration;
use apr_view::{Computation, Derived, Target};
use serde_json::{Map, Value, json};

use crate::report::DistillReport;

/// Metadata key for the source of a distilled model.
pub const DISTILLATION: &str = "distillation";

/// A tensor of a student after its training, in single precision.
pub struct Trained {
    values: Vec<f32>,
}

impl Trained {
    /// Returns a student with trained values of some tensors, by position.
    ///
    /// The configuration of the result declares single precision.
    ///
    /// # Errors
    /// E001 if the number of elements differs from the tensor's, and for a configuration that is
    /// not a JSON object; E007 when it can't be read.
    pub fn over<'b>(
        base: Box<dyn CheckpointReader + 'b>,
        values: HashMap<usize, Vec<f32>>,
        report: &DistillReport,
    ) -> Result<Derived<'b, Self>> {
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

        let mut trained = Derived::new(base);
        *trained.metadata_mut() = metadata;
        for (companion, bytes) in configuration.into_files() {
            trained.companions_mut().set(companion, bytes);
        }
        for (tensor, values) in values {
            let info = trained.info_mut(tensor);
            if info.shape.elements() != Some(values.len() as u64) {
                return Err(Error::format("it was trained in another shape").for_tensor(&info.name));
            }
            info.dtype = DType::F32;
            trained.compute(tensor, Self { values });
        }
        Ok(trained)
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

impl Computation for Trained {
    fn read(&self, _target: &Target<'_>, offset: u64, buf: &mut [u8]) -> Result<()> {
        let past = || Error::corrupt("the read ends past the tensor");
        let start = usize::try_from(offset).map_err(|_| past())?;
        let values = self.values.get(start / 4..(start + buf.len()).div_ceil(4));
        let bytes = values.ok_or_else(past)?.iter().flat_map(|value| value.to_le_bytes());
        buf.iter_mut().zip(bytes.skip(start % 4)).for_each(|(to, byte)| *to = byte);
        Ok(())
    }
}
