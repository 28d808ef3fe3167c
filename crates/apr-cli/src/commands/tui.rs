//! `apr tui`.

use std::path::Path;

use apr_tui::{Job, Subject, explore};

use crate::args::TuiArgs;
use crate::commands::screens;
use crate::context::Context;
use crate::failure::Outcome;
use crate::model::{self, Model};

/// Shows a model on a screen.
pub(super) fn run(args: &TuiArgs, context: &Context) -> Outcome {
    screens::check(context, "`apr inspect` and `apr tensors` print what a model is")?;
    let model = opened(&args.model, context)?;
    let other = args.other.as_deref().map(|path| opened(path, context)).transpose()?;
    let families = context.families()?;
    let architecture = context.architecture()?;
    let subject = |model| {
        let Model { reader, name, .. }: &Model = model;
        Subject { name, reader: &**reader, families, architecture: architecture.clone() }
    };
    let sources = &context.sources;
    let unchanged = || sources.check_unchanged();
    let job = Job {
        model: subject(&model),
        other: other.as_ref().map(subject),
        threads: context.threads(),
        max_memory: context.max_memory(),
        unchanged: &unchanged,
    };
    screens::show(context, |palette, interrupt| explore(&job, palette, interrupt))
}

fn opened(path: &Path, context: &Context) -> Outcome<Model> {
    let model = model::open_with_companions(path, context)?;
    model.reader.warnings().iter().for_each(|warning| context.printer.warn(warning));
    Ok(model)
}
