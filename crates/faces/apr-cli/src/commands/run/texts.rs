//! Text that a model reads as a whole.

use std::io::{self, Write};

use apr_infer::Tensor;
use apr_registry::Escaped;
use apr_run::{Label, Prepared, TextEncoder, TextTask};
use serde::Serialize;

use super::job::Job;
use super::output::Output;
use crate::documents::Document;
use crate::failure::{Failure, Outcome};
use crate::printer::{BOLD, DIM};

/// Numbers of a vector that fit the terminal.
const SHOWN: usize = 8;

/// Results of the model for all texts.
#[derive(Debug, Serialize)]
struct TextsReport {
    /// Path of the model.
    path: String,
    /// Results, one for each text.
    results: Vec<TextTask>,
}

impl Document for TextsReport {
    const SCHEMA: &'static str = "run.texts";
}

pub(super) fn run(job: &Job<'_>, texts: &[String], part: Prepared<'_>) -> Outcome {
    let output = Output::of(job.args, &job.context.printer)?;
    let encoder = TextEncoder::of_part(part)?;
    let results = encoder.read_all(texts)?;
    if let Some(output) = output {
        output.write(&[("embeddings".to_owned(), vectors(&results)?)])?;
    }

    let report = TextsReport { path: job.name.to_owned(), results };
    let are_values = job.runner.predicts_values();
    job.context.printer.report(&report, |out, report| {
        report.results.iter().zip(texts).try_for_each(|(made, text)| {
            if texts.len() > 1 {
                writeln!(out, "{BOLD}{}{BOLD:#}", Escaped::short(text))?;
            }
            render(out, made, are_values)
        })
    })
}

/// Returns all vectors as one array; for one text with token embeddings, the vectors of its tokens.
fn vectors(results: &[TextTask]) -> Outcome<Tensor> {
    if let [TextTask::TokenEmbeddings { vectors, .. }] = results {
        let width = vectors.first().map_or(0, Vec::len);
        return Ok(Tensor::new(vec![vectors.len(), width], vectors.concat())?);
    }
    let vector = |made: &TextTask| match made {
        TextTask::Embedding { vector, .. } => Ok(vector.clone()),
        TextTask::SparseEmbedding { size, words, .. } => {
            let mut vector = vec![0.0; *size];
            words.iter().for_each(|word| vector[word.id] = word.weight);
            Ok(vector)
        }
        TextTask::TokenEmbeddings { .. } => Err(Failure::Usage(
            "--output writes the vectors of the tokens of one text: use --json for several"
                .to_owned(),
        )),
        _ => Err(Failure::Usage(
            "--output writes arrays, and this model returns labels or tokens: use --json"
                .to_owned(),
        )),
    };
    let rows = results.iter().map(vector).collect::<Outcome<Vec<_>>>()?;
    let width = rows.first().map_or(0, Vec::len);
    Ok(Tensor::new(vec![rows.len(), width], rows.concat())?)
}

/// Renders labels with their probabilities, or with their values if the model predicts these.
pub(super) fn render_labels(
    out: &mut dyn Write,
    labels: &[Label],
    are_values: bool,
) -> io::Result<()> {
    labels.iter().try_for_each(|label| {
        let (score, name) = (label.score, Escaped(&label.label));
        match are_values {
            true => writeln!(out, "{score:>10.6}  {name}"),
            false => writeln!(out, "{:>6.2} %  {name}", 100.0 * score),
        }
    })
}

fn render(out: &mut dyn Write, made: &TextTask, are_values: bool) -> io::Result<()> {
    match made {
        TextTask::Embedding { pooling, normalized, prompt, vector, .. } => {
            let length = if *normalized { ", of length 1" } else { "" };
            let prompt = match prompt.as_str() {
                "" => String::new(),
                prompt => format!(", prompt {}", Escaped::short(prompt)),
            };
            let count = vector.len();
            writeln!(out, "{DIM}{count} numbers, pooling {pooling}{length}{prompt}{DIM:#}")?;
            let shown: Vec<String> = vector.iter().take(SHOWN).map(ToString::to_string).collect();
            let more = vector.len() - shown.len();
            let more =
                if more > 0 { format!(" {DIM}and {more} more{DIM:#}") } else { String::new() };
            writeln!(out, "  {}{more}", shown.join(" "))
        }
        TextTask::SparseEmbedding { pooling, size, words, .. } => {
            let count = words.len();
            writeln!(out, "{DIM}{count} of {size} numbers above 0, pooling {pooling}{DIM:#}")?;
            words.iter().take(SHOWN).try_for_each(|word| {
                writeln!(out, "  {:>9.6}  {}", word.weight, Escaped(&word.token))
            })?;
            match count.saturating_sub(SHOWN) {
                0 => Ok(()),
                more => writeln!(out, "  {DIM}and {more} more{DIM:#}"),
            }
        }
        TextTask::TokenEmbeddings { vectors, .. } => {
            let width = vectors.first().map_or(0, Vec::len);
            writeln!(out, "{DIM}{} tokens, {width} numbers each{DIM:#}", vectors.len())
        }
        TextTask::Classification { labels } => render_labels(out, labels, are_values),
        TextTask::TokenLabels { tokens } => tokens.iter().try_for_each(|token| {
            let (name, label) = (Escaped(&token.token), Escaped(&token.label.label));
            writeln!(out, "{:>6.2} %  {label}  {name}", 100.0 * token.label.score)
        }),
        TextTask::FillMask { gaps } => gaps.iter().enumerate().try_for_each(|(number, words)| {
            if gaps.len() > 1 {
                writeln!(out, "{BOLD}gap {}{BOLD:#}", number + 1)?;
            }
            let mut words = words.iter();
            words.try_for_each(|word| {
                writeln!(out, "{:>6.2} %  {}", 100.0 * word.score, Escaped(&word.token))
            })
        }),
        _ => Ok(()),
    }
}
