//! `--prune-method sparsegpt`: matrices are pruned layer by layer, each by the inputs that the
//! pruned layers before it give.

use std::path::Path;

use apr_prune::second_order::{SecondOrder, record};
use apr_prune::{PrunePlan, PruneReport};

use super::super::second_order::Calibration;
use crate::context::Context;
use crate::failure::Outcome;
use crate::model::Model;

/// Prunes a model by a plan and by the inputs that its weights get when the model at `path` reads
/// `data`.
pub(super) fn prune(
    plan: PrunePlan,
    (path, data): (&Path, &Path),
    mut model: Model,
    context: &Context,
) -> Outcome<(Model, PruneReport)> {
    let calibration = Calibration::new(path, data, context)?;
    let mut layers = calibration.layers(plan.positions(), "prune")?;
    let mut work = SecondOrder::new(plan, calibration.reader(), &layers);
    let rewrites = calibration.rewrite(&mut layers, |matrix, gram, rewrites| {
        Ok(work.prune(calibration.reader(), matrix, gram, rewrites)?)
    })?;

    let report = work.report();
    let mut rewritten = rewrites.over(model.reader);
    record(&report, rewritten.metadata_mut());
    model.reader = Box::new(rewritten);
    Ok((model, report))
}
