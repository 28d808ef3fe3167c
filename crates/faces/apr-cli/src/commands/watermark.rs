//! `apr watermark` (`docs/watermark.md`).

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use apr::job::Output;
use apr_core::{counted, grouped};
use apr_io::io_error;
use apr_llama::{is_in_gguf_layout, restore as hugging_face_layout};
use apr_ops::inline::ValidationConfig;
use apr_ops::job::Job;
use apr_registry::{CheckpointReader, Escaped, Loss};
use apr_view::{Checked, Verified, View};
use apr_watermark::{Carriers, DetectReport, EmbedReport, MarkKey, Marked, detect as find};
use serde::Serialize;

use super::convert::{open_for, show_warnings, target_format};
use crate::args::{DetectArgs, EmbedArgs, WatermarkAction};
use crate::context::Context;
use crate::documents::Document;
use crate::failure::{Failure, Outcome};
use crate::printer::{BAD, BOLD, DIM, GOOD};
use crate::progress::Bar;
use crate::{human, model, signals};

/// Bytes of the largest file that is taken for a key.
const LARGEST_KEY: u64 = 1 << 16;

/// Report of the search for a watermark.
#[derive(Serialize)]
struct FoundReport<'a> {
    /// Path or location of the model, as given.
    path: &'a str,
    #[serde(flatten)]
    found: DetectReport,
}

impl Document for FoundReport<'_> {
    const SCHEMA: &'static str = "watermark.find";
}

/// Marks a model, or looks for a mark.
pub(super) fn run(action: &WatermarkAction, context: &Context) -> Outcome {
    match action {
        WatermarkAction::Embed(args) => embed(args, context),
        WatermarkAction::Detect(args) => detect(args, context),
    }
}

/// Report of an embedded watermark and the written model.
#[derive(Serialize)]
struct MarkReport<'a> {
    /// Path or location of the model, as given.
    path: &'a str,
    /// File or folder that was written.
    output: String,
    #[serde(flatten)]
    mark: &'a EmbedReport,
    /// Size of all files written.
    bytes_out: u64,
    /// Data that the target can't store.
    losses: &'a [Loss],
}

impl Document for MarkReport<'_> {
    const SCHEMA: &'static str = "watermark.mark";
}

fn embed(args: &EmbedArgs, context: &Context) -> Outcome {
    let key = read_key(context)?;
    let format = target_format(args.format, Some(&args.output))?;
    let target = Output::layout(format, Some(&args.output));
    let model = open_for(format, &args.model, context)?;
    if is_in_gguf_layout(&*model.reader) {
        let message = "GGUF files can't be marked: mark the model before the conversion; `apr \
                       watermark detect` finds the mark in GGUF files";
        return Err(Failure::Usage(message.to_owned()));
    }

    signals::stop_cleanly(&context.interrupt)?;
    let pipeline = context.pipeline()?;
    let family = context.family(&*model.reader)?;
    let bar = Bar::new(&context.printer, model.reader.files().iter().map(|file| file.len).sum());
    let carriers = Carriers::survey(&*model.reader, family.as_ref(), &pipeline, &bar)?;
    drop(bar);
    let marked = Marked::new(&*model.reader, &carriers, &key, &args.id, args.strength)?;

    let job = Job { validation: ValidationConfig::integrity(), ..Job::new(target) };
    let source = context.source(&marked, &model.name)?;
    let planned = job.plan(&source)?;
    show_warnings(&planned, context);
    let (target, files) = (planned.target(), &planned.report().files);
    let output = Output::create(&args.output, target, files, args.overwrite, &context.interrupt)?;
    let aside = output.is_stream();
    let bar = Bar::new(&context.printer, planned.report().bytes_in);
    let told = planned.report().warnings.len();
    let written = output.write(planned, &context.sources, &pipeline, &bar)?;
    let written = written.conversion;
    context.printer.converted(&written, told);

    let report = MarkReport {
        path: &model.name,
        output: args.output.display().to_string(),
        mark: marked.report(),
        bytes_out: written.bytes_out,
        losses: &written.losses,
    };

    let summary =
        |out: &mut dyn Write, report: &MarkReport<'_>| render_mark(out, report, &args.output);
    if aside {
        context.printer.report_aside(&report, summary)
    } else {
        context.printer.report(&report, summary)
    }
}

fn detect(args: &DetectArgs, context: &Context) -> Outcome {
    let key = read_key(context)?;
    let model = model::open(&args.model, context)?;
    let checked = Checked::default();
    let verified = Verified::new(&*model.reader, &checked);
    let view = plain_layout(&verified, context)?;
    signals::stop_cleanly(&context.interrupt)?;
    let pipeline = context.pipeline()?;
    let family = context.family(&view)?;

    // The weights are read twice.
    let bar =
        Bar::new(&context.printer, model.reader.files().iter().map(|file| 2 * file.len).sum());
    let carriers = Carriers::survey(&view, family.as_ref(), &pipeline, &bar)?;
    let found = find(&view, &carriers, &key, args.id.as_deref(), &pipeline, &bar)
        .map_err(|error| error.in_file(&model.name))?;
    drop(bar);
    let verbose = context.printer.shows_detail();
    let detected = found.detected;
    let report = FoundReport { path: &model.name, found };
    let render =
        |out: &mut dyn Write, report: &FoundReport<'_>| render_find(out, &report.found, verbose);
    context.printer.judge(&report, render, detected)
}

/// Returns the model with rows in the order of Hugging Face's models, which watermarks use.
fn plain_layout<'a>(reader: &'a dyn CheckpointReader, context: &Context) -> Outcome<View<'a>> {
    if !is_in_gguf_layout(reader) {
        return Ok(View::new(reader));
    }
    match hugging_face_layout(reader, context.families()?, &context.architecture()?) {
        Ok(restored) => Ok(restored.view),
        Err(error) => {
            let message = error.message();
            context.printer.warn(&format!("weights are compared in llama.cpp's layout: {message}"));
            Ok(View::new(reader))
        }
    }
}

/// The secret in the file of `--key`.
fn read_key(context: &Context) -> Outcome<MarkKey> {
    let Some(path) = &context.key else {
        return Err(Failure::Usage("missing secret: pass --key FILE".to_owned()));
    };
    let mut secret = Vec::new();
    let read =
        File::open(path).and_then(|file| file.take(LARGEST_KEY + 1).read_to_end(&mut secret));
    read.map_err(|error| io_error(&error, path))?;
    if secret.len() as u64 > LARGEST_KEY {
        return Err(Failure::Usage(format!(
            "{}: a key has {LARGEST_KEY} bytes at most",
            path.display()
        )));
    }

    let key = MarkKey::from_secret(&secret);
    secret.fill(0);
    key.map_err(|error| Failure::Usage(format!("{}: {}", path.display(), error.message())))
}

fn render_mark(out: &mut dyn Write, report: &MarkReport<'_>, output: &Path) -> io::Result<()> {
    let EmbedReport {
        id,
        tensor_count: tensors,
        weights,
        strength,
        relative_change,
        expected_z,
        ..
    } = report.mark;
    writeln!(
        out,
        "{BOLD}{}{BOLD:#} -> {BOLD}{}{BOLD:#}",
        Escaped(report.path),
        Escaped(&output.display().to_string())
    )?;
    writeln!(
        out,
        "Mark: {BOLD}{}{BOLD:#} in {} weights of {}",
        Escaped(id),
        grouped(*weights),
        counted(*tensors as u64, "tensor")
    )?;
    writeln!(
        out,
        "Strength: {:.2} % of the standard deviation per weight, {:.2} % of the norm in total",
        100.0 * strength,
        100.0 * relative_change
    )?;
    writeln!(
        out,
        "{DIM}expected z-score {expected_z:.0}; {} written{DIM:#}",
        human::bytes(report.bytes_out)
    )
}

fn render_find(out: &mut dyn Write, report: &DetectReport, verbose: bool) -> io::Result<()> {
    let DetectReport {
        detected,
        id,
        asked,
        z,
        log10_chance,
        tensor_count: tensors,
        weights,
        strength,
        symbols,
    } = report;
    match (detected, id, asked) {
        (true, Some(id), None) => {
            writeln!(out, "{GOOD}FOUND{GOOD:#}: {BOLD}{}{BOLD:#}", Escaped(id))?;
        }
        (true, None, None) => writeln!(
            out,
            "{GOOD}FOUND{GOOD:#}: a mark of this key, with an id that can't be read any more"
        )?,
        (true, _, Some(asked)) => {
            writeln!(out, "{GOOD}FOUND{GOOD:#}: {BOLD}{}{BOLD:#}", Escaped(asked))?;
        }
        (false, _, Some(asked)) => writeln!(out, "{BAD}NOT FOUND{BAD:#}: {}", Escaped(asked))?,
        (false, _, None) => writeln!(out, "{BAD}NOT FOUND{BAD:#}: no mark of this key")?,
    }

    if let (false, Some(id)) = (*detected, id) {
        writeln!(out, "The weights have another id: {BOLD}{}{BOLD:#}", Escaped(id))?;
    }

    let chance = match *log10_chance {
        chance if chance < -300.0 => "below 1e-300".to_owned(),
        chance if chance < 0.0 => format!("at most {:.1e}", 10_f64.powf(chance)),
        _ => "1 (not significant)".to_owned(),
    };

    // Without an id the best of all frames is reported, which is well above zero where there is
    // nothing.
    let best = if asked.is_none() { "Best correlation" } else { "Correlation" };
    writeln!(out, "{best}: z-score {z:.1}; probability by chance: {chance}")?;
    let looked_at =
        format!("{} weights of {}", grouped(*weights), counted(*tensors as u64, "tensor"));
    match detected {
        true => writeln!(
            out,
            "{DIM}{looked_at}; strength {:.2} % of the standard deviation{DIM:#}",
            100.0 * strength
        )?,
        false => writeln!(out, "{DIM}{looked_at}{DIM:#}")?,
    }

    if verbose {
        writeln!(out, "\nbyte      z   next")?;
        symbols.iter().try_for_each(|symbol| {
            writeln!(out, "  {:02x} {:6.1} {:6.1}", symbol.byte, symbol.z, symbol.runner_up)
        })?;
    }

    Ok(())
}
