//! A model for a format that says what it computes.

use apr_blocks::{GraphOptions, graphs};
use apr_graph::{Graph, infer};
use apr_registry::onnx::write::Model;
use apr_registry::{CheckpointReader, Loss, Metadata, PlanOptions, keys};
use apr_source::Source;
use apr_source::naming::canonical;
use apr_view::{Unpacked, View};
use serde_json::Value;

use super::planned::Parts;
use super::{Job, JobError, Planned};
use crate::bind::{Binder, Blocks, Storage};
use crate::convert::ConvertOptions;
use crate::graph::without_family;
use crate::import::{Foreign, restore};
use crate::inline::{InlineValidator, ValidationConfig};
use crate::physics::Physics;

/// What is wanted of the graph of a model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GraphWishes {
    /// Version of ONNX's operators; `None`: the one that the weights ask for.
    pub opset: Option<i64>,
    /// Keys and values of earlier tokens go in, and those of all tokens come out.
    pub with_past: bool,
    /// What the head is for, such as `CausalLM`; `None`: as the configuration says.
    pub task: Option<String>,
    /// How quantized tensors stay quantized.
    pub blocks: Blocks,
}

impl GraphWishes {
    /// Whether nothing is wished for, so that any format will do.
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The operators' version: blocks of quantized tensors need a newer one than the rest.
    fn opset(&self, reader: &dyn CheckpointReader, storage: &Storage) -> i64 {
        const USUAL: i64 = 17;
        const WITH_BLOCKS: i64 = 21;
        let has_blocks = reader.tensors().iter().any(|info| info.dtype.is_quantized());
        let keeps_blocks = has_blocks && storage.dequantize.is_none();
        self.opset.unwrap_or(if keeps_blocks { WITH_BLOCKS } else { USUAL })
    }
}

impl Job {
    /// Plans a file that holds what the model computes.
    pub(super) fn plan_computed<R, E: From<JobError>>(
        &self,
        reader: View<'_>,
        source: &Source<'_>,
        then: impl FnOnce(Planned<'_>) -> Result<R, E>,
    ) -> Result<R, E> {
        if let Some(quantize) = &self.weights.quantize {
            let message = format!(
                "a graph does not say how to quantize to {}: quantize into an .apr or .gguf file first, and export that",
                quantize.choices.scheme
            );
            return Err(JobError::Request(message).into());
        }
        let foreign = restore(&source.through(&reader), self.target.format, self.validation);
        let Foreign { prepared, mut losses, .. } = foreign.map_err(JobError::from)?;
        let restored = source.through(&prepared.view);
        let Some(family) = restored.family().map_err(JobError::from)? else {
            return Err(JobError::from(without_family(source.name())).into());
        };
        let mut view = canonical(&prepared.view, family);
        let metadata = std::mem::replace(view.metadata_mut(), Metadata::new());
        let storage = Storage {
            precision: self.weights.precision,
            dequantize: self.weights.dequantize,
            blocks: self.graph.blocks,
        };
        let options = GraphOptions {
            past: self.graph.with_past,
            opset: self.graph.opset(&view, &storage),
            task: self.graph.task.clone(),
        };
        let found = graphs(family, prepared.view.tensors(), &options).map_err(JobError::from)?;
        let (unpacked, parts) = Unpacked::beside(&view);
        let mut binder = Binder::new(&unpacked, &parts, storage);
        let mut models = Vec::new();
        for part in found.parts {
            let mut graph = part.graph;
            binder.bind(&mut graph).map_err(JobError::from)?;
            infer(&mut graph);
            models.push((part.name, graph));
        }
        let (bound, unused) = binder.finish();
        losses.extend(unused);
        losses.extend(lost_metadata(&metadata));
        let job = Self { target: self.target_of(models)?, ..self.clone() };
        let bound_view = View::of(&unpacked, bound.tensors);
        let options = ConvertOptions {
            targets: bound.targets,
            gate: self.weights.gate,
            warnings: self.weights.warnings.clone(),
            ..ConvertOptions::default()
        };
        // Names and shapes were judged as they came. Values are judged as they go, as far as that needs no family.
        let physics = Physics { zeros: false, ranges: false, ..self.validation.physics };
        let values = ValidationConfig { structure: false, physics, ..self.validation };
        let parts = Parts {
            options,
            losses,
            validator: InlineValidator::for_checkpoint(values, bound_view.tensors(), None),
            family: prepared.family,
            misfits: prepared.misfits,
            warnings: prepared.warnings.into_iter().chain(bound.warnings).collect(),
        };
        then(Planned::new(&job, source, &bound_view, parts)?)
    }

    /// The layout of the output with these models in it.
    fn target_of(&self, models: Vec<(&str, Graph)>) -> Result<PlanOptions, JobError> {
        let is_one = models.len() == 1;
        if !is_one && !self.target.folder {
            let names: Vec<String> = models.iter().map(|(name, _)| format!("{name}.onnx")).collect();
            let message = format!("the model has several parts ({}): name a folder for them", names.join(", "));
            return Err(JobError::Request(message));
        }
        let extension = self.target.format.target.and_then(|target| target.extensions.first().copied());
        let models = models.into_iter().map(|(name, graph)| {
            let file_name = if is_one && !self.target.folder {
                self.target.file_name.clone()
            } else {
                format!("{name}.{}", extension.unwrap_or("onnx"))
            };
            Model::new(&file_name, graph)
        });
        Ok(PlanOptions { models: models.collect(), ..self.target.clone() })
    }
}

/// Metadata that nothing in the output says.
fn lost_metadata(metadata: &Metadata) -> Vec<Loss> {
    // These say what the format implies, or the caller stores them elsewhere.
    const CARED_FOR: [&str; 8] = [
        keys::APR_VERSION,
        keys::MODEL_TYPE,
        keys::ARCHITECTURE,
        keys::SOURCE,
        keys::LOSS,
        keys::FILES,
        keys::TIED,
        apr_source::naming::NAMES,
    ];
    let lost =
        |(key, value): &(&str, &Value)| !(CARED_FOR.contains(key) || *key == keys::SAFETENSORS && is_format(value));
    let loss = |(key, _): (&str, &Value)| Loss {
        name: key.into(),
        what: "metadata".into(),
        why: "the file says what the model computes, and nothing else of it".into(),
    };
    metadata.iter().filter(lost).map(loss).collect()
}

/// Whether a safetensors header's text says no more than that the file is a model.
fn is_format(safetensors: &Value) -> bool {
    let text = safetensors.get("metadata").and_then(Value::as_object);
    text.is_none_or(|text| text.keys().all(|key| key == "format"))
}
