//! Conversions from path to path.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use apr_arch::Families;
use apr_core::{Error, Progress};
use apr_io::{Interrupt, Sources, Threads};
use apr_llama::describe;
use apr_ops::convert::ConvertReport;
use apr_ops::inline::ValidationConfig;
use apr_ops::job::{Gate, Job, JobError, JobReport, Planned, wants_companions};
use apr_ops::simplify::NamedShape;
use apr_quantize::{QualityGate, Quantization};
#[cfg(feature = "encryption")]
use apr_registry::apr2::Encrypt;
#[cfg(feature = "compression")]
use apr_registry::codec::Choice;
#[cfg(feature = "signing")]
use apr_registry::crypto::SigningKey;
use apr_registry::{DType, Format, OpenOptions, PlanOptions, apr2, target_by_extension};
use apr_source::Architecture;
use apr_view::NamePattern;

use crate::output::Output;
use crate::{Model, ProgressFn, Step};

/// Bytes of memory that a conversion may use for its buffers by default.
const MEMORY: u64 = 1 << 28;

/// Begins the conversion of a model: at a path (a file, a folder, an index or manifest of shards,
/// or a location on a hub), or of one that is open.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let output = folder.path().join("model.apr");
/// # let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");
/// let report = apr::convert(source)
///     .quantize(apr::Scheme::Q8_0)
///     .compress(apr::Compression::Auto)
///     .write(&output)?;
/// assert_eq!(report.family.map(|family| family.name).as_deref(), Some("llama"));
/// assert!(output.exists());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A model that is open is converted as it is, so that steps follow each other:
///
/// ```
/// # #[cfg(feature = "prune")] {
/// use apr::prune::{Amount, Pruning, Scope};
///
/// # let folder = tempfile::tempdir()?;
/// # let output = folder.path().join("small.gguf");
/// # let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");
/// let half = Pruning::new(Amount::Share { share: 0.5, scope: Scope::Tensor });
/// let (pruned, _) = apr::Model::open(source)?.prune(half)?;
/// apr::convert(pruned).quantize(apr::Scheme::Q8_0).write(&output)?;
/// # assert!(output.exists());
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn convert(source: impl Into<ConvertSource>) -> Convert {
    Convert {
        source: source.into(),
        job: Job::new(PlanOptions::new(&apr2::FORMAT, "model.apr")),
        format: None,
        open: OpenOptions::default(),
        families: Families::builtin(),
        architecture: Architecture::Auto,
        with_companions: false,
        opened_by: None,
        replace: false,
        threads: None,
        max_memory: None,
        interrupt: Interrupt::default(),
        progress: Box::new(()),
        sources: Sources::default(),
    }
}

/// A conversion that is being described; [`write`](Self::write) runs it.
///
/// It checks every tensor and changes no value by default. Its output appears when it is complete,
/// and nothing that exists is replaced unless asked to.
#[must_use = "nothing is written until `write` or `to_bytes`"]
pub struct Convert {
    source: ConvertSource,
    job: Job,
    format: Option<&'static Format>,
    open: OpenOptions,
    families: Families,
    architecture: Architecture,
    with_companions: bool,
    /// The method that set how the source is opened.
    opened_by: Option<&'static str>,
    replace: bool,
    threads: Option<NonZeroUsize>,
    max_memory: Option<u64>,
    interrupt: Interrupt,
    progress: Box<dyn Progress>,
    sources: Sources,
}

impl Convert {
    /// Sets the target format. Default: the format of the output's extension.
    pub fn format(mut self, format: &'static Format) -> Self {
        self.format = Some(format);
        self
    }

    /// Sets the options for opening the source, such as limits and keys.
    pub fn open_with(mut self, options: OpenOptions) -> Self {
        self.open = options;
        self.opened_by = Some("open_with");
        self
    }

    /// Sets the sources of the model's files, which define how remote files are fetched.
    pub fn sources(mut self, sources: Sources) -> Self {
        self.sources = sources;
        self.opened_by = Some("sources");
        self
    }

    /// Sets the model family instead of detecting it.
    pub fn architecture(mut self, architecture: Architecture) -> Self {
        self.architecture = architecture;
        self.opened_by = Some("architecture");
        self
    }

    /// The families that are known, instead of the built-in ones.
    pub fn families(mut self, families: Families) -> Self {
        self.families = families;
        self.opened_by = Some("families");
        self
    }

    /// Copies the configuration and tokenizer files next to a weights file, as for a folder.
    pub fn with_companions(mut self) -> Self {
        self.with_companions = true;
        self.opened_by = Some("with_companions");
        self
    }

    /// Selects only the tensors whose names start with `prefix`, and removes the prefix from the
    /// names.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.job.prefix = Some(prefix.into());
        self
    }

    /// Selects only the part for images of a vision-language model: its tower and its projector.
    ///
    /// As GGUF, this is the file that llama.cpp takes as `--mmproj`.
    pub fn part_for_images(mut self) -> Self {
        self.job.part_for_images = true;
        self
    }

    /// Quantizes to a type or mix: a [`Scheme`](crate::Scheme), or a [`Quantization`] for
    /// exceptions and importance.
    pub fn quantize(mut self, quantize: impl Into<Quantization>) -> Self {
        self.job.weights.quantize = Some(quantize.into());
        self
    }

    /// Turns quantized tensors into floats of this dtype.
    pub fn dequantize(mut self, dtype: DType) -> Self {
        self.job.weights.dequantize = Some(dtype);
        self
    }

    /// Casts floats of 8 to 64 bits.
    pub fn precision(mut self, dtype: DType) -> Self {
        self.job.weights.precision = Some(dtype);
        self
    }

    /// Simplifies the graph of an ONNX output, and compares the outputs before and after.
    ///
    /// If they differ, or if the model does not run, nothing is written.
    /// [`ValidationConfig::relaxed`] also writes a model that does not run.
    pub fn simplify(mut self) -> Self {
        self.job.graph.simplify = true;
        self
    }

    /// Sets the shape of an input of an ONNX output. Inputs that are not named keep theirs.
    pub fn shape(mut self, shape: NamedShape) -> Self {
        self.job.graph.shapes.push(shape);
        self
    }

    /// Extracts the part of an ONNX output's graph between values or nodes.
    ///
    /// Without `from`, the inputs stay. Without `to`, the outputs stay that depend on `from`.
    pub fn part(mut self, from: &[&str], to: &[&str]) -> Self {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        (self.job.graph.from, self.job.graph.to) = (owned(from), owned(to));
        self
    }

    /// Keeps inputs and outputs in single precision if an ONNX file becomes one that computes in
    /// halves, by [`precision`](Self::precision) with [`DType::F16`].
    pub fn keep_io(mut self) -> Self {
        self.job.graph.keep_io = true;
        self
    }

    /// Keeps the nodes of an operator in single precision if the graph computes in halves.
    pub fn exclude_op(mut self, op: &str) -> Self {
        self.job.graph.exclude_ops.push(op.to_owned());
        self
    }

    /// Keeps nodes in single precision if the graph computes in halves or multiplies integers.
    pub fn exclude_node(mut self, pattern: NamePattern) -> Self {
        self.job.weights.exclude_nodes.push(pattern);
        self
    }

    /// Sets the quality gate: if the quantization error exceeds it, nothing is written.
    ///
    /// To measure the error, the source and the output are read again.
    pub fn gate(mut self, gate: QualityGate) -> Self {
        self.job.weights.gate = Some(gate);
        self
    }

    /// Sets the checks during the conversion.
    pub fn validate(mut self, validation: ValidationConfig) -> Self {
        self.job.validation = validation;
        self
    }

    /// Sets the model's licence, if the model's files don't state one.
    pub fn license(mut self, license: impl Into<String>) -> Self {
        self.job.license = Some(license.into());
        self
    }

    /// Compresses the tensors of `.apr` output without loss.
    #[cfg(feature = "compression")]
    pub fn compress(mut self, choice: Choice) -> Self {
        self.job.target.apr2.compression = Some(choice);
        self
    }

    /// Encrypts `.apr` output.
    #[cfg(feature = "encryption")]
    pub fn encrypt(mut self, encrypt: Encrypt) -> Self {
        self.job.target.apr2.encryption = Some(encrypt);
        self
    }

    /// Signs `.apr` output; may be called several times.
    #[cfg(feature = "signing")]
    pub fn sign(mut self, key: SigningKey) -> Self {
        self.job.target.apr2.signers.push(key);
        self
    }

    /// Splits the output into shards of at most `bytes` bytes of tensors.
    pub fn shard_size(mut self, bytes: u64) -> Self {
        self.job.target.shard_size = Some(bytes);
        self
    }

    /// Aligns tensors to multiples of `bytes` bytes.
    pub fn align(mut self, bytes: u32) -> Self {
        self.job.target.alignment = Some(bytes);
        self
    }

    /// Overwrites an existing output.
    pub fn replace(mut self) -> Self {
        self.replace = true;
        self
    }

    /// The number of threads; otherwise one for each core.
    pub fn threads(mut self, threads: NonZeroUsize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Sets the memory limit in bytes, for buffers and for opening the source
    /// ([`OpenOptions::within`]).
    ///
    /// Default: 256 MiB for buffers, and the limits of [`open_with`](Self::open_with).
    pub fn max_memory(mut self, bytes: u64) -> Self {
        self.max_memory = Some(bytes);
        self
    }

    /// Sets the handle that cancels the conversion from another thread or a signal.
    ///
    /// A cancelled conversion writes nothing.
    pub fn interrupt(mut self, interrupt: Interrupt) -> Self {
        self.interrupt = interrupt;
        self
    }

    /// Calls `tell` with each progress step.
    ///
    /// ```
    /// use std::sync::{Arc, Mutex};
    ///
    /// # let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");
    /// let last = Arc::new(Mutex::new(None));
    /// let seen = Arc::clone(&last);
    /// let tell = move |step: apr::Step| *seen.lock().unwrap() = Some(step);
    /// apr::convert(source).on_progress(tell).to_bytes()?;
    /// let step = last.lock().unwrap().expect("it took steps");
    /// assert_eq!((step.phase, step.done), (apr::Phase::Converting, step.total));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_progress(self, tell: impl Fn(Step) + 'static) -> Self {
        self.progress(ProgressFn::new(tell))
    }

    /// Sets the receiver of progress updates.
    pub fn progress(mut self, progress: impl Progress + 'static) -> Self {
        self.progress = Box::new(progress);
        self
    }

    /// Plans the conversion to `output` and returns every tensor, its size and its losses. Writes
    /// nothing.
    ///
    /// # Errors
    /// Returns those errors of [`write`](Self::write) that occur before weights are read.
    pub fn plan(self, output: impl AsRef<Path>) -> Result<ConvertReport, JobError> {
        let layout = self.layout(Some(output.as_ref()))?;
        self.planned(layout, |planned, _, _, _| Ok(planned.report().clone()))
    }

    /// Converts to a file or folder. A path in a format that has folders is one, unless it ends in
    /// its extension.
    ///
    /// # Errors
    /// What is wrong with source or output, or the first tensor that is not as it should be;
    /// nothing is written then.
    pub fn write(self, output: impl AsRef<Path>) -> Result<JobReport, JobError> {
        let output = output.as_ref();
        let layout = self.layout(Some(output))?;
        self.planned(layout, |planned, gate, this, sources| {
            planned.check()?;
            let files = &planned.report().files;
            let target =
                Output::create(output, planned.target(), files, this.replace, &this.interrupt)?;
            let threads = this.threads_to_use()?;
            let mut written = target.run(planned, sources, &threads, &*this.progress)?;
            if let Some(gate) = gate {
                written.judge(&gate, &this.open, &threads, &*this.progress)?;
                sources.check_unchanged()?;
            }
            written.commit()
        })
    }

    /// Converts to the bytes of one file: an `.apr` file unless another format was chosen.
    ///
    /// # Errors
    /// Returns the same errors as [`write`](Self::write).
    pub fn to_bytes(self) -> Result<(Vec<u8>, JobReport), JobError> {
        let layout = self.layout(None)?;
        let name = layout.file_name.clone();
        self.planned(layout, |planned, gate, this, sources| {
            let mut bytes = Vec::new();
            sources.keep_whole();
            let threads = this.threads_to_use()?;
            let report = planned.run(&mut bytes, &threads, &*this.progress);
            sources.check_unchanged()?;
            let mut report = report?;
            sources.finish()?;
            if let Some(gate) = gate {
                let shared = Arc::new(bytes);
                let written = apr_registry::open(Arc::clone(&shared), &name, &this.open)?;
                let written = apr_view::Coded::over(written);
                let (drift, failures) = gate.judge(&*written, &threads, &*this.progress)?;
                drop(written);
                bytes = Arc::try_unwrap(shared).unwrap_or_else(|shared| (*shared).clone());
                if !failures.is_empty() {
                    return Err(JobError::Gate { failures, report: Box::new(drift) });
                }
                report.drift = Some(drift);
            }
            Ok((bytes, report))
        })
    }

    fn threads_to_use(&self) -> Result<Threads, JobError> {
        let threads = self
            .threads
            .or_else(|| std::thread::available_parallelism().ok())
            .unwrap_or(NonZeroUsize::MIN);
        let max_memory = self.max_memory.unwrap_or(MEMORY);
        Ok(Threads::new(threads, max_memory, self.interrupt.clone())?)
    }

    /// Returns the layout of the output, with the requested options.
    fn layout(&self, output: Option<&Path>) -> Result<PlanOptions, JobError> {
        let extension = output.and_then(Path::extension).and_then(|extension| extension.to_str());
        let by_extension = || extension.map_or(Some(&apr2::FORMAT), target_by_extension);
        let Some(format) = self.format.or_else(by_extension) else {
            return Err(JobError::Request(
                "the output's extension names no format that is written".to_owned(),
            ));
        };
        let Self { job: Job { target, .. }, .. } = self;
        let PlanOptions { shard_size, alignment, apr2, .. } = target.clone();
        Ok(PlanOptions { shard_size, alignment, apr2, ..Output::layout(format, output) })
    }

    fn planned<R>(
        mut self,
        layout: PlanOptions,
        then: impl FnOnce(Planned<'_>, Option<Gate<'_>>, &Self, &Sources) -> Result<R, JobError>,
    ) -> Result<R, JobError> {
        let model = self.open(layout.format)?;
        let path = Path::new(&model.name);
        self.job.target = layout;
        self.job.title = title(path);
        self.job.provenance = model.sources.provenance(path);
        let source = model.source();
        then(self.job.plan(&source)?, self.job.gate(&source)?, &self, &model.sources)
    }

    /// Opens the source for a target of this format.
    fn open(&mut self, format: &Format) -> Result<Model, JobError> {
        let path = match std::mem::take(&mut self.source) {
            ConvertSource::Path(path) => path,
            ConvertSource::Model(model) => {
                return match self.opened_by {
                    None => Ok(*model),
                    Some(method) => {
                        let message = format!("{method} has no effect on a model that is open");
                        Err(Error::format(message).in_file(model.name).into())
                    }
                };
            }
        };

        let sources = self.sources.clone();
        if let Some(bytes) = self.max_memory {
            self.open = self.open.clone().within(bytes);
        }
        if self.job.prefix.is_none() {
            sources.expect_whole();
        }
        let reader = if self.with_companions || wants_companions(format) {
            sources.expect_companions();
            sources.open_model_with_companions(&path, &self.open)?
        } else {
            sources.open_model(&path, &self.open)?
        };
        let reader = describe(reader, &self.families, &self.architecture);
        let mut model = Model::over(reader, path.display().to_string(), sources);
        model.families = self.families.clone();
        model.architecture = self.architecture.clone();
        Ok(model)
    }
}

/// Input of [`convert`]: a path, or a model that is open.
pub enum ConvertSource {
    /// A path or a location on a hub.
    Path(PathBuf),
    /// A model that is open.
    Model(Box<Model>),
}

impl Default for ConvertSource {
    fn default() -> Self {
        Self::Path(PathBuf::new())
    }
}

impl<P: Into<PathBuf>> From<P> for ConvertSource {
    fn from(path: P) -> Self {
        Self::Path(path.into())
    }
}

impl From<Model> for ConvertSource {
    fn from(model: Model) -> Self {
        Self::Model(Box::new(model))
    }
}

/// The name of a repository or file of a location.
fn remote_title(location: &str) -> Option<String> {
    let (_, rest) = location.split_once("://")?;
    let parts: Vec<&str> =
        rest.split(['?', '#']).next()?.split('/').filter(|part| !part.is_empty()).collect();
    let plain = |part: &str| part.split('@').next().unwrap_or_default().to_owned();
    let (last, folders) = parts.split_last()?;
    let is_repository = location.starts_with("hf://") && folders.len() < 2;
    let stem = last.rsplit_once('.').map_or(*last, |(stem, _)| stem);
    match folders.last() {
        _ if is_repository => Some(plain(last)),
        Some(folder) if ["model", "pytorch_model"].contains(&stem) => Some(plain(folder)),
        _ => Some(stem.to_owned()),
    }
}

/// Returns the name of the model at a path: its file name, or the folder's name.
///
/// The folder's name is used for folders, and for files with usual names such as `model`.
#[must_use]
pub fn title(path: &Path) -> Option<String> {
    if apr_io::is_remote(path) {
        return remote_title(path.to_str()?);
    }
    let path = path.canonicalize().ok()?;
    let stem = path.file_stem().filter(|stem| {
        !path.is_dir() && !["model", "pytorch_model"].iter().any(|usual| stem == usual)
    });
    let folder = if path.is_dir() { Some(path.as_path()) } else { path.parent() };
    let name = stem.or_else(|| folder?.file_name())?;
    name.to_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use apr_core::Code;

    use super::*;

    #[test]
    fn opening_the_source_stays_within_the_memory_of_a_conversion() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("many.safetensors");
        let tensor = |at: usize| {
            format!(r#""{at}":{{"dtype":"U8","shape":[1],"data_offsets":[{at},{}]}}"#, at + 1)
        };
        let header = format!("{{{}}}", (0..10_000).map(tensor).collect::<Vec<_>>().join(","));
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.into_bytes());
        bytes.resize(bytes.len() + 10_000, 1);
        std::fs::write(&path, bytes).expect("a file");

        let job = || convert(&path).format(&apr2::FORMAT);
        for (max_memory, fits) in [(8 << 20, false), (64 << 20, true)] {
            // The order of the calls does not matter.
            let first = job().max_memory(max_memory).open_with(OpenOptions::default());
            let last = job().open_with(OpenOptions::default()).max_memory(max_memory);
            for job in [first, last] {
                match job.plan("m.apr") {
                    Ok(report) => assert!(fits && report.tensors.len() == 10_000),
                    Err(JobError::Model(error)) => {
                        assert!(!fits && error.code() == Code::Memory, "{error}");
                        assert!(error.message().contains("`max_memory`"), "{error}");
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        }
        assert!(job().plan("m.apr").is_ok());
    }

    #[test]
    fn a_remote_model_is_called_by_its_repository_or_its_file() {
        for (location, title) in [
            ("hf://org/phi-1.5", "phi-1.5"),
            ("hf://org/phi-1.5@main", "phi-1.5"),
            ("hf://org/phi-1.5@main/model.safetensors", "phi-1.5"),
            ("hf://org/repo/m-q4.gguf", "m-q4"),
            ("https://host/a/m-q4.gguf?x=y/z", "m-q4"),
            ("s3://bucket/llama/model.safetensors", "llama"),
        ] {
            assert_eq!(remote_title(location).as_deref(), Some(title), "{location}");
        }
    }
}
