//! A text as it grows, token by token.

use apr_core::Result;

use super::TextTokens;

/// Number of tokens that are decoded again with the next tokens, because the text of a token may
/// depend on those before it.
const CONTEXT: usize = 6;

/// Decoder that turns tokens into the bytes of their text, token by token.
#[derive(Debug, Clone)]
pub struct TextStream<'t> {
    tokens: &'t TextTokens,
    /// Tokens from some before the last one.
    recent: Vec<i64>,
    /// Text of the recent tokens.
    known: Vec<u8>,
}

impl<'t> TextStream<'t> {
    /// Begins behind a text that is there already.
    ///
    /// # Errors
    /// Those of [`TextTokens::decode`].
    pub fn behind(tokens: &'t TextTokens, given: &[i64]) -> Result<Self> {
        let recent = given[given.len().saturating_sub(CONTEXT)..].to_vec();
        let known = tokens.decode_bytes(&recent)?;
        Ok(Self { tokens, recent, known })
    }

    /// The bytes that one more token adds, which need not be whole characters.
    ///
    /// # Errors
    /// Those of [`TextTokens::decode`].
    pub fn push(&mut self, token: i64) -> Result<Vec<u8>> {
        self.recent.push(token);
        let text = self.tokens.decode_bytes(&self.recent)?;
        let alike = text.iter().zip(&self.known).take_while(|(a, b)| a == b).count();
        let new = text.get(alike..).unwrap_or_default().to_vec();
        if self.recent.len() > 2 * CONTEXT {
            self.recent.drain(..self.recent.len() - CONTEXT);
            self.known = self.tokens.decode_bytes(&self.recent)?;
        } else {
            self.known = text;
        }
        Ok(new)
    }
}
