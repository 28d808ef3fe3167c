//! Images that a model reads: labels, vectors, and which of several texts fits.

use std::io::{self, Write};
use std::path::PathBuf;

use apr_infer::Tensor;
use apr_registry::Escaped;
use apr_run::{ImageEncoder, ImageResult, ImageTask, Prepared};
use serde::Serialize;

use super::given::read_media;
use super::job::Job;
use super::output::Output;
use super::sounds::render_vector;
use super::texts::render_labels;
use crate::documents::Document;
use crate::failure::{Failure, Outcome};
use crate::printer::BOLD;

/// Results of the model for all images.
#[derive(Debug, Serialize)]
struct PicturesReport {
    /// Path of the model.
    path: String,
    /// Results, one for each image.
    results: Vec<ImageResult>,
}

impl Document for PicturesReport {
    const SCHEMA: &'static str = "run.pictures";
}

pub(super) fn run(
    job: &Job<'_>,
    paths: &[PathBuf],
    texts: &[String],
    part: Prepared<'_>,
) -> Outcome {
    let output = Output::of(job.args, &job.context.printer)?;
    let encoder = ImageEncoder::of_part(part, texts)?;
    let read = |path: &PathBuf| -> Outcome<ImageResult> {
        Ok(encoder.read(&path.display().to_string(), &read_media(path, job.context)?)?)
    };
    let results = paths.iter().map(read).collect::<Outcome<Vec<_>>>()?;
    if let Some(output) = output {
        output.write(&[("embeddings".to_owned(), vectors(&results)?)])?;
    }

    let report = PicturesReport { path: job.name.to_owned(), results };
    let are_values = job.runner.predicts_values();
    job.context.printer.report(&report, |out, report| {
        report.results.iter().try_for_each(|seen| {
            if paths.len() > 1 {
                writeln!(out, "{BOLD}{}{BOLD:#}", Escaped(&seen.picture))?;
            }
            render(out, &seen.made, are_values)
        })
    })
}

fn vectors(results: &[ImageResult]) -> Outcome<Tensor> {
    let vector = |seen: &ImageResult| match &seen.made {
        ImageTask::Embedding { vector } => Ok(vector.clone()),
        _ => Err(Failure::Usage(
            "--output writes arrays, and this model returns labels: use --json".to_owned(),
        )),
    };
    let rows = results.iter().map(vector).collect::<Outcome<Vec<_>>>()?;
    let width = rows.first().map_or(0, Vec::len);
    Ok(Tensor::new(vec![rows.len(), width], rows.concat())?)
}

fn render(out: &mut dyn Write, made: &ImageTask, are_values: bool) -> io::Result<()> {
    match made {
        ImageTask::Classification { labels } => render_labels(out, labels, are_values),
        ImageTask::Fit { texts } => texts.iter().try_for_each(|fit| {
            writeln!(out, "{:>6.2} %  {}", 100.0 * fit.score, Escaped(&fit.text))
        }),
        ImageTask::Embedding { vector } => render_vector(out, vector),
        _ => Ok(()),
    }
}
