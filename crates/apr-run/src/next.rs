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

impl Next for Decoder<'_> {
    fn next(&mut self, tokens: &[i64]) -> RunResult<Vec<f32>> {
        Decoder::next(self, tokens)
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
