//! Generated text.

use apr_run::{Completion, GenerateOptions, Generator, Prepared, Prompt};

use super::answers::Answers;
use super::job::Job;
use super::prompt_cache::PromptFile;
use super::{generation, timing};
use crate::failure::{Failure, Outcome};

/// Default number of texts that are generated in one batch.
const BATCH: usize = 8;

/// Generates with a part of the model that continues texts.
pub(super) fn run_part(job: &Job<'_>, texts: &[String], part: Prepared<'_>) -> Outcome {
    run(job, texts, Generator::of_part(part, options(job))?)
}

/// Generates with the model's encoder and decoder.
pub(super) fn run_pair(job: &Job<'_>, texts: &[String]) -> Outcome {
    run(job, texts, Generator::of(job.runner, options(job))?)
}

/// Generates with the part that continues texts, which show these images.
pub(super) fn run_images(job: &Job<'_>, texts: &[String], images: &[(String, Vec<u8>)]) -> Outcome {
    run(job, texts, Generator::with_images(job.runner, options(job), images)?)
}

pub(super) fn options(job: &Job<'_>) -> GenerateOptions {
    GenerateOptions {
        sampling: job.sampling(),
        stops: job.args.stop.clone(),
        logprobs: job.args.logprobs,
        template: job.chat.options.clone(),
        grammar: job.grammar.cloned(),
    }
}

/// Generates something behind each text, or behind the tokens that are given.
fn run(job: &Job<'_>, texts: &[String], mut generator: Generator<'_>) -> Outcome {
    generation::warn_idle(job, generator.settings());
    if job.args.output.is_some() {
        return Err(Failure::Usage("--output writes arrays, not text: use > FILE".to_owned()));
    }

    let prompt = |text| match job.args.chat {
        true => Prompt::Chat { system: job.args.system.as_deref(), message: text },
        false => Prompt::Text(text),
    };
    let prompts: Vec<Prompt<'_>> = match &job.chat.messages {
        Some(messages) => vec![Prompt::Messages(messages)],
        None => texts.iter().map(|text| prompt(text)).collect(),
    };
    if !prompts.is_empty() {
        generator.prepare_text()?;
    }
    let cache = PromptFile::open(job, &mut generator)?;
    let loaded = timing::Loaded::of(job);
    let mut answers = Answers::of(job);
    if prompts.is_empty() {
        let prompt = Prompt::Tokens(&job.args.tokens);
        let made = one(job, &mut generator, prompt, &mut answers)?;
        let report = loaded.report(job, &timing::Given::default(), made.clone());
        if job.context.json {
            // The document has the warnings about the cache.
            keep(job, cache, &generator, &made)?;
            return job.context.printer.report(&report, |_, _| Ok(()));
        }
        job.context.printer.report(&report, |out, _| writeln!(out))?;
        return keep(job, cache, &generator, &made);
    }

    let is_one = prompts.len() == 1 && !job.args.lines;
    let side_by_side = side_by_side(job, prompts.len());
    job.context.printer.share_warnings();
    let of = |at: usize| timing::Given {
        index: (!is_one).then_some(at),
        text: job.chat.messages.is_none().then(|| texts.get(at).map(String::as_str)).flatten(),
    };
    // Answers that are not printed yet, from the first of them on.
    let mut first = 0;
    let reports = match side_by_side {
        Some(most) => {
            let made = all(job, &mut generator, &prompts, most, &mut answers)?;
            // Which text a warning is about is not known.
            job.context.printer.share_warnings();
            made
        }
        None => {
            let mut last = None;
            for (at, prompt) in prompts.iter().enumerate() {
                let made = one(job, &mut generator, *prompt, &mut answers)?;
                // Each document is printed with the warnings of its text, the last one with those
                // about the cache.
                if at + 1 < prompts.len() {
                    print(job, &loaded, &of(at), made, is_one)?;
                } else {
                    first = at;
                    last = Some(made);
                }
            }
            last.into_iter().collect()
        }
    };

    answers.finish()?;
    if let Some(last) = reports.last() {
        keep(job, cache, &generator, last)?;
    }
    let mut reports = (first..).zip(reports);
    reports.try_for_each(|(at, made)| print(job, &loaded, &of(at), made, is_one))
}

/// Prints the document of an answer, whose text was shown before.
fn print(
    job: &Job<'_>,
    loaded: &timing::Loaded,
    of: &timing::Given<'_>,
    made: Completion,
    is_one: bool,
) -> Outcome {
    let report = loaded.report(job, of, made);
    match is_one {
        true => job.context.printer.report(&report, |_, _| Ok(())),
        false => job.context.printer.report_each(&report, |_, _| Ok(())),
    }
}

/// Returns the batch size; `None` generates one text after another and shows each as it grows.
fn side_by_side(job: &Job<'_>, texts: usize) -> Option<usize> {
    let most = job.args.batch.map_or(BATCH, |batch| usize::from(batch.get()));
    if texts < 2 && job.args.batch.is_some() {
        job.warn("--batch has no effect: there is only one text");
    }
    if texts < 2 && job.args.separator.is_some() {
        job.warn("--separator has no effect: there is only one text");
    }
    (texts > 1 && most > 1 && job.args.prompt_cache.is_none()).then_some(most)
}

/// Generates behind all prompts, and shows each answer when it is whole.
fn all(
    job: &Job<'_>,
    generator: &mut Generator<'_>,
    prompts: &[Prompt<'_>],
    most: usize,
    answers: &mut Answers<'_>,
) -> Outcome<Vec<Completion>> {
    let made = generator.generate_all(prompts, most, &mut |_, made| {
        let text = made.text.as_deref().unwrap_or_default();
        answers.begin()?;
        answers.write(&made.bytes())?;
        answers.end(text);
        Ok(())
    })?;
    made.iter().try_for_each(|made| generation::show_logprobs(job, made.logprobs.as_deref()))?;
    let alone = made.iter().all(|made| made.batch.is_none());
    if alone && job.args.batch.is_some() {
        job.warn(
            "--batch has no effect: beam search, encoder-decoder models, and graphs without \
             attention mask and position ids run one text at a time",
        );
    }
    Ok(made)
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
    let made = generator.generate_bytes(prompt, &mut |piece| {
        if !has_begun {
            answers.begin()?;
            has_begun = true;
        }
        answers.write(piece)
    })?;
    answers.end(made.text.as_deref().unwrap_or_default());
    generation::show_logprobs(job, made.logprobs.as_deref())?;
    Ok(made)
}
