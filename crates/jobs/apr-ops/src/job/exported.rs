//! A model that came from ONNX, and becomes the same file again.

use std::collections::{BTreeSet, HashMap};

use apr_quantize::TensorTarget;
use apr_registry::onnx::skeleton;
use apr_registry::onnx::write::ExternalData;
use apr_registry::{CheckpointReader, Computes, DType, Limits, TensorInfo};
use apr_source::Source;
use apr_source::exported::as_stored;
use apr_tensor::cast::can_cast;
use apr_view::{Base, View};

use super::description::Job;
use super::error::JobError;
use super::planned::{Parts, Planned};

use crate::convert::ConvertOptions;
use crate::import::{Foreign, Prepared, restore};
use crate::inline::{InlineValidator, ValidationConfig};
use crate::physics::Physics;

impl Job {
    /// Returns `true` if the output is the model's original ONNX file with its current tensors.
    ///
    /// The job must not request anything that its graph does not have.
    pub(super) fn keeps_graph(&self, reader: &dyn CheckpointReader) -> bool {
        let has_graph =
            reader.companions().iter().any(|companion| companion.name == skeleton::COMPANION);
        let is_quantized = |info: &TensorInfo| info.dtype.is_quantized();
        let decodes =
            self.weights.dequantize.is_some() && reader.tensors().iter().any(is_quantized);
        let changes =
            self.weights.quantize.is_some() || self.weights.precision.is_some() || decodes;
        let places_data = self.target.external_data != ExternalData::Auto;
        self.computes() == Computes::Always
            && has_graph
            && self.graph.is_empty()
            && !changes
            && !places_data
    }

    /// Plans that file.
    pub(super) fn plan_exported<'a>(
        &self,
        selected: View<'a>,
        source: &Source<'a>,
    ) -> Result<Planned<'a>, JobError> {
        let Foreign {
            prepared: Prepared { view: restored, family, misfits, mut warnings, .. },
            losses,
            ..
        } = restore(&source.through(&selected), self.target.format, self.validation)?;
        warnings.extend(self.weights.idle_dequantize(false, source.reader()));
        let view = as_stored(&restored)?;
        let bytes = skeleton::read_companion(&view)?;
        let room = skeleton::tensors(bytes.unwrap_or_default(), &Limits::default())?;
        let options = ConvertOptions {
            targets: targets(view.tensors(), &room),
            warnings: self.weights.warnings.clone(),
            ..ConvertOptions::default()
        };

        // Names and shapes were judged as they came. Values are judged as they go, as far as that
        // needs no family.
        let physics = Physics { zeros: false, ranges: false, ..self.validation.physics };
        let values = ValidationConfig { structure: false, physics, ..self.validation };
        let parts = Parts {
            options,
            losses,
            validator: InlineValidator::for_checkpoint(values, view.tensors(), None),
            family,
            misfits,
            graph_misfits: None,
            warnings,
            in_blocks: BTreeSet::new(),
        };

        let stored = view.into_mapping();
        let restored = restored.into_mapping().over(Base::owning(selected));
        let content = stored.over(Base::owning(restored));
        Planned::new(self, source, content, parts)
    }
}

/// Floats become what the graph computes with.
fn targets(tensors: &[TensorInfo], room: &[TensorInfo]) -> Vec<Option<TensorTarget>> {
    let wanted: HashMap<&str, DType> =
        room.iter().map(|info| (info.name.as_str(), info.dtype)).collect();
    let target = |info: &TensorInfo| {
        let dtype = *wanted.get(info.name.as_str())?;
        let is_float = info.dtype.is_quantized() && dtype.is_float() || can_cast(info.dtype, dtype);
        (dtype != info.dtype && is_float).then(|| dtype.into())
    };
    tensors.iter().map(target).collect()
}
