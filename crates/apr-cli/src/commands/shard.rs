//! `apr shard` and `apr join` (seed 001 §3.8): the same model, in several files or in one.

use std::path::Path;

use apr::{CheckpointReader, PlanOptions};
use apr_ops::convert::ConvertOptions;
use apr_ops::import::Prepared;
use apr_ops::inline::{InlineValidator, ValidationConfig};
use apr_view::View;

use super::convert::{self, Job, Request, write};
use super::quantize::Wanted;
use crate::args::{ContainerArgs, JoinArgs, QuantizeOptions, ShardArgs, WriteArgs};
use crate::context::Context;
use crate::failure::Failure;
use crate::model::Model;
use crate::output::Output;
use crate::{Outcome, model};

/// Cuts a model into shards. One of another format is converted on the way, as `convert` does.
pub(super) fn shard(args: &ShardArgs, context: &Context) -> Outcome {
    let write_args = write_args(&args.output, args.force, args.dry_run);
    let model = model::open(&args.model, context)?;
    if model.reader.format() == &apr::apr2::FORMAT {
        let target = PlanOptions { shard_size: Some(args.size), ..as_it_is(&*model.reader, &args.output) };
        return copy(&model, &write_args, &target, context);
    }
    drop(model);
    let options = QuantizeOptions::default();
    let request = Request {
        model: &args.model,
        prefix: None,
        format: Some(&apr::apr2::FORMAT),
        write: &write_args,
        shard_size: Some(args.size),
        align: None,
        streaming: false,
        wanted: Wanted { scheme: None, dequantize: None, precision: None, options: &options },
        judged: true,
        changes: None,
    };
    convert::run(&request, context)
}

/// Puts shards together.
pub(super) fn join(args: &JoinArgs, context: &Context) -> Outcome {
    let model = model::open(&args.manifest, context)?;
    if model.reader.container().shard_count() == 0 {
        let name = &model.name;
        let message =
            format!("'{name}' is no manifest of .apr shards; `apr convert` writes any model as one .apr file");
        return Err(Failure::Usage(message));
    }
    check_output(&model, &args.manifest, &args.output)?;
    let target = as_it_is(&*model.reader, &args.output);
    copy(&model, &write_args(&args.output, args.force, false), &target, context)
}

/// The output may take the manifest's place, but not a shard's: the manifest would then name a file that is gone.
fn check_output(model: &Model, manifest: &Path, output: &Path) -> Outcome {
    let Ok(target) = output.canonicalize() else { return Ok(()) };
    let shards = model.reader.files().iter().skip(1).map(|file| manifest.with_file_name(&file.name));
    match shards.filter_map(|shard| shard.canonicalize().ok()).find(|shard| *shard == target) {
        Some(_) => Err(Failure::Usage(format!("'{}' is one of the shards", output.display()))),
        None => Ok(()),
    }
}

fn write_args(output: &Path, force: bool, dry_run: bool) -> WriteArgs {
    WriteArgs {
        output: Some(output.into()),
        force,
        relaxed: false,
        precision: None,
        dry_run,
        container: ContainerArgs::default(),
    }
}

/// A layout that is the model's own, so that what was one file becomes that file again.
fn as_it_is(reader: &dyn CheckpointReader, output: &Path) -> PlanOptions {
    let features = reader.container().features();
    PlanOptions {
        alignment: features.alignment.and_then(|alignment| alignment.try_into().ok()),
        streaming: features.streaming,
        ..Output::plan_options(&apr::apr2::FORMAT, Some(output))
    }
}

/// Writes a model without changing anything about it.
fn copy(model: &Model, args: &WriteArgs, target: &PlanOptions, context: &Context) -> Outcome {
    if model::is_encrypted(&*model.reader) {
        let message = "the model is encrypted, and its parts would not be; `apr decrypt` it first, or convert it with \
                       --shard-size and --recipient or --encrypt";
        return Err(Failure::General(format!("{}: {message}", model.name)));
    }
    model::warn_of_seals(&*model.reader, context)?;
    let prepared = Prepared {
        view: View::new(&*model.reader),
        validator: InlineValidator::new(ValidationConfig::off()),
        family: None,
        misfits: Vec::new(),
        warnings: Vec::new(),
    };
    let options = ConvertOptions::default();
    write(Job { prepared, name: &model.name, args, target, losses: Vec::new(), options, changes: Vec::new() }, context)
}
