//! What `apr validate` reports.

use apr_core::counted;
use apr_registry::{Code, Format};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::left_out::LeftOut;
use crate::physics::Level;

/// Something that is wrong or odd.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// Severity of the finding.
    pub level: Level,
    /// Name of the check.
    pub check: Check,
    /// Error code, if one applies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<&'static str>,
    /// Name of the tensor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tensor: Option<String>,
    /// Name of the file, if the model has several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Byte in the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// Description of the error or warning.
    pub message: String,
}

/// A finding as a result of a part has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FindingRecord {
    level: Level,
    check: Check,
    code: Option<String>,
    tensor: Option<String>,
    file: Option<String>,
    offset: Option<u64>,
    message: String,
}

impl<'de> Deserialize<'de> for Finding {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let record = FindingRecord::deserialize(deserializer)?;
        let FindingRecord { level, check, code, tensor, file, offset, message } = record;
        let known = |id: String| {
            let known = Code::ALL.iter().map(|code| code.id()).find(|known| *known == id);
            known.ok_or_else(|| D::Error::custom("not an error code"))
        };
        Ok(Self { level, check, code: code.map(known).transpose()?, tensor, file, offset, message })
    }
}

/// The checks, in the order they are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Check {
    /// Header, metadata, index, ranges.
    Structure,
    /// CRC-32 of the file.
    Checksum,
    /// BLAKE3 of each tensor.
    Digests,
    /// NaN and infinity.
    Finite,
    /// Tensors of zeros.
    Zeros,
    /// Names and shapes against the family.
    Shapes,
    /// GGUF's key-value pairs that a network is built from; only of models that have such.
    Hyperparameters,
    /// Computation of the model; only for models whose files contain a graph.
    Graph,
    /// Means and deviations against the family.
    Physics,
    /// A signature by a trusted key.
    Signature,
    /// SHA-256 of the file, compared with the requested one.
    Sha256,
    /// SHA-256 of tensors, against the manifest that was named.
    Manifest,
    /// Recorded origin of the model, compared with the files.
    Source,
}

impl Check {
    /// Returns the name of the check in reports.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Structure => "Structure",
            Self::Checksum => "File checksum",
            Self::Digests => "Tensor digests",
            Self::Finite => "NaN and infinity",
            Self::Zeros => "Zero tensors",
            Self::Shapes => "Names and shapes",
            Self::Hyperparameters => "Hyperparameters",
            Self::Graph => "Graph",
            Self::Physics => "Physics",
            Self::Signature => "Signature",
            Self::Sha256 => "SHA-256",
            Self::Manifest => "Manifest",
            Self::Source => "Source",
        }
    }
}

/// Result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// The check has no findings.
    Pass,
    /// The check has warnings only.
    Warn,
    /// The check has errors.
    Fail,
    /// The check was not requested, or the file has nothing to check.
    Skipped,
}

/// A check and its outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CheckOutcome {
    /// Name of the check.
    pub check: Check,
    /// Result of the check.
    pub status: Status,
    /// Data that was checked, or the reason for skipping the check.
    pub detail: String,
}

impl CheckOutcome {
    /// Returns the outcome of a check with these findings. `detail` is used if there are none.
    pub(crate) fn of(check: Check, findings: &[Finding], detail: String) -> Self {
        let found = |level: Level| {
            let is_one = |it: &&Finding| it.check == check && it.level == level;
            findings.iter().filter(is_one).count() as u64
        };
        let (status, detail) = match (found(Level::Error), found(Level::Warning)) {
            (0, 0) => (Status::Pass, detail),
            (0, warnings) => (Status::Warn, counted(warnings, "warning")),
            (errors, _) => (Status::Fail, counted(errors, "error")),
        };
        Self { check, status, detail }
    }
}

/// Returns `true` if a model with these findings is valid; if `strict`, warnings count as errors.
pub(crate) fn is_valid(findings: &[Finding], strict: bool) -> bool {
    let worst = if strict { Level::Warning } else { Level::Error };
    !findings.iter().any(|finding| finding.level == Level::Error || finding.level == worst)
}

/// The report of `apr validate`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ValidateReport {
    /// Path or location of the opened model.
    pub path: String,
    /// Format of the model.
    pub format: &'static Format,
    /// `true` if there is no error and, with `strict`, no warning.
    pub valid: bool,
    /// Outcomes of the checks.
    pub checks: Vec<CheckOutcome>,
    /// Data in the model that is not a tensor of the checkpoint. It was not checked.
    #[serde(flatten)]
    pub left_out: LeftOut,
    /// Everything found.
    pub findings: Vec<Finding>,
    /// Number of bytes read.
    pub bytes_read: u64,
}

impl ValidateReport {
    /// Adds a check that was made outside of the pass; an error is what it found wrong.
    pub fn add(&mut self, check: Check, outcome: Result<String, apr_core::Error>) {
        let (status, detail) = match outcome {
            Ok(detail) => (Status::Pass, detail),
            Err(error) => {
                self.valid = false;
                let (file, offset) = (error.file().map(str::to_owned), error.offset());
                let (code, message) = (Some(error.code().id()), error.message().to_owned());
                self.findings.push(Finding {
                    level: Level::Error,
                    check,
                    code,
                    tensor: None,
                    file,
                    offset,
                    message,
                });
                (Status::Fail, "see below".to_owned())
            }
        };

        self.checks.push(CheckOutcome { check, status, detail });
    }
}
