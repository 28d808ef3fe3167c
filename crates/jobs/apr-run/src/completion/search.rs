//! Completions by beam search.

use apr_registry::{Error, Result};

use super::{Asked, Begin, Completion, DEFAULT_TOKENS, Generator, text_of};
use crate::beam_search::BeamSearch;
use crate::error::RunResult;
use crate::generation::{Beams, log_probabilities};
use crate::grammar::{Constraint, KeptGrammar};
use crate::growing::GrowingText;
use crate::next::{Fork, Next};
use crate::tokens::Tokenizer;

impl Generator<'_> {
    /// Searches the likeliest text; the sink gets it as a whole.
    pub(super) fn search(
        &self,
        model: impl Next + Fork,
        beams: Beams,
        begin: &Begin,
        mut asked: Asked<'_>,
    ) -> RunResult<Completion> {
        let settings = &self.settings;
        let default = if begin.is_turn { usize::MAX } else { DEFAULT_TOKENS };
        let most = self.most(begin.tokens.len(), default);
        let room = begin.context.map_or(usize::MAX, |size| size.saturating_sub(begin.tokens.len()));
        let limit = if most <= room { (most, "max_tokens") } else { (room, "context") };
        let named = self.named(asked.tokenizer)?;
        let chooser = named.begin(&begin.tokens, &begin.encoder, most);
        let constraint = self.constraint(asked.tokenizer, &begin.tokens)?;
        let stops = [&self.options.stops[..], settings.stops()].concat();
        let tokenizer = asked.tokenizer;
        let written = |added: &[i64], sink: &mut dyn FnMut(&[u8]) -> Result<()>| {
            let stream = tokenizer.map(|tokenizer| tokenizer.stream(&begin.tokens)).transpose()?;
            let mut growing = GrowingText::new(stream, stops.clone(), Some(sink));
            let mut stopped = false;
            for token in added {
                stopped |= growing.add(*token)?;
            }
            Ok::<_, Error>((growing.finish()?, stopped))
        };
        let name = |id: i64| tokenizer.and_then(|tokenizer| tokenizer.vocabulary().token(id));
        let count = self.options.logprobs.unwrap_or_default();
        let describes = |logits: &[f32], token: i64| log_probabilities(logits, token, count, name);
        let search = BeamSearch {
            beams,
            ends: settings.ends(),
            limit,
            process: &|logits, added| {
                let behind = constraint.as_ref().map(|it| it.behind(added)).transpose()?;
                let allowed = behind.map(|mut it| it.allowed()).transpose()?;
                allowed.iter().for_each(|allowed| allowed.keep(logits));
                chooser.process_generated(logits, added);
                allowed.iter().for_each(|allowed| allowed.keep(logits));
                Ok(())
            },
            stops: &|added| {
                if !stops.is_empty() && written(added, &mut |_| Ok(()))?.1 {
                    return Ok(Some("stop"));
                }
                let behind = constraint.as_ref().map(|it| it.behind(added)).transpose()?;
                Ok(behind.is_some_and(|it| it.is_complete()).then_some("grammar"))
            },
            describes: self.options.logprobs.map(|_| &describes as _),
            is_cancelled: &|| begin.is_turn && self.runner.host.is_cancelled(),
        };
        let read = asked.given.len() - begin.reused.unwrap_or_default();
        let mut runs = 0;
        let mut found = Vec::new();
        if limit.0 > 0 {
            let prompt = &begin.tokens[begin.reused.unwrap_or_default()..];
            found = search.run(model, prompt, &mut || {
                asked.watch.tick();
                runs += 1;
            })?;
        }
        for hypothesis in &mut found {
            let text = text_of(written(&hypothesis.added, &mut |_| Ok(()))?.0).0;
            hypothesis.text = tokenizer.map(|_| text);
        }
        let best = found.first();
        let added = best.map(|best| best.added.clone()).unwrap_or_default();
        let ended = best.map_or(limit.1, |best| best.ended);
        if ended == "context" {
            let context = begin.context.unwrap_or_default();
            self.runner
                .warn(&format!("ended: context: the model's context of {context} tokens is full"));
        }
        let (text, text_base64) =
            text_of(written(&added, asked.sink.unwrap_or(&mut |_| Ok(())))?.0);
        let kept = |constraint: Constraint| self.kept(constraint, begin, tokenizer, &added, ended);
        let grammar = constraint.map(kept).transpose()?;
        self.warn_incomplete(grammar, ended, added.len());
        let timings = asked.watch.finish(read, runs);
        let logprobs = best.map(|best| best.logprobs.clone()).unwrap_or_default();
        Ok(Completion {
            prompt: asked.prompt,
            given: asked.given,
            reused: begin.reused,
            dropped: 0,
            added,
            text: tokenizer.map(|_| text),
            text_base64: text_base64.filter(|_| tokenizer.is_some()),
            answer: None,
            ended,
            grammar,
            beams: Some(found),
            batch: None,
            arithmetic: begin.arithmetic.name(),
            cache_type: begin.cache_type.name(),
            timings,
            logprobs: self.options.logprobs.map(|_| logprobs),
            ignored: settings.ignored().to_vec(),
        })
    }

    /// Returns the match of the text of these tokens with its grammar.
    fn kept(
        &self,
        mut constraint: Constraint,
        begin: &Begin,
        tokenizer: Option<&Tokenizer<'_>>,
        added: &[i64],
        ended: &str,
    ) -> RunResult<KeptGrammar> {
        let mut stream = tokenizer.map(|tokenizer| tokenizer.stream(&begin.tokens)).transpose()?;
        for token in added {
            if let Some(stream) = &mut stream {
                constraint.check(*token, &stream.push(*token)?)?;
            }
            constraint.take(*token)?;
        }
        Ok(constraint.kept(ended))
    }
}
