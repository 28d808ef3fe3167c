//! `apr import`, `apr convert`, `apr export`: one engine, three ways to say what is wanted.

mod render;
mod write;

use std::path::Path;

use apr::{
    ByteSource, CheckpointReader, Convention, Error, Format, PlanOptions, QuantizedTypes, keys, target_by_extension,
    targets,
};
use apr_ops::convert::ConvertOptions;
use apr_ops::import::{Foreign, ImportOptions, Prepared, prepare, restore};
use apr_ops::inline::{InlineValidator, ValidationConfig};
use apr_ops::sha256;
use apr_quantize::place;
use apr_view::{Unpacked, View, sort_by_first_use};

pub(super) use self::write::{Job, write};
use super::analyze;
use super::quantize::Wanted;
use crate::args::{
    Compress, ContainerArgs, ConvertArgs, Dequantized, ExportArgs, ImportArgs, Precision, RequantizeArgs, Sha256,
    WriteArgs,
};
use crate::context::Context;
use crate::failure::Failure;
use crate::model::Model;
use crate::output::Output;
use crate::progress::Bar;
use crate::{Outcome, model, secrets, signals};

/// Losses shown before the rest is only counted.
const SHOWN: usize = 20;

/// The key of what people call the model.
const NAME: &str = "model_name";

/// Packs a model and its companions into an `.apr` file.
pub(super) fn import(args: &ImportArgs, context: &Context) -> Outcome {
    let model = model::open_with_companions(&args.source, context)?;
    if let Some(expected) = args.from.filter(|from| *from != model.reader.format()) {
        let message = format!("this is {}, not {}", model.reader.format().name, expected.name);
        return Err(Error::format(message).in_file(&model.name).into());
    }
    if let Some(expected) = &args.sha256 {
        check_sha256(&args.source, &model, expected, context)?;
    }
    let selected = select(&*model.reader, args.prefix.as_deref())?;
    let output = args.write.output.as_deref();
    let foreign = |extension: &&str| *extension != "apr" && target_by_extension(extension).is_some();
    if let Some(extension) = output.and_then(Path::extension).and_then(|text| text.to_str()).filter(foreign) {
        let message = format!("import writes .apr files; `apr convert` writes .{extension}");
        return Err(Failure::Usage(message));
    }
    let target = layout(Output::plan_options(&apr::apr2::FORMAT, output), args.align, None)?;
    let target = contain(target, &args.write.container, context)?;
    let mut prepared = prepared(&selected, validation(&args.write), args.license.clone(), context)?;
    if let Some(digest) = &args.sha256 {
        record_sha256(&mut prepared.view, digest);
    }
    let wanted = wanted(&args.requantize, &args.write);
    let options = wanted.apply(&mut prepared.view, Vec::new(), &apr::apr2::FORMAT, context)?;
    let options = with_compression(options, &args.write);
    let (name, losses, changes) = (model.name.as_str(), Vec::new(), Vec::new());
    write(Job { prepared, name, args: &args.write, target: &target, losses, options, changes }, context)
}

/// A conversion as typed.
pub(super) struct Request<'a> {
    pub(super) model: &'a Path,
    pub(super) prefix: Option<&'a str>,
    pub(super) format: Option<&'static Format>,
    pub(super) write: &'a WriteArgs,
    pub(super) shard_size: Option<u64>,
    pub(super) align: Option<u32>,
    /// In the order of first use.
    pub(super) streaming: bool,
    pub(super) wanted: Wanted<'a>,
    /// Hold the tensors against their family, and their values against what is healthy.
    pub(super) judged: bool,
    /// What the conversion does to the source, where the report is to tell; an error refuses the source.
    pub(super) changes: Option<Changes>,
}

/// Says what changes in a checkpoint, or why it is not taken.
pub(super) type Changes = fn(&dyn CheckpointReader) -> Result<Vec<String>, Error>;

/// Converts between formats.
pub(super) fn convert(args: &ConvertArgs, context: &Context) -> Outcome {
    if args.analyze_source {
        let model = model::open_with_companions(&args.model, context)?;
        return analyze::run(&select(&*model.reader, args.prefix.as_deref())?, &model.name, context);
    }
    run(
        &Request {
            model: &args.model,
            prefix: args.prefix.as_deref(),
            format: args.format,
            write: &args.write,
            shard_size: args.shard_size,
            align: args.align,
            streaming: args.streaming,
            wanted: wanted(&args.requantize, &args.write),
            judged: true,
            changes: None,
        },
        context,
    )
}

/// Converts as requested.
pub(super) fn run(request: &Request<'_>, context: &Context) -> Outcome {
    let asked = match (request.format, &request.write.output) {
        // Nothing is written: what is asked is what would become of the model, in its own format where that is one to write.
        (None, None) => Some(format_of(request.model).unwrap_or(&apr::apr2::FORMAT)),
        (asked, _) => asked,
    };
    let format = target_format(asked, request.write.output.as_deref())?;
    let target = Output::plan_options(format, request.write.output.as_deref());
    if request.streaming && !format.target.is_some_and(|target| target.streaming) {
        return Err(Failure::Usage("--streaming works for .apr output only".to_owned()));
    }
    let target = PlanOptions { streaming: request.streaming, ..layout(target, request.align, request.shard_size)? };
    let target = contain(target, &request.write.container, context)?;
    // GGUF and APR1 files have the tokenizer inside, even if the weights alone were named.
    let model = match format {
        format if holds_tokenizer(format) => model::open_with_companions(request.model, context)?,
        _ => model::open(request.model, context)?,
    };
    let changes = match request.changes {
        Some(changes) => changes(&*model.reader).map_err(|error| error.in_file(&model.name))?,
        None => Vec::new(),
    };
    if request.changes.is_some() {
        model.reader.warnings().iter().for_each(|warning| context.printer.warn(warning));
    }
    if target.apr2.signers.is_empty() {
        model::warn_of_seals(&*model.reader, context)?;
    }
    if request.judged {
        warn_if_opened(&*model.reader, &target, context);
    }
    let mut selected = select(&*model.reader, request.prefix)?;
    if request.streaming {
        // Before the tensors are judged, which goes by their positions.
        sort_by_first_use(&mut selected);
    }
    let goal = Goal { write: request.write, target: &target, wanted: request.wanted };
    match format.convention {
        Convention::Canonical => {
            let judged = if request.judged { validation(request.write) } else { ValidationConfig::off() };
            let mut prepared = prepared(&selected, judged, None, context)?;
            let options = request.wanted.apply(&mut prepared.view, Vec::new(), format, context)?;
            let options = with_compression(options, request.write);
            let (name, losses) = (model.name.as_str(), Vec::new());
            write(Job { prepared, name, args: request.write, target: &target, losses, options, changes }, context)
        }
        _ => write_foreign(selected, (request.model, &model.name), &goal, validation(request.write), context),
    }
}

/// Whether files of a format have the tokenizer inside, so that the files beside the weights are wanted.
pub(super) fn holds_tokenizer(format: &Format) -> bool {
    matches!(format.convention, Convention::LlamaCpp | Convention::Whisper)
}

/// Writes another format.
pub(super) fn export(args: &ExportArgs, context: &Context) -> Outcome {
    let format = export_format(args)?;
    let model = match format {
        format if holds_tokenizer(format) => model::open_with_companions(&args.model, context)?,
        _ => model::open(&args.model, context)?,
    };
    let target = layout(Output::plan_options(format, args.write.output.as_deref()), None, args.shard_size)?;
    let target = contain(target, &args.write.container, context)?;
    model::warn_of_seals(&*model.reader, context)?;
    warn_if_opened(&*model.reader, &target, context);
    // What went through an import was judged there; an export gives back what is in the file.
    let stop = validation(&args.write).stop;
    let integrity = ValidationConfig { stop, ..ValidationConfig::integrity() };
    let goal = Goal { write: &args.write, target: &target, wanted: wanted(&args.requantize, &args.write) };
    write_foreign(View::new(&*model.reader), (&args.model, &model.name), &goal, integrity, context)
}

/// Where a conversion goes.
struct Goal<'a> {
    write: &'a WriteArgs,
    target: &'a PlanOptions,
    wanted: Wanted<'a>,
}

/// Writes a format other than `.apr`, under the names and in the layout that it has there.
fn write_foreign(
    mut reader: View<'_>,
    (path, name): (&Path, &str),
    goal: &Goal<'_>,
    validation: ValidationConfig,
    context: &Context,
) -> Outcome {
    let Goal { write: args, target, wanted } = *goal;
    let (families, architecture) = (context.families()?, context.architecture()?);
    let to_llama = target.format.convention == Convention::LlamaCpp;
    if to_llama && reader.format().convention == Convention::LlamaCpp && wanted.scheme.is_some() {
        // The file is then the one that llama-quantize writes.
        reader.sort_by_key(place);
    }
    let called = called(path).filter(|_| to_llama && reader.metadata().get(NAME).is_none());
    let is_lent = called.is_some();
    called.into_iter().for_each(|called| reader.metadata_mut().set(NAME, called));
    let Foreign { mut prepared, dtypes, losses } =
        restore(&reader, families, &architecture, target.format, validation)?;
    if is_lent {
        // The model itself has no name that could get lost.
        prepared.view.metadata_mut().remove(NAME);
    }
    if to_llama && wanted.scheme.is_some() {
        // llama-quantize writes what ggml made of the shapes.
        prepared.view.drop_outer_ones();
    }
    let options = wanted.apply(&mut prepared.view, dtypes, target.format, context)?;
    let job = |prepared, losses, options| Job { prepared, name, args, target, losses, options, changes: Vec::new() };
    let stays_quantized = options.dequantize.is_none() && wanted.scheme.is_none();
    if target.target()?.quantized == QuantizedTypes::Unpacked && stays_quantized && Unpacked::is_needed(&prepared.view)
    {
        let Prepared { view, family, misfits, warnings, .. } = prepared;
        let unpacked = Unpacked::new(&view)?;
        let integrity = ValidationConfig { stop: validation.stop, ..ValidationConfig::integrity() };
        let validator = InlineValidator::new(integrity);
        let prepared = Prepared { view: View::new(&unpacked), validator, family, misfits, warnings };
        if !target.folder {
            let message = "safetensors has no quantized types: the integers and scales that stand for them are described in \
                           a scales.json, which needs a folder; --dequantize f16 writes floats";
            return Err(Failure::Usage(message.to_owned()));
        }
        context.printer.warn(
            "quantized tensors are written as integers with scales, which scales.json describes; \
             --dequantize f16 writes floats that libraries use as they are",
        );
        // Not the name under which libraries look for weights that they can use as they are.
        let target = &PlanOptions { file_name: "weights.safetensors".to_owned(), ..target.clone() };
        return write(Job { prepared, name, args, target, losses, options, changes: Vec::new() }, context);
    }
    write(job(prepared, losses, options), context)
}

/// What people call the model at a path: the name of its folder, or of its file where that says something.
fn called(path: &Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    let stem =
        path.file_stem().filter(|stem| !path.is_dir() && !["model", "pytorch_model"].iter().any(|usual| stem == usual));
    let folder = if path.is_dir() { Some(path.as_path()) } else { path.parent() };
    let name = stem.or_else(|| folder?.file_name())?;
    name.to_str().map(str::to_owned)
}

/// Options about the file, where its format has a say.
fn layout(target: PlanOptions, align: Option<u32>, shard_size: Option<u64>) -> Outcome<PlanOptions> {
    let target = PlanOptions { shard_size, alignment: align, ..target };
    target.check().map_err(|error| Failure::Usage(error.message().to_owned()))?;
    Ok(target)
}

/// Options that only the native container has.
fn contain(mut target: PlanOptions, args: &ContainerArgs, context: &Context) -> Outcome<PlanOptions> {
    if !target.target()?.seals {
        return match args.is_wanted() {
            true => Err(Failure::Usage("--compress, --encrypt, --recipient and --sign are for .apr output".to_owned())),
            false => Ok(target),
        };
    }
    target.apr2.compression = args.compress.and_then(|Compress(choice)| choice);
    target.apr2.encryption = secrets::encryption(args.encrypt, &args.recipient, args.encrypt_metadata, context)?;
    target.apr2.signers = args.sign.iter().map(|path| secrets::read_signing(path)).collect::<Outcome<_>>()?;
    Ok(target)
}

/// Says when a conversion takes the encryption away.
fn warn_if_opened(reader: &dyn CheckpointReader, target: &PlanOptions, context: &Context) {
    if model::is_encrypted(reader) && target.apr2.encryption.is_none() {
        context.printer.warn("the source is encrypted, and the output is not");
    }
}

fn with_compression(options: ConvertOptions, args: &WriteArgs) -> ConvertOptions {
    ConvertOptions { decompress: args.container.compress == Some(Compress(None)), ..options }
}

fn wanted<'a>(args: &'a RequantizeArgs, write: &WriteArgs) -> Wanted<'a> {
    Wanted {
        scheme: args.quantize,
        dequantize: args.dequantize.map(Dequantized::dtype),
        precision: write.precision.map(Precision::dtype),
        options: &args.options,
    }
}

fn select<'a>(reader: &'a dyn CheckpointReader, prefix: Option<&str>) -> Outcome<View<'a>> {
    let mut view = View::new(reader);
    if let Some(prefix) = prefix {
        view.select(prefix)?;
    }
    Ok(view)
}

fn validation(args: &WriteArgs) -> ValidationConfig {
    if args.relaxed || args.force { ValidationConfig::relaxed() } else { ValidationConfig::strict() }
}

/// A model for an `.apr` file.
fn prepared<'a>(
    reader: &'a dyn CheckpointReader,
    validation: ValidationConfig,
    license: Option<String>,
    context: &Context,
) -> Outcome<Prepared<'a>> {
    let options = ImportOptions { architecture: context.architecture()?, validation, license };
    Ok(prepare(reader, context.families()?, &options)?)
}

/// Compares the digest of the weights' file, read as a whole, with the one that was promised.
fn check_sha256(path: &Path, model: &Model, expected: &Sha256, context: &Context) -> Outcome {
    let file = match model.reader.files() {
        _ if model.spool().is_some() => model.spool().unwrap_or(path).to_path_buf(),
        [_] if !path.is_dir() => path.to_path_buf(),
        [file] => path.join(&file.name),
        files => {
            let message = format!("--sha256 is the digest of one file; the model has {}", files.len());
            return Err(Failure::Usage(message));
        }
    };
    signals::stop_cleanly(&context.interrupt)?;
    let (source, _spool) = model::open_bytes(&file, context)?;
    let found = sha256(&source, &context.pipeline()?, &Bar::new(&context.printer, source.len()))?;
    if found == *expected {
        return Ok(());
    }
    let (found, expected) = (hex(&found), hex(expected));
    Err(Error::checksum(format!("its SHA-256 is {found}, not {expected}")).in_file(file.display()).into())
}

fn record_sha256(view: &mut View<'_>, digest: &Sha256) {
    let metadata = view.metadata_mut();
    let mut source = metadata.object(keys::SOURCE).cloned().unwrap_or_default();
    source.insert("sha256".to_owned(), hex(digest).into());
    metadata.set(keys::SOURCE, source);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The format asked for, or the one that the output's extension stands for, or safetensors.
fn export_format(args: &ExportArgs) -> Outcome<&'static Format> {
    let output = args.write.output.as_deref().filter(|path| !Output::is_stdout(path) && !path.is_dir());
    let extension = output.and_then(Path::extension).and_then(|text| text.to_str());
    match (args.format, extension.map(target_by_extension)) {
        (Some(format), _) | (None, Some(Some(format))) => Ok(format),
        (None, None) => Ok(&apr::safetensors::FORMAT),
        (None, Some(None)) => {
            let message = "the output's extension names no format that is written; --format says which is meant";
            Err(Failure::Usage(message.to_owned()))
        }
    }
}

fn format_of(path: &Path) -> Option<&'static Format> {
    target_by_extension(path.extension()?.to_str()?)
}

/// The format asked for, or the one that the output's extension stands for.
pub(super) fn target_format(asked: Option<&'static Format>, output: Option<&Path>) -> Outcome<&'static Format> {
    let extension = output.and_then(Path::extension).and_then(|text| text.to_str());
    asked.or_else(|| target_by_extension(extension?)).ok_or_else(|| {
        let mut options: Vec<&str> = targets().filter_map(|format| format.option).collect();
        options.sort_unstable();
        Failure::Usage(format!("the output's extension names no format; say --format {}", options.join(", ")))
    })
}
