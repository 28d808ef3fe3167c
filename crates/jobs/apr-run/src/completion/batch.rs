//! Completions of several prompts side by side: a step of the model reads its weights once for all
//! of them.

use apr_infer::{Batch, LanguageModel, Memory};

use super::writing::Writing;
use super::{Asked, Begin, Completion, DEFAULT_TOKENS, Generator, Model, Prompt};
use crate::error::{RunError, RunResult};
use crate::runner::{Prepared, UntilCancelled};
use crate::timing::Stopwatch;

/// Receives completions by the numbers of their prompts.
type Done<'d> = dyn FnMut(usize, &Completion) -> RunResult<()> + 'd;

/// A prompt, ready to be read.
struct Waiting {
    /// Text that a chat template made of the prompt.
    chat: Option<String>,
    given: Vec<i64>,
    are_tokens: bool,
}

/// Completions in the order of their prompts, each handed on once those before it are.
struct Ordered<'d, 's> {
    made: Vec<Option<Completion>>,
    handed_on: usize,
    done: &'d mut Done<'s>,
}

impl Ordered<'_, '_> {
    fn add(&mut self, number: usize, completion: Completion) -> RunResult<()> {
        self.made[number] = Some(completion);
        while let Some(Some(next)) = self.made.get(self.handed_on) {
            (self.done)(self.handed_on, next)?;
            self.handed_on += 1;
        }
        Ok(())
    }
}

impl<'g> Generator<'g> {
    /// Generates text behind each prompt, up to `most` of them side by side; `done` receives the
    /// completions in the order of the prompts.
    ///
    /// The texts are those of [`generate`](Self::generate) but for rounding, which can change a
    /// token where two are as likely: products of several rows are added up in another order. What
    /// can't go side by side goes one after the other, with [`Completion::batch`] `None`: beams,
    /// prompts that are kept or have images, encoders with decoders, and graphs without a mask and
    /// positions. So do texts for whose keys and values there would be no memory.
    ///
    /// # Errors
    /// Those of [`generate`](Self::generate), those of the prompts themselves before any text is
    /// generated, and of `done`.
    pub fn generate_all(
        &mut self,
        prompts: &[Prompt<'_>],
        most: usize,
        done: &mut dyn FnMut(usize, &Completion) -> RunResult<()>,
    ) -> RunResult<Vec<Completion>> {
        let side_by_side = most > 1 && prompts.len() > 1 && self.can_batch()?;
        if !side_by_side {
            let mut made = Vec::with_capacity(prompts.len());
            for (number, prompt) in prompts.iter().enumerate() {
                let completion = self.generate(*prompt, &mut |_| Ok(()))?;
                done(number, &completion)?;
                made.push(completion);
            }
            return Ok(made);
        }

        if prompts.iter().any(|prompt| !matches!(prompt, Prompt::Tokens(_))) {
            self.read_tokenizer()?;
        }
        let waiting = prompts.iter().map(|prompt| self.waiting(*prompt));
        let waiting: Vec<Waiting> = waiting.collect::<RunResult<_>>()?;
        let made = vec![None; waiting.len()];
        let mut ordered = Ordered { made, handed_on: 0, done };
        self.write_all(self.causal()?, waiting, most, &mut ordered)?;
        Ok(ordered.made.into_iter().flatten().collect())
    }

    /// Returns `true` if texts can grow side by side.
    fn can_batch(&self) -> RunResult<bool> {
        let Model::Decoder(part) = &self.model else { return Ok(false) };
        let alone = self.settings.beams().is_some() || self.kept.is_some() || self.images.is_some();
        Ok(!alone && part.language()?.takes_batches())
    }

    fn waiting(&self, prompt: Prompt<'_>) -> RunResult<Waiting> {
        let are_tokens = matches!(prompt, Prompt::Tokens(_));
        let (chat, given) = self.encoded(prompt)?;
        let given = self.fitting(given, are_tokens)?;
        if given.is_empty() {
            return Err(RunError::request("the prompt is empty"));
        }
        Ok(Waiting { chat, given, are_tokens })
    }

    fn write_all(
        &self,
        part: &Prepared<'_>,
        waiting: Vec<Waiting>,
        most: usize,
        ordered: &mut Ordered<'_, '_>,
    ) -> RunResult<()> {
        let language = &part.language()?;
        let mut batch = Batch::default();
        let mut growing: Vec<(usize, Writing<'_, 'g>)> = Vec::new();
        let mut waiting = waiting.into_iter().enumerate().peekable();
        loop {
            let mut fresh = Vec::new();
            while growing.len() < most {
                let longest = growing.iter().map(|(_, writing)| writing.longest());
                let is_room = |next: &(usize, Waiting)| {
                    growing.is_empty() || self.fits(language, longest.sum(), &next.1)
                };
                let Some((number, next)) = waiting.next_if(is_room) else { break };
                let (writing, memory, ended) = self.first(part, language, next)?;
                match ended {
                    Some(ended) => {
                        ordered.add(number, self.with_answer(writing.finish(ended)?)?)?;
                    }
                    None => {
                        growing.push((number, writing));
                        fresh.push(memory);
                    }
                }
            }
            if growing.is_empty() {
                return Ok(());
            }
            if !fresh.is_empty() {
                language.join(&mut batch, &fresh)?;
            }

            let tokens: Vec<i64> =
                growing.iter().filter_map(|(_, writing)| writing.last()).collect();
            let host = self.runner.host;
            let mut tap = UntilCancelled(host);
            let logits = language.next_of_each(&mut batch, &tokens, host.workers(), &mut tap)?;
            let count = growing.len();
            let mut kept = Vec::with_capacity(count);
            let mut left = Vec::with_capacity(count);
            for (text, ((number, mut writing), logits)) in
                growing.into_iter().zip(logits).enumerate()
            {
                writing.batch = writing.batch.max((count > 1).then_some(count));
                match writing.take(logits)? {
                    Some(ended) => {
                        ordered.add(number, self.with_answer(writing.finish(ended)?)?)?;
                    }
                    None => {
                        kept.push(text);
                        left.push((number, writing));
                    }
                }
            }
            growing = left;
            if kept.len() < count {
                batch.select(&kept);
            }
        }
    }

    /// Returns `true` if the keys and values of another prompt, together with those of `tokens`
    /// tokens, fit half of the memory.
    fn fits(&self, language: &LanguageModel<'_, '_>, tokens: usize, next: &Waiting) -> bool {
        let given = next.given.len();
        let most = self.settings.most(given).unwrap_or(DEFAULT_TOKENS);
        let context = self.runner.facts.context().unwrap_or(usize::MAX);
        let longest = given.saturating_add(most).min(context.max(given));
        let bytes =
            language.bytes_of_a_token().saturating_mul(tokens.saturating_add(longest) as u64);
        bytes <= self.runner.options().max_memory / 2
    }

    /// Reads a prompt, and chooses the first token behind it.
    fn first<'a>(
        &'a self,
        part: &Prepared<'_>,
        language: &LanguageModel<'_, '_>,
        next: Waiting,
    ) -> RunResult<(Writing<'a, 'g>, Memory, Option<&'static str>)> {
        let host = self.runner.host;
        let watch = Stopwatch::start(host);
        let tokenizer = self.tokenizer.as_ref().filter(|_| !next.are_tokens);
        let begin = Begin {
            tokens: next.given.clone(),
            reused: None,
            encoder: Vec::new(),
            context: self.runner.facts.context(),
            arithmetic: part.session.arithmetic(),
            cache_type: language.cache_type(),
            is_turn: false,
        };
        let asked = Asked { tokenizer, prompt: next.chat, given: next.given, sink: None, watch };
        let mut writing = self.begin(begin, asked)?;
        let mut memory = Memory::default();
        let mut ended = writing.full();
        if ended.is_none() {
            let mut tap = UntilCancelled(host);
            let logits = language.next(&mut memory, writing.unread(), host.workers(), &mut tap)?;
            ended = writing.take(logits)?;
        }
        Ok((writing, memory, ended))
    }
}
