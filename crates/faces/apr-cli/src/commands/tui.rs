//! `apr tui`.

use std::path::{Path, PathBuf};
use std::slice;

use apr::scan::{files_below, scan_each, unreadable};
use apr_io::{Sources, is_remote};
use apr_registry::{ByteSource, Limits, Result};
use apr_run::Facts;
use apr_scan::{ScanSummary, scan_file};
use apr_trace::Payload;
use apr_tui::{Job, Scan, Subject, Watch, explore};

use super::run::given::Asked;
use super::trace::payload;
use crate::args::TuiArgs;
use crate::commands::screens;
use crate::context::Context;
use crate::failure::Outcome;
use crate::model::{self, Model};
use crate::options::in_options;

/// Shows a model on a screen, and a second one once the user has entered its location.
pub(super) fn run(args: &TuiArgs, context: &Context) -> Outcome {
    screens::check(context, "tui", "apr inspect")?;
    let model = opened(&args.model, context)?;
    let mut other = args.other.as_deref().map(|path| opened(path, context)).transpose()?;
    let mut refused = None;
    while let Some(location) = shown(args, &model, other.as_ref(), refused.take(), context)? {
        match opened(Path::new(&location), context) {
            Ok(found) => other = Some(found),
            Err(failure) => refused = Some(failure.message()),
        }
    }
    Ok(())
}

/// Shows one or two models; returns the location of a second one if the user requested it.
fn shown(
    args: &TuiArgs,
    model: &Model,
    other: Option<&Model>,
    refused: Option<String>,
    context: &Context,
) -> Outcome<Option<String>> {
    let families = context.families()?;
    let architecture = context.architecture()?;
    let subject = |model| {
        let Model { reader, name, .. }: &Model = model;
        Subject { name, reader: &**reader, families, architecture: architecture.clone() }
    };
    let (sources, limits) = (&context.sources, &context.options.limits);
    let unchanged = || sources.check_unchanged();
    let scan = |watch: &Watch| scan(&args.model, sources, limits, watch);
    let is_named = args.model.as_os_str() != "-";
    let job = Job {
        model: subject(model),
        other: other.map(subject),
        refused,
        payload: payload(args, model, context)?,
        scan: is_named.then_some(&scan as &Scan<'_>),
        threads: context.threads(),
        max_memory: context.max_memory(),
        unchanged: &unchanged,
    };
    screens::show(context, !args.no_mouse, |options, interrupt| explore(&job, options, interrupt))
}

fn opened(path: &Path, context: &Context) -> Outcome<Model> {
    let model = model::open_with_companions(path, &context.without_shards())?;
    model.reader.warnings().iter().for_each(|warning| context.printer.warn(warning));
    Ok(model)
}

/// Returns the input for the trace view, if options specify one.
fn payload(args: &TuiArgs, model: &Model, context: &Context) -> Outcome<Option<Payload>> {
    if args.prompt.is_none() && args.tokens.is_empty() && args.input.is_empty() {
        return Ok(None);
    }
    let prompts: Vec<String> = args.prompt.iter().cloned().collect();
    let asked = Asked {
        files: &args.input,
        prompts: &prompts,
        tokens: &args.tokens,
        by_lines: false,
        is_stdin_taken: true,
    };
    payload::of_asked(&asked, &Facts::of(&*model.reader)?, context).map(Some)
}

/// Returns the report of `apr scan` on the model's files.
fn scan(model: &Path, sources: &Sources, limits: &Limits, watch: &Watch) -> Result<ScanSummary> {
    let files = files_below(slice::from_ref(&model.to_path_buf()))?;
    let lengths = files.iter().filter_map(|path| path.metadata().ok());
    watch.begin(lengths.map(|metadata| metadata.len()).sum());
    let open = |path: &Path| -> Result<Box<dyn ByteSource>> {
        Ok(match is_remote(path) {
            true => sources.open_remote_file(path)?,
            false => Box::new(sources.open_file(path)?),
        })
    };
    let name = |path: &PathBuf| path.display().to_string();
    let scan = |path: &PathBuf| scan_file(watch.over(open(path)?), &name(path), limits);
    scan_each(&files, name, scan, |error| unreadable(error).map(|why| in_options(&why)))
}
