//! Vectors of texts by the modules of sentence-transformers.

use apr_graph::Graph;
use apr_infer::{Tensor, Value};
use apr_ops::graph::{Runnable, SENTENCE_INPUTS, SENTENCE_OUTPUT, sentence_graph};
use apr_registry::{Error, Result};
use apr_source::sentence::Sentence;

use crate::error::RunResult;
use crate::runner::Runner;

/// Pooling of the vectors of tokens to the vector of a text.
#[derive(Debug)]
pub struct SentenceHead {
    sentence: Sentence,
    part: Runnable,
}

impl SentenceHead {
    /// Creates the head from the modules of a model, or from those that replace them.
    ///
    /// # Errors
    /// E003 for an unknown module. Otherwise, returns the errors of reading the modules' weights.
    pub fn new(runner: &Runner<'_>, sentence: Sentence) -> Result<Self> {
        let graph: Graph = sentence_graph(runner.reader(), &sentence)?;
        Ok(Self { sentence, part: Runnable::new("sentence".to_owned(), graph) })
    }

    /// Returns the modules.
    #[must_use]
    pub fn sentence(&self) -> &Sentence {
        &self.sentence
    }

    /// The vectors of texts, by the vectors of their tokens, `[texts, tokens, width]`. The first
    /// `prompt` tokens of each are those of a prompt, which some models do not count.
    ///
    /// # Errors
    /// Those of [`Engine::prepare`](apr_infer::Engine::prepare) and
    /// [`Session::run`](apr_infer::Session::run).
    pub fn vectors(
        &self,
        runner: &Runner<'_>,
        states: Tensor,
        prompt: usize,
    ) -> RunResult<Vec<Vec<f32>>> {
        let [texts, tokens, _] = states.shape()[..] else {
            return Err(Error::format("the model does not return token vectors").into());
        };
        let left_out = if self.sentence.includes_prompt() { 0 } else { prompt.min(tokens) };
        let row = |left_out: usize| {
            let row = (0..tokens).map(|token| if token < left_out { 0.0 } else { 1.0_f32 });
            Tensor::new(vec![texts, tokens], row.collect::<Vec<_>>().repeat(texts))
        };
        let values = [states, row(0)?, row(left_out)?];
        let inputs = SENTENCE_INPUTS.iter().zip(values);
        let inputs = inputs.map(|(name, value)| ((*name).to_owned(), Value::Tensor(value)));
        let part = runner.prepared(&self.part)?;
        let made = part.one(inputs.collect(), SENTENCE_OUTPUT)?;
        let width = made.shape().last().copied().unwrap_or(1).max(1);
        Ok(made.floats()?.chunks_exact(width).map(<[f32]>::to_vec).collect())
    }
}
