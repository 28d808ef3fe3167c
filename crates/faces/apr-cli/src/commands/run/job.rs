//! What every task of `apr run` gets.

use std::time::Instant;

use apr_run::{
    Breakers, DryPenalty, GenerationOptions, Grammar, Mirostat, Prepared, Runner, TokenName, Xtc,
};

use super::messages::Chat;
use crate::args::{BiasedToken, RunArgs, SamplingArgs};
use crate::context::Context;

/// Context of a task.
#[derive(Clone, Copy)]
pub(super) struct Job<'j> {
    pub(super) args: &'j RunArgs,
    pub(super) context: &'j Context,
    /// Runner of the model.
    pub(super) runner: &'j Runner<'j>,
    /// Model as the user wrote it.
    pub(super) name: &'j str,
    /// Time just before the model was opened.
    pub(super) begun: Instant,
    /// Values for the chat template.
    pub(super) chat: &'j Chat,
    /// Grammar that constrains the generated text.
    pub(super) grammar: Option<&'j Grammar>,
}

impl Job<'_> {
    pub(super) fn warn(&self, message: &str) {
        self.context.printer.warn(message);
    }

    /// Returns the sampling options.
    pub(super) fn sampling(&self) -> GenerationOptions {
        let args = self.args;
        GenerationOptions {
            temperature: args.temperature,
            top_k: args.top_k,
            top_p: args.top_p,
            min_p: args.min_p,
            repeat_penalty: args.repeat_penalty,
            presence_penalty: args.presence_penalty,
            frequency_penalty: args.sampling.frequency_penalty,
            repeat_last_n: args.sampling.repeat_last_n,
            logit_bias: biases(&args.sampling),
            dry: dry(&args.sampling),
            typical_p: args.sampling.typical_p,
            xtc: xtc(&args.sampling),
            mirostat: mirostat(&args.sampling),
            ignore_eos: args.sampling.ignore_eos,
            min_tokens: args.sampling.min_tokens,
            max_tokens: args.max_tokens,
            beams: args.beams.map(usize::from),
            length_penalty: args.length_penalty,
            seed: args.seed.unwrap_or(0),
        }
    }
}

fn biases(args: &SamplingArgs) -> Vec<(TokenName, f32)> {
    let named = |(token, bias): &(BiasedToken, f32)| {
        let token = match token {
            BiasedToken::Id(id) => TokenName::Id(*id),
            BiasedToken::Text(text) => TokenName::Text(text.clone()),
        };
        (token, *bias)
    };
    args.logit_bias.iter().map(named).collect()
}

fn dry(args: &SamplingArgs) -> Option<DryPenalty> {
    let usual = DryPenalty::default();
    let texts: Vec<String> = args.dry_sequence_breaker.iter().map(|it| it.0.clone()).collect();
    let breakers = match &texts[..] {
        [] => usual.breakers,
        [one] if one == "none" => Breakers::new(Vec::new()),
        _ => Breakers::new(texts),
    };
    let last_n = args.dry_penalty_last_n;
    Some(DryPenalty {
        multiplier: args.dry_multiplier?,
        base: args.dry_base.unwrap_or(usual.base),
        allowed_length: args.dry_allowed_length.unwrap_or(usual.allowed_length),
        last_n: last_n.map(|count| usize::try_from(count).unwrap_or(usize::MAX)),
        breakers,
    })
}

fn xtc(args: &SamplingArgs) -> Option<Xtc> {
    let threshold = args.xtc_threshold.unwrap_or(Xtc::default().threshold);
    Some(Xtc { probability: args.xtc_probability?, threshold })
}

fn mirostat(args: &SamplingArgs) -> Option<Mirostat> {
    let usual = Mirostat::default();
    Some(Mirostat {
        version: args.mirostat?,
        tau: args.mirostat_tau.unwrap_or(usual.tau),
        eta: args.mirostat_eta.unwrap_or(usual.eta),
    })
}

/// The names of a part's outputs.
pub(super) fn outputs<'p>(part: &Prepared<'p>) -> Vec<&'p str> {
    let body = &part.graph().body;
    body.outputs.iter().map(|id| body.value(*id).name.as_str()).collect()
}
