//! A model of the file system.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::Path;

use apr_arch::Families;
use apr_blocks::GraphOptions;
use apr_core::{CheckpointReader, Error, Result};
use apr_io::{Interrupt, Sources, Threads};
use apr_llama::describe;
use apr_ops::diff::{DiffOptions, DiffReport, Side, alike, diff};
use apr_ops::graph::{Computed, computed, of_file};
use apr_ops::inspect::{InspectReport, inspect};
use apr_ops::lint::{LintReport, lint};
use apr_ops::tensors::{TensorsOptions, TensorsReport, list};
use apr_ops::validate::{ValidateOptions, ValidateReport, validate};
use apr_registry::OpenOptions;
use apr_source::{Architecture, Source};
use apr_view::values::read;

/// Bytes of memory that a pass may use for its buffers.
const MEMORY: u64 = 1 << 28;

/// A model that was opened by its path: a file, a folder, an index or a manifest of shards, with
/// the configuration and tokenizer files beside it. Headers are read; weights are when a report
/// asks for them, in bounded memory and on all cores.
///
/// ```
/// # let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny-llama");
/// let model = apr::Model::open(source)?;
/// assert_eq!(model.inspect()?.family.map(|family| family.title).as_deref(), Some("LLaMA"));
/// assert!(model.validate(apr::ops::validate::ValidateOptions::default())?.valid);
/// # Ok::<(), apr::Error>(())
/// ```
pub struct Model {
    reader: Box<dyn CheckpointReader>,
    name: String,
    families: Families,
    architecture: Architecture,
    sources: Sources,
}

impl Model {
    /// Opens a model whose family is detected.
    ///
    /// # Errors
    /// E001 for what is no model, E007 when a file can't be read, otherwise what the format's
    /// reader says.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_as(path, &OpenOptions::default(), Families::builtin(), Architecture::Auto)
    }

    /// Opens a model with keys and limits, of these families, taken for one of them.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn open_as(
        path: impl AsRef<Path>,
        options: &OpenOptions,
        families: Families,
        architecture: Architecture,
    ) -> Result<Self> {
        let (path, sources) = (path.as_ref(), Sources::default());
        let reader = sources.open_model_with_companions(path, options)?;
        let reader = describe(reader, &families, &architecture);
        Ok(Self { reader, name: path.display().to_string(), families, architecture, sources })
    }

    /// Names, dtypes and shapes, and bytes on demand.
    #[must_use]
    pub fn reader(&self) -> &dyn CheckpointReader {
        &*self.reader
    }

    /// The model as passes and jobs take it.
    #[must_use]
    pub fn source(&self) -> Source<'_> {
        Source::new(&*self.reader, &self.families).named(&self.name).taken_for(&self.architecture)
    }

    /// What it is; reads no weights.
    ///
    /// # Errors
    /// E001 when it was to be taken for a family that is not known.
    pub fn inspect(&self) -> Result<InspectReport> {
        let report = inspect(&*self.reader, &self.name, self.source().family()?);
        // What is not known of its graph is no reason to say nothing of the rest.
        Ok(match self.graphs(&GraphOptions::default()) {
            Ok(graphs) => report.with_graphs(&graphs),
            Err(_) => report,
        })
    }

    /// What it computes: the graphs of its file, or those of its family; reads no weights.
    ///
    /// # Errors
    /// E003 when neither has one, or its configuration has an option that no block knows; E001 when
    /// that lacks one.
    pub fn graphs(&self, options: &GraphOptions) -> Result<Computed> {
        computed(&self.source(), options)
    }

    /// Its tensors, with statistics where the options ask for them.
    ///
    /// # Errors
    /// E002 and E007 when bytes can't be read, E004 when they don't match a checksum of the source.
    pub fn tensors(&self, options: &TensorsOptions) -> Result<TensorsReport> {
        self.checked(list(&*self.reader, &self.name, options, &threads()?, &()))
    }

    /// Elements of a tensor as numbers, in the order of its rows; those of quantized tensors are
    /// dequantized.
    ///
    /// # Errors
    /// E001 when there is no such tensor or its elements are no real numbers, otherwise those of
    /// [`read`](apr_view::values::read).
    pub fn values(&self, name: &str, elements: Range<u64>) -> Result<Vec<f64>> {
        let found = self.reader.tensors().iter().position(|info| info.name == name);
        let tensor = found.ok_or_else(|| {
            Error::format("there is no such tensor").for_tensor(name).in_file(&self.name)
        })?;
        self.checked(read(&*self.reader, tensor, elements))
    }

    /// Whether it is sound, in one read.
    ///
    /// # Errors
    /// E002 and E007 when bytes can't be read; what is wrong with bytes that can is in the report.
    pub fn validate(&self, options: ValidateOptions<'_>) -> Result<ValidateReport> {
        let source = self.source();
        let own = of_file(&self.source())?;
        let options = ValidateOptions {
            families: options.families.or(Some(&self.families)),
            graphs: options.graphs.or(own.as_ref()),
            ..options
        };
        self.checked(validate(
            &*self.reader,
            &self.name,
            source.family()?,
            options,
            &threads()?,
            &(),
        ))
    }

    /// What could be better about it; reads no weights.
    ///
    /// # Errors
    /// E002 and E007 when padding can't be read.
    pub fn lint(&self) -> Result<LintReport> {
        lint(&*self.reader, &self.name, self.source().family()?)
    }

    /// Compares it with another one, tensor by tensor, both in one layout.
    ///
    /// # Errors
    /// E001 when the mapping names a tensor that is not there, E002 and E007 when bytes can't be
    /// read.
    pub fn diff(&self, other: &Self, options: &DiffOptions) -> Result<DiffReport> {
        let (left, right) = (self.source(), other.source());
        let views = alike(&left, &right);
        let families = (left.family_in(&views.left)?, right.family_in(&views.right)?);
        let left = Side { reader: &views.left, name: &self.name, model: families.0.as_ref() };
        let right = Side { reader: &views.right, name: &other.name, model: families.1.as_ref() };
        let report = diff(left, right, options, &threads()?, &());
        other.checked(self.checked(report))
    }

    /// E007 where another program changed a file of the model since it was opened.
    #[cfg(feature = "infer")]
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        self.sources.check_unchanged()
    }

    /// What was read in two states is neither right nor wrong.
    fn checked<T>(&self, result: Result<T>) -> Result<T> {
        self.sources.check_unchanged()?;
        result
    }
}

fn threads() -> Result<Threads> {
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    Threads::new(threads, MEMORY, Interrupt::default())
}
