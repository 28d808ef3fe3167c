//! Without the feature `linalg`, what factors the products of a layer's inputs is refused.

use crate::failure::{Failure, Outcome};

fn absent<T>() -> Outcome<T> {
    Err(Failure::General("this build has no linear algebra (feature `linalg`)".to_owned()))
}

/// `--calibration` with layouts of codes and scales.
pub(super) mod rounding {
    use std::path::Path;

    use apr_lowrank::RoundingReport;
    use apr_ops::job::Job;

    use crate::context::Context;
    use crate::failure::Outcome;
    use crate::model::Model;

    pub(in crate::commands) fn rounded(
        _opened: (Job, Model),
        _path: &Path,
        _data: &Path,
        _context: &Context,
    ) -> Outcome<(Job, Model, RoundingReport)> {
        super::absent()
    }
}

/// `--prune-method sparsegpt`.
pub(super) mod second_order {
    use std::path::Path;

    use apr_prune::{PrunePlan, PruneReport};

    use crate::context::Context;
    use crate::failure::Outcome;
    use crate::model::Model;

    pub(in crate::commands) fn prune(
        _plan: PrunePlan,
        _paths: (&Path, &Path),
        _model: Model,
        _context: &Context,
    ) -> Outcome<(Model, PruneReport)> {
        super::absent()
    }
}
