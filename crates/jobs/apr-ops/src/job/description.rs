//! What a job is: everything that is decided before it is planned.

use apr_registry::{CheckpointReader, Computes, Convention, Metadata, PlanOptions, keys};

use super::error::JobError;
use super::weights::Weights;
use super::wishes::{GraphWishes, applying};
use crate::inline::ValidationConfig;

/// Description of a conversion of a model.
#[derive(Debug, Clone)]
#[must_use = "a job does nothing until it is planned and run"]
pub struct Job {
    /// The format to write, and how its files are laid out.
    pub target: PlanOptions,
    /// Name prefix of the tensors to convert. It is removed from their names.
    pub prefix: Option<String>,
    /// Convert only the part for images of a vision-language model: its tower and its projector.
    pub part_for_images: bool,
    /// Treatment of names and layout.
    pub naming: Naming,
    /// Treatment of the weights.
    pub weights: Weights,
    /// Requirements for the graph, if the target format stores one.
    pub graph: GraphWishes,
    /// Checks of tensors during the job.
    pub validation: ValidationConfig,
    /// Licence of the model, used if its files do not state one.
    pub license: Option<String>,
    /// Display name for formats that require one, used if the model does not state it.
    pub title: Option<String>,
    /// Do not warn about removing the source's encryption, because this is the purpose of the job.
    pub opens: bool,
    /// SHA-256 of the source's file in hexadecimal digits, to be written down.
    pub source_sha256: Option<String>,
    /// Origin of a model that was not on this machine: entries of the metadata's `source`.
    pub provenance: Option<Metadata>,
}

/// Treatment of the names and the layout of a model's tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// Use the names and the layout of the target format.
    OfTarget,
    /// Keep names and layout: the job copies a model.
    AsTheyAre,
}

impl Job {
    /// A conversion that checks everything and changes no value. A part of a model is converted,
    /// too; an import asks for a [complete](ValidationConfig::complete) one.
    pub fn new(target: PlanOptions) -> Self {
        Self {
            target,
            prefix: None,
            part_for_images: false,
            naming: Naming::OfTarget,
            weights: Weights::default(),
            graph: GraphWishes::default(),
            validation: ValidationConfig::of_part(),
            license: None,
            title: None,
            opens: false,
            source_sha256: None,
            provenance: None,
        }
    }

    /// Creates a job that copies the model unchanged.
    pub fn copy(target: PlanOptions) -> Self {
        Self {
            naming: Naming::AsTheyAre,
            validation: ValidationConfig::integrity(),
            ..Self::new(target)
        }
    }

    /// Returns whether the target format stores the computation of the model.
    pub(super) fn computes(&self) -> Computes {
        self.target.format.target.map_or(Computes::Nothing, |target| target.computes)
    }

    /// Rejects options that have no effect or contradict each other.
    pub(super) fn check(&self) -> Result<(), JobError> {
        self.target.check().map_err(|error| JobError::Request(error.message().to_owned()))?;
        let Weights { quantize, dequantize, .. } = &self.weights;
        let is_imported = self.naming == Naming::OfTarget
            && self.target.format.convention == Convention::Canonical;
        let wrong = [
            (
                self.license.is_some() && !is_imported,
                "a licence is written into imported .apr files only",
            ),
            (
                self.source_sha256.is_some() && !is_imported,
                "the SHA-256 of a source is written into imported .apr files only",
            ),
            (
                self.weights.change_dtypes() && self.naming == Naming::AsTheyAre,
                "a copy can't change weights",
            ),
            (
                quantize.is_some() && dequantize.is_some(),
                "quantize and dequantize exclude each other",
            ),
        ];
        match wrong.iter().find(|(is_wrong, _)| *is_wrong) {
            Some((_, message)) => Err(JobError::Request((*message).to_owned())),
            None if !self.graph.is_empty() && self.computes() == Computes::Nothing => {
                let to = "ONNX and TorchScript output only";
                Err(JobError::Request(applying(&self.graph.asked(), to)))
            }
            None => self.check_simplification(),
        }
    }

    /// Returns warnings about signatures, licences and encryption that the output loses.
    pub(super) fn warnings_of_seals(
        &self,
        reader: &dyn CheckpointReader,
    ) -> apr_registry::Result<Vec<&'static str>> {
        let mut warnings = Vec::new();
        let signed = reader.container().signed()?;
        let is_sealed =
            signed.is_some_and(|signed| signed.signatures.is_some() || signed.licence.is_some());
        if is_sealed && !self.target.apr2.signs() {
            warnings.push("the source is signed, the output is not");
        }
        if reader.container().features().encrypted && !self.target.apr2.encrypts() && !self.opens {
            warnings.push("the source is encrypted, and the output is not");
        }
        Ok(warnings)
    }

    /// Records in the metadata which file the model was made from.
    pub(super) fn record_source(&self, metadata: &mut Metadata) {
        let came_from = self.provenance.iter().flat_map(Metadata::iter);
        let mut learnt: Vec<(String, serde_json::Value)> =
            came_from.map(|(key, value)| (key.to_owned(), value.clone())).collect();
        learnt.extend(
            self.source_sha256.iter().map(|digest| ("sha256".to_owned(), digest.as_str().into())),
        );
        if learnt.is_empty() {
            return;
        }
        let mut source = metadata.object(keys::SOURCE).cloned().unwrap_or_default();
        source.extend(learnt);
        metadata.set(keys::SOURCE, source);
    }
}
