//! What the planning of one kind of job leads to.

use apr_ops::parts::PartsPlan;

/// The plan of a job, and what is to be said about it.
#[derive(Default)]
pub(super) struct Draft {
    pub(super) plan: PartsPlan,
    pub(super) warnings: Vec<String>,
}
