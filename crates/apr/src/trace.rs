//! Traces of runs: what every step of a model takes and makes.
//!
//! [`Model::trace`](crate::Model::trace) returns a [`Trace`],
//! [`Model::trace_diff`](crate::Model::trace_diff) a [`TraceDiff`] of two models.

pub use apr_trace::{
    AttentionPattern, Blame, Divergence, InputTrace, Level, OperatorTrace, PassDiff, PassTrace,
    Payload, Prediction, Predictions, StepDiff, StepTrace, TokenChoice, TokenDrift, TokensDrift,
    Trace, TraceDiff, TraceOptions, ValueDrift, ValueStatistics, ValueTrace, WeightChange,
    WeightDrift, Written, perfetto,
};
