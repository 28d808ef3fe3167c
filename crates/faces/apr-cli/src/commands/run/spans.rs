//! Answers to questions about a text.

use std::io::{self, Write};

use apr_registry::Escaped;
use apr_run::{Answer, Answers, Prepared, QuestionAnswering};
use serde::Serialize;

use super::job::Job;
use crate::documents::Document;
use crate::failure::{Failure, Outcome};
use crate::printer::BOLD;

/// The answers to all questions.
#[derive(Debug, Serialize)]
struct AnswersReport {
    /// Path of the model.
    path: String,
    /// Answers, one item for each question.
    results: Vec<Answers>,
}

impl Document for AnswersReport {
    const SCHEMA: &'static str = "run.answers";
}

/// Answers questions by the text of `--context`.
pub(super) fn run(job: &Job<'_>, questions: &[String], part: Prepared<'_>) -> Outcome {
    let Some(text) = &job.args.context else {
        let message = "extractive question answering needs --prompt QUESTION --context TEXT";
        return Err(Failure::Usage(message.to_owned()));
    };
    if job.args.output.is_some() {
        let message = "--output writes arrays, and this model returns answers: use --json";
        return Err(Failure::Usage(message.to_owned()));
    }

    let answering = QuestionAnswering::of_part(part, text)?;
    let results = questions.iter().map(|question| answering.answer(question));
    let results = results.collect::<Result<Vec<_>, _>>()?;
    let report = AnswersReport { path: job.name.to_owned(), results };
    job.context.printer.report(&report, |out, report| {
        report.results.iter().try_for_each(|found| {
            if report.results.len() > 1 {
                writeln!(out, "{BOLD}{}{BOLD:#}", Escaped::short(&found.question))?;
            }
            found.answers.iter().try_for_each(|answer| render(out, answer))
        })
    })
}

fn render(out: &mut dyn Write, answer: &Answer) -> io::Result<()> {
    let Answer { score, start, end, answer } = answer;
    if answer.is_empty() {
        return writeln!(out, "{:>6.2} %  no answer", 100.0 * score);
    }
    writeln!(out, "{:>6.2} %  {}  (characters {start} to {end})", 100.0 * score, Escaped(answer))
}
