//! What conversions and passes report, and their options. All serialize to the JSON of the command
//! line's `--json`.

pub use apr_ops::convert::{ConvertReport, ConvertedTensor, Rounding};
pub use apr_ops::diff::{
    DiffOptions, DiffReport, DriftReport, Explained, MetadataChange, RuleChange, TensorDiff,
    TensorDrift, TokenChange, Verdict, VocabChanges,
};
pub use apr_ops::import::{FamilyNote, ImportError};
pub use apr_ops::inline::{ValidationConfig, ValidationError, ValidationReport};
pub use apr_ops::inspect::{InspectReport, QuantizationSummary};
pub use apr_ops::job::{JobError, JobReport};
pub use apr_ops::left_out::{LeftOut, UnlistedData};
pub use apr_ops::lint::{LintReport, Remark, Severity, Topic};
pub use apr_ops::tensors::{HistogramReport, SortBy, TensorRow, TensorsOptions, TensorsReport};
pub use apr_ops::validate::{
    Check, CheckOutcome, Finding, Status, ValidateOptions, ValidateReport,
};
