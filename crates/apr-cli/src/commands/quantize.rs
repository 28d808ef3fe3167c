//! `apr quantize`.

use apr_ops::job::Job;

use super::convert::{self, Destination, contain, layout, target, validation};
use super::weights::quantized;
use crate::args::QuantizeArgs;
use crate::context::Context;
use crate::failure::Outcome;
use crate::model::Model;

/// Quantizes a model.
pub(super) fn run(args: &QuantizeArgs, context: &Context) -> Outcome {
    convert::expect_whole(args.prefix.as_deref(), context);
    let (job, model) = job(args, context)?;
    convert::write(&job, &model, Destination::of(&args.write), Vec::new(), context)
}

/// What quantizing does, and with what.
pub(super) fn job(args: &QuantizeArgs, context: &Context) -> Outcome<(Job, Model)> {
    let target = layout(target(&args.model, args.format, &args.write)?, None, args.shard_size)?;
    let job = Job {
        prefix: args.prefix.clone(),
        weights: quantized(
            args.scheme,
            &args.model,
            &args.options,
            &args.write,
            &args.container,
            context,
        )?,
        validation: validation(&args.write),
        ..Job::new(contain(target, &args.container, context)?)
    };
    convert::opened(job, &args.model, context)
}
