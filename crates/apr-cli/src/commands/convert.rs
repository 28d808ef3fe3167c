//! `apr import`, `apr convert`, `apr export`: one engine, three ways to say what is wanted.

use std::io::{self, Write};
use std::path::Path;

use apr::{ByteSource, CheckpointReader, Error, Escaped, Loss, PlanOptions, TargetFormat, keys};
use apr_ops::convert::{ConvertError, ConvertOptions, ConvertReport, plan};
use apr_ops::import::{FamilyNote, ImportOptions, Prepared, prepare, restore};
use apr_ops::inline::{ValidationConfig, ValidationError};
use apr_ops::physics::Level;
use apr_ops::view::View;
use apr_ops::{counted, sha256};
use serde::Serialize;

use super::analyze;
use crate::args::{ConvertArgs, ExportArgs, ImportArgs, ModelFormat, Precision, Sha256, WriteArgs};
use crate::context::Context;
use crate::failure::Failure;
use crate::model::Model;
use crate::output::Output;
use crate::printer::{BAD, BOLD, DIM, GOOD, ODD};
use crate::progress::Bar;
use crate::{Outcome, human, model, signals};

/// Losses shown before the rest is only counted.
const SHOWN: usize = 20;

/// Packs a model and its companions into an `.apr` file.
pub(super) fn import(args: &ImportArgs, context: &Context) -> Outcome {
    let model = model::open_with_companions(&args.source, context)?;
    if let Some(expected) = args.from.filter(|from| from.id() != model.reader.format()) {
        let message = format!("this is {}, not {}", model.reader.format().name(), expected.id().name());
        return Err(Error::format(message).in_file(&model.name).into());
    }
    if let Some(expected) = &args.sha256 {
        check_sha256(&args.source, &model, expected, context)?;
    }
    let selected = select(&*model.reader, args.prefix.as_deref())?;
    let output = args.write.output.as_deref();
    let foreign = |extension: &&str| *extension != "apr" && by_extension(extension).is_some();
    if let Some(extension) = output.and_then(Path::extension).and_then(|text| text.to_str()).filter(foreign) {
        let message = format!("import writes .apr files; `apr convert` writes .{extension}");
        return Err(Failure::Usage(message));
    }
    let target = Output::plan_options(TargetFormat::Apr2, output);
    let target = PlanOptions { align_32: args.align.as_deref() == Some("32"), ..target };
    let mut prepared = prepared(&selected, &args.write, args.license.clone(), context)?;
    if let Some(digest) = &args.sha256 {
        record_sha256(&mut prepared.view, digest);
    }
    write(Job { prepared, name: &model.name, args: &args.write, target: &target }, context)
}

/// Converts between formats.
pub(super) fn convert(args: &ConvertArgs, context: &Context) -> Outcome {
    if args.analyze_source {
        let model = model::open_with_companions(&args.model, context)?;
        return analyze::run(&select(&*model.reader, args.prefix.as_deref())?, &model.name, context);
    }
    let model = model::open(&args.model, context)?;
    let selected = select(&*model.reader, args.prefix.as_deref())?;
    let format = target_format(args)?;
    let target = Output::plan_options(format, args.write.output.as_deref());
    if format != TargetFormat::Apr2 && args.align.is_some() {
        return Err(Failure::Usage("--align works for .apr output only".to_owned()));
    }
    let align_32 = args.align.as_deref() == Some("32");
    let target = PlanOptions { align_32, shard_size: args.shard_size, ..target };
    let prepared = match format {
        TargetFormat::Apr2 => prepared(&selected, &args.write, None, context)?,
        _ => restored(&selected, format, validation(&args.write), context)?,
    };
    write(Job { prepared, name: &model.name, args: &args.write, target: &target }, context)
}

/// Writes another format.
pub(super) fn export(args: &ExportArgs, context: &Context) -> Outcome {
    let model = model::open(&args.model, context)?;
    let format = export_format(args)?;
    let target = Output::plan_options(format, args.write.output.as_deref());
    let target = PlanOptions { shard_size: args.shard_size, ..target };
    // What went through an import was judged there; an export gives back what is in the file.
    let stop = validation(&args.write).stop;
    let integrity = ValidationConfig { stop, ..ValidationConfig::integrity() };
    let prepared = restored(&*model.reader, format, integrity, context)?;
    write(Job { prepared, name: &model.name, args: &args.write, target: &target }, context)
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
    args: &WriteArgs,
    license: Option<String>,
    context: &Context,
) -> Outcome<Prepared<'a>> {
    let options = ImportOptions { architecture: context.architecture()?, validation: validation(args), license };
    Ok(prepare(reader, context.families()?, &options)?)
}

/// A model for another format, under the names that it has there.
fn restored<'a>(
    reader: &'a dyn CheckpointReader,
    format: TargetFormat,
    validation: ValidationConfig,
    context: &Context,
) -> Outcome<Prepared<'a>> {
    Ok(restore(reader, context.families()?, &context.architecture()?, format, validation)?)
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
fn export_format(args: &ExportArgs) -> Outcome<TargetFormat> {
    let output = args.write.output.as_deref().filter(|path| !Output::is_stdout(path) && !path.is_dir());
    let extension = output.and_then(Path::extension).and_then(|text| text.to_str());
    match (args.format, extension.map(by_extension)) {
        (Some(format), _) | (None, Some(Some(format))) => Ok(format.target()),
        (None, None) => Ok(TargetFormat::Safetensors),
        (None, Some(None)) => {
            let message = "the output's extension names no format that is written; --format says which is meant";
            Err(Failure::Usage(message.to_owned()))
        }
    }
}

fn by_extension(extension: &str) -> Option<ModelFormat> {
    match extension {
        "apr" => Some(ModelFormat::Apr),
        "safetensors" => Some(ModelFormat::Safetensors),
        "pt" | "pth" | "bin" => Some(ModelFormat::Pytorch),
        _ => None,
    }
}

/// The format asked for, or the one that the output's extension stands for.
fn target_format(args: &ConvertArgs) -> Outcome<TargetFormat> {
    let extension = args.write.output.as_ref().and_then(|path| path.extension()).and_then(|text| text.to_str());
    let format = args.format.or_else(|| by_extension(extension?)).ok_or_else(|| {
        let message = "the output's extension names no format; say --format apr, pytorch or safetensors";
        Failure::Usage(message.to_owned())
    });
    Ok(format?.target())
}

/// What is to be written.
struct Job<'a> {
    prepared: Prepared<'a>,
    /// The source, as the user wrote it.
    name: &'a str,
    args: &'a WriteArgs,
    target: &'a PlanOptions,
}

fn write(job: Job<'_>, context: &Context) -> Outcome {
    let Job { prepared, name, args, target } = job;
    let options = ConvertOptions { precision: args.precision.map(Precision::dtype) };
    if target.shard_size.is_some() && target.format != TargetFormat::Safetensors {
        return Err(Failure::Usage("--shard-size works for safetensors output only in this version".to_owned()));
    }
    let Prepared { view, validator, family, misfits, warnings } = prepared;
    if validator.config().stop && !misfits.is_empty() && !args.dry_run {
        let family = family.map(|family| family.title);
        return Err(Failure::Misfit { file: name.to_owned(), family, misfits });
    }
    let conversion = plan(&view, &options, target)?.validated_by(validator);
    let found = conversion.report().warnings.iter().chain(&warnings);
    found.for_each(|warning| context.printer.warn(warning));
    misfits.iter().take(SHOWN).for_each(|misfit| context.printer.warn(&misfit.to_string()));
    if misfits.len() > SHOWN {
        context.printer.warn(&format!("and {} more; --json lists them all", misfits.len() - SHOWN));
    }
    let Some(path) = args.output.as_ref().filter(|_| !args.dry_run) else {
        return context.printer.report(conversion.report(), render_plan);
    };

    signals::stop_cleanly(&context.interrupt)?;
    let mut output = Output::create(path, target, &conversion.report().files, args.force)?;
    let aside = output.is_stream();
    let bar = Bar::new(&context.printer, conversion.report().bytes_in);
    let report = conversion.run(&view, output.sink(), &context.pipeline()?, &bar);
    let report = report.map_err(|error| match error {
        ConvertError::Model(error) => error.into(),
        ConvertError::Invalid(error) => Failure::Unhealthy { file: name.to_owned(), error: Box::new(error) },
    })?;
    output.commit()?;
    let seconds = bar.elapsed().as_secs_f64();
    drop(bar);

    context.printer.detail(&format!(
        "wrote {} in {seconds:.3} s, {:.2} GB/s",
        human::bytes(report.bytes_out),
        report.bytes_out as f64 / seconds / 1e9
    ));
    let report = WriteReport { family, misfits, conversion: report };
    let summary = |out: &mut dyn Write, report: &WriteReport| {
        let target = path.display().to_string();
        writeln!(out, "{BOLD}{}{BOLD:#} -> {BOLD}{}{BOLD:#}", Escaped(name), Escaped(&target))?;
        render(out, &report.conversion)?;
        render_family(out, report)?;
        render_validation(out, report)
    };
    if aside { context.printer.report_aside(&report, summary) } else { context.printer.report(&report, summary) }
}

/// What was written, and as what.
#[derive(Serialize)]
struct WriteReport {
    #[serde(flatten)]
    conversion: ConvertReport,
    family: Option<FamilyNote>,
    misfits: Vec<ValidationError>,
}

fn render_family(out: &mut dyn Write, report: &WriteReport) -> io::Result<()> {
    let Some(family) = &report.family else {
        // What an export writes was judged when it came in.
        let judged = report.conversion.validation.is_some();
        return if judged {
            writeln!(out, "  unknown family, names as they are (--arch NAME gives one)")
        } else {
            Ok(())
        };
    };
    let renamed = match family.renamed {
        0 => "names as they are".to_owned(),
        renamed => format!("{} renamed", counted(renamed as u64, "tensor")),
    };
    let guessed = if family.guessed { " (by its names)" } else { "" };
    writeln!(out, "  {} family{guessed}, {renamed}", Escaped(&family.title))
}

fn render_validation(out: &mut dyn Write, report: &WriteReport) -> io::Result<()> {
    let Some(validation) = &report.conversion.validation else { return Ok(()) };
    let checked = counted(validation.checked as u64, "tensor");
    let errors = validation.errors.len() + report.misfits.len();
    let (style, verdict) = match (errors, validation.warnings.len()) {
        (0, 0) if report.family.is_none() => {
            (GOOD, format!("{checked} without NaN or infinity; shapes were not checked"))
        }
        (0, 0) => (GOOD, format!("{checked} healthy")),
        (0, odd) => (ODD, format!("{checked} checked, {odd} odd")),
        (bad, odd) => (BAD, format!("{checked} checked, {bad} bad, {odd} odd")),
    };
    writeln!(out, "  {style}{verdict}{style:#}")?;
    let named = validation.errors.iter().map(|error| (BAD, error)).chain(validation.warnings.iter().map(|e| (ODD, e)));
    for (style, error) in named.take(SHOWN) {
        let word = if error.level == Level::Error { "bad" } else { "odd" };
        writeln!(out, "  {style}{word}{style:#}: {error}")?;
    }
    let total = validation.errors.len() + validation.warnings.len();
    if total > SHOWN {
        writeln!(out, "  {DIM}and {} more; --json lists them all{DIM:#}", total - SHOWN)?;
    }
    Ok(())
}

fn render(out: &mut dyn Write, report: &ConvertReport) -> io::Result<()> {
    let mut tensors = counted((report.tensors.len() + report.tied) as u64, "tensor");
    if report.tied > 0 {
        tensors.push_str(&format!(" ({} tied)", report.tied));
    }
    let (before, after) = (human::bytes(report.bytes_in), human::bytes(report.bytes_out));
    let files = match report.files.len() {
        1 => String::new(),
        many => format!(" in {many} files"),
    };
    writeln!(out, "  {tensors}, {before} of weights, {after} written{files}")?;
    render_casts(out, report)?;
    render_losses(out, report)
}

/// Losses that only differ in their name share a paragraph.
fn render_losses(out: &mut dyn Write, report: &ConvertReport) -> io::Result<()> {
    let alike = |a: &Loss, b: &Loss| (&a.what, &a.why) == (&b.what, &b.why);
    for group in report.losses.chunk_by(alike).take(SHOWN) {
        let names: Vec<String> = group.iter().take(SHOWN).map(|loss| Escaped::short(&loss.name).to_string()).collect();
        let more = if group.len() > SHOWN { format!(" and {} more", group.len() - SHOWN) } else { String::new() };
        let (what, why) = (Escaped(&group[0].what), Escaped(&group[0].why));
        writeln!(out, "  {ODD}not kept{ODD:#}: {}{more} ({what}): {why}", names.join(", "))?;
    }
    Ok(())
}

fn render_casts(out: &mut dyn Write, report: &ConvertReport) -> io::Result<()> {
    let cast: Vec<_> = report.tensors.iter().filter(|tensor| tensor.from != tensor.to).collect();
    let Some(first) = cast.first() else { return Ok(()) };
    let rounding = report.rounding;
    writeln!(
        out,
        "  {} cast to {}: {} rounded, {} became zero, {} became infinite",
        counted(cast.len() as u64, "tensor"),
        first.to,
        counted(rounding.inexact, "value"),
        human::count(rounding.flushed),
        human::count(rounding.overflowed)
    )
}

fn render_plan(out: &mut dyn Write, report: &ConvertReport) -> io::Result<()> {
    let names: Vec<String> = report.tensors.iter().map(|tensor| Escaped(&tensor.name).to_string()).collect();
    let width = names.iter().map(|name| name.chars().count()).chain([6]).max().unwrap_or_default();
    writeln!(out, "{BOLD}{:<width$}  {:<8}  {:<8}  {:>10}  {:>10}{BOLD:#}", "Tensor", "From", "To", "Before", "After")?;
    for (tensor, name) in report.tensors.iter().zip(&names) {
        let (before, after) = (human::bytes(tensor.bytes_before), human::bytes(tensor.bytes_after));
        writeln!(out, "{name:<width$}  {:<8}  {:<8}  {before:>10}  {after:>10}", tensor.from, tensor.to)?;
    }
    for file in &report.files {
        writeln!(out, "{DIM}would write {}: {}{DIM:#}", Escaped(&file.name), human::bytes(file.len))?;
    }
    render_losses(out, report)
}
