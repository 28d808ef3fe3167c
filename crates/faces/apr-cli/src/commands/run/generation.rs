//! How tokens are chosen: options that change nothing, and log probabilities.

use std::io::Write;

use apr_registry::Escaped;
use apr_run::{Generation, TokenLogProbabilities};

use super::job::Job;
use crate::failure::Outcome;
use crate::printer::DIM;

/// Warns about sampling options when nothing is sampled.
pub(super) fn warn_idle(job: &Job<'_>, settings: &Generation) {
    let args = job.args;
    let of_sampling = [
        ("--top-k", args.top_k.is_some()),
        ("--top-p", args.top_p.is_some()),
        ("--min-p", args.min_p.is_some()),
        ("--typical-p", args.sampling.typical_p.is_some()),
        ("--mirostat", args.sampling.mirostat.is_some()),
        ("--xtc-probability", args.sampling.xtc_probability.is_some()),
        ("--seed", args.seed.is_some()),
    ];
    let idle: Vec<&str> =
        of_sampling.iter().filter(|(_, given)| *given).map(|(name, _)| *name).collect();
    if !settings.samples() && !idle.is_empty() && !args.fallback {
        let (names, search) = (idle.join(", "), settings.beams().map(|_| "beam search"));
        let search = search.unwrap_or("greedy decoding");
        job.warn(&format!("{names} had no effect with {search}: pass --temperature 1 to sample"));
    }
    if args.length_penalty.is_some() && settings.beams().is_none() {
        job.warn("--length-penalty has no effect without beams: pass --beams 4");
    }
    if args.sampling.repeat_last_n.is_some() && !settings.penalizes() {
        job.warn("--repeat-last-n has no effect without a penalty: pass --repeat-penalty 1.1");
    }
    let of_ends = args.sampling.ignore_eos || args.sampling.min_tokens.is_some();
    if of_ends && settings.ends().is_empty() {
        job.warn("--ignore-eos and --min-tokens had no effect: no token of the model ends a text");
    }
}

/// Shows log probabilities beside the text, unless the JSON document has them.
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
