//! What the planning of one kind of job leads to.

use apr_ops::parts::PartsPlan;

/// Plan of a job, with its warnings.
#[derive(Default)]
pub(super) struct Draft {
    pub(super) plan: PartsPlan,
    pub(super) warnings: Vec<String>,
}
