//! `apr trace`.

mod anomalies;
mod diff;
mod export;
#[cfg(feature = "tui")]
mod interactive;
#[cfg(not(feature = "tui"))]
#[path = "interactive_off.rs"]
mod interactive;
pub(super) mod payload;
mod render;

use apr_run::{Facts, RunOptions};
use apr_trace::{Subject, Trace, TraceOptions, ValueSink, trace};

use self::export::{Activations, Export};
use crate::args::TraceArgs;
use crate::commands::run::{WithMemory, host};
use crate::context::Context;
use crate::documents::Document;
use crate::failure::Outcome;
use crate::model;

/// Default number of predictions to show if `--top` is not given.
const TOP: usize = 5;

impl Document for WithMemory<Trace> {
    const SCHEMA: &'static str = "trace";
}

/// Traces a model, or two of them.
pub(super) fn run(args: &TraceArgs, context: &Context) -> Outcome {
    if args.interactive {
        interactive::check(context)?;
    }
    match &args.other {
        Some(other) => diff::run(args, other, context),
        None => of_one(args, context),
    }
}

fn of_one(args: &TraceArgs, context: &Context) -> Outcome {
    let export = Export::of(args)?;
    let activations = Activations::of(args)?;
    let model = model::open_with_companions(&args.model, context)?;
    model.reader.warnings().iter().for_each(|warning| context.printer.warn(warning));
    let facts = Facts::of(&*model.reader)?;
    let payload = payload::of(args, &facts, context)?;
    let source = context.source(&*model.reader, &model.name)?;

    let mut options = TraceOptions::new(run_options(args, context));
    options.level = args.level.into();
    options.payload = args.trace_payload || args.interactive || args.detect_anomalies;
    options.weights = args.weights || args.interactive;
    options.max_tokens = args.max_tokens;
    if args.detect_anomalies {
        options.max_tokens = options.max_tokens.or(Some(anomalies::TOKENS));
    }
    let subject = Subject { source: &source, facts: &facts };
    let host = host(context);
    let traced = match activations {
        None => trace(subject, &payload, &options, &host, None)?,
        Some(mut activations) => {
            let mut write =
                |part: &str, path: &str, value: &_| activations.write(part, path, value);
            let sink: &mut ValueSink<'_> = &mut write;
            let traced = trace(subject, &payload, &options, &host, Some(sink))?;
            context.sources.check_unchanged()?;
            activations.finish(&context.printer)?;
            traced
        }
    };
    context.sources.check_unchanged()?;
    let traced = WithMemory::of(traced);
    if let Some(export) = export {
        export.write(&traced, &context.printer)?;
    }

    if args.interactive {
        return interactive::run(traced.report, None, !args.no_mouse, context);
    }
    if args.detect_anomalies {
        return anomalies::report(&traced.report, &context.printer);
    }
    context.printer.report(&traced, |out, WithMemory { report, .. }| match args.trace_payload {
        true => render::payload(out, report),
        false => render::table(out, report),
    })
}

/// Returns the run options, independently of the inputs.
fn run_options(args: &TraceArgs, context: &Context) -> RunOptions {
    let mut options = RunOptions::reading();
    options.task.clone_from(&args.task);
    options.part.clone_from(&args.part);
    options.max_memory = context.max_memory();
    options.max_work = args.max_work;
    options.truncate = args.truncate;
    options.top = args.top.unwrap_or(TOP);
    options
}
