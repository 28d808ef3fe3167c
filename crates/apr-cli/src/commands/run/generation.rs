//! How tokens are chosen: the model's settings, and the options that go before them.

use std::io::Write;

use apr::Escaped;
use apr_ops::run::{Generation, GenerationOptions, TokenLogProbabilities};

use super::job::Job;
use crate::failure::Outcome;
use crate::printer::DIM;

/// Most tokens of a text where nothing says another number.
pub(super) const USUAL_TOKENS: usize = 128;

/// The settings of a run; what they ask for and is not done is named.
pub(super) fn settings(job: &Job<'_>) -> Generation {
    let args = job.args;
    let settings = Generation::of(
        job.facts,
        &GenerationOptions {
            temperature: args.temperature,
            top_k: args.top_k,
            top_p: args.top_p,
            min_p: args.min_p,
            repeat_penalty: args.repeat_penalty,
            presence_penalty: args.presence_penalty,
            max_tokens: args.max_tokens,
            seed: args.seed.unwrap_or(0),
        },
    );
    if !settings.ignored().is_empty() {
        job.warn(&format!(
            "the model's settings for generation ask for what is not done here: {}",
            settings.ignored().join(", ")
        ));
    }

    let of_sampling = [
        ("--top-k", args.top_k.is_some()),
        ("--top-p", args.top_p.is_some()),
        ("--min-p", args.min_p.is_some()),
        ("--seed", args.seed.is_some()),
    ];
    let idle: Vec<&str> =
        of_sampling.iter().filter(|(_, given)| *given).map(|(name, _)| *name).collect();
    if !settings.samples() && !idle.is_empty() {
        job.warn(&format!(
            "the likeliest token is taken, so {} changes nothing: --temperature 1 samples",
            idle.join(", ")
        ));
    }
    settings
}

/// Most tokens to generate behind so many.
pub(super) fn most(job: &Job<'_>, settings: &Generation, given: usize) -> usize {
    let most = settings.most(given).unwrap_or(USUAL_TOKENS);
    if most == 0 && job.args.max_tokens.is_none() {
        job.warn(&format!(
            "the model's settings leave no token behind the {given} that are given: --max-tokens \
             says how many to generate"
        ));
    }
    most
}

/// Shows the probabilities beside the text, where no document has them.
pub(super) fn show_logprobs(job: &Job<'_>, tokens: Option<&[TokenLogProbabilities]>) -> Outcome {
    if job.context.json {
        return Ok(());
    }
    let name = |id: i64, token: &Option<String>| {
        token.as_ref().map_or_else(|| id.to_string(), |token| Escaped(token).to_string())
    };
    let mut err = anstream::stderr().lock();
    for token in tokens.into_iter().flatten() {
        let chosen = &token.chosen;
        let top: Vec<String> = token
            .top
            .iter()
            .map(|one| format!("{} {:.4}", name(one.id, &one.token), one.logprob))
            .collect();
        let chosen = format!("{} {:.4}", name(chosen.id, &chosen.token), chosen.logprob);
        writeln!(err, "{chosen}  {DIM}{}{DIM:#}", top.join("  "))?;
    }
    Ok(())
}
