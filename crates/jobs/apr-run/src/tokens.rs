//! The tokenizer that came with a model.
//!
//! Its files come from a stranger, and the libraries that read them may panic or take forever on
//! hostile ones: they run where the [`Host`] isolates them.

use std::sync::Arc;

use apr_inputs::text::{
    PairTokens, PairWindow, Piece, TextStream, TextTokens, TokenizerSource, Windows,
};
use apr_registry::{CheckpointReader, Result};

use crate::error::{Remedy, RunError, RunResult, absent};
use crate::host::{Host, isolated};

/// Name of the tokenizer in errors.
const WHAT: &str = "the tokenizer";

/// A model's tokenizer.
#[derive(Clone)]
pub struct Tokenizer<'h> {
    host: &'h dyn Host,
    tokens: Arc<TextTokens>,
}

impl<'h> Tokenizer<'h> {
    /// Reads the tokenizer, or returns `None` if the model has none.
    ///
    /// # Errors
    /// E001 for files that are not a tokenizer, E003 for an unknown kind, E008 over a limit.
    pub fn find(reader: &dyn CheckpointReader, host: &'h dyn Host) -> Result<Option<Self>> {
        let source = TokenizerSource::of(reader)?;
        let Some((tokens, warnings)) = isolated(host, WHAT, move || source.read())? else {
            return Ok(None);
        };
        warnings.iter().for_each(|warning| host.warn(warning, None));
        Ok(Some(Self { host, tokens: Arc::new(tokens) }))
    }

    /// Reads the tokenizer, which the model must have.
    ///
    /// # Errors
    /// Those of [`find`](Self::find), and E003 where the model has none.
    pub fn of(reader: &dyn CheckpointReader, host: &'h dyn Host) -> RunResult<Self> {
        Self::find(reader, host)?.ok_or_else(|| {
            let message = absent("missing tokenizer", "tokenizer.json");
            RunError::lacking(message, Remedy::TokenIds)
        })
    }

    /// Returns the tokens of a text. `special` adds the tokens that begin and end a text.
    ///
    /// # Errors
    /// E001 and E008 if the tokenizer fails.
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<i64>> {
        let text = text.to_owned();
        self.isolated(move |tokens| tokens.encode(&text, special))
    }

    /// Returns at most `most` tokens of a text, and the number of further tokens.
    ///
    /// # Errors
    /// E001 and E008 if the tokenizer fails.
    pub fn encode_at_most(&self, text: &str, most: usize) -> Result<(Vec<i64>, usize)> {
        let text = text.to_owned();
        self.isolated(move |tokens| tokens.encode_at_most(&text, most))
    }

    /// Returns the tokens of a text with the bytes that they cover. `special` adds the tokens that
    /// begin and end a text.
    ///
    /// # Errors
    /// E001 and E008 if the tokenizer fails.
    pub fn pieces(&self, text: &str, special: bool) -> Result<Vec<Piece>> {
        let text = text.to_owned();
        self.isolated(move |tokens| tokens.pieces(&text, special))
    }

    /// The tokens of two texts with those around and between them, and the type of each: 1 from the
    /// second text on, where the model tells them apart.
    ///
    /// # Errors
    /// E003 for a tokenizer without a template for pairs, E001 and E008 where it fails.
    pub fn encode_pair(&self, first: &str, second: &str) -> Result<(Vec<i64>, Vec<i64>)> {
        let (PairTokens { ids, types, .. }, _) = self.pair_at_most(first, second, usize::MAX)?;
        Ok((ids, types))
    }

    /// Returns at most `most` tokens of two texts, and the number of omitted tokens.
    pub(crate) fn pair_at_most(
        &self,
        first: &str,
        second: &str,
        most: usize,
    ) -> Result<(PairTokens, usize)> {
        let (first, second) = (first.to_owned(), second.to_owned());
        self.isolated(move |tokens| tokens.pair_at_most(&first, &second, most))
    }

    /// The windows of a question and a text.
    pub(crate) fn pair(
        &self,
        question: &str,
        text: &str,
        windows: Windows,
    ) -> Result<Vec<PairWindow>> {
        let (question, text) = (question.to_owned(), text.to_owned());
        self.isolated(move |tokens| tokens.pair(&question, &text, windows))
    }

    /// Returns the text of tokens. `special` spells out the tokens that represent no text.
    ///
    /// # Errors
    /// E001 and E008 if the tokenizer fails.
    pub fn decode(&self, ids: &[i64], special: bool) -> Result<String> {
        let ids = ids.to_vec();
        self.isolated(move |tokens| match special {
            true => tokens.decode_all(&ids),
            false => tokens.decode(&ids),
        })
    }

    /// The tokenizer itself, for lookups that can't hang.
    #[must_use]
    pub fn vocabulary(&self) -> &TextTokens {
        &self.tokens
    }

    /// Returns a decoder of tokens one after the other, which follow a prompt.
    pub(crate) fn stream(&self, prompt: &[i64]) -> Result<TextStream<'_>> {
        TextStream::behind(&self.tokens, prompt)
    }

    fn isolated<T: Send + 'static>(
        &self,
        work: impl FnOnce(&TextTokens) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.isolated_as(WHAT, work)
    }

    /// Runs work with the tokenizer in isolation, because a library may panic or not return. Errors
    /// name `what` as their subject.
    pub(crate) fn isolated_as<T: Send + 'static>(
        &self,
        what: &str,
        work: impl FnOnce(&TextTokens) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let tokens = Arc::clone(&self.tokens);
        isolated(self.host, what, move || work(&tokens))
    }

    #[cfg(feature = "grammar")]
    pub(crate) fn warn(&self, message: &str) {
        self.host.warn(message, None);
    }
}
