//! What computes the next token: a language model, or a decoder behind an encoder.

use apr_infer::{Batch, LanguageModel, Memory, Tap, Unwatched};
use apr_registry::Result;

use crate::encoder_decoder::Decoder;
use crate::error::RunResult;
use crate::runner::{Runner, UntilCancelled};

/// Model that computes the logits of the next token.
pub(crate) trait Next {
    /// Returns the logits after all tokens so far and `tokens`.
    fn next(&mut self, tokens: &[i64]) -> RunResult<Vec<f32>>;
}

/// State from which several texts can continue.
pub(crate) trait Fork {
    type Branches: Branches;

    /// Returns a text that continues on its own from the tokens read so far.
    fn fork(&self) -> RunResult<Self::Branches>;
}

/// Texts that grow side by side, a token each at a time.
pub(crate) trait Branches {
    /// Returns the logits after each text and its new token.
    fn next(&mut self, tokens: &[i64]) -> RunResult<Vec<Vec<f32>>>;

    /// Keeps only these texts, in this order. A text may occur several times.
    fn select(&mut self, texts: &[usize]) -> RunResult<()>;
}

impl Next for Decoder<'_> {
    fn next(&mut self, tokens: &[i64]) -> RunResult<Vec<f32>> {
        Decoder::next(self, tokens)
    }
}

impl<'d> Fork for Decoder<'d> {
    type Branches = Self;

    fn fork(&self) -> RunResult<Self> {
        Ok(self.clone())
    }
}

impl Branches for Decoder<'_> {
    fn next(&mut self, tokens: &[i64]) -> RunResult<Vec<Vec<f32>>> {
        self.next_of_each(tokens)
    }

    fn select(&mut self, texts: &[usize]) -> RunResult<()> {
        Decoder::select(self, texts)
    }
}

/// A language model with the keys and values of the text so far.
pub(crate) struct Causal<'r> {
    pub(crate) runner: Runner<'r>,
    pub(crate) language: &'r LanguageModel<'r, 'r>,
    pub(crate) memory: &'r mut Memory,
    /// `true` to compute a single token to its end even if the host cancels. A token that is
    /// stopped halfway loses all keys and values.
    pub(crate) finishes: bool,
}

impl Next for Causal<'_> {
    fn next(&mut self, tokens: &[i64]) -> RunResult<Vec<f32>> {
        let host = self.runner.host;
        let mut until_cancelled = UntilCancelled(host);
        let tap: &mut dyn Tap =
            if self.finishes && tokens.len() == 1 { &mut Unwatched } else { &mut until_cancelled };
        Ok(self.language.next(self.memory, tokens, host.workers(), tap)?)
    }
}

impl<'r> Fork for Causal<'r> {
    type Branches = CausalBranches<'r>;

    fn fork(&self) -> RunResult<CausalBranches<'r>> {
        let Self { runner, language, ref memory, finishes } = *self;
        let memory = (**memory).clone();
        let texts = if language.takes_batches() {
            Texts::SideBySide(language.batch(&[memory])?)
        } else {
            Texts::Each(vec![memory])
        };
        Ok(CausalBranches { runner, language, texts, finishes })
    }
}

/// A language model with keys and values of its own for each text.
pub(crate) struct CausalBranches<'r> {
    runner: Runner<'r>,
    language: &'r LanguageModel<'r, 'r>,
    texts: Texts,
    finishes: bool,
}

enum Texts {
    SideBySide(Batch),
    /// For graphs that take one text at a time.
    Each(Vec<Memory>),
}

impl Branches for CausalBranches<'_> {
    fn next(&mut self, tokens: &[i64]) -> RunResult<Vec<Vec<f32>>> {
        let Self { runner, language, ref mut texts, finishes } = *self;
        match texts {
            Texts::SideBySide(batch) => {
                let host = runner.host;
                let mut until_cancelled = UntilCancelled(host);
                let tap: &mut dyn Tap =
                    if finishes { &mut Unwatched } else { &mut until_cancelled };
                Ok(language.next_of_each(batch, tokens, host.workers(), tap)?)
            }
            Texts::Each(memories) => {
                let next =
                    |(memory, token)| Causal { runner, language, memory, finishes }.next(&[token]);
                memories.iter_mut().zip(tokens.iter().copied()).map(next).collect()
            }
        }
    }

    fn select(&mut self, texts: &[usize]) -> RunResult<()> {
        match &mut self.texts {
            Texts::SideBySide(batch) => batch.select(texts),
            Texts::Each(memories) => {
                *memories = texts.iter().map(|text| memories[*text].clone()).collect();
            }
        }
        Ok(())
    }
}

/// Keeps the keys and values of the beginning that a prompt shares with the memory, and returns its
/// number of tokens.
pub(crate) fn keep_common(
    language: &LanguageModel<'_, '_>,
    memory: &mut Memory,
    tokens: &[i64],
) -> Result<usize> {
    let alike = memory.tokens().iter().zip(tokens).take_while(|(kept, token)| kept == token);
    // Logits come of reading. Two tokens are read, since the products of a single row are added up
    // in another order.
    let kept = alike.count().min(tokens.len().saturating_sub(2));
    if !language.truncate(memory, kept)? {
        *memory = Memory::default();
    }
    Ok(memory.len())
}
