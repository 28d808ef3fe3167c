//! A completion under way: what each token's logits make of it, until something ends it.

use apr_registry::Result;

use super::{Asked, Begin, Completion, DEFAULT_TOKENS, Generator, text_of};
use crate::error::RunResult;
use crate::generation::{Chooser, TokenLogProbabilities, log_probabilities};
use crate::grammar::Constraint;
use crate::growing::GrowingText;
use crate::timing::Stopwatch;
use crate::tokens::Tokenizer;

/// A text that grows.
pub(super) struct Writing<'a, 'g> {
    generator: &'a Generator<'g>,
    begin: Begin,
    prompt: Option<String>,
    given: Vec<i64>,
    tokenizer: Option<&'a Tokenizer<'a>>,
    watch: Stopwatch<'a>,
    chooser: Chooser,
    /// Constraint that the text must match.
    constraint: Option<Constraint>,
    text: GrowingText<'a>,
    /// Maximum number of tokens.
    most: usize,
    /// Number of tokens that fit the model's context.
    room: usize,
    added: Vec<i64>,
    logprobs: Vec<TokenLogProbabilities>,
    /// Runs of the model.
    runs: usize,
    /// Maximum number of texts that grew side by side, including this one; `None` if it grows
    /// alone.
    pub(super) batch: Option<usize>,
}

impl<'g> Generator<'g> {
    pub(super) fn begin<'a>(
        &'a self,
        begin: Begin,
        asked: Asked<'a>,
    ) -> RunResult<Writing<'a, 'g>> {
        let default = if begin.is_turn { usize::MAX } else { DEFAULT_TOKENS };
        let most = self.most(begin.tokens.len(), default);
        let room = begin.context.map_or(usize::MAX, |size| size.saturating_sub(begin.tokens.len()));
        let Asked { tokenizer, prompt, given, sink, watch } = asked;
        let stream = tokenizer.map(|tokenizer| tokenizer.stream(&begin.tokens)).transpose()?;
        let stops = [&self.options.stops[..], self.settings.stops()].concat();
        let constraint = self.constraint(tokenizer, &begin.tokens)?;
        Ok(Writing {
            generator: self,
            chooser: self.named(tokenizer)?.begin(&begin.tokens, &begin.encoder, most),
            constraint,
            text: GrowingText::new(stream, stops, sink),
            begin,
            prompt,
            given,
            tokenizer,
            watch,
            most,
            room,
            added: Vec::new(),
            logprobs: Vec::new(),
            runs: 0,
            batch: None,
        })
    }
}

impl Writing<'_, '_> {
    /// The tokens that the model is given first.
    pub(super) fn unread(&self) -> &[i64] {
        &self.begin.tokens[self.begin.reused.unwrap_or_default()..]
    }

    /// The token that was generated last.
    pub(super) fn last(&self) -> Option<i64> {
        self.added.last().copied()
    }

    /// Returns the maximum number of tokens of the text, including the prompt.
    pub(super) fn longest(&self) -> usize {
        self.begin.tokens.len().saturating_add(self.most.min(self.room))
    }

    /// Returns the reason why the text ends before another token, if there is one.
    pub(super) fn full(&self) -> Option<&'static str> {
        let runner = self.generator.runner;
        if self.constraint.as_ref().is_some_and(Constraint::is_complete) {
            return Some("grammar");
        }
        if self.added.len() >= self.most {
            return Some("max_tokens");
        }
        if self.added.len() >= self.room {
            let context = self.begin.context.unwrap_or_default();
            runner
                .warn(&format!("ended: context: the model's context of {context} tokens is full"));
            return Some("context");
        }
        (self.begin.is_turn && runner.host.is_cancelled()).then_some("interrupted")
    }

    /// Chooses a token by logits and adds it. Returns the reason if the text ends.
    pub(super) fn take(&mut self, mut logits: Vec<f32>) -> RunResult<Option<&'static str>> {
        let Generator { settings, options, .. } = self.generator;
        self.watch.tick();
        self.runs += 1;
        let own = options.logprobs.map(|count| (logits.clone(), count));
        // What the settings do last, such as forcing a token, may not bring back others.
        let allowed = self.constraint.as_mut().map(Constraint::allowed).transpose()?;
        allowed.iter().for_each(|allowed| allowed.keep(&mut logits));
        self.chooser.process(&mut logits);
        allowed.iter().for_each(|allowed| allowed.keep(&mut logits));
        let token = self.chooser.choose(&logits)?;
        if settings.ends().contains(&token) {
            return Ok(Some("end"));
        }
        let name = |id: i64| self.tokenizer.and_then(|tokenizer| tokenizer.vocabulary().token(id));
        self.logprobs.extend(own.map(|(own, count)| log_probabilities(&own, token, count, name)));
        self.added.push(token);
        let before = self.text.bytes().len();
        let stopped = self.text.add(token)?;
        if let Some(constraint) = &mut self.constraint {
            if !stopped {
                constraint.check(token, self.text.bytes().get(before..).unwrap_or_default())?;
            }
            constraint.take(token)?;
        }
        Ok(if stopped { Some("stop") } else { self.full() })
    }

    pub(super) fn finish(mut self, ended: &'static str) -> Result<Completion> {
        let grammar = self.constraint.as_mut().map(|constraint| constraint.kept(ended));
        self.generator.warn_incomplete(grammar, ended, self.added.len());
        let (text, text_base64) = text_of(self.text.finish()?);
        let read = self.given.len() - self.begin.reused.unwrap_or_default();
        Ok(Completion {
            prompt: self.prompt,
            given: self.given,
            reused: self.begin.reused,
            dropped: 0,
            added: self.added,
            text: self.tokenizer.map(|_| text),
            text_base64: text_base64.filter(|_| self.tokenizer.is_some()),
            answer: None,
            ended,
            grammar,
            beams: None,
            batch: self.batch,
            arithmetic: self.begin.arithmetic.name(),
            cache_type: self.begin.cache_type.name(),
            timings: self.watch.finish(read, self.runs),
            logprobs: self.generator.options.logprobs.map(|_| self.logprobs),
            ignored: self.generator.settings.ignored().to_vec(),
        })
    }
}
