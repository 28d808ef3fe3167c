//! `apr lora`: adapters of what a model learnt.

use std::io::{self, Write};
use std::path::Path;

use apr::job::Output;
use apr_core::counted;
use apr_lora::{PortedAdapter, SecondMatrices};
use apr_lowrank::{ExtractReport, ExtractedTensor, Extraction, extract};
use apr_ops::import::{Foreign, restore};
use apr_ops::inline::ValidationConfig;
use apr_ops::job::Job;
use apr_registry::{
    CheckpointReader, Convention, DType, Error, Escaped, PlanOptions, gguf, safetensors,
};
use apr_view::{Checked, Verified, parse_filter};

use super::convert::{self, Destination, Extras, Subject};
use super::lowrank::{FactorFile, render_left, unsuited};
use crate::args::{ConvertAdapterArgs, ExtractArgs, LoraAction};
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::printer::DIM;
use crate::progress::Bar;
use crate::{model, signals};

/// Name under which peft looks for an adapter's weights.
const WEIGHTS: &str = "adapter_model.safetensors";

/// Layers with the largest errors that are shown.
const SHOWN: usize = 10;

/// Runs the requested action.
pub(super) fn run(action: &LoraAction, context: &Context) -> Outcome {
    match action {
        LoraAction::Extract(args) => extracted(args, context),
        LoraAction::Convert(args) => converted(args, context),
    }
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
    extraction.precision = precision(args)?;
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

fn precision(args: &ExtractArgs) -> Outcome<Option<DType>> {
    let dtype = args.precision.map(crate::args::Precision::dtype);
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

fn folder(output: &Path) -> Outcome<PlanOptions> {
    if Output::is_stream_at(output) || output.is_file() {
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
    let mut worst: Vec<&ExtractedTensor> = report.tensors.iter().collect();
    worst.sort_by(|a, b| b.relative_error.total_cmp(&a.relative_error));
    writeln!(out, "  {DIM}largest errors:{DIM:#}")?;
    for tensor in worst.into_iter().take(SHOWN) {
        writeln!(
            out,
            "    {:>7.2}%  energy {:>6.2} %  rank {}  changed by {:.2} %  {}",
            100.0 * tensor.relative_error,
            100.0 * tensor.energy,
            tensor.rank,
            100.0 * tensor.change,
            Escaped::short(&tensor.name)
        )?;
    }
    if !report.saved.is_empty() {
        let saved = report.saved.join(", ");
        writeln!(out, "  saved whole: {}", Escaped(&saved))?;
    }
    render_left(out, "not in the adapter", &report.left)
}
