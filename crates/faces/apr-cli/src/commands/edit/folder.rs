//! `apr edit` on a folder: its only file of weights, or a copy of a model in several.

use apr::job::Output;
use apr_ops::job::Planned;
use apr_registry::{CheckpointReader, PlanOptions};
use apr_view::{Apart, Base, MLX_CODES, View, stacked_for_mlx};

use super::asked::tensor_edits;
use super::report::{EditReport, render};
use super::weights::{no_template, write};
use crate::args::EditArgs;
use crate::commands::tensor_edits::pairs_of;
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::{model, signals};

/// Edits a folder.
pub(super) fn run(args: &EditArgs, context: &Context) -> Outcome {
    let model = model::open_with_companions(&args.model, context)?;
    let reader = &*model.reader;
    let Some(output) = args.output.as_deref() else {
        let [file] = reader.files() else {
            let message = format!(
                "{}: a model in {} files; -o FOLDER writes an edited copy",
                args.model.display(),
                reader.files().len()
            );
            return Err(Failure::Usage(message));
        };
        let path = args.model.join(&file.name);
        drop(model);
        return super::edit_file(&path, args, context);
    };

    no_template(args, "a folder")?;
    let format = reader.format();
    if format != &apr_registry::safetensors::FORMAT {
        let message = format!(
            "{}: a folder of {}; name the file to edit a copy of it",
            args.model.display(),
            format.name
        );
        return Err(Failure::Usage(message));
    }
    let edits = tensor_edits(args, context)?;
    let dropped = edits.dropped(reader)?;
    let renames = edits.renames(reader, &args.model)?;
    let mut view = View::new(reader);
    if !args.set.is_empty() || !args.unset.is_empty() {
        let set = pairs_of(&args.set, "--set KEY=VALUE")?;
        let changed = apr_registry::safetensors::with_texts(reader.metadata(), &args.unset, &set);
        *view.metadata_mut() =
            changed.map_err(|error| Failure::Usage(error.message().to_owned()))?;
    }
    edits.apply(&mut view, &renames)?;
    let changed = view.tensors() != reader.tensors() || view.metadata() != reader.metadata();

    let target = Output::layout(format, Some(output));
    if !target.folder {
        let message = format!("{}: the output of a folder is a folder", output.display());
        return Err(Failure::Usage(message));
    }
    // Shards as large as the largest that there is.
    let largest = reader.files().iter().map(|file| file.len).max();
    let target = PlanOptions { shard_size: largest.filter(|_| reader.files().len() > 1), ..target };
    signals::stop_cleanly(&context.interrupt)?;
    let name = model.name.clone();
    let create = |planned: &Planned<'_>| {
        let files = &planned.report().files;
        let target = planned.target();
        Ok(Output::create(output, target, files, args.overwrite, &context.interrupt)?)
    };
    // Weights in codes are edited as one tensor each, and stay in codes.
    let mut codings = (0..view.tensors().len()).filter_map(|at| view.stored(at).coding());
    let is_mlx = codings.any(|coding| coding.kind == MLX_CODES);
    let apart = Apart::new(Base::Borrowed(&view))?;
    let stacked = if is_mlx { Some(stacked_for_mlx(Base::Borrowed(&apart))?.0) } else { None };
    let written = stacked.unwrap_or_else(|| View::new(&apart));
    write(&written, &name, target, create, context)?;
    let report = EditReport {
        changed,
        written: true,
        dropped_tensors: dropped,
        ..EditReport::of(&args.model, Some(output))
    };
    context.printer.report(&report, render)
}
