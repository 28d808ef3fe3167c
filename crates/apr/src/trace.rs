//! Traces of runs: what every step of a model takes and makes.
//!
//! [`Model::trace`](crate::Model::trace) returns a [`Trace`].

pub use apr_trace::{
    AttentionPattern, InputTrace, Level, OperatorTrace, PassTrace, Payload, Prediction,
    Predictions, StepTrace, Trace, TraceOptions, ValueStatistics, ValueTrace, Written, perfetto,
};
