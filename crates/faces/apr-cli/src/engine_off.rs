//! Without the feature `infer` no model is run, and no report says what came of it.

use serde::Serialize;

use crate::failure::{Failure, Outcome};

/// Report of a distillation; never created in this build.
#[derive(Debug, Serialize)]
pub(crate) enum DistillReport {}

/// Report of a search for types; never created in this build.
#[derive(Debug, Serialize)]
pub(crate) enum SearchReport {}

/// Report of a canary; never created in this build.
#[derive(Debug, Serialize)]
pub(crate) enum CanaryReport {}

/// Memory estimate of a run; never created in this build.
#[derive(Debug, Serialize)]
pub(crate) enum MemoryEstimate {}

/// Placeholder for the maximum number of beams, which builds with the feature `infer` define.
pub(crate) const MOST_BEAMS: usize = u8::MAX as usize;

/// Returns the error of commands that run a model.
pub(crate) fn absent<T>() -> Outcome<T> {
    Err(Failure::General("this build cannot run models (feature `infer`)".to_owned()))
}
