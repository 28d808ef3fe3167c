//! What computes the next token: a language model, or a decoder behind an encoder.

use apr_infer::{LanguageModel, Memory, Tap, Unwatched};
use apr_registry::Result;

use crate::encoder_decoder::Decoder;
use crate::error::RunResult;
use crate::runner::{Runner, UntilCancelled};

/// Whatever computes the logits of the next token.
pub(crate) trait Next {
    /// The logits of what follows all tokens so far and these.
    fn next(&mut self, tokens: &[i64]) -> RunResult<Vec<f32>>;
}

/// What several texts can go on from.
pub(crate) trait Fork {
    /// Goes on by itself; its clones do, too.
    type Branch: Next + Clone;

    /// One that goes on with what was read so far.
    fn fork(&self) -> Self::Branch;
}

impl Next for Decoder<'_> {
    fn next(&mut self, tokens: &[i64]) -> RunResult<Vec<f32>> {
        Decoder::next(self, tokens)
    }
}

impl<'d> Fork for Decoder<'d> {
    type Branch = Self;

    fn fork(&self) -> Self {
        self.clone()
    }
}

/// A language model, and what it keeps of the text so far.
pub(crate) struct Causal<'r> {
    pub(crate) runner: Runner<'r>,
    pub(crate) language: &'r LanguageModel<'r, 'r>,
    pub(crate) memory: &'r mut Memory,
    /// Whether a single token is computed to its end, whatever the host says: one that is stopped
    /// halfway takes all keys and values with it.
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
    type Branch = CausalBranch<'r>;

    fn fork(&self) -> CausalBranch<'r> {
        let Self { runner, language, ref memory, finishes } = *self;
        CausalBranch { runner, language, memory: (**memory).clone(), finishes }
    }
}

/// A language model with keys and values of its own.
#[derive(Clone)]
pub(crate) struct CausalBranch<'r> {
    runner: Runner<'r>,
    language: &'r LanguageModel<'r, 'r>,
    memory: Memory,
    finishes: bool,
}

impl Next for CausalBranch<'_> {
    fn next(&mut self, tokens: &[i64]) -> RunResult<Vec<f32>> {
        let Self { runner, language, ref mut memory, finishes } = *self;
        Causal { runner, language, memory, finishes }.next(tokens)
    }
}

/// Keeps what is known of the beginning of a prompt, and returns how many of its tokens that is.
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
