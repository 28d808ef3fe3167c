//! `apr imatrix`: importance matrices, and the importance that `--calibration` measures on the way.

use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use apr::job::Output;
use apr_core::counted;
use apr_importance::{
    Inputs, MeasureOptions, Measured, layer_influence, measure, ranges as ranges_of,
};
use apr_io::io_error;
use apr_ops::products::{Calibration, Ranges};
use apr_quality::{Sample, Subject, WindowOptions, Windows};
use apr_quantize::{ColumnSums, Imatrix, ImatrixSums};
use apr_registry::Escaped;
use apr_run::Facts;
use serde::Serialize;

use super::beside::TextFile;
use super::run::read_media;
use super::running::{self, Opened};
use super::search::lines;
use crate::args::{ImatrixArgs, ImatrixForm, TextShare};
use crate::context::Context;
use crate::documents::Document;
use crate::failure::{Failure, Outcome};
use crate::model::{self, Model};
use crate::printer::{BOLD, DIM, ODD};
use crate::progress::Bar;
use crate::text_file::read_text;

/// Weights without a measurement that are shown.
const SHOWN: usize = 8;

/// Report of the measured importance matrix and its file.
#[derive(Serialize)]
struct ImatrixReport {
    /// Path or location of the model, as given.
    path: String,
    /// The importance matrix that was written.
    output: String,
    /// Format of the file: `gguf` or `dat`.
    form: &'static str,
    /// Names of the calibration data.
    datasets: Vec<String>,
    /// Windows of the text, or inputs.
    chunks: usize,
    /// Tokens of a window; absent for inputs.
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<usize>,
    /// Files whose measurements were added.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    added: Vec<String>,
    /// Weights that were measured.
    #[serde(rename = "weight_count")]
    weights: usize,
    /// Experts that no token was given to, by the name of their stack.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    idle_experts: Vec<IdleExperts>,
    /// Weights of products that were not measured.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_measured: Vec<String>,
}

impl Document for ImatrixReport {
    const SCHEMA: &'static str = "imatrix";
}

#[derive(Serialize)]
struct IdleExperts {
    /// Name of the stack of experts.
    weight: String,
    /// Number of experts without a token.
    idle: usize,
    /// Number of experts of the stack.
    of: usize,
}

/// Measures a model, and writes the importance matrix.
pub(super) fn run(args: &ImatrixArgs, context: &Context) -> Outcome {
    let output = TextFile::create(&args.output, args.overwrite)?;
    let added = args.add.iter().map(|path| read_sums(path, context));
    let added = added.collect::<Outcome<Vec<_>>>()?;
    let opened = Opened::new(&args.model, context)?;
    let data = match &args.text {
        Some(path) => Data::Text { path, args: WindowArgs::of(args) },
        None => Data::Files(args.input.clone()),
    };
    let options = MeasureOptions::default();
    let found = measured(&opened, &data, options.with_output(args.process_output), context)?;
    let Measurement { measured: Measured { mut sums, not_measured, .. }, chunks, window } = found;
    for (path, more) in args.add.iter().zip(added) {
        sums.merge(more).map_err(|error| error.in_file(path.display()))?;
    }

    let is_dat = args.output.extension().is_some_and(|end| end.eq_ignore_ascii_case("dat"));
    let form = args.output_format.unwrap_or(match is_dat {
        true => ImatrixForm::Dat,
        false => ImatrixForm::Gguf,
    });
    let (form, bytes) = match form {
        ImatrixForm::Gguf => ("gguf", sums.to_gguf()?),
        ImatrixForm::Dat => ("dat", sums.to_legacy()),
    };
    output.write(&bytes, &context.printer)?;

    let report = ImatrixReport {
        path: opened.name().to_owned(),
        output: args.output.display().to_string(),
        form,
        chunks,
        context: window,
        added: args.add.iter().map(|path| path.display().to_string()).collect(),
        weights: sums.entries.len(),
        idle_experts: sums.entries.iter().filter_map(idle).collect(),
        not_measured,
        datasets: sums.datasets,
    };
    let printer = match Output::is_stdout(&args.output) {
        true => context.printer.aside(),
        false => context.printer,
    };
    printer.report(&report, render)
}

fn idle((name, entry): (&String, &ColumnSums)) -> Option<IdleExperts> {
    let (idle, of) = (entry.idle(), entry.experts());
    (idle > 0).then(|| IdleExperts { weight: name.clone(), idle, of })
}

/// Data on which a model is measured.
pub(super) enum Data<'d> {
    Text {
        path: &'d Path,
        args: WindowArgs,
    },
    /// Each line of a text, for a model that continues none.
    Lines(&'d Path),
    Files(Vec<PathBuf>),
}

impl<'d> Data<'d> {
    /// Returns the kind of data in a file or a folder of calibration data, for a model with these
    /// facts. The files of a folder are inputs in the order of their names.
    pub(super) fn of_calibration(
        path: &'d Path,
        facts: &Facts,
        context: &Context,
    ) -> Outcome<Self> {
        if path.is_dir() {
            return Ok(Self::Files(files_of(path)?));
        }
        let is_text = path.extension().is_some_and(|end| end.eq_ignore_ascii_case("txt"));
        Ok(match is_text {
            true if running::generating(context).generates(facts) => {
                Self::Text { path, args: WindowArgs::default() }
            }
            true => Self::Lines(path),
            false => Self::Files(vec![path.to_owned()]),
        })
    }
}

/// Returns the files of a folder of calibration data in the order of their names, without hidden
/// ones.
fn files_of(folder: &Path) -> Outcome<Vec<PathBuf>> {
    let in_folder = |error: io::Error| io_error(&error, folder);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(in_folder)? {
        let entry = entry.map_err(in_folder)?;
        let is_hidden = entry.file_name().to_string_lossy().starts_with('.');
        if !is_hidden && entry.path().is_file() {
            files.push(entry.path());
        }
    }
    files.sort();
    match files.is_empty() {
        true => Err(Failure::Usage(format!("{}: no files to calibrate on", folder.display()))),
        false => Ok(files),
    }
}

/// Calls `then` with the data as inputs of a model, and with the name of the data.
pub(super) fn with_data<R>(
    subject: &Subject<'_>,
    data: &Data<'_>,
    context: &Context,
    then: impl FnOnce(Inputs<'_>, &str) -> Outcome<R>,
) -> Outcome<R> {
    match data {
        Data::Text { path, args } => {
            let windows = cut(path, *args, subject)?;
            then(Inputs::Windows(&windows), &path.display().to_string())
        }
        Data::Lines(path) => {
            let samples = lines(&read_text(path)?, usize::MAX)?;
            then(Inputs::Samples(&samples), &path.display().to_string())
        }
        Data::Files(paths) => {
            let sample = |path: &PathBuf| {
                Ok(Sample::of_file(&path.display().to_string(), read_media(path, context)?)?)
            };
            let samples = paths.iter().map(sample).collect::<Outcome<Vec<_>>>()?;
            let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
            then(Inputs::Samples(&samples), &names.join(", "))
        }
    }
}

/// Options for cutting a text into windows.
#[derive(Clone, Copy, Default)]
pub(super) struct WindowArgs {
    options: WindowOptions,
    part: Option<TextShare>,
}

impl WindowArgs {
    fn of(args: &ImatrixArgs) -> Self {
        let mut options = WindowOptions::default();
        options.context = args.context;
        options.chunks = args.chunks.map(NonZeroUsize::get);
        Self { options, part: args.part }
    }
}

/// Measurement, and the data on which it was made.
struct Measurement {
    measured: Measured,
    chunks: usize,
    /// Tokens of a window.
    window: Option<usize>,
}

/// Measures the importance of a model's weights on a text, an audio file, an image or arrays.
///
/// Also returns the notes for the report.
pub(super) fn calibrated(
    path: &Path,
    model_path: &Path,
    context: &Context,
) -> Outcome<(Imatrix, Vec<String>)> {
    let opened = to_measure(model_path, context)?;
    let data = Data::of_calibration(path, opened.facts(), context)?;
    let found = measured(&opened, &data, MeasureOptions::default(), context)?;
    let Measured { sums, not_measured, .. } = found.measured;
    let idle = sums.entries.iter().filter_map(idle).map(|found| {
        let IdleExperts { weight, idle, of } = found;
        format!("{weight}: {idle} of {of} experts received no tokens of the calibration data")
    });
    let not_measured =
        not_measured.iter().map(|name| format!("the importance of {name} was not measured"));
    let notes = idle.chain(not_measured).collect();
    Ok((sums.means()?, notes))
}

/// Opens a model that is run before it is changed.
pub(super) fn to_measure(path: &Path, context: &Context) -> Outcome<Opened> {
    if Output::is_stdout(path) {
        let message = "--calibration reads the model twice, and standard input can be read once: \
                       pass a file";
        return Err(Failure::Usage(message.to_owned()));
    }
    Opened::new(path, context)
}

/// Measures the ranges of activations on calibration data.
pub(super) fn ranges(
    data: (&Path, Calibration),
    model_path: &Path,
    context: &Context,
) -> Outcome<Ranges> {
    ranges_of_opened(data, &to_measure(model_path, context)?, context)
}

/// Measures the ranges of activations of a model whose weights were changed, and returns the model.
///
/// Also returns a note if the model before the change was measured instead: text, audio and images
/// need files beside the model, which a changed model may lack.
pub(super) fn changed_ranges(
    data: (&Path, Calibration),
    (changed, model_path): (Model, &Path),
    context: &Context,
) -> Outcome<(Ranges, Model, Option<String>)> {
    const ARRAYS: [&str; 3] = ["json", "npy", "npz"];
    let is_array = data.0.extension().is_some_and(|end| ARRAYS.iter().any(|array| end == *array));
    if is_array || !changed.reader.companions().is_empty() {
        let opened = Opened::of(changed, context)?;
        let ranges = ranges_of_opened(data, &opened, context)?;
        return Ok((ranges, opened.into_model(), None));
    }
    let note = "the activation ranges are from the model before its weights were changed";
    Ok((ranges(data, model_path, context)?, changed, Some(note.to_owned())))
}

fn ranges_of_opened(
    (path, method): (&Path, Calibration),
    opened: &Opened,
    context: &Context,
) -> Outcome<Ranges> {
    let data = Data::of_calibration(path, opened.facts(), context)?;
    let found = opened.with_runner(context, &running::reading(context, 1), |runner| {
        let subject = Subject::of(runner)?;
        with_data(&subject, &data, context, |inputs, dataset| {
            let bar = Bar::counting(&context.printer, inputs.len() as u64);
            Ok(ranges_of(&subject, inputs, (dataset, method), &mut |at| bar.reached(at as u64))?)
        })
    })?;
    context.sources.check_unchanged()?;
    Ok(found)
}

/// Measures how much each layer of a model changes its input, on a text, an audio file, an image or
/// arrays.
pub(super) fn influence(path: &Path, model_path: &Path, context: &Context) -> Outcome<Vec<f64>> {
    let opened = Opened::new(model_path, context)?;
    let data = Data::of_calibration(path, opened.facts(), context)?;
    let found = opened.with_runner(context, &running::reading(context, 1), |runner| {
        let subject = Subject::of(runner)?;
        with_data(&subject, &data, context, |inputs, _| {
            let bar = Bar::counting(&context.printer, inputs.len() as u64);
            Ok(layer_influence(&subject, inputs, &mut |at| bar.reached(at as u64))?)
        })
    })?;
    context.sources.check_unchanged()?;
    Ok(found)
}

fn measured(
    opened: &Opened,
    data: &Data<'_>,
    options: MeasureOptions,
    context: &Context,
) -> Outcome<Measurement> {
    let source = context.source(&*opened.model().reader, opened.name())?;
    let model = source.family()?;
    let found = opened.with_runner(context, &running::reading(context, 1), |runner| {
        let subject = Subject::of(runner)?;
        with_data(&subject, data, context, |inputs, dataset| {
            let bar = Bar::counting(&context.printer, inputs.len() as u64);
            let mut done = |at: usize| bar.reached(at as u64);
            let measured = measure(&subject, model, inputs, dataset, options, &mut done)?;
            let window = match inputs {
                Inputs::Windows(windows) => Some(windows.context()),
                Inputs::Samples(_) => None,
            };
            Ok(Measurement { measured, chunks: inputs.len(), window })
        })
    })?;
    context.sources.check_unchanged()?;
    Ok(found)
}

fn cut(path: &Path, args: WindowArgs, subject: &Subject<'_>) -> Outcome<Windows> {
    if subject.parts().len() != 1 {
        let message = "a text measures models of one part only: give audio, an image or arrays";
        return Err(Failure::Usage(message.to_owned()));
    }
    let windows = Windows::of_text(&read_text(path)?, &[subject.runner()], args.options)?;
    let Some(TextShare { number, of }) = args.part else { return Ok(windows) };
    if of > windows.len() {
        let windows = counted(windows.len() as u64, "window");
        return Err(Failure::Usage(format!("--part {number}/{of}: the text has {windows}")));
    }
    Ok(windows.part(number - 1, of))
}

fn read_sums(path: &Path, context: &Context) -> Outcome<ImatrixSums> {
    let model = model::open(path, context)?;
    Ok(ImatrixSums::from_checkpoint(&*model.reader)
        .map_err(|error| error.in_file(path.display()))?)
}

fn render(out: &mut dyn Write, report: &ImatrixReport) -> io::Result<()> {
    writeln!(
        out,
        "{BOLD}{} -> {}{BOLD:#} ({})",
        Escaped(&report.path),
        Escaped(&report.output),
        report.form
    )?;
    let measured = match report.context {
        Some(tokens) => {
            format!("{} of {tokens} tokens", counted(report.chunks as u64, "window"))
        }
        None => counted(report.chunks as u64, "input"),
    };
    let weights = counted(report.weights as u64, "weight");
    writeln!(out, "  importance of {weights}, measured on {measured}")?;
    let datasets: Vec<String> =
        report.datasets.iter().map(|name| Escaped(name).to_string()).collect();
    writeln!(out, "  {DIM}data: {}{DIM:#}", datasets.join(", "))?;
    if !report.added.is_empty() {
        writeln!(out, "  {DIM}added: {}{DIM:#}", Escaped(&report.added.join(", ")))?;
    }
    for idle in report.idle_experts.iter().take(SHOWN) {
        writeln!(
            out,
            "  {ODD}{}: {} of {} experts received no tokens{ODD:#}",
            Escaped(&idle.weight),
            idle.idle,
            idle.of
        )?;
    }
    let more = report.idle_experts.len().saturating_sub(SHOWN);
    if more > 0 {
        writeln!(out, "  {ODD}and {more} more (--json lists them){ODD:#}")?;
    }
    if !report.not_measured.is_empty() {
        let shown = report.not_measured.iter().take(SHOWN);
        let names: Vec<String> = shown.map(|name| Escaped(name).to_string()).collect();
        let more = match report.not_measured.len().saturating_sub(SHOWN) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        writeln!(out, "  {ODD}not measured: {}{more}{ODD:#}", names.join(", "))?;
    }
    Ok(())
}
