//! A job that is planned.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use apr_core::{Layout, Progress, StoredRange};
use apr_quantize::{LaidErrors, QuantizationReport, TensorTarget};
use apr_registry::{
    CheckpointReader, Loss, Pipeline, PlanOptions, Result as ModelResult, Sink, TensorInfo, apr2,
};
use apr_source::Source;
use apr_source::adapter::{Adapter, adapter_of};
use apr_view::{Mapping, View};
use serde::Serialize;

use super::coded::{CodedWeights, with_codes};
use super::description::Job;
use super::error::JobError;
use super::layout::LaidWeights;
use crate::convert::{Conversion, ConvertOptions, ConvertReport, plan};
use crate::diff::DriftReport;
use crate::extraction::Extracted;
use crate::halves::Halves;
use crate::import::{FamilyNote, Prepared, misfits_of_graphs};
use crate::inline::{InlineValidator, ValidationConfig, ValidationError};
use crate::parts::smallest_size;
use crate::physics::Physics;
use crate::products::IntegerProducts;
use crate::simplify::Simplified;

/// A job with a fully planned output, of which nothing is written yet.
#[must_use = "nothing is written until it runs"]
pub struct Planned<'a> {
    /// The content to write.
    content: View<'a>,
    source: &'a dyn CheckpointReader,
    prefix: Option<String>,
    name: &'a str,
    target: PlanOptions,
    conversion: Conversion,
    /// `true` if the output must be judged before it is published: see [`Job::gate`].
    is_gated: bool,
    family: Option<FamilyNote>,
    adapter: Option<Adapter>,
    misfits: Vec<ValidationError>,
    coded: Option<CodedWeights>,
    /// Quantization errors of weights that are encoded while they are read.
    errors: Option<Arc<LaidErrors>>,
    /// Tensors of the source that are encoded while they are read.
    laid: LaidWeights,
    extracted: Option<Extracted>,
    renamed: BTreeMap<String, String>,
    simplified: Vec<Simplified>,
    products: Option<IntegerProducts>,
    halves: Option<Halves>,
    stops: bool,
}

/// Result of a job.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct JobReport {
    /// Path or location of the model that was read; for a merge, of all models.
    pub path: String,
    /// File or folder that was written; `None` for bytes in memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// Tensors, bytes, losses and measured errors.
    #[serde(flatten)]
    pub conversion: ConvertReport,
    /// The family that the model was taken for.
    pub family: Option<FamilyNote>,
    /// The adapter, if the file contains an adapter instead of a model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapter: Option<Adapter>,
    /// Errors in names and shapes that were ignored.
    pub misfits: Vec<ValidationError>,
    /// Treatment of weights that the source stores in codes and scales.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coded: Option<CodedWeights>,
    /// The part of the graph that was extracted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<Extracted>,
    /// New names of the graph's values, by their old names.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub renamed_values: BTreeMap<String, String>,
    /// Results of simplifying each graph.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub simplified: Vec<Simplified>,
    /// Products of the graph that multiply integers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub products: Option<IntegerProducts>,
    /// Nodes of the graph that compute in halves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub halves: Option<Halves>,
    /// Difference between output and source, if a gate measured it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drift: Option<DriftReport>,
}

/// Input of a plan, with the names and the layout of the target.
pub(super) struct Parts {
    /// Options for the tensors.
    pub(super) options: ConvertOptions,
    /// Data that the target can't store.
    pub(super) losses: Vec<Loss>,
    /// Judges the tensors on the way.
    pub(super) validator: InlineValidator,
    pub(super) family: Option<FamilyNote>,
    pub(super) misfits: Vec<ValidationError>,
    /// Errors in the graphs of the file, if planning has read them.
    pub(super) graph_misfits: Option<Vec<ValidationError>>,
    pub(super) warnings: Vec<String>,
    /// Weights in codes and scales, by the names of their parts, that are in blocks of the same
    /// numbers.
    pub(super) in_blocks: BTreeSet<String>,
}

impl Parts {
    /// Returns the parts for tensors that are written with a program or graph.
    ///
    /// Names and shapes were judged before. Values are judged as they are written, as far as that
    /// requires no family.
    pub(super) fn with_program(
        job: &Job,
        (family, misfits): (Option<FamilyNote>, Vec<ValidationError>),
        (tensors, targets): (&[TensorInfo], Vec<Option<TensorTarget>>),
        losses: Vec<Loss>,
        warnings: Vec<String>,
    ) -> Self {
        let options = ConvertOptions {
            targets,
            warnings: job.weights.warnings.clone(),
            ..ConvertOptions::default()
        };

        let physics = Physics { zeros: false, ranges: false, ..job.validation.physics };
        let values = ValidationConfig { structure: false, physics, ..job.validation };
        Self {
            options,
            losses,
            validator: InlineValidator::for_checkpoint(values, tensors, None),
            family,
            misfits,
            graph_misfits: None,
            warnings,
            in_blocks: BTreeSet::new(),
        }
    }

    /// Returns the parts of a prepared checkpoint, and the mapping of its base to the output.
    pub(super) fn of(
        prepared: Prepared<'_>,
        options: ConvertOptions,
        losses: Vec<Loss>,
    ) -> (Mapping, Self) {
        let Prepared { view, validator, family, misfits, warnings } = prepared;
        let parts = Self {
            options,
            losses,
            validator,
            family,
            misfits,
            graph_misfits: None,
            warnings,
            in_blocks: BTreeSet::new(),
        };
        (view.into_mapping(), parts)
    }
}

impl<'a> Planned<'a> {
    /// A job that writes `content`, which was made of the source.
    pub(super) fn new(
        job: &Job,
        source: &Source<'a>,
        content: View<'a>,
        parts: Parts,
    ) -> Result<Self, JobError> {
        let (content, parts, coded) =
            with_codes(content, source.reader(), parts, job.target.format)?;
        let Parts {
            options,
            losses,
            validator,
            family,
            mut misfits,
            graph_misfits,
            mut warnings,
            ..
        } = parts;
        if job.validation.structure {
            misfits.extend(graph_misfits.map_or_else(|| misfits_of_graphs(source), Ok)?);
        }
        // A shard is judged with the others, once they are together.
        let is_gated = job.weights.gate.is_some() && job.target.shard.is_none();
        let seals = job.warnings_of_seals(source.reader())?.into_iter().map(str::to_owned);
        warnings.splice(0..0, seals);
        warnings.extend(job.dequantized(source.reader()));
        let stops = validator.config().stop;
        let validator = if job.target.shard.is_some() { validator.in_parts() } else { validator };
        let conversion = plan(&content, &options, &job.target)?.validated_by(validator);
        let conversion = conversion.after_losing(losses).after_warning(warnings);
        let adapter = if family.is_none() { adapter_of(source.reader())? } else { None };
        Ok(Self {
            content,
            source: source.reader(),
            prefix: job.prefix.clone(),
            name: source.name(),
            target: job.target.clone(),
            conversion,
            is_gated,
            family,
            adapter,
            misfits,
            coded,
            errors: None,
            laid: LaidWeights::default(),
            extracted: None,
            renamed: BTreeMap::new(),
            simplified: Vec::new(),
            products: None,
            halves: None,
            stops,
        })
    }

    /// Adds measured quantization errors of weights that are encoded while they are read.
    ///
    /// `laid` contains these weights of the source.
    pub(super) fn measured_by(self, errors: Arc<LaidErrors>, laid: LaidWeights) -> Self {
        Self { errors: Some(errors), laid, ..self }
    }

    /// Adds the new names of values.
    pub(super) fn after_renaming(self, renamed: BTreeMap<String, String>) -> Self {
        Self { renamed, ..self }
    }

    /// Returns the new names of the graph's values, by their old names.
    #[must_use]
    pub fn renamed_values(&self) -> &BTreeMap<String, String> {
        &self.renamed
    }

    /// Adds the result of extracting a part of the graph.
    pub(super) fn after_extracting(self, extracted: Option<Extracted>) -> Self {
        Self { extracted, ..self }
    }

    /// Returns the part of the graph that was extracted, if one was.
    #[must_use]
    pub fn extracted(&self) -> Option<&Extracted> {
        self.extracted.as_ref()
    }

    /// Adds the results of simplifying the graphs.
    pub(super) fn after_simplifying(self, simplified: Vec<Simplified>) -> Self {
        Self { simplified, ..self }
    }

    /// Returns the results of simplifying each graph.
    #[must_use]
    pub fn simplified(&self) -> &[Simplified] {
        &self.simplified
    }

    /// Adds the report about products of integers.
    pub(super) fn with_products(self, products: Option<IntegerProducts>) -> Self {
        Self { products, ..self }
    }

    /// Returns the report about products of the graph that multiply integers, if there are any.
    #[must_use]
    pub fn products(&self) -> Option<&IntegerProducts> {
        self.products.as_ref()
    }

    /// Adds the report about nodes that compute in halves.
    pub(super) fn with_halves(self, halves: Option<Halves>) -> Self {
        Self { halves, ..self }
    }

    /// Returns the report about nodes that compute in halves, if there is one.
    #[must_use]
    pub fn halves(&self) -> Option<&Halves> {
        self.halves.as_ref()
    }

    /// Returns the tensors of the source that are encoded while they are read.
    pub(super) fn laid_weights(self) -> LaidWeights {
        self.laid
    }

    /// Returns the report of the planned conversion.
    #[must_use]
    pub fn report(&self) -> &ConvertReport {
        self.conversion.report()
    }

    /// Returns the target format and file layout of the output.
    #[must_use]
    pub fn target(&self) -> &PlanOptions {
        &self.target
    }

    /// Returns the layout of the output. Positions are the same as in [`reads`](Self::reads).
    #[must_use]
    pub fn places(&self) -> &Layout {
        self.conversion.layout()
    }

    /// Returns the file that lists all other files, as far as it is known: see
    /// [`CheckpointWriter::manifest`](apr_core::CheckpointWriter::manifest).
    #[must_use]
    pub fn manifest(&self) -> Option<Vec<u8>> {
        self.conversion.manifest()
    }

    /// Returns the smallest shard size that results in at most `shards` shards.
    ///
    /// # Errors
    /// E001 when dtype and shape of a tensor do not match.
    pub fn shard_size_for(&self, shards: usize) -> ModelResult<u64> {
        let carried =
            self.content.companions().iter().map(|file| file.len).fold(0, u64::saturating_add);
        let (outputs, metadata) = (self.conversion.outputs(), self.content.metadata());
        let lens = outputs.iter().map(TensorInfo::byte_len).collect::<ModelResult<Vec<u64>>>()?;
        smallest_size(&lens, shards, |size| apr2::shard_count(outputs, metadata, carried, size))
    }

    /// Returns the ranges of bytes that a tensor is made of.
    #[must_use]
    pub fn reads(&self, tensor: usize) -> Vec<StoredRange> {
        let stored = self.content.stored(tensor);
        match stored.parts() {
            [] => stored.ranges().to_vec(),
            parts => parts.iter().map(|part| part.place).collect(),
        }
    }

    /// Returns `true` if the output must be judged before it is published: see [`Job::gate`].
    #[must_use]
    pub fn is_gated(&self) -> bool {
        self.is_gated
    }

    /// Returns the content to write: the source's tensors that the target can store, as read.
    pub(super) fn into_content(self) -> View<'a> {
        let mut content = self.content;
        let tensors = self.conversion.layout().tensors.iter();
        let written: HashSet<&str> =
            tensors.map(|place| self.conversion.outputs()[place.source].name.as_str()).collect();
        content.drop_tensors(|name| !written.contains(name));
        content
    }

    /// Returns the errors found in names and shapes.
    #[must_use]
    pub fn misfits(&self) -> &[ValidationError] {
        &self.misfits
    }

    /// Returns an error if names or shapes are wrong and errors end the job.
    ///
    /// [`run`](Self::run) also calls this.
    ///
    /// # Errors
    /// [`JobError::Misfit`].
    pub fn check(&self) -> Result<(), JobError> {
        if !self.stops || self.misfits.is_empty() {
            return Ok(());
        }
        let family = self.family.as_ref().map(|family| family.title.clone());
        Err(JobError::Misfit { file: self.name.to_owned(), family, misfits: self.misfits.clone() })
    }

    /// Does it. Bytes of a source with digests are checked against them on the way.
    ///
    /// # Errors
    /// Every [`JobError`]; what was written is then incomplete and must be dropped.
    pub fn run<P: Pipeline>(
        self,
        sink: &mut dyn Sink,
        pipeline: &P,
        progress: &dyn Progress,
    ) -> Result<JobReport, JobError> {
        self.check()?;
        let run = self.conversion.run(&self.content, sink, pipeline, progress);
        let prefix = self.prefix.as_deref();
        let source_tensor =
            |tensor: &str| source_tensor(&self.content, self.source, prefix, tensor);
        let mut conversion = run.map_err(|error| JobError::of(error, self.name, source_tensor))?;
        if let Some(errors) = &self.errors {
            conversion.quantization = errors.report();
            conversion.elements = errors.elements();
        }
        let lost = conversion.quantization.iter().flat_map(QuantizationReport::lost);
        conversion.warnings.extend(lost);
        conversion.warnings.extend(self.errors.iter().flat_map(|errors| errors.lost()));
        Ok(JobReport {
            path: self.name.to_owned(),
            output: None,
            conversion,
            family: self.family,
            adapter: self.adapter,
            misfits: self.misfits,
            coded: self.coded,
            part: self.extracted,
            renamed_values: self.renamed,
            simplified: self.simplified,
            products: self.products,
            halves: self.halves,
            drift: None,
        })
    }
}

/// Returns the source's name of a tensor in a violation.
///
/// The violation uses the name in the target or in the source.
fn source_tensor(
    view: &View<'_>,
    source: &dyn CheckpointReader,
    prefix: Option<&str>,
    tensor: &str,
) -> Option<String> {
    let below = view.names_below(tensor);
    // Of several that were put together, nobody knows which one it is.
    let name = match below[..] {
        [] => tensor,
        [only] => only,
        _ => return None,
    };
    let whole = prefix.map(|prefix| format!("{prefix}{name}"));
    let known = |name: &String| source.tensors().iter().any(|info| info.name == *name);
    whole.into_iter().chain([name.to_owned()]).find(known)
}
