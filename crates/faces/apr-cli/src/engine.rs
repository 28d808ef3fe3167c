//! What reports of a conversion have from running models, and what arguments say of a run.

pub(crate) use apr_distill::DistillReport;
pub(crate) use apr_importance::SearchReport;
pub(crate) use apr_quality::CanaryReport;
pub(crate) use apr_run::{MOST_BEAMS, MemoryEstimate};
