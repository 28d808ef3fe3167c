//! A text as windows of tokens, cut and scored as llama-perplexity does.

use apr_core::counted;
use apr_registry::Error;
use apr_run::{RunError, RunResult, Runner, Tokenizer};

/// Default window length, if neither the caller nor the model defines one.
const DEFAULT_CONTEXT: usize = 512;

/// Consecutive windows of one length. The rest of the text at the end is not used.
///
/// The first half of a window is only context: tokens are scored from its middle on. If the model
/// begins texts with a token (BOS), this token replaces the first token of each window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Windows {
    tokens: Vec<i64>,
    context: usize,
    bos: Option<i64>,
}

/// Window of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Window {
    /// Input of the model.
    pub(crate) input: Vec<i64>,
    /// Position of the first token whose successor is scored.
    pub(crate) first: usize,
    /// The tokens that follow positions `first` to the last but one.
    pub(crate) targets: Vec<i64>,
}

/// Options for splitting a text into windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct WindowOptions {
    /// Tokens of a window; 512 by default, or the shortest context of the models.
    pub context: Option<usize>,
    /// Maximum number of windows; all windows by default.
    pub chunks: Option<usize>,
}

impl Windows {
    /// Cuts a text for models that are compared by their predictions of it: all split it into the
    /// same tokens, and each takes a whole window. A model without a tokenizer is given the tokens
    /// of the others.
    ///
    /// # Errors
    /// [`RunError::Request`] for models that split the text into different tokens, a text of fewer
    /// than two windows, a window of fewer than four tokens, one longer than a model's context, and
    /// no window at all; E003 where no model has a tokenizer; what tokenizers end with.
    pub fn of_text(text: &str, models: &[&Runner<'_>], options: WindowOptions) -> RunResult<Self> {
        let mut found: Option<(Vec<i64>, Option<i64>)> = None;
        for model in models {
            let Some(tokenizer) = model.tokenizer()? else { continue };
            let bos = leading_token(&tokenizer)?;
            let mut tokens: Vec<i64> = bos.into_iter().collect();
            tokens.extend(tokenizer.encode(text, false)?);
            match &found {
                Some((known, _)) if *known != tokens => {
                    return Err(RunError::request(
                        "the vocabularies differ: A and B split the text into different tokens, \
                         so their predictions can't be compared",
                    ));
                }
                Some(_) => {}
                None => found = Some((tokens, bos)),
            }
        }
        let (tokens, bos) = found.ok_or_else(|| {
            Error::version("missing tokenizer: put tokenizer.json next to the model's config.json")
        })?;
        let most = models.iter().filter_map(|model| model.facts().context()).min();
        Self::of_tokens(tokens, bos, most, options)
    }

    /// Splits a list of tokens into windows. Each window begins with `bos` if it is given.
    ///
    /// `most` is the shortest context of the models.
    ///
    /// # Errors
    /// Returns the errors of [`of_text`](Self::of_text).
    pub fn of_tokens(
        mut tokens: Vec<i64>,
        bos: Option<i64>,
        most: Option<usize>,
        options: WindowOptions,
    ) -> RunResult<Self> {
        let default = most.map_or(DEFAULT_CONTEXT, |most| most.min(DEFAULT_CONTEXT));
        let context = options.context.unwrap_or(default);
        if context < 4 {
            return Err(RunError::request("a window has four tokens at least"));
        }
        if let Some(most) = most.filter(|most| context > *most) {
            return Err(RunError::request(format!(
                "a window of {context} tokens is longer than the model's context of {most}"
            )));
        }
        if options.chunks == Some(0) {
            return Err(RunError::request("without a window no token is scored"));
        }
        let windows = tokens.len() / context;
        if windows < 2 {
            return Err(RunError::request(format!(
                "the text has {}, fewer than two windows of {context}: use a longer text or a \
                 shorter window",
                counted(tokens.len() as u64, "token")
            )));
        }

        let chunks = windows.min(options.chunks.unwrap_or(windows));
        tokens.truncate(chunks * context);
        Ok(Self { tokens, context, bos })
    }

    /// Number of windows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tokens.len() / self.context
    }

    /// Returns `true` if there is no window. Windows of a text are never empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Tokens of a window.
    #[must_use]
    pub fn context(&self) -> usize {
        self.context
    }

    /// The token that begins each window.
    #[must_use]
    pub fn bos(&self) -> Option<i64> {
        self.bos
    }

    /// Returns all tokens of the text.
    #[must_use]
    pub fn tokens(&self) -> &[i64] {
        &self.tokens
    }

    /// Returns the model input of each window.
    pub fn inputs(&self) -> impl Iterator<Item = Vec<i64>> + '_ {
        self.iter().map(|window| window.input)
    }

    /// Returns part number `part`, counted from 0, of `of` equal parts.
    #[must_use]
    pub fn part(&self, part: usize, of: usize) -> Self {
        let bound = |part: usize| part * self.len() / of.max(1) * self.context;
        let tokens = self.tokens[bound(part)..bound(part + 1)].to_vec();
        Self { tokens, context: self.context, bos: self.bos }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Window> + '_ {
        let first = self.context / 2;
        self.tokens.chunks_exact(self.context).map(move |tokens| {
            let mut input = tokens.to_vec();
            input[0] = self.bos.unwrap_or(input[0]);
            Window { input, first, targets: tokens[first + 1..].to_vec() }
        })
    }
}

/// The token that a tokenizer puts before a text.
pub(crate) fn leading_token(tokenizer: &Tokenizer<'_>) -> RunResult<Option<i64>> {
    let (plain, special) = (tokenizer.encode("a", false)?, tokenizer.encode("a", true)?);
    let starts_so = plain.first() == special.first();
    Ok(special.first().copied().filter(|_| !starts_so && special.len() > plain.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(count: i64, bos: Option<i64>, options: WindowOptions) -> RunResult<Windows> {
        Windows::of_tokens((0..count).collect(), bos, Some(8), options)
    }

    #[test]
    fn the_second_half_of_each_window_is_scored() {
        let all: Vec<Window> =
            windows(19, None, WindowOptions::default()).unwrap().iter().collect();
        let expected = [
            Window { input: (0..8).collect(), first: 4, targets: vec![5, 6, 7] },
            Window { input: (8..16).collect(), first: 4, targets: vec![13, 14, 15] },
        ];
        assert_eq!(all, expected);
    }

    #[test]
    fn each_window_begins_with_bos_where_texts_do() {
        let made = windows(16, Some(99), WindowOptions::default()).unwrap();
        assert!(made.iter().all(|window| window.input[0] == 99 && window.input.len() == 8));
    }

    #[test]
    fn windows_that_can_not_be_are_refused() {
        let of = |context| WindowOptions { context: Some(context), chunks: None };
        for (count, options) in [(15, of(8)), (100, of(9)), (100, of(3)), (0, of(8))] {
            assert!(windows(count, None, options).is_err(), "{count} {options:?}");
        }
        let none = WindowOptions { context: Some(8), chunks: Some(0) };
        assert!(windows(100, None, none).is_err());
        for context in [usize::MAX, usize::MAX / 2 + 1] {
            let error = Windows::of_tokens((0..9).collect(), None, None, of(context));
            assert!(error.unwrap_err().to_string().contains("fewer than two windows"));
        }
        let one = WindowOptions { context: Some(8), chunks: Some(1) };
        assert_eq!(windows(100, None, one).unwrap().len(), 1);
    }

    #[test]
    fn the_shortest_window_scores_a_token() {
        let made = windows(8, None, WindowOptions { context: Some(4), chunks: None }).unwrap();
        assert!(made.iter().all(|window| window.targets.len() == 1));
    }
}
