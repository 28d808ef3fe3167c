//! `apr quantize`.

use apr_ops::job::Job;
use apr_quantize::SchemeKind;
use apr_registry::{Format, safetensors};

use super::convert::{
    self, ChangedJob, Destination, Extras, contain, layout, rounded_job, target, validation,
};
use super::search;
use super::weights::{chosen, quantized};
use crate::args::QuantizeArgs;
use crate::context::Context;
use crate::engine::SearchReport;
use crate::failure::Outcome;
use crate::model::Model;

/// Quantizes a model.
pub(super) fn run(args: &QuantizeArgs, context: &Context) -> Outcome {
    convert::expect_whole(args.prefix.as_deref(), context);
    let (ChangedJob { job, model, changed, origin }, search) = found(args, context)?;
    let origin = origin.as_ref().map(|(job, model)| (job, model));
    let extras = Extras { search, changed, origin, ..Extras::default() };
    convert::write(&job, &model, Destination::of(&args.write), extras, context)
}

/// Returns the job of a quantization and its model.
pub(super) fn job(args: &QuantizeArgs, context: &Context) -> Outcome<(Job, Model)> {
    let (ChangedJob { job, model, .. }, _) = found(args, context)?;
    Ok((job, model))
}

fn found(args: &QuantizeArgs, context: &Context) -> Outcome<(ChangedJob, Option<SearchReport>)> {
    let asked = args.format.or_else(|| format_of_folder(args));
    let layout = layout(target(&args.model, asked, &args.write)?, None, args.shard_size)?;
    if args.search.search {
        search::check_layout(&layout, args.scheme)?;
    }
    let QuantizeArgs { model, options, write, container, .. } = args;
    let weights = match args.scheme {
        Some(scheme) => {
            let model = (model.as_path(), layout.format);
            Some(quantized(scheme, model, options, write, container, context)?)
        }
        None => None,
    };
    let job = Job {
        prefix: args.prefix.clone(),
        weights: weights.clone().unwrap_or_default(),
        validation: validation(write),
        ..Job::new(contain(layout, container, context)?)
    };
    let (mut job, opened) = convert::opened(job, model, context)?;
    job.weights.must_change = args.prefix.is_none()
        && args.shard_size.is_none()
        && container.is_empty()
        && convert::is_one_file(&opened);
    let (true, Some(data)) = (args.search.search, &options.calibration) else {
        return Ok((rounded_job((job, opened), model, options, context)?, None));
    };
    let output = write.output.as_deref();
    let (mut quantization, report) =
        search::found(&args.search, data, &opened, &job, output, context)?;
    if job.weights.layout(job.target.format).is_some() {
        // The weights are rounded by their inputs, which needs no other importance.
        quantization.weighting = None;
    }
    job.weights = chosen(quantization, options, write, container);
    Ok((rounded_job((job, opened), model, options, context)?, Some(report)))
}

/// Returns the format of an output without an extension, if the type determines it.
///
/// Servers load the layouts of such types from safetensors folders.
fn format_of_folder(args: &QuantizeArgs) -> Option<&'static Format> {
    let has_extension = args.write.output.as_deref()?.extension().is_some();
    let is_laid = args.scheme?.kind() == SchemeKind::Layout;
    (is_laid && !has_extension).then_some(&safetensors::FORMAT)
}
