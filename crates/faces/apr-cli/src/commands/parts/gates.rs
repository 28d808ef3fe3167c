//! The gates of a job in parts: they judge the whole output before it gets its name.

use std::path::Path;

use apr_ops::job::Job;
use apr_ops::parts::JobWords;
use apr_registry::CheckpointReader;
use serde_json::Map;

use super::on_disk::OpenPlan;
use super::options;
use super::words::{parsed, placed, values};
use crate::args::Command;
use crate::commands::canary::CanaryFile;
use crate::commands::convert::{self, Destination, Gates, Judged, name_of};
use crate::commands::{merge, quantize};
use crate::context::Context;
use crate::failure::Outcome;
use crate::model::Model;

/// Returns `true` if a job has gates.
pub(super) fn has_some(job: &JobWords) -> bool {
    job.options.keys().any(|key| options::judges(&job.command, key))
}

/// Rejects a plan whose gates could not be evaluated at the end.
pub(super) fn check(job: &JobWords, folder: &Path, context: &Context) -> Outcome {
    let canaries = values(job, "canary");
    let read = |file| CanaryFile::read(Path::new(&placed(file, folder)), context).map(drop);
    canaries.into_iter().try_for_each(read)
}

/// Judges the output of a plan, which `open_output` opens as it will be opened when it is in place.
pub(super) fn judge(
    open: &OpenPlan,
    open_output: &dyn Fn() -> Outcome<Box<dyn CheckpointReader>>,
    context: &Context,
) -> Outcome<Judged> {
    if !has_some(&open.plan.job) {
        return Ok(Judged::default());
    }
    let command = parsed(&open.plan.job, open.folder())?.command;
    let judged = |job: &Job, origin: &Model, to: Destination<'_>| {
        let source = context.source(&*origin.reader, &origin.name)?;
        let gates = Gates::of(job, &source, &to, context)?;
        gates.judge(open_output, &name_of(to.output), &Map::new, context)
    };
    match command {
        Command::Convert(args) | Command::Prune(args) | Command::Factorize(args) => {
            let (job, model) = convert::original_job(&args, context)?;
            judged(&job, &model, Destination::of(&args.write))
        }
        Command::Import(args) => {
            let (job, model) = convert::import_job(&args, context)?;
            judged(&job, &model, Destination::of(&args.write))
        }
        Command::Quantize(args) => {
            let (job, model) = quantize::job(&args, context)?;
            judged(&job, &model, Destination::of(&args.write))
        }
        Command::Merge(mut args) => {
            open.folder().clone_into(&mut args.plan_folder);
            merge::with_made(&args, context, |made| {
                judged(made.job, made.origin, Destination::of(&args.write))
            })
        }
        _ => Ok(Judged::default()),
    }
}
