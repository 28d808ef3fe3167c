//! Models judged by what they compute: perplexity, divergence of predictions, distances of outputs,
//! canaries.
//!
//! Models are lent by [`Model::run_with`](crate::Model::run_with) as runners; what is compared are
//! [`Prepared`](crate::run::Prepared) parts of them, or [`Subject`]s.

pub use apr_quality::{
    Canary, CanaryCase, CanaryInput, CanaryModel, CanaryReport, CaseReport, ComparisonReport,
    Distribution, DivergenceReport, ErrorRates, Estimate, Expected, LabelScore, LayerDrift,
    Numbers, OutputDistance, Percentile, PerplexityReport, Sample, Subject, Thresholds,
    TokenProbability, Tolerance, WindowOptions, Windows, built_in, check, compare, divergence,
    perplexity, record, transcription_errors,
};
