//! Whole imports, from a path to a path or to bytes (seed 001 §13.3).

use std::num::NonZeroUsize;
use std::path::Path;

use apr_arch::Families;
use apr_ops::convert::{ConvertOptions, ConvertReport, plan};
use apr_ops::import::{ImportError, ImportOptions, prepare};
use apr_ops::inline::ValidationConfig;
use apr_registry::{CheckpointReader, Code, DType, OpenOptions, PlanOptions, Sink};
use apr_source::Architecture;

use crate::{AtomicOutput, Interrupt, Sources, Target, Threads};

/// Bytes of memory that an import may use for its buffers.
const MEMORY: u64 = 1 << 28;

/// Imports the model at `source` into the `.apr` file `target`, which appears when it is complete and is not replaced if
/// it exists.
///
/// ```
/// use apr_io::apr_import;
/// use apr_ops::import::{ImportError, ImportOptions};
///
/// let folder = tempfile::tempdir()?;
/// let target = folder.path().join("model.apr");
/// # let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny-llama");
/// let report = apr_import(source, &target, &ImportOptions::default())?;
/// assert!(report.validation.is_some_and(|validation| validation.errors.is_empty()));
/// assert!(target.exists());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// What is wrong with the source, or the first tensor that fails validation; then nothing is written.
pub fn apr_import(
    source: &str,
    target: impl AsRef<Path>,
    options: &ImportOptions,
) -> Result<ConvertReport, ImportError> {
    let target = target.as_ref();
    let file_name = target.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let sources = Sources::default();
    let reader = open(source, &sources)?;
    let mut output = AtomicOutput::create(Target::File(target.into()), false, [file_name.as_str()])?;
    let job = Job { options, convert: &ConvertOptions::default(), file_name: &file_name };
    let report = job.run(&*reader, &mut output)?;
    sources.check_unchanged()?;
    output.commit()?;
    Ok(report)
}

/// Converts a model to the bytes of an `.apr` file, step by step.
///
/// ```
/// use apr_io::AprConverter;
/// use apr_ops::inline::ValidationConfig;
///
/// # let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny-llama");
/// let bytes = AprConverter::new()
///     .source(source)
///     .architecture("llama")
///     .validate(ValidationConfig::strict())
///     .convert()?;
/// assert!(bytes.starts_with(b"APR2"));
/// # Ok::<(), apr_ops::import::ImportError>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct AprConverter {
    source: String,
    options: ImportOptions,
    convert: ConvertOptions,
}

impl AprConverter {
    /// A converter that detects the family, checks everything and changes no value.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The model: a file, a folder, or an index of shards.
    #[must_use]
    pub fn source(mut self, source: impl Into<String>) -> Self {
        self.source = source.into();
        self
    }

    /// The family, instead of the one that is detected.
    #[must_use]
    pub fn architecture(mut self, name: impl Into<String>) -> Self {
        self.options.architecture = Architecture::Named(name.into());
        self
    }

    /// What is checked on the way.
    #[must_use]
    pub fn validate(mut self, validation: ValidationConfig) -> Self {
        self.options.validation = validation;
        self
    }

    /// Casts tensors of 16 to 64 bit floats.
    #[must_use]
    pub fn precision(mut self, dtype: DType) -> Self {
        self.convert.precision = Some(dtype);
        self
    }

    /// Converts.
    ///
    /// # Errors
    /// What is wrong with the source, or the first tensor that fails validation.
    pub fn convert(self) -> Result<Vec<u8>, ImportError> {
        let sources = Sources::default();
        let reader = open(&self.source, &sources)?;
        let mut bytes = Vec::new();
        Job { options: &self.options, convert: &self.convert, file_name: "model.apr" }.run(&*reader, &mut bytes)?;
        sources.check_unchanged()?;
        Ok(bytes)
    }
}

fn open(source: &str, sources: &Sources) -> Result<Box<dyn CheckpointReader>, ImportError> {
    if ["hf://", "https://", "http://"].iter().any(|scheme| source.starts_with(scheme)) {
        let reason = "this version reads local files only; download the model first".to_owned();
        return Err(ImportError::DownloadFailed { source: source.to_owned(), reason });
    }
    let path = Path::new(source);
    sources.open_model_with_companions(path, &OpenOptions::default()).map_err(|error| match path.extension() {
        // The bytes are of no known format: the name is what the caller recognises.
        Some(extension) if error.code() == Code::Format && error.offset() == Some(0) => {
            ImportError::UnsupportedFormat { extension: extension.to_string_lossy().into_owned() }
        }
        _ => error.into(),
    })
}

struct Job<'a> {
    options: &'a ImportOptions,
    convert: &'a ConvertOptions,
    file_name: &'a str,
}

impl Job<'_> {
    fn run(&self, reader: &dyn CheckpointReader, sink: &mut dyn Sink) -> Result<ConvertReport, ImportError> {
        let families = Families::builtin();
        let prepared = prepare(reader, &families, self.options)?;
        prepared.check()?;
        let target = PlanOptions::new(&apr_registry::apr2::FORMAT, self.file_name);
        let conversion = plan(&prepared.view, self.convert, &target)?.validated_by(prepared.validator);
        let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let threads = Threads::new(threads, MEMORY, Interrupt::default())?;
        Ok(conversion.run(&prepared.view, sink, &threads, &())?)
    }
}
