//! Speech transcribed by a Whisper.

use std::io::{self, Write};
use std::path::PathBuf;

use apr_registry::Escaped;
use apr_run::{Transcriber, Transcription, TranscriptionOptions};
use serde::Serialize;

use super::answers::Answers;
use super::generation;
use super::given::read_media;
use super::job::Job;
use crate::args::SubtitleFormat;
use crate::documents::Document;
use crate::failure::{Failure, Outcome};
use crate::printer::{BOLD, DIM};

#[derive(Debug, Serialize)]
struct TranscriptionReport {
    /// Path of the model.
    path: String,
    /// Results, one for each file.
    results: Vec<Transcription>,
}

impl Document for TranscriptionReport {
    const SCHEMA: &'static str = "run.transcription";
}

pub(super) fn run(job: &Job<'_>, paths: &[PathBuf]) -> Outcome {
    let args = job.args;
    if args.output.is_some() {
        return Err(Failure::Usage(
            "--output writes arrays, not text: use > FILE or --json".to_owned(),
        ));
    }

    let options = TranscriptionOptions {
        language: args.language.clone(),
        translate: args.translate,
        timestamps: args.timestamps || args.subtitles.is_some(),
        words: args.word_timestamps,
        fallback: args.fallback,
        sampling: job.sampling(),
    };
    if args.subtitles.is_some() && paths.len() > 1 && !job.context.json {
        return Err(Failure::Usage("--subtitles takes one audio file at a time".to_owned()));
    }
    let transcriber = Transcriber::of(job.runner, options)?;
    generation::warn_idle(job, transcriber.settings());
    let is_text = !args.timestamps && !args.word_timestamps && args.subtitles.is_none();
    let mut answers = Answers::of(job);
    let mut results = Vec::with_capacity(paths.len());
    for path in paths {
        let bytes = read_media(path, job.context)?;
        let said = transcriber.transcribe(&path.display().to_string(), bytes)?;
        if is_text {
            answers.begin()?;
            answers.write(said.text.as_bytes())?;
            answers.end(&said.text);
        }
        results.push(said);
    }

    let report = TranscriptionReport { path: job.name.to_owned(), results };
    if is_text {
        answers.finish()?;
        return job.context.printer.report(&report, |_, _| Ok(()));
    }
    job.context.printer.report(&report, |out, report| {
        report.results.iter().try_for_each(|said| {
            match args.subtitles {
                Some(SubtitleFormat::Srt) => return out.write_all(said.to_srt().as_bytes()),
                Some(SubtitleFormat::Vtt) => return out.write_all(said.to_vtt().as_bytes()),
                None => {}
            }
            if paths.len() > 1 {
                writeln!(out, "{BOLD}{}{BOLD:#}", Escaped(&said.sound.path))?;
            }
            render(out, said)
        })
    })
}

/// Renders the segments of a transcription, or their words, with their times.
fn render(out: &mut dyn Write, said: &Transcription) -> io::Result<()> {
    let mut line = |start: f64, end: f64, text: &str| {
        writeln!(out, "{DIM}{start:>8.2} to {end:.2}{DIM:#}  {}", Escaped(text.trim()))
    };
    said.segments.iter().try_for_each(|part| match &part.words {
        Some(words) => words.iter().try_for_each(|word| line(word.start, word.end, &word.word)),
        None => line(part.start, part.end, &part.text),
    })
}
