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

    /// What it is; reads no weights.
    ///
    /// # Errors
    /// E001 when it was to be taken for a family that is not known.
    pub fn inspect(&self) -> Result<InspectReport> {
        self.session().inspect()
    }

    /// What it computes: the graphs of its file, or those of its family; reads no weights.
    ///
    /// # Errors
    /// E003 when neither has one, or its configuration has an option that no block knows; E001 when
    /// that lacks one.
    pub fn graphs(&self, options: &GraphOptions) -> Result<Computed> {
        computed(&self.source(), options)
    }

    /// A table of its tensors, with statistics where the options ask for them.
    ///
    /// # Errors
    /// E002 and E007 when bytes can't be read, E004 when they don't match a checksum of the source.
    pub fn tensor_table(&self, options: &TensorsOptions) -> Result<TensorsReport> {
        self.checked(self.session().tensors(options, &threads()?, &()))
    }

    /// Whether it is sound, in one read.
    ///
    /// # Errors
    /// E002 and E007 when bytes can't be read; what is wrong with bytes that can is in the report.
    pub fn validate(&self, options: ValidateOptions<'_>) -> Result<ValidateReport> {
        self.checked(self.session().validate(options, &threads()?, &()))
    }

    /// What could be better about it; reads no weights.
    ///
    /// # Errors
    /// E002 and E007 when padding can't be read.
    pub fn lint(&self) -> Result<LintReport> {
        self.session().lint()
    }

    /// What it is for, in words; reads no weights.
    ///
    /// # Errors
    /// E001 when it was to be taken for a family that is not known.
    pub fn explain(&self) -> Result<ModelExplanation> {
        self.session().explain()
    }

    /// What the tensor with a name is for, with its statistics; the names most like it where there
    /// is none.
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
    /// E001 when the mapping names a tensor that is not there, E002 and E007 when bytes can't be
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
