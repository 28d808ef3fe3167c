//! Without the feature `infer` no model is run, and no report says what came of it.

use serde::Serialize;

use crate::failure::{Failure, Outcome};

/// How a smaller model was trained: none is.
#[derive(Debug, Serialize)]
pub(crate) enum DistillReport {}

/// How types were chosen by their effect on outputs: they are not.
#[derive(Debug, Serialize)]
pub(crate) enum SearchReport {}

/// How an output answered the inputs of a canary: none is asked.
#[derive(Debug, Serialize)]
pub(crate) enum CanaryReport {}

/// Memory of a run: there is none.
#[derive(Debug, Serialize)]
pub(crate) enum MemoryEstimate {}

/// Nothing is searched; a build that does has a bound of its own.
pub(crate) const MOST_BEAMS: usize = u8::MAX as usize;

/// Refuses what runs a model.
pub(crate) fn absent<T>() -> Outcome<T> {
    Err(Failure::General("this build runs no models (feature `infer`)".to_owned()))
}
