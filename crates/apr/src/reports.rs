//! Reports on a model: what it is, whether it is sound, how it differs from another one.

use std::num::NonZeroUsize;

use apr_blocks::GraphOptions;
use apr_core::Result;
use apr_io::{Interrupt, Threads};
use apr_ops::diff::{DiffOptions, DiffReport, Side, alike, diff};
use apr_ops::graph::{Computed, computed, of_file};
use apr_ops::inspect::{InspectReport, inspect};
use apr_ops::lint::{LintReport, lint};
use apr_ops::tensors::{TensorsOptions, TensorsReport, list};
use apr_ops::validate::{ValidateOptions, ValidateReport, validate};
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

    /// A table of its tensors, with statistics where the options ask for them.
    ///
    /// # Errors
    /// E002 and E007 when bytes can't be read, E004 when they don't match a checksum of the source.
    pub fn tensor_table(&self, options: &TensorsOptions) -> Result<TensorsReport> {
        self.checked(list(&*self.reader, &self.name, options, &threads()?, &()))
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
}

fn threads() -> Result<Threads> {
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    Threads::new(threads, MEMORY, Interrupt::default())
}
