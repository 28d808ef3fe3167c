//! A model of the file system.

#[cfg(feature = "ops")]
use std::ops::Range;
use std::path::Path;

#[cfg(feature = "ops")]
use apr_arch::Families;
#[cfg(feature = "ops")]
use apr_core::{ByteSource, Error};
use apr_core::{CheckpointReader, Result, TensorInfo};
use apr_io::Sources;
#[cfg(feature = "ops")]
use apr_ops::session::Graphs;
use apr_registry::OpenOptions;
#[cfg(feature = "ops")]
use apr_source::{Architecture, Knowledge};

use crate::Tensor;

/// A model that was opened by its path: a file, a folder, an index or a manifest of shards, with
/// the configuration and tokenizer files beside it. Headers are read; weights are when they are
/// asked for, in bounded memory.
///
/// ```
/// # let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");
/// let model = apr::Model::open(source)?;
/// for info in model.tensors() {
///     println!("{} {} {}", info.name, info.dtype, info.shape);
/// }
/// let embedding: Vec<f32> = model.tensor("model.embed_tokens.weight")?.to_vec()?;
/// # assert!(!embedding.is_empty());
/// # Ok::<(), apr::Error>(())
/// ```
///
/// With the feature `ops` there are reports on it:
///
/// ```
/// # #[cfg(feature = "ops")] {
/// # let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");
/// let model = apr::Model::open(source)?;
/// assert_eq!(model.inspect()?.family.map(|family| family.title).as_deref(), Some("LLaMA"));
/// assert!(model.validate(apr::report::ValidateOptions::default())?.valid);
/// # }
/// # Ok::<(), apr::Error>(())
/// ```
pub struct Model {
    pub(crate) reader: Box<dyn CheckpointReader>,
    pub(crate) name: String,
    pub(crate) sources: Sources,
    #[cfg(feature = "ops")]
    pub(crate) families: Families,
    #[cfg(feature = "ops")]
    pub(crate) architecture: Architecture,
    #[cfg(feature = "ops")]
    pub(crate) knowledge: Knowledge,
    #[cfg(feature = "ops")]
    pub(crate) graphs: Graphs,
}

impl Model {
    /// Opens a model whose family is detected.
    ///
    /// # Errors
    /// E001 for what is no model, E007 when a file can't be read, otherwise what the format's
    /// reader says.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path, &OpenOptions::default())
    }

    /// Opens a model with keys and limits.
    ///
    /// # Errors
    /// Returns the same errors as [`open`](Self::open).
    pub fn open_with(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self> {
        #[cfg(feature = "ops")]
        return Self::open_as(path, options, Families::builtin(), Architecture::Auto);
        #[cfg(not(feature = "ops"))]
        {
            let (path, sources) = (path.as_ref(), Sources::default());
            let reader = sources.open_model_with_companions(path, options)?;
            Ok(Self { reader, name: path.display().to_string(), sources })
        }
    }

    /// Opens a model with keys and limits, of these families, taken for one of them.
    ///
    /// # Errors
    /// Returns the same errors as [`open`](Self::open).
    #[cfg(feature = "ops")]
    pub fn open_as(
        path: impl AsRef<Path>,
        options: &OpenOptions,
        families: Families,
        architecture: Architecture,
    ) -> Result<Self> {
        let (path, sources) = (path.as_ref(), Sources::default());
        let options = &OpenOptions { absent_shards: true, ..options.clone() };
        let reader = sources.open_model_with_companions(path, options)?;
        let reader = apr_llama::describe(reader, &families, &architecture);
        let model = Self::over(reader, path.display().to_string(), sources);
        Ok(Self { families, architecture, ..model })
    }

    /// Opens a model from bytes that are not in a file. `name` is the file name in errors.
    ///
    /// ```
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");
    /// # let bytes = std::fs::read(format!("{path}/model.safetensors"))?;
    /// let model = apr::Model::from_source(bytes, "model.safetensors", &Default::default())?;
    /// assert_eq!(model.tensors()[0].name, "lm_head.weight");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns the same errors as [`open`](Self::open).
    #[cfg(feature = "ops")]
    pub fn from_source(
        source: impl ByteSource + 'static,
        name: impl Into<String>,
        options: &OpenOptions,
    ) -> Result<Self> {
        let name = name.into();
        let reader = apr_registry::open(source, &name, options)?;
        let reader = apr_llama::describe(reader, &Families::builtin(), &Architecture::Auto);
        Ok(Self::over(reader, name, Sources::default()))
    }

    /// Makes a model of a reader of your own, or of a checkpoint that is computed from others;
    /// `name` is that of the model in reports and errors.
    ///
    /// ```
    /// use apr::{Limits, Model};
    ///
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");
    /// # let bytes = std::fs::read(format!("{path}/model.safetensors"))?;
    /// let reader = apr::open(bytes, "model.safetensors", &Limits::default())?;
    /// let model = Model::from_reader(reader, "mine");
    /// assert_eq!(model.inspect()?.tensor_count, 21);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "ops")]
    pub fn from_reader(reader: Box<dyn CheckpointReader>, name: impl Into<String>) -> Self {
        Self::over(reader, name.into(), Sources::default())
    }

    /// A model of the built-in families, whose files `sources` opened.
    #[cfg(feature = "ops")]
    pub(crate) fn over(reader: Box<dyn CheckpointReader>, name: String, sources: Sources) -> Self {
        Self {
            reader,
            name,
            sources,
            families: Families::builtin(),
            architecture: Architecture::Auto,
            knowledge: Knowledge::default(),
            graphs: Graphs::default(),
        }
    }

    /// The same model with weights that are computed from its own.
    #[cfg(feature = "prune")]
    pub(crate) fn changed<R>(
        mut self,
        change: impl FnOnce(Box<dyn CheckpointReader>) -> Result<(Box<dyn CheckpointReader>, R)>,
    ) -> Result<(Self, R)> {
        let (reader, report) = change(self.reader)?;
        self.reader = reader;
        let model = Self { knowledge: Knowledge::default(), graphs: Graphs::default(), ..self };
        model.sources.check_unchanged()?;
        Ok((model, report))
    }

    /// Metadata, files and companions, and bytes on demand.
    #[must_use]
    pub fn reader(&self) -> &dyn CheckpointReader {
        &*self.reader
    }

    /// Names, dtypes and shapes, in the order the tensors are stored.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        self.reader.tensors()
    }

    /// One tensor with its bytes.
    ///
    /// # Errors
    /// E001 when there is no such tensor, E002 and E007 when its bytes can't be read, E008 when
    /// they don't fit in memory.
    pub fn tensor(&self, name: &str) -> Result<Tensor<'_>> {
        self.checked(Tensor::read(&*self.reader, name).map_err(|error| error.in_file(&self.name)))
    }

    /// Elements of a tensor as numbers, in the order of its rows, without the others being read;
    /// those of quantized tensors are dequantized.
    ///
    /// # Errors
    /// E001 when there is no such tensor or its elements are no real numbers, E002 past its end.
    #[cfg(feature = "ops")]
    pub fn values(&self, name: &str, elements: Range<u64>) -> Result<Vec<f64>> {
        let found = self.reader.tensors().iter().position(|info| info.name == name);
        let tensor = found
            .ok_or_else(|| Error::format("no such tensor").for_tensor(name).in_file(&self.name))?;
        self.checked(apr_view::values::read(&*self.reader, tensor, elements))
    }

    /// Checks that the model's files have not changed since they were opened.
    ///
    /// Reports of a [`session`](Self::session) need this check.
    ///
    /// # Errors
    /// E007 if another program changed one of them.
    pub fn check_unchanged(&self) -> Result<()> {
        self.sources.check_unchanged()
    }

    /// Returns `result`, or an error if a file changed, since the result then mixes two states.
    pub(crate) fn checked<T>(&self, result: Result<T>) -> Result<T> {
        self.sources.check_unchanged()?;
        result
    }
}
