//! `apr lora`: adapters of what a model learnt.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use apr::job::Output;
use apr_core::counted;
use apr_lora::{
    Adapter, Combination, CombineReport, MajoritySign, PortedAdapter, SecondMatrices, combine,
};
use apr_lowrank::{ExtractReport, ExtractedTensor, Extraction, extract};
use apr_ops::import::{Foreign, restore};
use apr_ops::inline::ValidationConfig;
use apr_ops::job::Job;
use apr_registry::{
    CheckpointReader, Convention, DType, Error, Escaped, PlanOptions, gguf, safetensors,
};
use apr_source::adapter::ADAPTER_CONFIG;
use apr_view::{Checked, Verified, parse_filter};

use super::convert::{self, Destination, Extras, Subject};
use super::lowrank::{FactorFile, render_left, unsuited};
use super::merge::{open_adapter, render_adapter};
use crate::args::{
    ConvertAdapterArgs, ExtractArgs, LoraAction, MergeAdaptersArgs, Precision, ResizeAdapterArgs,
    WriteAdapterArgs,
};
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::model::Model;
use crate::printer::DIM;
use crate::progress::Bar;
use crate::{model, signals};

/// Name under which peft looks for an adapter's weights.
const WEIGHTS: &str = "adapter_model.safetensors";

/// Name of an adapter of image models without an output, for `--dry-run`.
const FILE: &str = "adapter.safetensors";

/// Layers with the largest errors that are shown.
const SHOWN: usize = 10;

/// Runs the requested action.
pub(super) fn run(action: &LoraAction, context: &Context) -> Outcome {
    match action {
        LoraAction::Extract(args) => extracted(args, context),
        LoraAction::Convert(args) => converted(args, context),
        LoraAction::Merge(args) => merged(args, context),
        LoraAction::Resize(args) => resized(args, context),
    }
}

/// Merges adapters into one.
fn merged(args: &MergeAdaptersArgs, context: &Context) -> Outcome {
    let method = args.method.unwrap_or_default();
    let name = method.name();
    for (option, is_given, is_used) in [
        ("--density", args.density.is_some(), method.takes_density()),
        ("--majority-sign", args.majority_sign.is_some(), method.elects_signs()),
        ("--seed", args.seed.is_some(), method.is_random()),
    ] {
        if is_given && !is_used {
            return Err(Failure::Usage(format!("{option} has no effect on the method {name}")));
        }
    }
    if method.takes_density() && args.density.is_none() {
        let message = format!("the method {name} needs --density D, the share of elements to keep");
        return Err(Failure::Usage(message));
    }
    let mut combination = Combination::default();
    combination.method = method;
    combination.amount = args.amount();
    combination.density = args.density.unwrap_or(1.0);
    combination.majority = args.majority_sign.map(MajoritySign::from).unwrap_or_default();
    combination.seed = args.seed.unwrap_or_default();
    write_combined(&args.adapters, &args.write, combination, context)
}

/// Lowers the rank of an adapter.
fn resized(args: &ResizeAdapterArgs, context: &Context) -> Outcome {
    let mut combination = Combination::default();
    combination.amount = args.amount();
    write_combined(&[(args.adapter.clone(), 1.0)], &args.write, combination, context)
}

/// Combines adapters and writes the result in the form of the first one.
fn write_combined(
    adapters: &[(PathBuf, f64)],
    args: &WriteAdapterArgs,
    mut combination: Combination,
    context: &Context,
) -> Outcome {
    combination.precision = precision(args.precision)?;
    combination.memory = context.max_memory();
    combination.threads = context.threads().get();

    let models: Vec<Model> =
        adapters.iter().map(|(path, _)| open_adapter(path, context)).collect::<Outcome<_>>()?;
    // The matrices are computed and carry no checksum of what they were.
    let checked: Vec<Checked> = models.iter().map(|_| Checked::default()).collect();
    let opened: Vec<Adapter<'_>> = models
        .iter()
        .zip(&checked)
        .zip(adapters)
        .map(|((model, checked), (_, weight))| Adapter {
            name: model.name.clone(),
            reader: Arc::new(Verified::new(&*model.reader, checked)),
            weight: *weight,
        })
        .collect();

    let first = &models[0];
    let target = match first.reader.companions().iter().any(|file| file.name == ADAPTER_CONFIG) {
        true => folder(args.output.as_deref().unwrap_or(Path::new("adapter")))?,
        false => file(args.output.as_deref().unwrap_or(Path::new(FILE)))?,
    };
    signals::stop_cleanly(&context.interrupt)?;
    let bytes = models.iter().flat_map(|model| model.reader.tensors());
    let bytes = bytes.map(|info| info.byte_len().unwrap_or_default());
    let bar = Bar::new(&context.printer, bytes.fold(0, u64::saturating_add));
    let store = Box::new(FactorFile::create()?);
    let made = combine(&opened, &combination, store, &context.pipeline()?, &bar);
    let (adapter, report) = made.map_err(Failure::Model)?;
    drop(bar);

    let mut job = Job::copy(target);
    job.weights.warnings.extend(report.warnings.iter().cloned());
    let notes: Vec<String> = models.iter().flat_map(|model| model.notes.clone()).collect();
    let subject = Subject { reader: &adapter, name: &first.name, notes: &notes };
    let to = Destination {
        output: args.output.as_deref(),
        replace: args.overwrite,
        dry_run: args.dry_run,
        canary: None,
        despite_gates: false,
    };
    let extras = Extras { combined: Some(report), ..Extras::default() };
    convert::write_subject(&job, subject, to, extras, context)
}

/// Converts an adapter to the other form.
fn converted(args: &ConvertAdapterArgs, context: &Context) -> Outcome {
    let is_gguf = args.output.extension().is_some_and(|extension| extension == "gguf");
    let target = match is_gguf {
        true => convert::layout(Output::layout(&gguf::FORMAT, Some(&args.output)), None, None)?,
        false => folder(&args.output)?,
    };
    context.sources.expect_whole();
    let adapter = model::open_with_companions(&args.adapter, context)?;
    let base = model::open_with_companions(&args.base, context)?;
    let is_of_llama_cpp = adapter.reader.format().convention == Convention::LlamaCpp;
    if is_of_llama_cpp == is_gguf {
        let form = if is_gguf { "a GGUF file" } else { "a folder" };
        return Err(Failure::Usage(format!("the adapter is {form} already")));
    }
    let source = context.source(&*base.reader, &base.name)?;
    let convention = if is_gguf { &safetensors::FORMAT } else { &gguf::FORMAT };
    let foreign =
        restore(&source, convention, ValidationConfig::integrity())?.stating_configuration();
    let named = |error: Error| Failure::from(error.in_file(&adapter.name));
    let second = SecondMatrices::of(&*adapter.reader, &foreign.prepared.view).map_err(named)?;
    let source = source.through(second.reader());
    let ported = match is_gguf {
        true => PortedAdapter::for_llama_cpp(&second, &source),
        false => PortedAdapter::for_peft(&second, &source),
    };
    let ported = ported.map_err(named)?;

    let job = Job::copy(target);
    let notes: Vec<String> = adapter.notes.iter().chain(&base.notes).cloned().collect();
    let subject = Subject { reader: &ported, name: &adapter.name, notes: &notes };
    let to = Destination {
        output: Some(&args.output),
        replace: args.overwrite,
        dry_run: false,
        canary: None,
        despite_gates: false,
    };
    convert::write_subject(&job, subject, to, Extras::default(), context)
}

/// Extracts an adapter.
fn extracted(args: &ExtractArgs, context: &Context) -> Outcome {
    let mut extraction = Extraction::new(args.amount(), base_name(args));
    extraction.targets = args.target.as_deref().map(parse_filter).transpose().map_err(unsuited)?;
    extraction.save_others = args.save_others;
    extraction.precision = precision(args.precision)?;
    extraction.memory = context.max_memory();
    extraction.threads = context.threads().get();
    let target = target(args)?;

    context.sources.expect_whole();
    let [tuned, base] = [&args.model, &args.base];
    let tuned = model::open_with_companions(tuned, context)?;
    let base = model::open_with_companions(base, context)?;
    // The factors are computed from the weights and carry no checksum of them.
    let checked = [Checked::default(), Checked::default()];
    let verified =
        [Verified::new(&*tuned.reader, &checked[0]), Verified::new(&*base.reader, &checked[1])];
    let sources =
        [context.source(&verified[0], &tuned.name)?, context.source(&verified[1], &base.name)?];
    // Under the names of the library that loads adapters, whatever the models' formats.
    let [Foreign { prepared: of_tuned, .. }, Foreign { prepared: of_base, .. }] = [
        restore(&sources[0], &safetensors::FORMAT, ValidationConfig::integrity())?,
        restore(&sources[1], &safetensors::FORMAT, ValidationConfig::integrity())?,
    ];
    let source = sources[0].through(&of_tuned.view);
    let source_of_base = sources[1].through(&of_base.view);

    signals::stop_cleanly(&context.interrupt)?;
    let bytes = of_tuned.view.tensors().iter().map(|info| info.byte_len().unwrap_or_default());
    let bar = Bar::new(&context.printer, bytes.fold(0, u64::saturating_add));
    let store = Box::new(FactorFile::create()?);
    let pipeline = context.pipeline()?;
    let made = extract(&source, &source_of_base, &extraction, store, &pipeline, &bar);
    let (adapter, report) = made.map_err(|error| match error.tensor() {
        Some(_) => Failure::Model(error.in_file(&tuned.name)),
        None => unsuited(error),
    })?;
    drop(bar);

    let job = Job::copy(target);
    let notes: Vec<String> = tuned.notes.iter().chain(&base.notes).cloned().collect();
    let subject = Subject { reader: &adapter, name: &tuned.name, notes: &notes };
    let to = Destination {
        output: args.output.as_deref(),
        replace: args.overwrite,
        dry_run: args.dry_run,
        canary: None,
        despite_gates: false,
    };
    let extras = Extras { extracted: Some(report), ..Extras::default() };
    convert::write_subject(&job, subject, to, extras, context)
}

/// Returns the name of the base model: the repository, if it is a location on a hub.
fn base_name(args: &ExtractArgs) -> String {
    let given = args.base_name.clone();
    given.unwrap_or_else(|| {
        let path = args.base.display().to_string();
        path.strip_prefix("hf://").map(str::to_owned).unwrap_or(path)
    })
}

fn precision(precision: Option<Precision>) -> Outcome<Option<DType>> {
    let dtype = precision.map(Precision::dtype);
    match dtype {
        Some(DType::F8_E4M3 | DType::F8_E5M2) => {
            let message = "adapters have fp32, fp16 or bf16 matrices: choose one by --precision";
            Err(Failure::Usage(message.to_owned()))
        }
        dtype => Ok(dtype),
    }
}

/// A folder with weights under the name that peft expects.
fn target(args: &ExtractArgs) -> Outcome<PlanOptions> {
    folder(args.output.as_deref().unwrap_or(Path::new("adapter")))
}

/// A file, as programs for image models have adapters.
fn file(output: &Path) -> Outcome<PlanOptions> {
    if !is_named_as_file(output) && !Output::is_stream_at(output) {
        return Err(Failure::Usage(
            "an adapter of image models is a file: pass -o NAME.safetensors".to_owned(),
        ));
    }
    convert::layout(Output::layout(&safetensors::FORMAT, Some(output)), None, None)
}

fn is_named_as_file(output: &Path) -> bool {
    output.extension().is_some_and(|extension| extension == "safetensors")
}

fn folder(output: &Path) -> Outcome<PlanOptions> {
    if Output::is_stream_at(output) || output.is_file() || is_named_as_file(output) {
        return Err(Failure::Usage("an adapter is a folder: pass -o DIR".to_owned()));
    }
    let target = PlanOptions::new(&safetensors::FORMAT, WEIGHTS);
    Ok(PlanOptions { folder: true, ..target })
}

/// Renders the content of an extracted adapter in words.
pub(super) fn render(out: &mut dyn Write, report: &ExtractReport) -> io::Result<()> {
    writeln!(
        out,
        "  {} of {} ({} unchanged), relative error of their differences {:.2} %",
        counted(report.tensors.len() as u64, "layer"),
        Escaped(&report.base),
        counted(report.unchanged as u64, "tensor"),
        100.0 * report.relative_error
    )?;
    let rows = report.tensors.iter().map(|tensor| {
        let ExtractedTensor { name, rank, change, energy, relative_error, .. } = tensor;
        let (energy, change) = (100.0 * energy, 100.0 * change);
        let detail = format!("energy {energy:>6.2} %  rank {rank}  changed by {change:.2} %");
        (*relative_error, detail, name.as_str())
    });
    render_worst(out, rows.collect())?;
    if !report.saved.is_empty() {
        let saved = report.saved.join(", ");
        writeln!(out, "  saved whole: {}", Escaped(&saved))?;
    }
    render_left(out, "not in the adapter", &report.left)
}

/// Renders the content of an adapter that was made from others in words.
pub(super) fn render_combined(out: &mut dyn Write, report: &CombineReport) -> io::Result<()> {
    report.adapters.iter().try_for_each(|adapter| render_adapter(out, adapter))?;
    let ranks = report.modules.iter().map(|module| module.rank);
    let (least, most) = (ranks.clone().min().unwrap_or(0), ranks.max().unwrap_or(0));
    let ranks = if least == most { most.to_string() } else { format!("{least} to {most}") };
    let modules = counted(report.modules.len() as u64, "module");
    let method =
        if report.method == "cat" { String::new() } else { format!("{}: ", report.method) };
    write!(out, "  {method}{modules} of rank {ranks}")?;
    let Some(relative_error) = report.relative_error else { return writeln!(out) };
    writeln!(out, ", relative error of their changes {:.2} %", 100.0 * relative_error)?;
    let rows = report.modules.iter().map(|module| {
        let energy = 100.0 * module.energy.unwrap_or(1.0);
        let detail = format!("energy {energy:>6.2} %  rank {}", module.rank);
        (module.relative_error.unwrap_or_default(), detail, module.name.as_str())
    });
    render_worst(out, rows.collect())
}

/// Renders the rows with the largest errors, each with more about it and its name.
fn render_worst(out: &mut dyn Write, mut rows: Vec<(f64, String, &str)>) -> io::Result<()> {
    rows.sort_by(|a, b| b.0.total_cmp(&a.0));
    writeln!(out, "  {DIM}largest errors:{DIM:#}")?;
    for (error, detail, name) in rows.into_iter().take(SHOWN) {
        writeln!(out, "    {:>7.2}%  {detail}  {}", 100.0 * error, Escaped::short(name))?;
    }
    Ok(())
}
