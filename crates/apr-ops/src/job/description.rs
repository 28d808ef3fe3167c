//! What a job is: everything that is decided before it is planned.

use apr_registry::{CheckpointReader, Computes, Convention, Metadata, PlanOptions, keys};

use super::error::JobError;
use super::weights::Weights;
use super::wishes::GraphWishes;
use crate::inline::ValidationConfig;

/// What is to be done with a model.
#[derive(Debug, Clone)]
#[must_use = "a job does nothing until it is planned and run"]
pub struct Job {
    /// The format to write, and how its files are laid out.
    pub target: PlanOptions,
    /// Only the tensors whose names start so; what starts them is taken off.
    pub prefix: Option<String>,
    /// What happens to names and layout.
    pub naming: Naming,
    /// What happens to the weights.
    pub weights: Weights,
    /// What is wanted of the graph, where the target says what the model computes.
    pub graph: GraphWishes,
    /// How tensors are checked on the way.
    pub validation: ValidationConfig,
    /// Licence of the model, where its files don't tell.
    pub license: Option<String>,
    /// What people call the model, for formats that want a name, where the model does not say it.
    pub title: Option<String>,
    /// Taking the source's encryption away is what the job is for, and not told.
    pub opens: bool,
    /// SHA-256 of the source's file in hexadecimal digits, to be written down.
    pub source_sha256: Option<String>,
    /// Where a model comes from that was not on this machine: entries of the metadata's `source`.
    pub provenance: Option<Metadata>,
}

/// What happens to the names and the layout of a model's tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// They become those of the target format.
    OfTarget,
    /// They stay: the job copies a model.
    AsTheyAre,
}

impl Job {
    /// A conversion that checks everything and changes no value. A part of a model is converted,
    /// too; an import asks for a [complete](ValidationConfig::complete) one.
    pub fn new(target: PlanOptions) -> Self {
        Self {
            target,
            prefix: None,
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

    /// A copy of the model as it is.
    pub fn copy(target: PlanOptions) -> Self {
        Self { naming: Naming::AsTheyAre, validation: ValidationConfig::off(), ..Self::new(target) }
    }

    /// Whether the target says what the model computes.
    pub(super) fn computes(&self) -> Computes {
        self.target.format.target.map_or(Computes::Nothing, |target| target.computes)
    }

    /// Refuses what would do nothing, or say two things at once.
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
                !self.graph.is_empty() && self.computes() == Computes::Nothing,
                "`opset`, `with_past`, `merged`, `latent_cache`, `task` and `matmul_nbits` apply \
                 to ONNX and TorchScript output only",
            ),
            (
                quantize.is_some() && dequantize.is_some(),
                "quantize and dequantize exclude each other",
            ),
        ];
        match wrong.iter().find(|(is_wrong, _)| *is_wrong) {
            Some((_, message)) => Err(JobError::Request((*message).to_owned())),
            None => Ok(()),
        }
    }

    /// What the user should know of what the source loses by being written anew.
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

    /// Writes down which file the model came from.
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
