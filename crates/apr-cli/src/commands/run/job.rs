//! What every task of `apr run` gets.

use std::time::Instant;

use apr_run::{GenerationOptions, Grammar, Prepared, Runner};

use super::messages::Chat;
use crate::args::RunArgs;
use crate::context::Context;

/// What a task gets.
#[derive(Clone, Copy)]
pub(super) struct Job<'j> {
    pub(super) args: &'j RunArgs,
    pub(super) context: &'j Context,
    /// The model.
    pub(super) runner: &'j Runner<'j>,
    /// As the user wrote it.
    pub(super) name: &'j str,
    /// When the model was about to be opened.
    pub(super) begun: Instant,
    /// What a chat template gets.
    pub(super) chat: &'j Chat,
    /// What generated text keeps to.
    pub(super) grammar: Option<&'j Grammar>,
}

impl Job<'_> {
    pub(super) fn warn(&self, message: &str) {
        self.context.printer.warn(message);
    }

    /// How tokens are chosen.
    pub(super) fn sampling(&self) -> GenerationOptions {
        let args = self.args;
        GenerationOptions {
            temperature: args.temperature,
            top_k: args.top_k,
            top_p: args.top_p,
            min_p: args.min_p,
            repeat_penalty: args.repeat_penalty,
            presence_penalty: args.presence_penalty,
            max_tokens: args.max_tokens,
            beams: args.beams.map(usize::from),
            length_penalty: args.length_penalty,
            seed: args.seed.unwrap_or(0),
        }
    }
}

/// The names of a part's outputs.
pub(super) fn outputs<'p>(part: &Prepared<'p>) -> Vec<&'p str> {
    let body = &part.graph().body;
    body.outputs.iter().map(|id| body.value(*id).name.as_str()).collect()
}
