//! Why an import failed.

use apr_arch::{Contradiction, Mismatch};

use crate::convert::ConvertError;
use crate::inline::{ValidationError, ValidationReason};

/// Reason why an import failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum ImportError {
    /// The source could not be fetched.
    DownloadFailed {
        /// Source that was requested.
        source: String,
        /// Reason of the failure.
        reason: String,
    },
    /// The source is not a model file that apr reads.
    UnsupportedFormat {
        /// Extension of the file.
        extension: String,
    },
    /// A tensor is not what a healthy model has.
    ValidationFailed {
        /// Name in the source.
        name: String,
        /// Description of the error.
        reason: String,
    },
    /// The family does not have this tensor.
    UnknownTensor {
        /// Name in the source.
        source_name: String,
    },
    /// The source does not belong to the requested family.
    ArchitectureMismatch {
        /// Requested family.
        expected: String,
        /// Family of the source.
        found: String,
    },
    /// The source lacks a tensor.
    MissingTensor {
        /// Name in the source's convention.
        name: String,
    },
    /// Values moved further than allowed.
    QualityGate {
        /// Limits of the gate that are exceeded.
        failures: Vec<String>,
    },
    /// The source can't be read or the target not be written.
    Model(apr_registry::Error),
}

impl std::fmt::Display for ImportError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::DownloadFailed { source, reason } => {
                write!(f, "Download failed: {source} - {reason}")
            }
            Self::UnsupportedFormat { extension } => write!(f, "Unsupported format: {extension}"),
            Self::ValidationFailed { name, reason } => {
                write!(f, "Tensor validation failed: {name} - {reason}")
            }
            Self::UnknownTensor { source_name } => {
                write!(f, "Name mapping failed: unknown tensor '{source_name}'")
            }
            Self::ArchitectureMismatch { expected, found } => {
                write!(f, "Architecture mismatch: expected {expected}, found {found}")
            }
            Self::MissingTensor { name } => write!(f, "Missing required tensor: {name}"),
            Self::QualityGate { failures } => {
                write!(f, "Quality gate failed: {}", failures.join(", "))
            }
            Self::Model(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ImportError {}

impl From<apr_registry::Error> for ImportError {
    fn from(error: apr_registry::Error) -> Self {
        Self::Model(error)
    }
}

impl From<ValidationError> for ImportError {
    fn from(error: ValidationError) -> Self {
        match *error.reason {
            ValidationReason::Family(Contradiction { told, alike, .. }) => {
                Self::ArchitectureMismatch {
                    expected: told,
                    found: alike.unwrap_or("unknown".to_owned()),
                }
            }
            ValidationReason::Structure(Mismatch::Unexpected { name, .. }) => {
                Self::UnknownTensor { source_name: name }
            }
            ValidationReason::Structure(Mismatch::Missing { name }) => Self::MissingTensor { name },
            _ => Self::ValidationFailed { name: error.tensor, reason: error.message },
        }
    }
}

impl From<ConvertError> for ImportError {
    fn from(error: ConvertError) -> Self {
        match error {
            ConvertError::Model(error) => Self::Model(error),
            ConvertError::Invalid(error) | ConvertError::Unfit { error, .. } => error.into(),
        }
    }
}
