//! `apr quantize --search`: types of tensors by what they do to the outputs.

use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use apr::job::Output;
use apr_core::{QuantizedTypes, counted};
use apr_importance::{
    Budget, ChosenType, CurvePoint, SearchData, SearchGoal, SearchReport, Unchosen, search,
};
use apr_ops::inline::ValidationConfig;
use apr_ops::job::{Job, Weights, layout_of};
use apr_quality::{Sample, WindowOptions};
use apr_quantize::{Imatrix, Quantization, Scheme, Weighting};
use apr_registry::{DType, Error, Escaped, PlanOptions, safetensors};
use apr_run::Facts;
use tempfile::TempDir;

use super::run::{read_media, terse_host};
use super::running;
use super::temporary::temporary_folder;
use crate::args::SearchArgs;
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::model::{self, Model};
use crate::printer::{BOLD, DIM, GOOD, ODD};
use crate::progress::Bar;
use crate::text_file::read_text;
use crate::{human, signals};

/// Tensors that the data do not reach which are shown.
const SHOWN: usize = 8;
/// Default number of text windows or lines on which effects are measured.
const CHUNKS: usize = 40;

/// Chooses types for a model that a job is to write.
pub(super) fn found(
    args: &SearchArgs,
    data: &Path,
    model: &Model,
    job: &Job,
    output: Option<&Path>,
    context: &Context,
) -> Outcome<(Quantization, SearchReport)> {
    let layout = job.weights.layout(job.target.format);
    let budget = match (args.bits_per_weight, args.max_size) {
        (Some(bits), _) => Budget::BitsPerWeight(bits),
        (None, Some(bytes)) => Budget::Bytes(bytes),
        (None, None) => {
            let message = "--search takes a size: --bits-per-weight N or --max-size SIZE";
            return Err(Failure::Usage(message.to_owned()));
        }
    };
    let is_text = data.extension().is_some_and(|end| end.eq_ignore_ascii_case("txt"));
    let continues = is_text && running::generating(context).generates(&Facts::of(&*model.reader)?);
    check_idle(args, is_text, continues)?;
    signals::stop_cleanly(&context.interrupt)?;
    let unchosen = unchosen(job, model, data, context)?;
    let reference = Reference::of(model, job, output, context)?;
    let model = reference.model.as_ref().unwrap_or(model);
    let source = context.source(&*model.reader, &model.name)?;

    let chunks = args.chunks.map_or(CHUNKS, NonZeroUsize::get);
    let (text, samples);
    let used = if continues {
        text = read_text(data)?;
        let mut options = WindowOptions::default();
        options.context = args.context;
        options.chunks = Some(chunks);
        SearchData::Text { text: &text, options }
    } else if is_text {
        samples = lines(&read_text(data)?, chunks)?;
        SearchData::Samples(&samples)
    } else {
        let name = data.display().to_string();
        samples = vec![Sample::of_file(&name, read_media(data, context)?)?];
        SearchData::Samples(&samples)
    };
    let options = running::reading(context, 1);
    let mut bar = None;
    let mut done = |at: usize, all: usize| {
        let bar = bar.get_or_insert_with(|| Bar::counting(&context.printer, all as u64));
        bar.reached(at as u64);
    };
    let host = terse_host(context);
    let name = data.display().to_string();
    let goal = SearchGoal { dataset: &name, budget, unchosen, layout };
    let found = search(&source, used, goal, &options, &host, &mut done)?;
    Ok((found.quantization(&name), found.report))
}

/// Rejects options about windows if the data are not cut into windows.
fn check_idle(args: &SearchArgs, is_text: bool, continues: bool) -> Outcome {
    let idle = match (args.context, args.chunks) {
        (Some(_), _) if !continues => "--context",
        (_, Some(_)) if !is_text => "--chunks",
        _ => return Ok(()),
    };
    let message = format!("{idle} cuts a text into windows, and these data are not cut");
    Err(Failure::Usage(message))
}

/// The lines of a text, for a model that continues none.
pub(super) fn lines(text: &str, most: usize) -> Outcome<Vec<Sample>> {
    if text.trim().is_empty() {
        return Err(Failure::Usage("the calibration text is empty".to_owned()));
    }
    let lines = text.lines().filter(|line| !line.trim().is_empty()).take(most).enumerate();
    let sample =
        |(at, line): (usize, &str)| Sample::of_file(&format!("line {}.txt", at + 1), line.into());
    Ok(lines.map(sample).collect::<Result<_, _>>()?)
}

/// Returns the parts of the output whose types are not searched, from a plan with one type for all
/// weights.
fn unchosen(job: &Job, model: &Model, data: &Path, context: &Context) -> Outcome<Unchosen> {
    const GGUF_ALIGNMENT: u64 = 32;
    const APR_ALIGNMENT: u64 = 64;
    /// Bytes of a configuration about a part of a weight, beside its name.
    const STATEMENT: u64 = 64;
    let layout = job.weights.layout(job.target.format);
    let job = match layout {
        Some(_) => job.clone(),
        None => {
            let mut quantization = Quantization::to(Scheme::Q8_0);
            // The file says what importance it was made with.
            let mut matrix = Imatrix::default();
            (matrix.datasets, matrix.chunk_count) = (vec![data.display().to_string()], 1);
            let file = data.display().to_string();
            quantization.weighting = Some(Weighting::Matrix { matrix, file });
            let weights = Weights { quantize: Some(quantization), ..Weights::default() };
            Job { weights, ..job.clone() }
        }
    };
    let source = context.source(&*model.reader, &model.name)?;
    let planned = job.plan(&source)?;
    let report = planned.report();
    let alignment = match layout {
        _ if planned.target().target()?.seals => APR_ALIGNMENT,
        None => GGUF_ALIGNMENT,
        Some(_) => 1,
    };
    let (mut tensors, mut overhead) = (0, report.bytes_out);
    for tensor in &report.tensors {
        let stored = tensor.bytes_after.next_multiple_of(alignment);
        overhead = overhead.saturating_sub(stored);
        if layout.is_some() {
            // The configuration names the weights of other layouts.
            overhead += STATEMENT + tensor.name.len() as u64;
        }
        if !tensor.to.is_quantized() {
            tensors += stored;
        }
    }
    Ok(Unchosen { tensors, overhead, alignment })
}

/// Model in the layout of the output, if the model has another layout.
///
/// Types are assigned to the tensors of the output's layout.
struct Reference {
    model: Option<Model>,
    /// Folder of the converted model, beside the output.
    _folder: Option<TempDir>,
}

impl Reference {
    fn of(model: &Model, job: &Job, output: Option<&Path>, context: &Context) -> Outcome<Self> {
        let layout = &job.target;
        if model.reader.format() == layout.format {
            return Ok(Self { model: None, _folder: None });
        }
        let folder = temporary_folder(output.unwrap_or(Path::new("model")), ".search-")?;
        let path: PathBuf = match layout.folder {
            true => folder.path().join("model"),
            false => folder.path().join(&layout.file_name),
        };
        let plain = PlanOptions { shard_size: None, ..Output::layout(layout.format, Some(&path)) };
        let mut plain = Job { validation: ValidationConfig::relaxed(), ..Job::new(plain) };
        // Layouts are of floats.
        let is_laid = job.weights.layout(layout.format).is_some();
        plain.weights.dequantize = is_laid.then_some(DType::F32);
        let source = context.source(&*model.reader, &model.name)?;
        let planned = plain.plan(&source)?;
        planned.check()?;
        let files = &planned.report().files;
        let output = Output::create(&path, planned.target(), files, false, &context.interrupt)?;
        let bar = Bar::new(&context.printer, planned.report().bytes_in);
        output.run(planned, &context.sources, &context.pipeline()?, &bar)?.commit()?;
        let model = model::open_with_companions(&path, context)?;
        Ok(Self { model: Some(model), _folder: Some(folder) })
    }
}

/// Rejects a search for an output format whose tensors have no types to choose, and a type that the
/// search would replace.
pub(super) fn check_layout(layout: &PlanOptions, scheme: Option<Scheme>) -> Outcome {
    let target = layout.target()?;
    if let Some(scheme) = scheme {
        return match layout_of(scheme, layout.format) {
            Some(_) => Ok(()),
            None => Err(Failure::Usage(format!(
                "--search chooses the types of {} files itself: leave out --type {scheme}",
                layout.format.name
            ))),
        };
    }
    if *layout.format == safetensors::FORMAT {
        let message = "--search in a safetensors folder takes the smallest layout to choose: \
                       --type mlx-4, or --type w4a16 for vLLM";
        return Err(Failure::Usage(message.to_owned()));
    }
    if target.seals || target.quantized == QuantizedTypes::Ggml {
        return Ok(());
    }
    let message = format!(
        "--search writes GGUF, .apr and safetensors folders, which have such types; {} has not",
        layout.format.name
    );
    Err(Error::version(message).into())
}

pub(super) fn render(out: &mut dyn Write, report: &SearchReport) -> io::Result<()> {
    let runs = counted(report.trials as u64, "run");
    writeln!(out, "  types chosen by their effect on outputs, measured in {runs} of the model:")?;
    let of_text = report.curve.iter().any(|point| point.divergence.is_some());
    let last = if of_text { "KL div." } else { "" };
    writeln!(
        out,
        "  {BOLD}{:>6}  {:>10}  {:>10}  {:>10}  {last:>10}{BOLD:#}",
        "Bits", "Size", "Expected", "Effect"
    )?;
    report.curve.iter().try_for_each(|point| row(out, point))?;
    let effect = match of_text {
        true => "4 x KL divergence of predictions at temperature 2",
        false => "mean squared relative distance of outputs",
    };
    writeln!(out, "  {DIM}effect: {effect}{DIM:#}")?;
    if !report.unreached.is_empty() {
        let names = report.unreached.iter().take(SHOWN);
        let names: Vec<String> = names.map(|name| Escaped(name).to_string()).collect();
        let more = match report.unreached.len().saturating_sub(SHOWN) {
            0 => String::new(),
            more => format!(", and {more} more (--json lists them)"),
        };
        let names = names.join(", ");
        let first = |chosen: &&ChosenType| chosen.tensor == report.unreached[0];
        let wanted = report.types.iter().find(first).map_or("q8_0", |found| found.wanted);
        writeln!(out, "  {ODD}not reached by the data, so {wanted}: {names}{more}{ODD:#}")?;
    }
    Ok(())
}

fn row(out: &mut dyn Write, point: &CurvePoint) -> io::Result<()> {
    let (style, mark) = if point.chosen { (GOOD, " chosen") } else { (DIM, "") };
    let size = human::bytes(point.bytes);
    let divergence = point.divergence.map_or_else(String::new, |value| format!("{value:.3e}"));
    writeln!(
        out,
        "  {style}{:>6.3}  {size:>10}  {:>10.3e}  {:>10.3e}  {divergence:>10}{mark}{style:#}",
        point.bits_per_weight, point.expected, point.measured
    )
}
