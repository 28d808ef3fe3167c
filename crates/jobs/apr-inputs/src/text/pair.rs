//! A question and the text that has its answer, as the tokens of one input.

use std::ops::Range;

use apr_core::{Error, Result};

use super::pipeline::Pipeline;
use super::{MAX_TEXT, TextTokens, TokenizerKind};

/// The tokens of two texts as one input.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PairTokens {
    /// Ids of the tokens.
    pub ids: Vec<i64>,
    /// 0 for tokens of the first text, 1 for tokens of the second, as far as the model
    /// distinguishes them.
    pub types: Vec<i64>,
}

/// Settings for splitting a long text into windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// Maximum number of tokens of a window, including the question's.
    pub most: usize,
    /// Tokens of the text that a window shares with the one before.
    pub shared: usize,
}

/// A question with as much of the text as fits.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PairWindow {
    /// Ids of the tokens.
    pub ids: Vec<i64>,
    /// 0 for tokens of the question, 1 for tokens of the text, as far as the model distinguishes
    /// them.
    pub types: Vec<i64>,
    /// For each token of the text, the range of its word in bytes of the text. `None` for tokens of
    /// the question and special tokens.
    pub words: Vec<Option<Range<usize>>>,
}

impl TextTokens {
    /// The tokens of a question and a text, which may take several windows.
    ///
    /// # Errors
    /// E001 where the tokenizer can't be used, or the question leaves no room for the text; E003
    /// for a tokenizer without such pairs, E008 for texts that are too long.
    pub fn pair(&self, question: &str, text: &str, windows: Windows) -> Result<Vec<PairWindow>> {
        self.for_pair(question, text)?.pair(question, text, windows)
    }

    /// Returns at most `most` tokens of two texts, and the number of omitted tokens. Tokens are
    /// omitted from the end of the longer text, and from both once they are equally long
    /// (`longest_first` of transformers).
    ///
    /// # Errors
    /// E001 if the tokenizer can't be used, E003 for one without such pairs, E008 for texts that
    /// are too long.
    pub fn pair_at_most(
        &self,
        first: &str,
        second: &str,
        most: usize,
    ) -> Result<(PairTokens, usize)> {
        self.for_pair(first, second)?.pair_at_most(first, second, most)
    }

    /// Returns the pipeline that tokenizes two texts.
    fn for_pair(&self, first: &str, second: &str) -> Result<&Pipeline> {
        let bytes = first.len().saturating_add(second.len());
        if bytes > MAX_TEXT {
            return Err(Error::memory(format!(
                "the two texts have {bytes} bytes, and at most {MAX_TEXT} are tokenized"
            )));
        }
        match &self.0 {
            TokenizerKind::Merging(_) => {
                Err(Error::version("this tokenizer does not support pairs of texts"))
            }
            TokenizerKind::Pipeline(pipeline) => Ok(pipeline),
        }
    }
}
