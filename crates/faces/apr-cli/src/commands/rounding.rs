//! `--calibration` with layouts of codes and scales: weights are rounded layer by layer, each by
//! the inputs that the rounded layers before it give (GPTQ).

use std::path::Path;

use apr_lowrank::RoundingReport;
use apr_lowrank::second_order::RoundingWork;
use apr_ops::job::{Job, LaidWeights};

use super::second_order::Calibration;
use crate::context::Context;
use crate::failure::Outcome;
use crate::model::Model;

/// The model that a job reads, with weights that are rounded as they will be stored; `path` is the
/// model that reads `data`.
pub(super) fn rounded(
    (mut job, mut model): (Job, Model),
    path: &Path,
    data: &Path,
    context: &Context,
) -> Outcome<(Job, Model, RoundingReport)> {
    let calibration = Calibration::new(path, data, context)?;
    let source = context.source(calibration.reader(), &model.name)?;
    let LaidWeights { weights, idle, .. } = job.laid_weights(&source)?;
    drop(source);
    let mut layers = calibration.layers(weights.keys().copied(), "calibrate")?;
    let mut work = RoundingWork::new(weights);
    let rewrites = calibration.rewrite(&mut layers, |matrix, gram, rewrites| {
        Ok(work.round(calibration.reader(), matrix, gram, rewrites)?)
    })?;
    job.weights.rounded = work.rounded();
    // The job can't tell from rounded weights; without such, it does.
    job.weights.warnings.extend(idle.filter(|_| !job.weights.rounded.is_empty()));
    let report = work.report(calibration.reader(), &layers);
    model.reader = Box::new(rewrites.over(model.reader));
    Ok((job, model, report))
}
