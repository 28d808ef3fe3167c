//! Documents by how well they match a query.

use std::io::{self, Write};

use apr_registry::Escaped;
use apr_run::{Prepared, Ranked, Ranking, Reranker};
use serde::Serialize;

use super::check_options;
use super::given::Given;
use super::job::Job;
use crate::documents::Document;
use crate::failure::{Failure, Outcome};
use crate::printer::{BOLD, DIM};

/// Results of a reranker for a query and its documents.
#[derive(Debug, Serialize)]
struct RankingReport {
    /// Path of the model.
    path: String,
    /// Query and documents.
    #[serde(flatten)]
    ranking: Ranking,
}

impl Document for RankingReport {
    const SCHEMA: &'static str = "run.ranking";
}

pub(super) fn run(job: &Job<'_>, query: &str, given: &Given, part: Prepared<'_>) -> Outcome {
    check_options(job.args, false, false)?;
    check(job, given)?;
    let ranking = Reranker::of_part(part)?.rank(query, &given.texts, job.args.top)?;
    let report = RankingReport { path: job.name.to_owned(), ranking };
    job.context.printer.report(&report, |out, report| {
        let documents = &report.ranking.documents;
        documents.iter().try_for_each(|document| render(out, document))
    })
}

/// Rejects options that would have no effect.
fn check(job: &Job<'_>, given: &Given) -> Outcome {
    let args = job.args;
    let usage = |message: &str| Err(Failure::Usage(message.to_owned()));
    if args.pooling.is_some() || args.dimensions.is_some() {
        return usage("--pooling and --dimensions apply to embeddings, and --query makes scores");
    }
    if args.separator.is_some() {
        return usage("--separator applies to generated text, and --query makes scores");
    }
    if args.output.is_some() {
        return usage("--output writes arrays, and --query makes scores: use --json");
    }
    if !(given.sounds.is_empty() && given.pictures.is_empty() && given.arrays.is_empty()) {
        return usage("--query takes texts as documents: --prompt, text files or a pipe");
    }
    if given.texts.is_empty() {
        return usage("--query needs documents: --prompt for each, or --input FILE.txt --lines");
    }
    Ok(())
}

fn render(out: &mut dyn Write, ranked: &Ranked) -> io::Result<()> {
    let document = Escaped::short(&ranked.document);
    let number = ranked.index + 1;
    match ranked.score {
        Some(score) => writeln!(out, "{score:>10.6}  {document}  {DIM}(document {number}){DIM:#}"),
        None => {
            writeln!(out, "{BOLD}{document}{BOLD:#}")?;
            ranked.labels.iter().try_for_each(|label| {
                writeln!(out, "{:>10.6}  {}", label.score, Escaped(&label.label))
            })
        }
    }
}
