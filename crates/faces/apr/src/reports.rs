//! Reports on a model: what it is, whether it is sound, how it differs from another one.

use std::num::NonZeroUsize;

use apr_blocks::GraphOptions;
use apr_core::Result;
use apr_io::{Interrupt, Threads};
use apr_ops::diff::{DiffOptions, DiffReport};
use apr_ops::explain::{ModelExplanation, TensorExplanation};
use apr_ops::graph::{Computed, computed};
use apr_ops::inspect::InspectReport;
use apr_ops::lint::LintReport;
use apr_ops::session::Session;
use apr_ops::tensors::{TensorsOptions, TensorsReport};
use apr_ops::validate::{ValidateOptions, ValidateReport};
use apr_source::Source;

use crate::Model;

/// Bytes of memory that a pass may use for its buffers.
const MEMORY: u64 = 1 << 28;

impl Model {
    /// The model as passes and jobs take it.
    #[must_use]
    pub fn source(&self) -> Source<'_> {
        Source::new(&*self.reader, &self.families)
            .named(&self.name)
            .taken_for(&self.architecture)
            .sharing(&self.knowledge)
    }

    /// The reports on it, with a pipeline and a progress of your own.
    #[must_use]
    pub fn session(&self) -> Session<'_> {
        Session::of(self.source()).sharing(&self.graphs)
    }

    /// Inspects the model, as `apr inspect` does, without reading weights.
    ///
    /// # Errors
    /// E001 when the model was to be opened as a family that is not known.
    pub fn inspect(&self) -> Result<InspectReport> {
        self.session().inspect()
    }

    /// Returns the computation graphs of the model's file or of its family, without reading
    /// weights.
    ///
    /// # Errors
    /// E003 if neither has a graph, or the configuration has an option that no block supports; E001
    /// if the configuration lacks an option.
    pub fn graphs(&self, options: &GraphOptions) -> Result<Computed> {
        computed(&self.source(), options)
    }

    /// Lists the tensors, with statistics if the options request them.
    ///
    /// # Errors
    /// E002 and E007 when bytes can't be read, E004 when they don't match a checksum of the source.
    pub fn tensor_table(&self, options: &TensorsOptions) -> Result<TensorsReport> {
        self.checked(self.session().tensors(options, &threads()?, &()))
    }

    /// Validates the model in one read.
    ///
    /// # Errors
    /// E002 and E007 when bytes can't be read. Errors in the bytes themselves are in the report.
    pub fn validate(&self, options: ValidateOptions<'_>) -> Result<ValidateReport> {
        self.checked(self.session().validate(options, &threads()?, &()))
    }

    /// Checks best practices, as `apr lint` does, without reading weights.
    ///
    /// # Errors
    /// E002 and E007 when padding can't be read.
    pub fn lint(&self) -> Result<LintReport> {
        self.session().lint()
    }

    /// Explains the purpose of the model in words, without reading weights.
    ///
    /// # Errors
    /// E001 when the model was to be opened as a family that is not known.
    pub fn explain(&self) -> Result<ModelExplanation> {
        self.session().explain()
    }

    /// Explains the purpose of a tensor, with its statistics.
    ///
    /// If there is no tensor of this name, the result contains similar names, or
    /// names as examples.
    ///
    /// # Errors
    /// E002 and E007 when its bytes can't be read.
    pub fn explain_tensor(
        &self,
        name: &str,
    ) -> Result<std::result::Result<TensorExplanation, Vec<String>>> {
        self.checked(self.session().explain_tensor(name, &threads()?, &()))
    }

    /// Compares it with another one: tensor by tensor in one layout, vocabularies, metadata, and
    /// what both compute.
    ///
    /// # Errors
    /// E001 when the mapping names a missing tensor, E002 and E007 when bytes can't be
    /// read.
    pub fn diff(&self, other: &Self, options: &DiffOptions) -> Result<DiffReport> {
        let (left, right) = (self.session(), other.session());
        let report = left.beside(&right).diff(options, &threads()?, &());
        other.checked(self.checked(report))
    }
}

/// Workers on all cores.
pub(crate) fn threads() -> Result<Threads> {
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    Threads::new(threads, MEMORY, Interrupt::default())
}
