//! Schemes, importance, quality gates, and quantizers that you add.

pub use apr_quantize::{
    Candidate, ColumnStatistics, Decision, DecisionReason, Degradation, Imatrix, Importance, Kept,
    Measured, Quality, QualityGate, Quantization, QuantizationPlan, QuantizationReport, Role,
    Scheme, SchemeKind, TensorQuality, TensorType, TypeQuality, UnknownType, importance_from_csv,
    parse_dtype, plan,
};
