//! `apr import`, `apr convert`, `apr export`: one engine, three ways to say what is wanted.

mod gates;
mod render;
mod write;

use std::path::Path;

use apr::job::{Output, title};
use apr_ops::inline::ValidationConfig;
use apr_ops::job::Job;
use apr_ops::job::wants_companions;
use apr_ops::sha256;
use apr_registry::{ByteSource, Error, Format, PlanOptions, onnx, target_by_extension, targets};
use apr_view::View;
use base16ct::lower::encode_string;

pub(super) use self::gates::{Gates, Judged, name_of, render_drift};
pub(super) use self::render::findings;
pub(super) use self::write::{
    Changed, Destination, Extras, Subject, show_warnings, write, write_subject,
};
#[cfg(feature = "linalg")]
use super::rounding;
use super::tensor_edits::{edited, pairs_of, renamed};
#[cfg(not(feature = "linalg"))]
use super::without_linalg::rounding;
use super::{analyze, distill, imatrix, lowrank, prune, weights};
use crate::args::{
    Compress, ContainerArgs, ConvertArgs, ExportArgs, ImportArgs, QuantizeOptions, Sha256,
    TensorNames, WriteArgs,
};
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::model::Model;
use crate::progress::Bar;
use crate::{model, secrets, signals};

/// Packs a model and its companions into an `.apr` file.
pub(super) fn import(args: &ImportArgs, context: &Context) -> Outcome {
    expect_whole(args.prefix.as_deref(), context);
    let (job, model) = import_job(args, context)?;
    write(&job, &model, Destination::of(&args.write), Extras::default(), context)
}

/// Returns the job of an import and its model.
pub(super) fn import_job(args: &ImportArgs, context: &Context) -> Outcome<(Job, Model)> {
    context.sources.expect_companions();
    let model = model::open_with_companions(&args.source, context)?;
    if let Some(expected) = args.from.filter(|from| *from != model.reader.format()) {
        let message = format!("this is {}, not {}", model.reader.format().name, expected.name);
        return Err(Error::format(message).in_file(&model.name).into());
    }

    if let Some(expected) = &args.sha256 {
        check_sha256(&args.source, &model, expected, context)?;
    }

    let output = args.write.output.as_deref();
    check_is_native("import", output)?;
    let target = layout(Output::layout(&apr_registry::apr2::FORMAT, output), args.align, None)?;
    let job = Job {
        prefix: args.prefix.clone(),
        weights: weights::asked(
            (&args.source, target.format),
            &args.requantize,
            &args.write,
            &args.container,
            context,
        )?,
        validation: ValidationConfig { complete: true, ..validation(&args.write) },
        license: args.license.clone(),
        source_sha256: args.sha256.as_ref().map(|digest| encode_string(digest)),
        provenance: context.sources.provenance(&args.source),
        ..Job::new(contain(target, &args.container, context)?)
    };

    Ok((job, model))
}

/// Converts between formats.
pub(super) fn convert(args: &ConvertArgs, context: &Context) -> Outcome {
    if args.analyze_source {
        if args.write.output.is_some() {
            let message = "--analyze-source reports on the source and writes nothing: leave out -o";
            return Err(Failure::Usage(message.to_owned()));
        }
        let model = model::open_with_companions(&args.model, context)?;
        let reader = edited(model.reader, &args.names, &args.model)?;
        let mut view = View::new(&*reader);
        if let Some(prefix) = &args.prefix {
            view.select(prefix).map_err(|error| Failure::Usage(error.message().to_owned()))?;
        }
        return analyze::run(&view, &model.name, context);
    }
    expect_whole(args.prefix.as_deref(), context);
    let ChangedJob { job, model, changed, origin } = changed_job(args, context)?;
    let extras = Extras {
        changed,
        origin: origin.as_ref().map(|(job, model)| (job, model)),
        ..Extras::default()
    };
    write(&job, &model, Destination::of(&args.write), extras, context)?;
    distill::clean_up(args, context);
    Ok(())
}

/// Converts what is pruned.
pub(super) fn prune(args: &ConvertArgs, context: &Context) -> Outcome {
    let asked = &args.prune;
    if !asked.has_zeros() && !asked.has_less() && asked.sparse.is_none() {
        return Err(Failure::Usage(
            "nothing to prune: pass --prune SHARE, --prune-nm N:M, --prune-threshold X, \
             --prune-layers, --prune-heads, --prune-neurons or --sparse"
                .to_owned(),
        ));
    }
    convert(args, context)
}

/// Converts what is factorized, or stored without factors again.
pub(super) fn factorize(args: &ConvertArgs, context: &Context) -> Outcome {
    if !args.lowrank.is_asked() && !args.lowrank.dense {
        return Err(Failure::Usage(
            "nothing to factorize: pass --rank R, --energy E or --dense".to_owned(),
        ));
    }
    convert(args, context)
}

/// Converts what is distilled.
pub(super) fn distill(args: &ConvertArgs, context: &Context) -> Outcome {
    if !args.distill.is_asked() {
        return Err(Failure::Usage(
            "nothing to distill: pass --distill small, tiny or CONFIG.json, or --distill-layers N, \
             and --data FILE"
                .to_owned(),
        ));
    }
    convert(args, context)
}

/// Returns the job of a conversion and its model.
pub(super) fn convert_job(args: &ConvertArgs, context: &Context) -> Outcome<(Job, Model)> {
    let ChangedJob { job, model, .. } = changed_job(args, context)?;
    Ok((job, model))
}

/// Job, and the changes made to its model before the job runs.
pub(super) struct ChangedJob {
    pub(super) job: Job,
    pub(super) model: Model,
    pub(super) changed: Changed,
    /// The requested job and the model as it was opened, if a gate compares with them.
    pub(super) origin: Option<(Job, Model)>,
}

fn changed_job(args: &ConvertArgs, context: &Context) -> Outcome<ChangedJob> {
    let is_calibrated = args.requantize.options.calibration.is_some();
    if !args.names.is_empty() && (args.changes_model() || is_calibrated) {
        // What changes weights by runs, or reads them again, has the names of the file.
        let message = "--rename, --drop and --keep can't be combined with pruning, factors, \
                       distillation or --calibration: run `apr edit` first";
        return Err(Failure::Usage(message.to_owned()));
    }
    let opened = unchanged_job(args, context)?;
    let options = &args.requantize.options;
    let measures_inputs = weights::rounding(&opened.0, options).is_some()
        || weights::activations(&opened.0, options).is_some();
    if measures_inputs && !args.changes_model() {
        return rounded_job(opened, &args.model, options, context);
    }
    weights::check_rounding(&opened.0, options)?;
    let data = weights::activations(&opened.0, options);
    let origin = origin(&opened, &args.model, &args.names, context)?;
    let (job, model, mut changed) = prune::pruned(args, opened, context)?;
    let (job, model, factors) = lowrank::factorized(args, (job, model), context)?;
    changed.lowrank = factors;
    let (model, distilled) = distill::distilled(args, model, &mut changed, context)?;
    changed.distillation = distilled;
    let (mut job, mut model, changed) =
        prune::stored_sparse(&args.prune, (job, model, changed), context)?;
    if let Some(data) = data {
        let method = options.calibration_method.unwrap_or_default();
        let measured =
            imatrix::changed_ranges((data, method), (model, args.model.as_path()), context)?;
        let note;
        (job.weights.ranges, model, note) = (Some(measured.0), measured.1, measured.2);
        job.weights.warnings.extend(note);
    }
    Ok(ChangedJob { job, model, changed, origin })
}

/// Returns the requested job and its model, opened again, if a gate compares with them.
///
/// The model is opened again because the changes consume the first one.
fn origin(
    (job, model): &(Job, Model),
    path: &Path,
    names: &TensorNames,
    context: &Context,
) -> Outcome<Option<(Job, Model)>> {
    if job.weights.gate.is_none() {
        return Ok(None);
    }
    let again = open_for(job.target.format, model.spool().unwrap_or(path), context)?;
    // A tensor that is left out is a change like any other, and counts as removed.
    let mut again = again.read_by(|reader| renamed(reader, names, path))?;
    again.name.clone_from(&model.name);
    Ok(Some((job.clone(), again)))
}

/// The format of a folder that is made of a folder: safetensors. Of another type of weights there
/// are several formats.
fn folder_format(args: &ConvertArgs) -> Option<&'static Format> {
    let output = args.write.output.as_deref().filter(|output| !Output::is_stdout(output))?;
    let is_folder = output.extension().is_none() && args.model.is_dir();
    let keeps_types = args.requantize.quantize.is_none();
    (is_folder && keeps_types).then_some(&apr_registry::safetensors::FORMAT)
}

/// Returns the job of a conversion whose weights are not changed beforehand, and its model.
fn unchanged_job(args: &ConvertArgs, context: &Context) -> Outcome<(Job, Model)> {
    let (job, model) = plain_job(args, context)?;
    if !job.graph.renames.is_empty() {
        return Ok((job, model));
    }
    Ok((job, model.read_by(|reader| edited(reader, &args.names, &args.model))?))
}

/// Returns the job of a conversion, and the model that its gate compares with.
pub(super) fn original_job(args: &ConvertArgs, context: &Context) -> Outcome<(Job, Model)> {
    let (job, model) = plain_job(args, context)?;
    if !job.graph.renames.is_empty() {
        return Ok((job, model));
    }
    Ok((job, model.read_by(|reader| renamed(reader, &args.names, &args.model))?))
}

/// Returns the job of a conversion, and its model as opened.
fn plain_job(args: &ConvertArgs, context: &Context) -> Outcome<(Job, Model)> {
    let target = target(&args.model, args.format.or_else(|| folder_format(args)), &args.write)?;
    let external_data = args.graph.external_data();
    let target = PlanOptions { streaming: args.streaming, external_data, ..target };
    let target = layout(target, args.align, args.shard_size)?;
    let job = Job {
        prefix: args.prefix.clone(),
        part_for_images: args.mmproj,
        weights: match args.changes_weights() {
            true => weights::asked_to_change(
                (&args.model, target.format),
                &args.requantize,
                &args.write,
                &args.container,
                context,
            )?,
            false => weights::asked(
                (&args.model, target.format),
                &args.requantize,
                &args.write,
                &args.container,
                context,
            )?,
        },
        graph: args.graph.wishes(),
        validation: validation(&args.write),
        ..Job::new(contain(target, &args.container, context)?)
    };
    let (mut job, model) = opened(job, &args.model, context)?;
    job.weights.must_change = args.asks_types_alone() && is_one_file(&model);
    let has_graph = model.reader.metadata().object(onnx::METADATA).is_some();
    if has_graph && std::ptr::eq(job.target.format, &onnx::FORMAT) {
        if !args.names.drop.is_empty() || !args.names.keep.is_empty() {
            let message = "--drop and --keep would break the graph of an ONNX file; --from and \
                           --to extract a part of it";
            return Err(Failure::Usage(message.to_owned()));
        }
        job.graph.renames = pairs_of(&args.names.rename, "--rename OLD=NEW")?;
    }
    Ok((job, model))
}

/// Writes another format.
pub(super) fn export(args: &ExportArgs, context: &Context) -> Outcome {
    let target = Output::layout(export_format(args)?, args.write.output.as_deref());
    let target = layout(
        PlanOptions { external_data: args.graph.external_data(), ..target },
        None,
        args.shard_size,
    )?;

    let judged = validation(&args.write);
    let job = Job {
        weights: weights::asked(
            (&args.model, target.format),
            &args.requantize,
            &args.write,
            &args.container,
            context,
        )?,
        graph: args.graph.wishes(),
        validation: ValidationConfig { structure: false, ..judged },
        ..Job::new(contain(target, &args.container, context)?)
    };

    expect_whole(None, context);
    let mut opened = opened(job, &args.model, context)?;
    opened.0.weights.must_change =
        args.shard_size.is_none() && args.container.is_empty() && is_one_file(&opened.1);
    if std::ptr::eq(opened.1.reader.format(), &apr_registry::apr2::FORMAT) {
        // An import judged the model; an export gives back what is in the file.
        let stop = judged.stop;
        opened.0.validation = ValidationConfig { stop, ..ValidationConfig::integrity() };
    }
    let options = &args.requantize.options;
    let ChangedJob { job, model, changed, origin } =
        rounded_job(opened, &args.model, options, context)?;
    let origin = origin.as_ref().map(|(job, model)| (job, model));
    let extras = Extras { changed, origin, ..Extras::default() };
    write(&job, &model, Destination::of(&args.write), extras, context)
}

/// Returns `true` if a copy of the model in the same format would be the same file.
pub(super) fn is_one_file(model: &Model) -> bool {
    model.reader.files().len() == 1 && !model::is_encrypted(&*model.reader)
}

/// Returns a job and its model, with calibrated rounding of the weights if it is requested.
pub(super) fn rounded_job(
    opened: (Job, Model),
    path: &Path,
    options: &QuantizeOptions,
    context: &Context,
) -> Outcome<ChangedJob> {
    let Some(asked) = weights::rounding(&opened.0, options) else {
        let (mut job, model) = opened;
        if let Some(data) = weights::activations(&job, options) {
            let method = options.calibration_method.unwrap_or_default();
            job.weights.ranges = Some(imatrix::ranges((data, method), path, context)?);
        }
        return Ok(ChangedJob { job, model, changed: Changed::default(), origin: None });
    };
    let origin = origin(&opened, path, &TensorNames::default(), context)?;
    let (job, model, report) = rounding::rounded(opened, path, asked, context)?;
    let changed = Changed { calibrated_rounding: Some(report), ..Changed::default() };
    Ok(ChangedJob { job, model, changed, origin })
}

/// Rejects the extension of another format for a command that writes .apr files only.
pub(super) fn check_is_native(command: &str, output: Option<&Path>) -> Outcome {
    let foreign =
        |extension: &&str| *extension != "apr" && target_by_extension(extension).is_some();
    let extension = output.and_then(Path::extension).and_then(|text| text.to_str());
    match extension.filter(foreign) {
        Some(extension) => Err(Failure::Usage(format!(
            "{command} writes .apr files; `apr convert` writes .{extension}"
        ))),
        None => Ok(()),
    }
}

/// Announces that the whole model is going to be read, unless only the tensors of a prefix are.
pub(super) fn expect_whole(prefix: Option<&str>, context: &Context) {
    if prefix.is_none() {
        context.sources.expect_whole();
    }
}

/// Opens the model of a job, and records the model's origin in the job.
pub(super) fn opened(job: Job, path: &Path, context: &Context) -> Outcome<(Job, Model)> {
    let model = open_for(job.target.format, path, context)?;
    Ok((Job { title: title(path), provenance: context.sources.provenance(path), ..job }, model))
}

/// Opens a model to write it in a format. Some formats need the tokenizer even if only the weights
/// were named.
pub(super) fn open_for(format: &Format, path: &Path, context: &Context) -> Outcome<Model> {
    if !wants_companions(format) {
        return model::open(path, context);
    }
    context.sources.expect_companions();
    model::open_with_companions(path, context)
}

/// Returns the layout of an output, in the requested format or the format of its extension.
///
/// Without an output, the format is the model's own if it can be written, and otherwise the native
/// one.
pub(super) fn target(
    model: &Path,
    asked: Option<&'static Format>,
    args: &WriteArgs,
) -> Outcome<PlanOptions> {
    let asked = match (asked, &args.output) {
        (None, None) => Some(format_of(model).unwrap_or(&apr_registry::apr2::FORMAT)),
        (asked, _) => asked,
    };
    let output = args.output.as_deref();
    Ok(Output::layout(target_format(asked, output)?, output))
}

/// Sets the file options, and checks that the target format supports them.
pub(super) fn layout(
    target: PlanOptions,
    align: Option<u32>,
    shard_size: Option<u64>,
) -> Outcome<PlanOptions> {
    let target = PlanOptions { shard_size, alignment: align, ..target };
    target.check().map_err(|error| Failure::Usage(error.message().to_owned()))?;
    Ok(target)
}

/// Options that only the native container has.
pub(super) fn contain(
    mut target: PlanOptions,
    args: &ContainerArgs,
    context: &Context,
) -> Outcome<PlanOptions> {
    target.apr2.compression = args.compress.and_then(|Compress(choice)| choice);
    if args.is_wanted() && !target.target()?.seals {
        // Before keys are read and passwords asked for.
        return Err(Failure::Usage(
            "--compress, --encrypt, --recipient and --sign are for .apr output".to_owned(),
        ));
    }

    let password = context.password.as_ref();
    target.apr2.encryption = context.encryption.clone();
    if target.apr2.encryption.is_none() {
        target.apr2.encryption =
            secrets::encryption(args.encrypt, &args.recipient, args.encrypt_metadata, password)?;
    }
    target.apr2.signers =
        args.sign.iter().map(|path| secrets::read_signing(path)).collect::<Outcome<_>>()?;
    Ok(target)
}

pub(super) fn validation(args: &WriteArgs) -> ValidationConfig {
    ValidationConfig { stop: !(args.relaxed || args.force), ..ValidationConfig::of_part() }
}

/// Compares the digest of the weights' file, read as a whole, with the one that was promised.
pub(super) fn check_sha256(
    path: &Path,
    model: &Model,
    expected: &Sha256,
    context: &Context,
) -> Outcome {
    let is_folder = path.is_dir() || (apr_io::is_remote(path) && model::is_set(path, context)?);
    let file = match model.reader.files() {
        // A pipe was read already: its copy stands for it.
        _ if model.spool().is_some() => model.spool().unwrap_or(path).to_path_buf(),
        [_] if !is_folder => path.to_path_buf(),
        // Locations have slashes on every system.
        [file] if apr_io::is_remote(path) => {
            let folder = path.to_string_lossy();
            format!("{}/{}", folder.trim_end_matches('/'), file.name).into()
        }
        [file] => path.join(&file.name),
        files => {
            let message =
                format!("--sha256 applies to a single file; the model has {}", files.len());
            return Err(Failure::Usage(message));
        }
    };

    signals::stop_cleanly(&context.interrupt)?;
    let (source, _spool) = model::open_bytes(&file, context)?;
    let found = sha256(&source, &context.pipeline()?, &Bar::new(&context.printer, source.len()))?;
    if found == *expected {
        return Ok(());
    }

    let (found, expected) = (encode_string(&found), encode_string(expected));
    Err(Error::checksum(format!("its SHA-256 is {found}, not {expected}"))
        .in_file(file.display())
        .into())
}

/// Names for a choice: `a, b or c`.
fn one_of(names: &[&str]) -> String {
    match names {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        names => names.concat(),
    }
}

/// Returns the requested format, the format of the output's extension, or safetensors.
fn export_format(args: &ExportArgs) -> Outcome<&'static Format> {
    let output =
        args.write.output.as_deref().filter(|path| !Output::is_stdout(path) && !path.is_dir());
    let extension = output.and_then(Path::extension).and_then(|text| text.to_str());
    match (args.format, extension.map(target_by_extension)) {
        (Some(format), _) | (None, Some(Some(format))) => Ok(format),
        (None, None) => Ok(&apr_registry::safetensors::FORMAT),
        (None, Some(None)) => {
            let message = "no format for the output's extension: pass --format FORMAT";
            Err(Failure::Usage(message.to_owned()))
        }
    }
}

fn format_of(path: &Path) -> Option<&'static Format> {
    target_by_extension(path.extension()?.to_str()?)
}

/// Returns the requested format, or the format of the output's extension.
pub(super) fn target_format(
    asked: Option<&'static Format>,
    output: Option<&Path>,
) -> Outcome<&'static Format> {
    let extension = output.and_then(Path::extension).and_then(|text| text.to_str());
    asked.or_else(|| target_by_extension(extension?)).ok_or_else(|| {
        let mut options: Vec<&str> = targets().filter_map(|format| format.option).collect();
        options.sort_unstable();
        let what = match output {
            Some(output) if !Output::is_stdout(output) => "no format for the output's extension",
            _ => "standard output has no extension to set the format",
        };
        Failure::Usage(format!("{what}: pass --format {}", one_of(&options)))
    })
}
