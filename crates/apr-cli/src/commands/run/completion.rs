//! Generated text.

use apr_run::{Completion, GenerateOptions, Generator, Prepared, Prompt};

use super::answers::Answers;
use super::job::Job;
use super::prompt_cache::PromptFile;
use super::{generation, timing};
use crate::failure::{Failure, Outcome};

/// Generates with a part of the model that continues texts.
pub(super) fn run_part(job: &Job<'_>, texts: &[String], part: Prepared<'_>) -> Outcome {
    run(job, texts, Generator::of_part(part, options(job))?)
}

/// Generates with the model's encoder and decoder.
pub(super) fn run_pair(job: &Job<'_>, texts: &[String]) -> Outcome {
    run(job, texts, Generator::of(job.runner, options(job))?)
}

pub(super) fn options(job: &Job<'_>) -> GenerateOptions {
    GenerateOptions {
        sampling: job.sampling(),
        stops: job.args.stop.clone(),
        logprobs: job.args.logprobs,
    }
}

/// Generates something behind each text, or behind the tokens that are given.
fn run(job: &Job<'_>, texts: &[String], mut generator: Generator<'_>) -> Outcome {
    generation::warn_idle(job, generator.settings());
    if job.args.output.is_some() {
        return Err(Failure::Usage("--output writes arrays, not text: use > FILE".to_owned()));
    }

    if !texts.is_empty() {
        generator.prepare_text()?;
    }
    let cache = PromptFile::open(job, &mut generator)?;
    let loaded = timing::Loaded::of(job);
    let mut answers = Answers::of(job);
    if texts.is_empty() {
        let prompt = Prompt::Tokens(&job.args.tokens);
        let made = one(job, &mut generator, prompt, &mut answers)?;
        job.context.printer.report(&loaded.report(job, made.clone()), |out, _| writeln!(out))?;
        return keep(job, cache, &generator, &made);
    }

    let mut reports = Vec::with_capacity(texts.len());
    for text in texts {
        let prompt = match job.args.chat {
            true => Prompt::Chat { system: job.args.system.as_deref(), message: text },
            false => Prompt::Text(text),
        };
        reports.push(one(job, &mut generator, prompt, &mut answers)?);
    }

    answers.finish()?;
    let last = reports.last().cloned();
    let reports: Vec<_> = reports.into_iter().map(|made| loaded.report(job, made)).collect();
    match reports.as_slice() {
        [report] if !job.args.lines => job.context.printer.report(report, |_, _| Ok(()))?,
        reports => job.context.printer.report(&reports, |_, _| Ok(()))?,
    }
    last.map_or(Ok(()), |last| keep(job, cache, &generator, &last))
}

/// Writes the last prompt to the file of `--prompt-cache`.
fn keep(
    job: &Job<'_>,
    cache: Option<PromptFile<'_>>,
    generator: &Generator<'_>,
    last: &Completion,
) -> Outcome {
    let Some(cache) = cache else { return Ok(()) };
    cache.tell(job, last)?;
    cache.write(job, generator, &last.given)
}

fn one(
    job: &Job<'_>,
    generator: &mut Generator<'_>,
    prompt: Prompt<'_>,
    answers: &mut Answers<'_>,
) -> Outcome<Completion> {
    let is_text = !matches!(prompt, Prompt::Tokens(_));
    let mut has_begun = !is_text;
    let mut written = String::new();
    let made = generator.generate(prompt, &mut |piece| {
        if !has_begun {
            answers.begin()?;
            has_begun = true;
        }
        written.push_str(piece);
        answers.write(piece)
    })?;
    answers.end(&written);
    generation::show_logprobs(job, made.logprobs.as_deref())?;
    Ok(made)
}
