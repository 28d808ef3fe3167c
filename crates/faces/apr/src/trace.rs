//! Traces of runs: what every step of a model takes and makes.
//!
//! [`Model::trace`](crate::Model::trace) returns a [`Trace`],
//! [`Model::trace_diff`](crate::Model::trace_diff) a [`TraceDiff`] of two models, and
//! [`anomalies`] looks for what is unlike a healthy model in a trace.

pub use apr_trace::{
    Anomaly, AnomalyKind, AnomalyReport, AttentionPattern, Blame, DeadNeurons, Divergence,
    InputTrace, Level, MovedLayer, OperatorTrace, OptionChange, PassDiff, PassTrace, Payload,
    Prediction, Predictions, StepDiff, StepInput, StepTrace, StepWeights, TokenChoice, TokenDrift,
    TokensDrift, Trace, TraceDiff, TraceOptions, ValueDrift, ValueStatistics, ValueTrace,
    WeightChange, WeightDrift, WeightTrace, Written, anomalies, perfetto,
};
