//! `apr import`, `apr convert`, `apr export`: one engine, three ways to say what is wanted.

use std::io::{self, Write};

use apr::{Error, Escaped, Loss, PlanOptions, TargetFormat};
use apr_ops::convert::{ConvertOptions, ConvertReport, plan};
use apr_ops::counted;

use crate::args::{ConvertArgs, ExportArgs, ImportArgs, ModelFormat, Precision, WriteArgs};
use crate::context::Context;
use crate::failure::Failure;
use crate::model::Model;
use crate::output::Output;
use crate::printer::{BOLD, DIM, ODD};
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
    let target = Output::plan_options(TargetFormat::Apr2, args.write.output.as_deref());
    let target = PlanOptions { align_32: args.align.as_deref() == Some("32"), ..target };
    write(&model, &args.write, &target, context)
}

/// Converts between formats.
pub(super) fn convert(args: &ConvertArgs, context: &Context) -> Outcome {
    let model = model::open(&args.model, context)?;
    let format = target_format(args)?;
    let target = Output::plan_options(format, args.write.output.as_deref());
    if format != TargetFormat::Apr2 && args.align.is_some() {
        return Err(Failure::Usage("--align works for .apr output only".to_owned()));
    }
    let align_32 = args.align.as_deref() == Some("32");
    let target = PlanOptions { align_32, shard_size: args.shard_size, ..target };
    write(&model, &args.write, &target, context)
}

/// Writes another format.
pub(super) fn export(args: &ExportArgs, context: &Context) -> Outcome {
    let model = model::open(&args.model, context)?;
    let target = Output::plan_options(args.format.target(), args.write.output.as_deref());
    let target = PlanOptions { shard_size: args.shard_size, ..target };
    write(&model, &args.write, &target, context)
}

/// The format asked for, or the one that the output's extension stands for.
fn target_format(args: &ConvertArgs) -> Outcome<TargetFormat> {
    let extension = args.write.output.as_ref().and_then(|path| path.extension()).and_then(|text| text.to_str());
    let format = match (args.format, extension) {
        (Some(format), _) => format,
        (None, Some("apr")) => ModelFormat::Apr,
        (None, Some("safetensors")) => ModelFormat::Safetensors,
        (None, _) => {
            let message = "the output's extension names no format; say --format apr or --format safetensors";
            return Err(Failure::Usage(message.to_owned()));
        }
    };
    Ok(format.target())
}

fn write(model: &Model, args: &WriteArgs, target: &PlanOptions, context: &Context) -> Outcome {
    let options = ConvertOptions { precision: args.precision.map(Precision::dtype) };
    let reader = &*model.reader;
    if target.shard_size.is_some() && target.format == TargetFormat::Apr2 {
        return Err(Failure::Usage("--shard-size works for safetensors output only in this version".to_owned()));
    }
    let conversion = plan(reader, &options, target)?;
    conversion.report().warnings.iter().for_each(|warning| context.printer.warn(warning));
    let Some(path) = args.output.as_ref().filter(|_| !args.dry_run) else {
        return context.printer.report(conversion.report(), render_plan);
    };

    signals::stop_cleanly(&context.interrupt)?;
    let mut output = Output::create(path, target, &conversion.report().files, args.force)?;
    let aside = output.is_stream();
    let bar = Bar::new(&context.printer, conversion.report().bytes_in);
    let report = conversion.run(reader, output.sink(), &context.pipeline()?, &bar)?;
    output.commit()?;
    let seconds = bar.elapsed().as_secs_f64();
    drop(bar);

    context.printer.detail(&format!(
        "wrote {} in {seconds:.3} s, {:.2} GB/s",
        human::bytes(report.bytes_out),
        report.bytes_out as f64 / seconds / 1e9
    ));
    let summary = |out: &mut dyn Write, report: &ConvertReport| {
        let target = path.display().to_string();
        writeln!(out, "{BOLD}{}{BOLD:#} -> {BOLD}{}{BOLD:#}", Escaped(&model.name), Escaped(&target))?;
        render(out, report)
    };
    if aside { context.printer.report_aside(&report, summary) } else { context.printer.report(&report, summary) }
}

fn render(out: &mut dyn Write, report: &ConvertReport) -> io::Result<()> {
    let tensors = counted(report.tensors.len() as u64, "tensor");
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
