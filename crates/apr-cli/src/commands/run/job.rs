//! What every task of `apr run` gets.

use std::time::Instant;

use apr_run::{GenerationOptions, Grammar, Prepared, Runner};

use super::messages::Chat;
use crate::args::RunArgs;
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
