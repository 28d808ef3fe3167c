//! A text as it grows, token by token.

use apr_core::Result;

use super::TextTokens;

/// Tokens that are decoded again with what follows, since a token's text may depend on those before
/// it.
const CONTEXT: usize = 6;

/// Turns tokens into text as they come. A character of several tokens comes with its last one.
#[derive(Debug, Clone)]
pub struct TextStream<'t> {
    tokens: &'t TextTokens,
    /// Tokens from some before the first that is not shown yet.
    recent: Vec<i64>,
    /// What of their text is shown.
    shown: String,
}

impl<'t> TextStream<'t> {
    /// Begins behind a text that is there already.
    ///
    /// # Errors
    /// Those of [`TextTokens::decode`].
    pub fn behind(tokens: &'t TextTokens, given: &[i64]) -> Result<Self> {
        let recent = given[given.len().saturating_sub(CONTEXT)..].to_vec();
        let shown = tokens.decode(&recent)?;
        Ok(Self { tokens, recent, shown })
    }

    /// The text that one more token makes.
    ///
    /// # Errors
    /// Those of [`TextTokens::decode`].
    pub fn push(&mut self, token: i64) -> Result<String> {
        self.recent.push(token);
        let text = self.tokens.decode(&self.recent)?;

        // The replacement character stands for bytes whose rest is still to come.
        if text.ends_with('\u{fffd}') && self.recent.len() < 4 * CONTEXT {
            return Ok(String::new());
        }

        let new = text[common(&text, &self.shown)..].to_owned();
        if self.recent.len() > 2 * CONTEXT {
            self.recent.drain(..self.recent.len() - CONTEXT);
            self.shown = self.tokens.decode(&self.recent)?;
        } else {
            self.shown = text;
        }

        Ok(new)
    }

    /// What is left when no more tokens come: characters that were never finished.
    ///
    /// # Errors
    /// Those of [`TextTokens::decode`].
    pub fn finish(self) -> Result<String> {
        let text = self.tokens.decode(&self.recent)?;
        Ok(text[common(&text, &self.shown)..].to_owned())
    }
}

/// Bytes that two texts begin with alike. A character that was not whole before is new.
fn common(text: &str, shown: &str) -> usize {
    let shown = shown.trim_end_matches('\u{fffd}');
    let alike = text.chars().zip(shown.chars()).take_while(|(a, b)| a == b);
    alike.map(|(letter, _)| letter.len_utf8()).sum()
}
