//! Models that a command runs in order to judge them.

use std::path::Path;

use apr_ops::inspect::{DTypeShare, dtype_shares};
use apr_registry::CheckpointReader;
use apr_run::{Facts, RunOptions, Runner, with_runner};
use apr_source::Knowledge;

use super::run::terse_host;
use crate::context::Context;
use crate::failure::Outcome;
use crate::model::{self, Model};

/// A model that was opened to be run.
pub(super) struct Opened {
    model: Model,
    facts: Facts,
    knowledge: Knowledge,
}

impl Opened {
    pub(super) fn new(path: &Path, context: &Context) -> Outcome<Self> {
        Self::of(model::open_with_companions(path, context)?, context)
    }

    pub(super) fn of(model: Model, context: &Context) -> Outcome<Self> {
        model.reader.warnings().iter().for_each(|warning| context.printer.warn(warning));
        let knowledge = Knowledge::default();
        let source = context.source(&*model.reader, &model.name)?.sharing(&knowledge);
        let facts = Facts::of_source(&source)?;
        Ok(Self { model, facts, knowledge })
    }

    /// Returns the model's name as the user wrote it.
    pub(super) fn name(&self) -> &str {
        &self.model.name
    }

    /// Returns the facts about the model.
    pub(super) fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Returns the model.
    pub(super) fn into_model(self) -> Model {
        self.model
    }

    pub(super) fn model(&self) -> &Model {
        &self.model
    }

    /// Calls `then` with the model, ready to run. If the model's files change meanwhile, it returns
    /// an error.
    pub(super) fn with_runner<R>(
        &self,
        context: &Context,
        options: &RunOptions,
        then: impl FnOnce(&Runner<'_>) -> Outcome<R>,
    ) -> Outcome<R> {
        let source = context.source(&*self.model.reader, &self.model.name)?;
        let source = source.sharing(&self.knowledge);
        let mut options = options.clone();
        options.keeps_past = options.keeps_past && options.generates(&self.facts);
        let done = with_runner(&source, &self.facts, &options, &terse_host(context), then);
        context.sources.check_unchanged()?;
        done
    }
}

/// Warns that exact products change nothing if no weight is quantized.
pub(super) fn warn_of_idle_exact(exact: bool, reader: &dyn CheckpointReader, context: &Context) {
    let is_plain = |share: &DTypeShare| share.stored.is_none() && !share.dtype.is_quantized();
    if exact && dtype_shares(reader).iter().all(is_plain) {
        context.printer.warn("--exact has no effect: no weight is quantized");
    }
}

/// Options for a model whose texts are continued.
pub(super) fn generating(context: &Context) -> RunOptions {
    let mut options = RunOptions::default();
    options.max_memory = context.max_memory();
    options
}

/// Options for one of two models that read inputs as a whole.
pub(super) fn reading(context: &Context, models: u64) -> RunOptions {
    let mut options = RunOptions::reading();
    options.max_memory = context.max_memory() / models;
    options
}
