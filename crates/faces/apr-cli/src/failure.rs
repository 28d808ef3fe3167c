//! Why a command ended without success, how that is reported, and its exit code.

use std::io::Write;
use std::path::Path;

use anstyle::{AnsiColor, Style};
use apr_io::Sources;
pub(crate) use apr_ops::command::{ARGUMENTS, INTERRUPTED};
use apr_ops::command::{GENERAL, VALIDATION, exit_code};
use apr_ops::inline::ValidationError;
use apr_ops::job::{JobError, misfit_title};
use apr_registry::{Code, DType, Error, Escaped, IoCause};
use apr_view::nearest_files;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::args::names_model;
use crate::documents::FailureDocument;
use crate::options::in_options;

/// Misfits shown before the rest is only counted.
const SHOWN: usize = 10;

/// Result of a command or of a part of it.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

/// Reason for which a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A library error.
    Model(Error),
    /// A library error that the report on standard output has already.
    Reported(Error),
    /// A library error that is about this machine or these arguments rather than the file.
    General(String),
    /// The arguments contradict each other or the file.
    Usage(String),
    /// A check failed; its report has been printed.
    Validation,
    /// Failure that was already reported to the user, with the exit code.
    Told(u8),
    /// Names or shapes that do not fit the model's family; nothing was written.
    Misfit {
        /// Path of the source.
        file: String,
        /// Title of the family.
        family: Option<String>,
        /// Tensors that do not fit.
        misfits: Vec<ValidationError>,
    },
    /// An output that fails a gate; nothing was put in place.
    Gate {
        /// `true` if the parts of a job had written files before.
        of_parts: bool,
        /// Failures of the gate.
        failures: Vec<String>,
        /// Everything that was measured: `drift`, `canary`, `quantization`, what was changed
        /// before.
        measured: Box<Map<String, Value>>,
    },
    /// A tensor with values that a valid model does not have; nothing was written.
    Unhealthy {
        /// Path of the source.
        file: String,
        /// Error about the values.
        error: Box<ValidationError>,
        /// Name of the tensor in the source.
        source_tensor: Option<String>,
        /// The requested dtype, if it cannot represent such a value.
        unfit: Option<DType>,
    },
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        JobError::from(error).into()
    }
}

impl From<JobError> for Failure {
    fn from(error: JobError) -> Self {
        match error {
            JobError::Model(error) => Self::Model(error),
            JobError::Request(message) => Self::Usage(message),
            JobError::Misfit { file, family, misfits } => Self::Misfit { file, family, misfits },
            JobError::Unhealthy { file, error, source_tensor, unfit } => {
                Self::Unhealthy { file, error, source_tensor, unfit }
            }
            JobError::Gate { failures, report } => {
                let measured =
                    Box::new([("drift".to_owned(), json!(report))].into_iter().collect());
                Self::Gate { of_parts: false, failures, measured }
            }
            other => Self::General(other.to_string()),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Model(apr_io::io_error(&error, std::path::Path::new("output")))
    }
}

impl Failure {
    /// Returns the failure with the path of a file that the error names as one of a model's folder.
    pub(crate) fn located(self, sources: &Sources) -> Self {
        match self {
            Self::Model(error) => Self::Model(sources.locate(error)),
            other => other,
        }
    }

    /// Reports the failure to the user and returns the exit code.
    pub(crate) fn report(&self, json: bool) -> u8 {
        let code = self.exit_code();
        // Whoever closed our output, as `head` does, does not want to hear more.
        if code == 0 || matches!(self, Self::Validation | Self::Told(_)) {
            return code;
        }
        self.tell();
        if json && !matches!(self, Self::Reported(_)) {
            // Nobody is left to read that standard output is closed.
            let _ = FailureDocument::of(self, None).print();
        }
        code
    }

    /// Reports the failure to the user now, so that only the exit code is left.
    pub(crate) fn told(&self) -> Self {
        let code = self.exit_code();
        if code != 0 && !matches!(self, Self::Validation | Self::Told(_)) {
            self.tell();
        }
        Self::Told(code)
    }

    fn tell(&self) {
        let style = Style::new().bold().fg_color(Some(AnsiColor::Red.into()));
        // The exit code says it too, if standard error can't be written to.
        let mut err = anstream::stderr().lock();
        let _ = writeln!(err, "{style}error{style:#}: {}", self.message());
        if let Some(advice) = self.advice() {
            let _ = writeln!(err, "  {advice}");
        }
    }

    /// Returns `true` if a signal ended the command.
    pub(crate) fn is_interruption(&self) -> bool {
        self.exit_code() == INTERRUPTED
    }

    fn exit_code(&self) -> u8 {
        match self {
            Self::General(_) => GENERAL,
            Self::Usage(_) => ARGUMENTS,
            Self::Told(code) => *code,
            Self::Validation | Self::Misfit { .. } | Self::Unhealthy { .. } | Self::Gate { .. } => {
                VALIDATION
            }
            Self::Model(error) | Self::Reported(error) => exit_code(error),
        }
    }

    pub(crate) fn message(&self) -> String {
        in_options(&self.library_message())
    }

    /// Returns the message in the words of the library, which names settings instead of options.
    fn library_message(&self) -> String {
        match self {
            Self::Model(error) | Self::Reported(error) => error.to_string(),
            Self::General(message) | Self::Usage(message) => message.clone(),
            Self::Validation | Self::Told(_) => "validation failed".to_owned(),
            Self::Misfit { file, family, misfits } => {
                misfit_message(file, family.as_deref(), misfits)
            }
            Self::Unhealthy { file, error, unfit: None, .. } => {
                format!("{}: {error}", Escaped(file))
            }
            Self::Unhealthy { file, error, unfit: Some(dtype), .. } => {
                format!("{}: {error}, which {dtype} can't hold", Escaped(file))
            }
            Self::Gate { failures, .. } => {
                let lines: String =
                    failures.iter().map(|failure| format!("\n  - {}", Escaped(failure))).collect();
                format!("quality gate failed{lines}")
            }
        }
    }

    fn advice(&self) -> Option<String> {
        match self {
            Self::Misfit { .. } => {
                return Some(
                    "nothing was written; --relaxed writes the model anyway, --arch NAME sets \
                     the family"
                        .into(),
                );
            }
            Self::Gate { of_parts: false, .. } => {
                return Some("nothing was written; --force ignores the gate".into());
            }
            Self::Gate { of_parts: true, .. } => {
                return Some(
                    "the parts' files are kept but not joined; a plan with --force ignores the \
                     gate"
                        .into(),
                );
            }
            Self::Unhealthy { file, source_tensor, unfit, .. } => {
                let mut advice = "nothing was written".to_owned();
                if let Some(command) =
                    source_tensor.as_deref().and_then(|name| histogram_command(file, name))
                {
                    advice.push_str(&format!("; `{command}` shows its values"));
                }
                if unfit.is_none() {
                    advice.push_str("; --relaxed writes it nevertheless");
                }
                return Some(advice);
            }
            _ => {}
        }

        match self {
            Self::General(message) if names_feature(message) => Some(FULL_BUILD.to_owned()),
            Self::Usage(message) if message.starts_with("the model has no text input;") => {
                Some("--input NAME=FILE passes an array, an image or audio".to_owned())
            }
            Self::Model(error) | Self::Reported(error) => advice_about(error),
            Self::Usage(message) if message.ends_with(NEEDS_IMPORTANCE) => Some(
                "--calibration TEXT measures one in the same command; `apr imatrix` writes one \
                 for --imatrix FILE"
                    .to_owned(),
            ),
            _ => None,
        }
    }

    /// The failure as reports have it.
    pub(crate) fn to_report(&self) -> FailureReport<'_> {
        let (code, message, details) = match self {
            Self::Model(error) => {
                let (file, tensor, offset) = (error.file(), error.tensor(), error.offset());
                let details = FailureDetails::Model { file, tensor, offset };
                (Some(error.code().id()), in_options(error.message()), details)
            }
            Self::Misfit { file, family, misfits } => {
                let details = FailureDetails::Misfit { file, family: family.as_deref(), misfits };
                (None, self.message(), details)
            }
            Self::Gate { failures, measured, .. } => {
                let details = FailureDetails::Gate { failures, measured };
                (None, "quality gate failed".to_owned(), details)
            }
            Self::Unhealthy { file, error, .. } => {
                let (tensor, violation) = (&error.tensor, &**error);
                let details = FailureDetails::Unhealthy { file, tensor, violation };
                (None, error.message.clone(), details)
            }
            _ => (None, self.message(), FailureDetails::None {}),
        };
        FailureReport { code, message, details }
    }
}

/// A failure of a command.
#[derive(Serialize)]
pub(crate) struct FailureReport<'f> {
    /// `E001` to `E008`; `null` for errors in the arguments and for failed checks.
    code: Option<&'static str>,
    /// Error message.
    message: String,
    #[serde(flatten)]
    details: FailureDetails<'f>,
}

/// Location of a failure, and its measurements.
#[derive(Serialize)]
#[serde(untagged)]
enum FailureDetails<'f> {
    /// An error about a file.
    Model {
        /// The file.
        file: Option<&'f str>,
        /// Name of the tensor.
        tensor: Option<&'f str>,
        /// Byte offset in the file, or in the data that were decoded from it.
        offset: Option<u64>,
    },
    /// Tensors that do not fit the model's family.
    Misfit {
        /// Path of the source.
        file: &'f str,
        /// Title of the family.
        family: Option<&'f str>,
        /// Names and shapes that do not fit.
        misfits: &'f [ValidationError],
    },
    /// A quality gate that failed, with everything that was measured.
    Gate {
        /// Failures of the gate, as text.
        failures: &'f [String],
        #[serde(flatten)]
        measured: &'f Map<String, Value>,
    },
    /// A tensor with values that no healthy model has.
    Unhealthy {
        /// Path of the source.
        file: &'f str,
        /// Name of the tensor.
        tensor: &'f str,
        /// Error about its values.
        violation: &'f ValidationError,
    },
    /// No details, as an empty object.
    None {},
}

/// End of the error about a type that requires an importance matrix.
const NEEDS_IMPORTANCE: &str = "needs an importance matrix";

/// Advice on a feature that the build lacks.
const FULL_BUILD: &str = "in a clone, `cargo install --locked --profile local --path \
                          crates/faces/apr-cli` builds apr with all features";

/// Returns `true` for an error about a feature that the build lacks.
fn names_feature(message: &str) -> bool {
    message.contains("feature `") && (message.contains("lacks") || message.contains("has no"))
}

/// Returns advice on an error about a file.
fn advice_about(error: &Error) -> Option<String> {
    match (error.code(), error.cause()) {
        (Code::Version, _) if names_feature(error.message()) => Some(FULL_BUILD.to_owned()),
        (_, Some(IoCause::AlreadyExists)) => {
            Some("-f (--overwrite) replaces it; --force does not".to_owned())
        }
        (_, Some(IoCause::NotFound)) => {
            let name = error.file()?;
            if !apr_io::is_remote(Path::new(name)) {
                return advice_about_location(name).or_else(|| similar_file(name));
            }
            // The error of a server says what is missing.
            let is_of_system = error.message().contains("os error");
            let advice = "this command takes local files only: import or convert the model first";
            is_of_system.then(|| advice.to_owned())
        }
        (_, Some(IoCause::Interrupted)) => None,
        (Code::Format, _) => advice_about_format(error.message()),
        (Code::Memory, _) if error.message().ends_with(apr_core::Work::OVER) => {
            Some("raise --max-work, if the model is trusted".to_owned())
        }
        // Nothing raises this one.
        (Code::Memory, _) if error.message().ends_with(apr_core::Work::NOT_JUSTIFIED) => None,
        (Code::Memory, _) if error.file().is_none() => {
            Some("raise --max-memory or APR_RAM_LIMIT".to_owned())
        }
        (code, _) => Some(general_advice(code)),
    }
}

/// Returns advice on a file that does not exist, if its folder has a similar name.
pub(crate) fn similar_file(name: &str) -> Option<String> {
    let path = Path::new(name);
    let folder = path.parent()?;
    let listed = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let names = apr_platform::list_folder(listed).ok()?;
    let names: Vec<&str> = names.iter().filter_map(|name| name.to_str()).collect();
    let near = nearest_files(path.file_name()?.to_str()?, names, 1);
    let near = folder.join(near.first()?);
    Some(format!("did you mean {}?", quoted(near.to_str()?)?))
}

/// Returns advice on a file that does not exist, if its name looks like a location.
fn advice_about_location(typed: &str) -> Option<String> {
    let is_name = |part: &str| {
        let mut letters = part.chars();
        letters.next().is_some_and(char::is_alphanumeric)
            && letters.all(|letter| letter.is_alphanumeric() || "-_.".contains(letter))
    };
    let as_repository = |name: &str| {
        let (owner, model) = name.split_once('/').filter(|(owner, _)| is_name(owner))?;
        let has_folder = Path::new(owner).exists();
        // Names of models end in sizes and languages: `Qwen2.5-0.5B`, `whisper-tiny.en`.
        let end = Path::new(model).extension().map(|end| end.to_string_lossy());
        let is_file =
            end.is_some_and(|end| end.starts_with(|c: char| c.is_lowercase()) && end != "en");
        let is_repository = is_name(model) && !has_folder && !is_file;
        let is_repository = is_repository && names_model(typed);
        is_repository.then(|| format!("for a model of the hub: hf://{name}"))
    };
    match typed.split_once(':') {
        Some(("file", path)) => {
            let path = path.strip_prefix("//").unwrap_or(path);
            Some(format!("pass the path of a file: {}", quoted(path)?))
        }
        Some(("hf", repository)) => as_repository(repository.trim_start_matches('/')),
        Some((scheme, rest)) if rest.starts_with("//") && scheme.len() > 1 => {
            Some("locations begin with hf://, https://, http:// or s3://".to_owned())
        }
        Some(_) => None,
        None => as_repository(typed),
    }
}

fn advice_about_format(message: &str) -> Option<String> {
    if message.ends_with("nothing was executed") {
        return Some("`apr validate` lists everything that loading it would execute".to_owned());
    }
    if message.starts_with("GGUF requires the model family") {
        if message.ends_with("is unknown") {
            return Some(
                "`apr explain MODEL` names the nearest known family, --arch-file FILE defines \
                 another"
                    .to_owned(),
            );
        }
        return Some("--arch NAME sets a family of the same architecture".to_owned());
    }
    if message.starts_with("adapters can't be exported to GGUF") {
        let command = "apr lora convert ADAPTER --base MODEL -o adapter.gguf";
        return Some(format!("`{command}` writes one for llama.cpp"));
    }
    // Other messages of E001 say what is wrong with this file, which the general advice doesn't
    // know.
    message.starts_with(apr_registry::UNKNOWN_FORMAT).then(|| general_advice(Code::Format))
}

fn general_advice(code: Code) -> String {
    format!("`apr explain {code}` explains the error")
}

/// Returns the command that shows a tensor's values, or `None` if its name cannot be typed.
fn histogram_command(file: &str, tensor: &str) -> Option<String> {
    let (file, tensor) = (quoted(file)?, quoted(tensor)?);
    let input = if file == "-" { " < MODEL" } else { "" };
    Some(format!("apr tensors {file} --hist {tensor}{input}"))
}

/// Returns a word quoted for a shell if necessary, or `None` if it cannot be typed.
pub(crate) fn quoted(word: &str) -> Option<String> {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:=@%+,".contains(c);
    if Escaped(word).to_string() != word {
        return None;
    }
    let is_word = !word.is_empty() && word.chars().all(is_plain);
    Some(if is_word { word.to_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) })
}

fn misfit_message(file: &str, family: Option<&str>, misfits: &[ValidationError]) -> String {
    let mut message = format!("{}: {}", Escaped(file), misfit_title(family, misfits));
    for misfit in misfits.iter().take(SHOWN) {
        message.push_str(&format!("\n  {misfit}"));
    }
    if misfits.len() > SHOWN {
        message.push_str(&format!("\n  and {} more; --json lists them all", misfits.len() - SHOWN));
    }
    message
}
