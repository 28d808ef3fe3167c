//! `apr convert --distill` and `apr distill`: the model that a job reads, smaller, and trained to
//! compute what it does.

mod effect;
mod rows;

use std::collections::HashMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use apr_distill::{
    Cuts, DECODER, DistillOptions, DistillReport, Events, Pairs, Progress, Scores, Size, Student,
    Trained, cuts, distill,
};
use apr_io::{AtomicOutput, Target, io_error};
use apr_prune::{Gradients, LayerChoice, WidthChoice, least_influential, plan_layers, plan_widths};
use apr_registry::{Error, Escaped, IoCause, Sink};
use apr_run::{Facts, RunOptions, with_runner};
use serde_json::{Map, Value as Json};

use self::rows::pairs;
pub(super) use self::rows::{padding, rows};
use super::convert::Changed;
use super::lowrank::FactorFile;
use super::prune::gradients;
use super::run::terse_host;
use super::running::Opened;
use crate::args::{ConvertArgs, DistillArgs, StudentBy, StudentLayers};
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::model::Model;
use crate::printer::{BOLD, DIM, ODD, Printer};
use crate::progress::Bar;
use crate::text_file::read_text;
use crate::{human, signals};

/// Name of a training's state in its folder.
const STATE: &str = "state.safetensors";
/// Maximum number of untrained tensors to name.
const SHOWN: usize = 8;

/// Returns the model that a job reads, distilled if distillation is requested.
pub(super) fn distilled(
    args: &ConvertArgs,
    model: Model,
    changed: &mut Changed,
    context: &Context,
) -> Outcome<(Model, Option<DistillReport>)> {
    if !args.distill.is_asked() {
        return match args.distill.data {
            Some(_) => Err(Failure::Usage(
                "--data is what a smaller model learns from: pass --distill or --distill-layers"
                    .to_owned(),
            )),
            None => Ok((model, None)),
        };
    }
    check(args)?;
    check_output(args)?;
    let asked = &args.distill;
    let state = StateFile::of(args)?;
    signals::stop_cleanly(&context.interrupt)?;

    let opened = Opened::new(&args.model, context)?;
    let data = asked.data.as_deref().unwrap_or(Path::new(""));
    let text = read_text(data)?;
    let (mut model, cut) =
        cut_down(model, asked, (&opened, &args.model, data, &text), changed, context)?;
    let facts = Facts::of(&*model.reader)?;

    let mut options = reading(context);
    let pairs = pairs(&opened, data, &text, context)?;
    if pairs.is_some() {
        options.part = Some(DECODER.to_owned());
    }
    let teacher_source = context.source(&*opened.model().reader, opened.name())?;
    let student_source = context.source(&*model.reader, &model.name)?;
    let host = terse_host(context);
    let found = with_runner(&teacher_source, opened.facts(), &options, &host, |teacher| {
        with_runner(&student_source, &facts, &options, &host, |runner| {
            let (rows, shortened, written, encoded) = match pairs {
                Some(Pairs { rows, cut, written, encoded }) => (rows, cut, written, Some(encoded)),
                None => {
                    let (rows, cut) = rows(&text, data, teacher)?;
                    (rows, cut, 0, None)
                }
            };
            let student = Student {
                teacher,
                student: runner,
                layers: cut.kept.clone(),
                rows,
                encoded,
                cut: shortened,
                written,
                padding: padding(opened.facts()),
                options: training(asked, context),
            };
            let resumed = state.as_ref().map(StateFile::resumed).transpose()?.flatten();
            let mut shown = Shown::new(context, state.as_ref());
            let store = Box::new(FactorFile::create()?);
            let done = distill(&student, store, resumed, &mut shown);
            if let (Err(_), true, Some(state)) = (&done, shown.has_saved, &state) {
                let folder = state.folder.display();
                context.printer.warn(&format!(
                    "the last training state is in {folder}: run the same command with --resume to \
                     continue from it"
                ));
            }
            Ok::<_, Failure>(done?)
        })
    });
    let (mut values, report) = found?;
    context.sources.check_unchanged()?;

    let mut places = HashMap::new();
    if let Some(family) = student_source.family()? {
        for position in 0..model.reader.tensors().len() {
            let name = family.canonical(position);
            if let Some(values) = name.and_then(|name| values.remove(name)) {
                places.insert(position, values);
            }
        }
    }
    if let Some(name) = values.keys().next() {
        let message = "it was trained, and the model's file has it under no name of its family";
        return Err(Error::format(message).for_tensor(name).in_file(&model.name).into());
    }
    drop(student_source);
    model.reader = Box::new(Trained::over(model.reader, places, &report)?);
    Ok((model, Some(report)))
}

/// Rejects options that cannot be combined.
fn check(args: &ConvertArgs) -> Outcome {
    let prune = &args.prune;
    let with = [
        (prune.has_zeros() || prune.sparse.is_some(), "--prune"),
        (prune.has_less(), "--prune-layers, --prune-heads and --prune-neurons"),
        (args.lowrank.is_asked(), "--lowrank"),
        (args.requantize.dequantize.is_some(), "--dequantize"),
    ];
    if let Some((_, option)) = with.iter().find(|(is_given, _)| *is_given) {
        return Err(Failure::Usage(format!(
            "{option} and --distill change the same weights: run `apr distill`, then pass {option} \
             in a run of its own"
        )));
    }
    if args.distill.data.is_none() {
        return Err(Failure::Usage("--distill learns from data: pass --data FILE".to_owned()));
    }
    Ok(())
}

/// Rejects an existing output before hours of training instead of after them.
fn check_output(args: &ConvertArgs) -> Outcome {
    let file = args.write.output.as_deref().filter(|path| path.is_file());
    match file.filter(|_| !args.write.overwrite) {
        Some(path) => Err(Error::io(IoCause::AlreadyExists, "the file already exists")
            .in_file(path.display())
            .into()),
        None => Ok(()),
    }
}

pub(super) fn reading(context: &Context) -> RunOptions {
    let mut options = RunOptions::reading();
    options.max_memory = context.max_memory() / 2;
    // Each run of a graph is a step of a training, which takes as long as it takes.
    options.max_work = Some(u64::MAX);
    options.family_graphs = true;
    options
}

fn training(asked: &DistillArgs, context: &Context) -> DistillOptions {
    let mut options = DistillOptions::default();
    options.temperature = asked.temperature.unwrap_or(options.temperature);
    options.alpha = asked.alpha.unwrap_or(options.alpha);
    options.hidden_loss = asked.hidden_loss.unwrap_or(options.hidden_loss);
    options.epochs = asked.epochs.map_or(options.epochs, std::num::NonZeroU64::get);
    options.steps = asked.steps.map(std::num::NonZeroU64::get);
    options.batch = asked.batch.map_or(options.batch, std::num::NonZeroUsize::get);
    options.learning_rate = asked.lr.unwrap_or(options.learning_rate);
    options.warmup = asked.warmup;
    options.seed = asked.seed.unwrap_or(options.seed);
    options.held_out = asked.held_out.map_or(options.held_out, f64::from);
    options.max_memory = context.max_memory();
    options
}

/// Removes the layers, heads and neurons that the student does not have.
fn cut_down(
    model: Model,
    asked: &DistillArgs,
    (opened, path, data, text): (&Opened, &Path, &Path, &str),
    changed: &mut Changed,
    context: &Context,
) -> Outcome<(Model, Cuts)> {
    let size = size(asked)?;
    let config = opened.facts().file("config.json").and_then(Json::as_object).cloned();
    let config = config
        .or_else(|| opened.facts().get("architecture")?.as_object().cloned())
        .unwrap_or_default();
    let source = context.source(&*model.reader, &model.name)?;
    let mut cut = cuts(&source, &config, &size).map_err(unsuited)?;
    drop(source);
    if asked.distill_by != Some(StudentBy::Effect) {
        let model = shortened(model, (&cut, None), changed, context)?;
        return Ok((narrowed(model, &cut, None, changed, context)?, cut));
    }

    let chooses_layers = !matches!(size, Size::Listed(_)) && !cut.dropped.is_empty();
    let narrows = cut.heads > 0 || cut.neurons > 0;
    if !chooses_layers && !narrows {
        context.printer.warn("--distill-by has no effect: the layers are listed");
    }
    let influence = match chooses_layers {
        true => {
            let influence = effect::of_layers(opened, data, text, context)?;
            let choice = least_influential(&influence, cut.dropped.len()).map_err(unsuited)?;
            if let LayerChoice::Listed(mut dropped) = choice {
                dropped.sort_unstable();
                cut.kept = (0..influence.len() as u64)
                    .filter(|layer| dropped.binary_search(layer).is_err())
                    .collect();
                cut.dropped = dropped;
            }
            Some(influence)
        }
        false => None,
    };
    // Gradients are those of all layers, by the names that their tensors have.
    let gradients = match narrows {
        true => {
            let (gradients, told) = gradients::of_texts((path, data), context)?;
            told.iter().for_each(|note| context.printer.warn(note));
            Some(gradients)
        }
        false => None,
    };
    let model = narrowed(model, &cut, gradients.as_ref(), changed, context)?;
    Ok((shortened(model, (&cut, influence), changed, context)?, cut))
}

/// Returns the model without the layers to remove.
fn shortened(
    mut model: Model,
    (cut, influence): (&Cuts, Option<Vec<f64>>),
    changed: &mut Changed,
    context: &Context,
) -> Outcome<Model> {
    if !cut.dropped.is_empty() {
        let source = context.source(&*model.reader, &model.name)?;
        let planned = plan_layers(&source, &LayerChoice::Listed(cut.dropped.clone()));
        let mut planned = planned.map_err(unsuited)?;
        drop(source);
        if let Some(influence) = influence {
            planned = planned.with_influence(influence);
        }
        let (reader, report) = planned.apply(model.reader)?;
        model.reader = reader;
        changed.layers = Some(report);
    }
    Ok(model)
}

/// Returns the model without the heads and neurons to remove.
fn narrowed(
    mut model: Model,
    cut: &Cuts,
    gradients: Option<&Gradients>,
    changed: &mut Changed,
    context: &Context,
) -> Outcome<Model> {
    if cut.heads > 0 || cut.neurons > 0 {
        let mut choice = WidthChoice::default();
        (choice.heads, choice.neurons) = (cut.heads, cut.neurons);
        let source = context.source(&*model.reader, &model.name)?;
        let planned = plan_widths(&source, choice, gradients, &context.pipeline()?, &());
        let planned = planned.map_err(unsuited)?;
        drop(source);
        let (reader, report) = planned.apply(model.reader)?;
        model.reader = reader;
        changed.widths = Some(report);
    }
    Ok(model)
}

fn unsuited(error: Error) -> Failure {
    match error.tensor() {
        Some(_) => Failure::Model(error),
        None => Failure::Usage(error.message().to_owned()),
    }
}

fn size(asked: &DistillArgs) -> Outcome<Size> {
    Ok(match (asked.distill.as_deref(), &asked.distill_layers) {
        (_, Some(StudentLayers::Count(count))) => Size::Layers(*count),
        (_, Some(StudentLayers::Listed(layers))) => Size::Listed(layers.clone()),
        (Some("small"), None) => Size::Small,
        (Some("tiny"), None) => Size::Tiny,
        (Some(path), None) => {
            let path = Path::new(path);
            let is_json = path.extension().is_some_and(|end| end.eq_ignore_ascii_case("json"));
            if !is_json {
                return Err(Failure::Usage(format!(
                    "--distill takes small, tiny, or a CONFIG.json, not '{}'",
                    Escaped(&path.display().to_string())
                )));
            }
            let text = read_text(path)?;
            let config: Map<String, Json> = serde_json::from_str(&text).map_err(|error| {
                Error::format(format!("not a JSON object: {}", apr_core::foreign(&error)))
                    .in_file(path.display())
            })?;
            Size::Configured(config)
        }
        (None, None) => Size::Small,
    })
}

/// The state of a training on disk.
struct StateFile {
    folder: PathBuf,
    resume: bool,
    /// `true` if `--checkpoint` names the folder, which then stays.
    stays: bool,
}

/// Returns the folder of the training state until the output is written, unless `--checkpoint`
/// names one.
///
/// Returns `None` if the output is not a path.
fn folder_until_written(args: &ConvertArgs) -> Option<PathBuf> {
    let output = args.write.output.as_deref().filter(|path| *path != Path::new("-"))?;
    let mut folder = output.as_os_str().to_owned();
    folder.push(".training");
    Some(folder.into())
}

/// Drops the state of a training whose output is there, unless `--checkpoint` keeps it.
pub(super) fn clean_up(args: &ConvertArgs, context: &Context) {
    if !args.distill.is_asked() || args.distill.checkpoint.is_some() {
        return;
    }
    let Some(folder) = folder_until_written(args).filter(|folder| folder.exists()) else { return };
    let removed = std::fs::remove_file(folder.join(STATE));
    // Whatever else is in the folder is not of the training.
    if let Err(error) = removed.and_then(|()| std::fs::remove_dir(&folder)) {
        let folder = folder.display();
        context.printer.warn(&format!("the training state in {folder} was not removed: {error}"));
    }
}

impl StateFile {
    fn of(args: &ConvertArgs) -> Outcome<Option<Self>> {
        let (asked, resume) = (&args.distill, args.distill.resume);
        let Some(folder) = asked.checkpoint.clone().or_else(|| folder_until_written(args)) else {
            return match resume {
                true => Err(Failure::Usage("--resume needs --checkpoint DIR here".to_owned())),
                false => Ok(None),
            };
        };
        let state = Self { folder, resume, stays: asked.checkpoint.is_some() };
        match (state.path().exists(), resume) {
            (true, false) => Err(Failure::Usage(format!(
                "{} contains a training state: pass --resume to continue from it, remove it, or \
                 pass another folder as --checkpoint",
                state.folder.display()
            ))),
            (false, true) => Err(Failure::Usage(format!(
                "--resume: {} has no training state",
                state.folder.display()
            ))),
            _ => Ok(Some(state)),
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.join(STATE)
    }

    /// Returns the state from which to resume.
    fn resumed(&self) -> Outcome<Option<Vec<u8>>> {
        if !self.resume {
            return Ok(None);
        }
        let path = self.path();
        Ok(Some(std::fs::read(&path).map_err(|error| io_error(&error, &path))?))
    }

    /// Replaces the state: whole, or not at all.
    fn write(&self, bytes: &[u8], printer: &Printer) -> apr_core::Result<()> {
        let target = Target::File(self.path());
        let mut output = AtomicOutput::create(target, true, [STATE])?;
        output.write_all(bytes)?;
        let committed = output.commit()?;
        if self.stays {
            printer.committed(&committed);
        }
        Ok(())
    }
}

/// Displays the progress of a training.
struct Shown<'s> {
    printer: Printer,
    json: bool,
    teacher: Option<Bar>,
    steps: Option<Bar>,
    state: Option<&'s StateFile>,
    has_saved: bool,
}

impl<'s> Shown<'s> {
    fn new(context: &Context, state: Option<&'s StateFile>) -> Self {
        let (printer, json) = (context.printer, context.json);
        Self { printer, json, teacher: None, steps: None, state, has_saved: false }
    }
}

impl Events for Shown<'_> {
    fn progress(&mut self, progress: &Progress) {
        match progress {
            Progress::Teacher { rows, of } => {
                let count = *of as u64;
                let bar = self.teacher.get_or_insert_with(|| Bar::counting(&self.printer, count));
                bar.reached(*rows as u64);
            }
            Progress::Step { step, of, loss, tokens } => {
                self.teacher = None;
                let bar = self.steps.get_or_insert_with(|| Bar::training(&self.printer, *of));
                bar.reached(*step);
                let seconds = bar.elapsed().as_secs_f64().max(1e-9);
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    clippy::cast_precision_loss,
                    reason = "a rate for people"
                )]
                let rate = (*tokens as f64 / seconds) as u64;
                bar.name_next(&format!("loss {loss:.4}  {} tokens/s", human::count(rate)));
            }
            Progress::Evaluated { step, scores } if !self.json => {
                self.printer.detail(&format!("step {step}: {}", line(scores)));
            }
            _ => {}
        }
    }

    fn save(&mut self, state: &[u8]) -> apr_core::Result<()> {
        let Some(file) = self.state else { return Ok(()) };
        file.write(state, &self.printer)?;
        self.has_saved = true;
        Ok(())
    }

    fn saves(&self) -> bool {
        self.state.is_some()
    }
}

fn line(scores: &Scores) -> String {
    let mut text = format!("loss {:.4}", scores.loss);
    if let Some(share) = scores.agreement {
        text += &format!(", same first choice {:.2} %", 100.0 * share);
    }
    if let Some(perplexity) = scores.perplexity {
        text += &format!(", perplexity {perplexity:.4}");
    }
    if let Some(cosine) = scores.cosine {
        text += &format!(", cosine {cosine:.4}");
    }
    text
}

/// Renders the course of a training in words.
pub(super) fn render(out: &mut dyn Write, report: &DistillReport) -> io::Result<()> {
    writeln!(
        out,
        "  trained {} weights on {} rows for {} of {} steps ({} tokens); the best was step {}",
        human::count(report.parameters),
        report.rows,
        report.steps,
        report.planned_steps,
        human::count(report.tokens),
        report.best_step
    )?;
    let judged = match report.held_out {
        0 => "judged by the same rows, which are too few to hold any out".to_owned(),
        held => format!("judged by {held} rows that were held out"),
    };
    writeln!(out, "  {DIM}{judged}{DIM:#}")?;
    writeln!(out, "    before  {}", line(&report.before))?;
    writeln!(out, "    {BOLD}after{BOLD:#}   {}", line(&report.after))?;
    if let Some(perplexity) = report.teacher_perplexity {
        writeln!(out, "    teacher perplexity {perplexity:.4}")?;
    }
    if let Some(kept) = report.kept_predictions {
        writeln!(out, "  {DIM}{kept} predictions of each token were kept of the teacher's{DIM:#}")?;
    }
    if !report.untrained.is_empty() {
        let names: Vec<&str> = report.untrained.iter().take(SHOWN).map(String::as_str).collect();
        let more = match report.untrained.len().saturating_sub(SHOWN) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let names = names.join(", ");
        writeln!(
            out,
            "  {ODD}not trained{ODD:#}, as the outputs don't depend on them: {}{more}",
            Escaped(&names)
        )?;
    }
    if !report.frozen.is_empty() {
        let names = Escaped(&report.frozen.join(", ")).to_string();
        writeln!(out, "  {ODD}not trained{ODD:#} (the encoder uses them): {names}")?;
    }
    if report.recomputed {
        let why = "the forward pass was computed again for the gradients, to fit the memory limit";
        writeln!(out, "  {DIM}{why}{DIM:#}")?;
    }
    if report.written > 0 {
        let (written, all) = (report.written, report.rows + report.held_out);
        writeln!(out, "  the teacher wrote the texts of {written} of {all} rows")?;
    }
    if report.cut > 0 {
        writeln!(out, "  {} rows were cut to the model's context", report.cut)?;
    }
    Ok(())
}
