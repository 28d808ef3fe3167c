//! `apr shard` and `apr join` (`docs/format/apr2.md`, "Shards"): the same model, in several files
//! or in one. The same for GGUF, whose parts need no manifest.

use std::path::Path;

use apr::job::{Output, title};
use apr_core::of_files;
use apr_ops::job::Job;
use apr_registry::{CheckpointReader, Format, PlanOptions, Sharding, target_by_extension};

use apr_ops::inline::ValidationConfig;

use super::convert::{Destination, Extras, check_is_native, layout, open_for, write};
use crate::args::{JoinArgs, ShardArgs};
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::model;
use crate::model::Model;

/// Cuts a model into shards. One of another format is converted on the way, as `convert` does.
pub(super) fn shard(args: &ShardArgs, context: &Context) -> Outcome {
    let to = Destination { dry_run: args.dry_run, ..Destination::at(&args.output, args.overwrite) };
    let format = format_of(&args.output);
    let model = open_for(format, &args.model, context)?;
    // The format's own features stay.
    if model.reader.format() == format && sharding(format) == Sharding::Manifest {
        let target =
            PlanOptions { shard_size: Some(args.size), ..as_it_is(&*model.reader, &args.output) };
        return copy(&model, target, to, context);
    }

    let target = layout(Output::layout(format, Some(&args.output)), None, Some(args.size))?;

    // Standard input can't be opened again.
    if model.reader.format() == format && args.model != Path::new("-") {
        return write(
            &Job::copy(target),
            &model::open_plain(&args.model, context)?,
            to,
            Extras::default(),
            context,
        );
    }

    let validation =
        if args.relaxed { ValidationConfig::relaxed() } else { ValidationConfig::strict() };
    let job = Job { title: title(&args.model), validation, ..Job::new(target) };
    write(&job, &model, to, Extras::default(), context)
}

/// Joins shards.
pub(super) fn join(args: &JoinArgs, context: &Context) -> Outcome {
    let model = model::open(&args.manifest, context)?;
    if sharding(model.reader.format()) == Sharding::Numbered {
        return join_numbered(&model, args, context);
    }

    if of_files(&*model.reader).container().shard_count() == 0 {
        let name = &model.name;
        let message = format!(
            "'{name}' is not a manifest of .apr shards; `apr convert` writes one .apr file from \
             any model"
        );
        return Err(Failure::Usage(message));
    }

    check_is_native("join", Some(&args.output))?;
    check_output(&model, &args.manifest, &args.output)?;
    let target = as_it_is(&*model.reader, &args.output);
    copy(&model, target, Destination::at(&args.output, args.overwrite), context)
}

/// Joins the files of a split GGUF model.
fn join_numbered(model: &Model, args: &JoinArgs, context: &Context) -> Outcome {
    if model.reader.files().len() < 2 {
        let message = format!(
            "'{}' is not a GGUF split: expected a name such as model-00001-of-00002.gguf",
            model.name
        );
        return Err(Failure::Usage(message));
    }

    let format = model.reader.format();
    if format_of(&args.output) != format && !Output::is_stdout(&args.output) {
        let message = "GGUF splits are joined into a GGUF file; `apr convert` writes other formats";
        return Err(Failure::Usage(message.to_owned()));
    }

    check_parts(model, &args.manifest, &args.output)?;
    let target = Output::layout(format, Some(&args.output));
    let plain = model::open_plain(&args.manifest, context)?;
    write(
        &Job::copy(target),
        &plain,
        Destination::at(&args.output, args.overwrite),
        Extras::default(),
        context,
    )
}

/// Rejects an output that would overwrite a split file, because the other files would be unusable
/// without it.
fn check_parts(model: &Model, part: &Path, output: &Path) -> Outcome {
    let Ok(target) = output.canonicalize() else { return Ok(()) };
    let mut parts = model.reader.files().iter().map(|file| part.with_file_name(&file.name));
    if parts.any(|part| part.canonicalize().is_ok_and(|part| part == target)) {
        return Err(Failure::Usage(format!("'{}' is one of the splits", output.display())));
    }
    Ok(())
}

/// Returns the format of an output's extension, if files of that format can be shards, and
/// otherwise apr's own.
fn format_of(output: &Path) -> &'static Format {
    let extension = output.extension().and_then(|extension| extension.to_str());
    let named = extension.and_then(|extension| target_by_extension(&extension.to_lowercase()));
    let is_here = |format: &&Format| sharding(format) == Sharding::Numbered;
    named.filter(is_here).unwrap_or(&apr_registry::apr2::FORMAT)
}

fn sharding(format: &Format) -> Sharding {
    format.target.map_or(Sharding::None, |target| target.sharding)
}

/// The output may take the manifest's place, but not a shard's: the manifest would then name a file
/// that is gone.
fn check_output(model: &Model, manifest: &Path, output: &Path) -> Outcome {
    let Ok(target) = output.canonicalize() else { return Ok(()) };
    let shards =
        model.reader.files().iter().skip(1).map(|file| manifest.with_file_name(&file.name));
    match shards.filter_map(|shard| shard.canonicalize().ok()).find(|shard| *shard == target) {
        Some(_) => Err(Failure::Usage(format!("'{}' is one of the shards", output.display()))),
        None => Ok(()),
    }
}

/// A layout that is the model's own, so that what was one file becomes that file again.
fn as_it_is(reader: &dyn CheckpointReader, output: &Path) -> PlanOptions {
    let features = reader.container().features();
    PlanOptions {
        alignment: features.alignment.and_then(|alignment| alignment.try_into().ok()),
        streaming: features.streaming,
        ..Output::layout(&apr_registry::apr2::FORMAT, Some(output))
    }
}

/// Writes a model without changing anything about it.
fn copy(model: &Model, target: PlanOptions, to: Destination<'_>, context: &Context) -> Outcome {
    if model::is_encrypted(&*model.reader) {
        let message = "shards of an encrypted model would not be encrypted: `apr decrypt` it \
                       first, or convert it with --shard-size and --recipient or --encrypt";
        return Err(Failure::General(format!("{}: {message}", model.name)));
    }
    write(&Job::copy(target), model, to, Extras::default(), context)
}
