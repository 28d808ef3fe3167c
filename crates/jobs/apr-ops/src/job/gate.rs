//! One gate for all jobs that write: the source as it was opened against the output as it will be,
//! whatever happened in between.

use apr_core::Progress;
use apr_quantize::QualityGate;
use apr_registry::{
    CheckpointReader, Computes, DType, Pipeline, PlanOptions, Result as ModelResult,
};
use apr_source::Source;
use apr_view::{View, check_decodable};

use super::description::{Job, Naming};
use super::error::JobError;
use super::planned::Planned;
use super::weights::Weights;
use crate::diff::{DriftReport, OfGraph, Side, alike, drift};
use crate::inline::ValidationConfig;

/// Limits for the difference between an output and its source.
pub struct Gate<'a> {
    limits: QualityGate,
    only_tells: bool,
    source: Source<'a>,
    origin: Origin<'a>,
}

/// The source, beside which an output is seen.
enum Origin<'a> {
    /// View in the names and the layout of the output, with the original values.
    Laid(View<'a>),
    /// View as opened: the output has a graph, with its own names and layout of tensors.
    Opened(View<'a>, OfGraph),
}

impl Job {
    /// Returns the gate of this job, or `None` if none was requested.
    ///
    /// The source is the model as it was opened, regardless of changes made to it before the job
    /// reads it.
    ///
    /// # Errors
    /// Returns the same errors as [`plan`](Self::plan).
    pub fn gate<'a>(&self, source: &Source<'a>) -> Result<Option<Gate<'a>>, JobError> {
        let Some(limits) = self.weights.gate else { return Ok(None) };
        let origin = match self.computes() {
            Computes::Nothing => Origin::Laid(self.unchanged(source)?.into_content()),
            Computes::IfKnown | Computes::Always => {
                let planned = self.unchanged(source)?;
                let losses = planned.report().losses.iter().filter(|loss| loss.what == "tensor");
                let unused = losses.map(|loss| loss.name.clone()).collect();
                Origin::Opened(self.selected(source)?, OfGraph { unused })
            }
        };
        let only_tells = self.weights.gate_only_tells;
        Ok(Some(Gate { limits, only_tells, source: source.through(source.reader()), origin }))
    }

    /// The job, as it would be if it changed no value.
    ///
    /// Weights in codes and scales are their values, as in the output when it is opened.
    fn unchanged<'a>(&self, source: &Source<'a>) -> Result<Planned<'a>, JobError> {
        let target = PlanOptions { shard: None, ..self.target.clone() };
        // The content has the values before a cast, so the dtype has no effect on it.
        let decoded = || self.shows_values(source.reader()).then_some(DType::F32);
        let dequantize = self.weights.dequantize.or_else(decoded);
        let weights = Weights { dequantize, ..Weights::default() };
        let validation = ValidationConfig::integrity();
        let job = Self { target, weights, validation, ..self.clone() };
        job.plan(source)
    }

    /// Returns `true` if the source has weights in codes and scales, and all can be decoded.
    fn shows_values(&self, reader: &dyn CheckpointReader) -> bool {
        let is_coded = |tensor: usize| reader.stored(tensor).coding().is_some();
        self.naming == Naming::OfTarget
            && (0..reader.tensors().len()).any(is_coded)
            && check_decodable(reader).is_ok()
    }
}

impl Gate<'_> {
    /// Returns `true` if an output that exceeds the gate is written anyway.
    #[must_use]
    pub fn only_tells(&self) -> bool {
        self.only_tells
    }

    /// Measures the difference of an output and returns the limits that it exceeds.
    ///
    /// Reads all bytes of source and output.
    ///
    /// # Errors
    /// Returns an error if bytes of the source or the output are damaged.
    pub fn judge<P: Pipeline>(
        &self,
        written: &dyn CheckpointReader,
        pipeline: &P,
        progress: &dyn Progress,
    ) -> ModelResult<(DriftReport, Vec<String>)> {
        let side = |reader| Side { reader, original: reader, name: "", model: None };
        let report = match &self.origin {
            Origin::Laid(origin) => drift(side(origin), side(written), None, pipeline, progress)?,
            Origin::Opened(origin, graph) => {
                let (left, right) = (self.source.through(origin), self.source.through(written));
                let views = alike(&left, &right);
                let families = (left.family_in(&views.left)?, right.family_in(&views.right)?);
                let left = Side { model: families.0.as_ref(), ..side(&views.left) };
                let right = Side { model: families.1.as_ref(), ..side(&views.right) };
                let mut report = drift(left, right, Some(graph), pipeline, progress)?;
                report.warnings.extend(views.warnings);
                report
            }
        };
        let failures = report.failures(&self.limits);
        Ok((report, failures))
    }
}
