//! Why a job ended early.

use apr_registry::{Code, DType, Error, Escaped};

use crate::convert::ConvertError;
use crate::diff::DriftReport;
use crate::import::ImportError;
use crate::inline::ValidationError;

/// Reason for the early end of a job. Its output must be discarded.
#[derive(Debug)]
#[non_exhaustive]
pub enum JobError {
    /// The source can't be read or the target not be written.
    Model(Error),
    /// The request contradicts itself, the format or the model. The file is not damaged.
    Request(String),
    /// Names or shapes that the model's family does not have.
    Misfit {
        /// Path of the source.
        file: String,
        /// Display name of the family.
        family: Option<String>,
        /// Mismatches that were found.
        misfits: Vec<ValidationError>,
    },
    /// A tensor with values that no healthy model has.
    Unhealthy {
        /// Path of the source.
        file: String,
        /// The error found in the tensor.
        error: Box<ValidationError>,
        /// Name of the tensor in the source, if it is a single tensor there.
        source_tensor: Option<String>,
        /// Requested dtype, if it can't represent such a value.
        unfit: Option<DType>,
    },
    /// The output is further from its source than the gate allows.
    Gate {
        /// Limits of the gate that are exceeded.
        failures: Vec<String>,
        /// Everything that was measured.
        report: Box<DriftReport>,
    },
}

/// Returns a short description of a model with these misfits.
#[must_use]
pub fn misfit_title(family: Option<&str>, misfits: &[ValidationError]) -> String {
    if !misfits.is_empty() && misfits.iter().all(ValidationError::is_of_graph) {
        let is_unread = misfits.iter().any(ValidationError::is_of_unreadable_graph);
        let wrong = if is_unread { "is damaged or not supported" } else { "contradicts itself" };
        return format!("its graph {wrong}");
    }
    match family {
        Some(family) => format!("the tensors do not match the {} family", Escaped(family)),
        None => "the tensors do not match its family".to_owned(),
    }
}

impl JobError {
    /// Converts an error of the conversion of `file`.
    ///
    /// `source_tensor` returns the source's name of a tensor.
    pub(super) fn of(
        error: ConvertError,
        file: &str,
        source_tensor: impl Fn(&str) -> Option<String>,
    ) -> Self {
        let file = file.to_owned();
        match error {
            ConvertError::Model(error) if error.code() == Code::Checksum => {
                Self::Model(match error.tensor().and_then(source_tensor) {
                    Some(name) => about_tensor(&error, name),
                    None => error,
                })
            }
            ConvertError::Model(error) => error.into(),
            ConvertError::Invalid(error) => {
                let source_tensor = source_tensor(&error.tensor);
                Self::Unhealthy { file, error: Box::new(error), source_tensor, unfit: None }
            }
            ConvertError::Unfit { error, dtype } => {
                let source_tensor = source_tensor(&error.tensor);
                Self::Unhealthy { file, error: Box::new(error), source_tensor, unfit: Some(dtype) }
            }
        }
    }

    /// Converts an error that names a tensor but no file to a rejected request.
    pub(super) fn unsuited(error: Error) -> Self {
        match error.tensor().filter(|_| error.code() == Code::Format && error.file().is_none()) {
            Some(tensor) => Self::Request(format!(
                "tensor '{}': {}",
                Escaped::short(tensor),
                Escaped(error.message())
            )),
            None => error.into(),
        }
    }
}

/// Returns the error about a checksum with another name of its tensor.
fn about_tensor(error: &Error, name: String) -> Error {
    let named = Error::checksum(error.message()).for_tensor(name);
    let placed = match error.offset() {
        Some(offset) => named.at(offset),
        None => named,
    };
    match error.file() {
        Some(file) => placed.in_file(file),
        None => placed,
    }
}

/// Values that are not finite make a model unhealthy, also if a reader finds them.
impl From<Error> for JobError {
    fn from(error: Error) -> Self {
        match ValidationError::of_error(&error) {
            Some(values) => Self::Unhealthy {
                file: error.file().unwrap_or_default().to_owned(),
                source_tensor: Some(values.tensor.clone()),
                error: Box::new(values),
                unfit: None,
            },
            None => Self::Model(error),
        }
    }
}

impl std::fmt::Display for JobError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Model(error) => error.fmt(f),
            Self::Request(message) => f.write_str(message),
            Self::Misfit { file, family, misfits } => {
                let title = misfit_title(family.as_deref(), misfits);
                write!(f, "{}: {title}", Escaped(file))?;
                misfits.iter().try_for_each(|misfit| write!(f, "\n  {misfit}"))
            }
            Self::Unhealthy { file, error, unfit: None, .. } => {
                write!(f, "{}: {error}", Escaped(file))
            }
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

/// Conversion to the error that an import reports.
impl From<JobError> for ImportError {
    fn from(error: JobError) -> Self {
        match error {
            JobError::Model(error) => Self::Model(error),
            JobError::Request(message) => Self::Model(Error::format(message)),
            JobError::Misfit { file, misfits, .. } => match misfits.into_iter().next() {
                Some(first) => first.into(),
                None => {
                    Self::Model(Error::format("the tensors do not match the family").in_file(file))
                }
            },
            JobError::Unhealthy { error, .. } => (*error).into(),
            JobError::Gate { failures, .. } => Self::QualityGate { failures },
        }
    }
}

#[cfg(test)]
mod tests {
    use apr_arch::Mismatch;

    use super::*;
    use crate::inline::{InlineValidator, ValidationConfig};

    fn missing() -> ValidationError {
        ValidationError::of_structure(Mismatch::Missing { name: "a.weight".to_owned() })
    }

    fn unexpected() -> ValidationError {
        ValidationError::of_structure(Mismatch::Unexpected {
            name: "b\n.weight".to_owned(),
            extra: false,
        })
    }

    /// An error about the values of a tensor, as the validator makes it.
    fn values() -> ValidationError {
        let mut validator = InlineValidator::new(ValidationConfig::strict());
        validator.validate_tensor("n.weight", &[f32::NAN, 1.0]).expect_err("NaN is never sound")
    }

    fn misfit(family: Option<&str>, misfits: Vec<ValidationError>) -> JobError {
        JobError::Misfit { file: "m.gguf".to_owned(), family: family.map(str::to_owned), misfits }
    }

    fn unhealthy(unfit: Option<DType>) -> JobError {
        JobError::Unhealthy {
            file: "m.gguf".to_owned(),
            error: Box::new(values()),
            source_tensor: None,
            unfit,
        }
    }

    fn report() -> DriftReport {
        let side = |reader| crate::diff::Side { reader, original: reader, name: "", model: None };
        let file = [&2_u64.to_le_bytes()[..], b"{}"].concat();
        let empty = apr_registry::open(file, "m.safetensors", &apr_registry::Limits::default());
        let empty = empty.expect("a file without tensors");
        crate::diff::drift(side(&*empty), side(&*empty), None, &apr_registry::Serial, &())
            .expect("nothing to read")
    }

    fn gate() -> JobError {
        JobError::Gate {
            failures: vec!["a is off".to_owned(), "b, too".to_owned()],
            report: Box::new(report()),
        }
    }

    #[test]
    fn errors_show_the_file_the_family_and_all_reasons() {
        let shown = misfit(Some("LLaMA"), vec![missing(), unexpected()]).to_string();
        assert!(
            shown.starts_with(
                "m.gguf: the tensors do not match the LLaMA family\n  tensor 'a.weight': "
            ),
            "{shown}"
        );
        assert_eq!(shown.lines().count(), 3, "names of a file make no lines: {shown}");
        assert_eq!(
            misfit(None, Vec::new()).to_string(),
            "m.gguf: the tensors do not match its family"
        );
        assert!(unhealthy(None).to_string().starts_with("m.gguf: tensor 'n.weight': "));
        assert!(
            unhealthy(Some(DType::Q4_0)).to_string().ends_with(", which q4_0 can't hold"),
            "{}",
            unhealthy(Some(DType::Q4_0))
        );
        assert_eq!(gate().to_string(), "quality gate failed\n  - a is off\n  - b, too");
        assert_eq!(JobError::Request("no such thing".to_owned()).to_string(), "no such thing");
        let model = JobError::from(Error::format("broken").in_file("m.gguf"));
        assert_eq!(model.to_string(), Error::format("broken").in_file("m.gguf").to_string());
    }

    #[test]
    fn an_error_about_a_checksum_names_the_tensor_as_the_source_does() {
        let error = Error::checksum("the sum is another").for_tensor("output_norm.weight");
        let error = ConvertError::Model(error.at(7).in_file("m.pt"));
        let job = JobError::of(error, "m.pt", |_| Some("norm.weight".to_owned()));
        let expected = Error::checksum("the sum is another").for_tensor("norm.weight");
        let expected = expected.at(7).in_file("m.pt").to_string();
        assert!(matches!(&job, JobError::Model(error) if error.code() == Code::Checksum), "{job}");
        assert_eq!(job.to_string(), expected);
    }

    #[test]
    fn an_import_reports_each_of_them_as_its_own_kind() {
        let of = |error: JobError| ImportError::from(error).to_string();
        assert_eq!(
            of(misfit(None, vec![missing(), unexpected()])),
            "Missing required tensor: a.weight"
        );
        assert_eq!(
            of(misfit(None, vec![unexpected()])),
            "Name mapping failed: unknown tensor 'b\n.weight'"
        );
        assert!(of(misfit(None, Vec::new())).contains("do not match the family"));
        assert!(of(unhealthy(None)).starts_with("Tensor validation failed: n.weight - "));
        assert_eq!(of(gate()), "Quality gate failed: a is off, b, too");
        assert!(of(JobError::Request("no such thing".to_owned())).contains("no such thing"));
        assert!(of(JobError::Model(Error::memory("too much"))).contains("too much"));
    }

    #[test]
    fn a_conversion_s_error_is_the_same_to_a_job_and_to_an_import() {
        let conversions = || {
            [
                ConvertError::Model(Error::corrupt("cut")),
                ConvertError::Invalid(values()),
                ConvertError::Unfit { error: values(), dtype: DType::Q4_0 },
            ]
        };
        let words = ["cut", "n.weight", "which q4_0 can't hold"];
        for ((error, word), again) in conversions().into_iter().zip(words).zip(conversions()) {
            let shown = error.to_string();
            assert!(shown.contains(word), "{shown}");
            let job = JobError::of(error, "m.gguf", |name| Some(format!("source.{name}")));
            if let JobError::Unhealthy { source_tensor, .. } = &job {
                assert_eq!(source_tensor.as_deref(), Some("source.n.weight"));
            }
            assert!(job.to_string().contains(word), "{job}");
            assert_eq!(ImportError::from(again).to_string(), ImportError::from(job).to_string());
        }
        let fetched = ImportError::DownloadFailed {
            source: "hf://a/b".to_owned(),
            reason: "no network".to_owned(),
        };
        assert_eq!(fetched.to_string(), "Download failed: hf://a/b - no network");
        let unknown = ImportError::UnsupportedFormat { extension: "xyz".to_owned() };
        assert_eq!(unknown.to_string(), "Unsupported format: xyz");
        let mismatch = ImportError::ArchitectureMismatch {
            expected: "llama".to_owned(),
            found: "bert".to_owned(),
        };
        assert_eq!(mismatch.to_string(), "Architecture mismatch: expected llama, found bert");
    }
}
