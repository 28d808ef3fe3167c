//! Whole imports, from a path to a path or to bytes.

use std::path::{Path, PathBuf};

use apr_core::{Code, Error};
use apr_io::Sources;
use apr_ops::import::ImportError;
use apr_ops::inline::ValidationConfig;
use apr_ops::job::{JobError, JobReport};
use apr_quantize::Quantization;
#[cfg(feature = "compression")]
use apr_registry::codec::Choice;
use apr_registry::{DType, apr2};
use apr_source::Architecture;

use crate::convert::{Convert, convert};

/// Options for an import.
#[derive(Debug, Clone)]
pub struct ImportOptions {
    /// The family, which gives names, shapes and ranges.
    pub architecture: Architecture,
    /// Checks during the import.
    pub validation: ValidationConfig,
    /// Quantize; without it every tensor keeps its dtype.
    pub quantize: Option<Quantization>,
    /// Compress without loss.
    #[cfg(feature = "compression")]
    pub compress: Option<Choice>,
    /// Cast floats of 8 to 64 bits.
    pub precision: Option<DType>,
    /// Licence of the model, if its files don't state one.
    pub license: Option<String>,
    /// Write tensors that fail validation, and record what is wrong with them.
    pub force: bool,
    /// Keep what was downloaded in the cache.
    pub cache: bool,
    /// The token for the hub; the one of the environment (`HF_TOKEN`) without it.
    pub hf_token: Option<String>,
}

impl Default for ImportOptions {
    fn default() -> Self {
        Self {
            architecture: Architecture::default(),
            validation: ValidationConfig::default(),
            quantize: None,
            #[cfg(feature = "compression")]
            compress: None,
            precision: None,
            license: None,
            force: false,
            cache: true,
            hf_token: None,
        }
    }
}

impl ImportOptions {
    /// The conversion that does it.
    fn conversion(self, source: PathBuf) -> Convert {
        let validation =
            ValidationConfig { stop: self.validation.stop && !self.force, ..self.validation };
        let mut import = convert(source)
            .sources(remote_sources(self.cache, self.hf_token))
            .format(&apr2::FORMAT)
            .architecture(self.architecture)
            .validate(validation)
            .with_companions();
        if let Some(quantize) = self.quantize {
            import = import.quantize(quantize);
        }

        #[cfg(feature = "compression")]
        if let Some(choice) = self.compress {
            import = import.compress(choice);
        }
        if let Some(dtype) = self.precision {
            import = import.precision(dtype);
        }

        match self.license {
            Some(license) => import.license(license),
            None => import,
        }
    }
}

/// Imports the model at `source` into the `.apr` file `target`, which appears when it is complete
/// and is not replaced if it exists.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let target = folder.path().join("model.apr");
/// # let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");
/// let report = apr::apr_import(source, &target, apr::ImportOptions::default())?;
/// assert!(report.conversion.validation.is_some_and(|validation| validation.errors.is_empty()));
/// assert!(target.exists());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// What is wrong with the source, or the first tensor that fails validation; then nothing is
/// written.
pub fn apr_import(
    source: &str,
    target: impl AsRef<Path>,
    options: ImportOptions,
) -> Result<JobReport, ImportError> {
    let path = PathBuf::from(source);
    let written = options.conversion(path.clone()).write(target);
    written.map_err(|error| import_error(error, &path))
}

/// Converts a model to the bytes of an `.apr` file, step by step.
///
/// ```
/// use apr::AprConverter;
/// use apr::report::ValidationConfig;
///
/// # let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");
/// let bytes = AprConverter::new()
///     .source(source)
///     .architecture("llama")
///     .validate(ValidationConfig::strict())
///     .quantize(apr::Scheme::Int8)
///     .convert()?;
/// assert!(bytes.starts_with(b"APR2"));
/// # Ok::<(), apr::report::ImportError>(())
/// ```
#[derive(Debug, Clone, Default)]
#[must_use = "nothing is converted until `convert`"]
pub struct AprConverter {
    source: String,
    options: ImportOptions,
}

impl AprConverter {
    /// A converter that detects the family, checks everything and changes no value.
    pub fn new() -> Self {
        Self::default()
    }

    /// The model: a file, a folder, or an index of shards.
    pub fn source(mut self, source: impl Into<String>) -> Self {
        self.source = source.into();
        self
    }

    /// The family, instead of the one that is detected.
    pub fn architecture(mut self, name: impl Into<String>) -> Self {
        self.options.architecture = Architecture::Named(name.into());
        self
    }

    /// Sets the checks during the import.
    pub fn validate(mut self, validation: ValidationConfig) -> Self {
        self.options.validation = validation;
        self
    }

    /// Quantizes to a type or mix.
    pub fn quantize(mut self, quantize: impl Into<Quantization>) -> Self {
        self.options.quantize = Some(quantize.into());
        self
    }

    /// Compresses without loss.
    #[cfg(feature = "compression")]
    pub fn compress(mut self, choice: Choice) -> Self {
        self.options.compress = Some(choice);
        self
    }

    /// Casts floats of 8 to 64 bits.
    pub fn precision(mut self, dtype: DType) -> Self {
        self.options.precision = Some(dtype);
        self
    }

    /// Writes tensors that fail validation, and records what is wrong with them.
    pub fn force(mut self, force: bool) -> Self {
        self.options.force = force;
        self
    }

    /// Imports the model and returns the bytes of the `.apr` file.
    ///
    /// # Errors
    /// What is wrong with the source, or the first tensor that fails validation.
    pub fn convert(self) -> Result<Vec<u8>, ImportError> {
        let path = PathBuf::from(&self.source);
        let converted = self.options.conversion(path.clone()).to_bytes();
        converted.map(|(bytes, _)| bytes).map_err(|error| import_error(error, &path))
    }
}

/// Returns the sources for local files and for files on hubs and servers.
#[cfg(feature = "hub")]
fn remote_sources(cache: bool, token: Option<String>) -> Sources {
    use apr_io::hub::{Hub, Settings, Token, default_cache};
    Sources::default().with_hub(move || {
        let mut settings = Settings::from_env(default_cache()?)?;
        settings.keep = cache;
        if let Some(token) = &token {
            settings.token = Some(Token::new(token.as_str(), "ImportOptions"));
        }
        Ok(Hub::new(settings))
    })
}

#[cfg(not(feature = "hub"))]
fn remote_sources(_cache: bool, _token: Option<String>) -> Sources {
    Sources::default()
}

fn import_error(error: JobError, path: &Path) -> ImportError {
    // The bytes are of no known format: the name is what the caller recognises.
    let is_unknown = |error: &Error| error.code() == Code::Format && error.offset() == Some(0);
    match (error, path.extension()) {
        (JobError::Model(error), Some(extension)) if is_unknown(&error) => {
            ImportError::UnsupportedFormat { extension: extension.to_string_lossy().into_owned() }
        }
        (JobError::Model(error), _) if error.code() == Code::Io && apr_io::is_remote(path) => {
            ImportError::DownloadFailed {
                source: path.display().to_string(),
                reason: error.message().to_owned(),
            }
        }
        (error, _) => error.into(),
    }
}
