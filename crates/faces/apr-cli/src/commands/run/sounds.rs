//! Audio files that a model reads: letters, labels, vectors, and where somebody speaks.

use std::io::{self, Write};
use std::path::PathBuf;

use apr_infer::Tensor;
use apr_registry::Escaped;
use apr_run::{AudioEncoder, AudioResult, AudioTask, Prepared};
use serde::Serialize;

use super::answers::Answers;
use super::given::read_media;
use super::job::Job;
use super::output::Output;
use super::texts::render_labels;
use crate::documents::Document;
use crate::failure::{Failure, Outcome};
use crate::printer::{BOLD, DIM};

/// Results of the model for all audio files.
#[derive(Debug, Serialize)]
struct SoundsReport {
    /// Path of the model.
    path: String,
    /// Results, one for each file.
    results: Vec<AudioResult>,
}

impl Document for SoundsReport {
    const SCHEMA: &'static str = "run.sounds";
}

pub(super) fn run(job: &Job<'_>, paths: &[PathBuf], part: Prepared<'_>) -> Outcome {
    let output = Output::of(job.args, &job.context.printer)?;
    let encoder = AudioEncoder::of_part(part)?;
    let read = |path: &PathBuf| -> Outcome<AudioResult> {
        Ok(encoder.read(&path.display().to_string(), read_media(path, job.context)?)?)
    };
    let results = paths.iter().map(read).collect::<Outcome<Vec<_>>>()?;
    if let Some(output) = output {
        output.write(&[("values".to_owned(), rows(&results)?)])?;
    }

    let text = |heard: &AudioResult| match &heard.made {
        AudioTask::Transcription { text } => Some(text.clone()),
        _ => None,
    };
    let texts: Option<Vec<String>> = results.iter().map(text).collect();
    let report = SoundsReport { path: job.name.to_owned(), results };
    if let Some(texts) = texts {
        let mut answers = Answers::of(job);
        for text in &texts {
            answers.begin()?;
            answers.write(text.as_bytes())?;
            answers.end(text);
        }
        answers.finish()?;
        return job.context.printer.report(&report, |_, _| Ok(()));
    }
    let are_values = job.runner.predicts_values();
    job.context.printer.report(&report, |out, report| {
        report.results.iter().try_for_each(|heard| {
            if paths.len() > 1 {
                writeln!(out, "{BOLD}{}{BOLD:#}", Escaped(&heard.sound.path))?;
            }
            render(out, heard, are_values)
        })
    })
}

/// Returns the results as one array.
fn rows(results: &[AudioResult]) -> Outcome<Tensor> {
    let row = |heard: &AudioResult| match &heard.made {
        AudioTask::Embedding { vector } => Ok(vector.clone()),
        AudioTask::SpeechDetection { probabilities, .. } => Ok(probabilities.clone()),
        _ => Err(Failure::Usage(
            "--output writes arrays, and this model returns text or labels: use --json".to_owned(),
        )),
    };

    let rows = results.iter().map(row).collect::<Outcome<Vec<_>>>()?;
    let width = rows.first().map_or(0, Vec::len);
    if rows.iter().any(|row| row.len() != width) {
        return Err(Failure::Usage(
            "audio files of different lengths don't fit one array: pass one at a time".to_owned(),
        ));
    }

    Ok(Tensor::new(vec![rows.len(), width], rows.concat())?)
}

fn render(out: &mut dyn Write, heard: &AudioResult, are_values: bool) -> io::Result<()> {
    match &heard.made {
        AudioTask::Transcription { text } => writeln!(out, "{}", Escaped(text)),
        AudioTask::Classification { labels } => render_labels(out, labels, are_values),
        AudioTask::Embedding { vector } => render_vector(out, vector),
        AudioTask::SpeechDetection { spoken, .. } => {
            let seconds = heard.sound.seconds;
            writeln!(out, "{DIM}speech segments in {seconds:.2} seconds of audio:{DIM:#}")?;
            if spoken.is_empty() {
                writeln!(out, "nowhere")?;
            }
            spoken.iter().try_for_each(|part| {
                writeln!(out, "{:>8.2} to {:.2}", part.start, part.end.min(seconds))
            })
        }
        _ => Ok(()),
    }
}

/// The beginning of a vector.
pub(super) fn render_vector(out: &mut dyn Write, vector: &[f32]) -> io::Result<()> {
    let shown: Vec<String> = vector.iter().take(8).map(ToString::to_string).collect();
    writeln!(out, "{DIM}{} numbers{DIM:#}\n  {}", vector.len(), shown.join(" "))
}
