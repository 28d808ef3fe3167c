//! Why a job ended early.

use apr_quantize::QuantizationReport;
use apr_registry::{Code, DType, Error, Escaped};

use crate::convert::ConvertError;
use crate::import::ImportError;
use crate::inline::ValidationError;

/// Why a job ended early; nothing of its output may be kept.
#[derive(Debug)]
#[non_exhaustive]
pub enum JobError {
    /// The source can't be read or the target not be written.
    Model(Error),
    /// What was asked for contradicts itself, the format or the model. Nothing is wrong with the file.
    Request(String),
    /// Names or shapes that the model's family does not have.
    Misfit {
        /// The source.
        file: String,
        /// What people call the family.
        family: Option<String>,
        /// What does not fit.
        misfits: Vec<ValidationError>,
    },
    /// A tensor with values that no healthy model has.
    Unhealthy {
        /// The source.
        file: String,
        /// What is wrong with the tensor.
        error: Box<ValidationError>,
        /// What the source calls the tensor, where it is one tensor of it.
        source_tensor: Option<String>,
        /// The dtype asked for, where it can't hold such a value.
        unfit: Option<DType>,
    },
    /// Quantization moved values further than the gate allows.
    Gate {
        /// What exceeds it.
        failures: Vec<String>,
        /// Everything that was measured.
        report: Box<QuantizationReport>,
    },
}

impl JobError {
    /// Why the conversion of `file` ended; `source_tensor` says what a tensor is called there.
    pub(super) fn of(error: ConvertError, file: &str, source_tensor: impl Fn(&str) -> Option<String>) -> Self {
        let file = file.to_owned();
        match error {
            ConvertError::Model(error) => Self::Model(error),
            ConvertError::Invalid(error) => {
                let source_tensor = source_tensor(&error.tensor);
                Self::Unhealthy { file, error: Box::new(error), source_tensor, unfit: None }
            }
            ConvertError::Unfit { error, dtype } => {
                let source_tensor = source_tensor(&error.tensor);
                Self::Unhealthy { file, error: Box::new(error), source_tensor, unfit: Some(dtype) }
            }
            ConvertError::Gate { failures, report } => Self::Gate { failures, report },
        }
    }

    /// Of an error about what was asked for, not about a file: one that names a tensor and no file.
    pub(super) fn unsuited(error: Error) -> Self {
        match error.tensor().filter(|_| error.code() == Code::Format && error.file().is_none()) {
            Some(tensor) => Self::Request(format!("tensor '{}': {}", Escaped::short(tensor), Escaped(error.message()))),
            None => Self::Model(error),
        }
    }
}

impl From<Error> for JobError {
    fn from(error: Error) -> Self {
        Self::Model(error)
    }
}

impl std::fmt::Display for JobError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Model(error) => error.fmt(f),
            Self::Request(message) => f.write_str(message),
            Self::Misfit { file, family, misfits } => {
                let family = family
                    .as_ref()
                    .map_or_else(|| "its family".to_owned(), |family| format!("the {} family", Escaped(family)));
                write!(f, "{}: the tensors do not fit {family}", Escaped(file))?;
                misfits.iter().try_for_each(|misfit| write!(f, "\n  {misfit}"))
            }
            Self::Unhealthy { file, error, unfit: None, .. } => write!(f, "{}: {error}", Escaped(file)),
            Self::Unhealthy { file, error, unfit: Some(dtype), .. } => {
                write!(f, "{}: {error}, which {dtype} can't hold", Escaped(file))
            }
            Self::Gate { failures, .. } => {
                f.write_str("quality gate failed")?;
                failures.iter().try_for_each(|failure| write!(f, "\n  - {}", Escaped(failure)))
            }
        }
    }
}

impl std::error::Error for JobError {}

/// As an import reports it.
impl From<JobError> for ImportError {
    fn from(error: JobError) -> Self {
        match error {
            JobError::Model(error) => Self::Model(error),
            JobError::Request(message) => Self::Model(Error::format(message)),
            JobError::Misfit { file, misfits, .. } => match misfits.into_iter().next() {
                Some(first) => first.into(),
                None => Self::Model(Error::format("the tensors do not fit the family").in_file(file)),
            },
            JobError::Unhealthy { error, .. } => (*error).into(),
            JobError::Gate { failures, .. } => Self::QualityGate { failures },
        }
    }
}
