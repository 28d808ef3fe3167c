//! Tokens and their scores.

use std::ops::Range;

use apr_core::{Error, Limits, Result};

use super::cursor::{Cursor, LAST_WINDOW};

/// Maximum number of tokens, four times as many as any model of the time had.
const MAX_TOKENS: usize = 1 << 20;
/// Longest token, in bytes.
const MAX_TOKEN_LEN: usize = LAST_WINDOW;

/// The tokens of a file, by id.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Vocabulary {
    bytes: Vec<u8>,
    /// End of each token in `bytes`.
    ends: Vec<usize>,
    /// One for each token, or none at all.
    scores: Vec<f32>,
}

/// Representation of tokens, which are bytes, as text (`tokenizer.vocabulary_encoding`).
///
/// The bytes themselves are at
/// [`GgmlReader::vocabulary_tokens`](super::GgmlReader::vocabulary_tokens).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Representation {
    /// `utf8`: all tokens are UTF-8 and are written unchanged.
    Utf8,
    /// `sentencepiece`: LLaMA's pieces. Ids 0 to 2 are `<unk>`, `<s>`, `</s>`; ids 3 to 258, the
    /// single bytes, are `<0x00>` to `<0xFF>`; a space is U+2581.
    SentencePiece,
    /// `byte_to_unicode`: every byte is a character, as in GPT-2's `vocab.json`. Bytes that print
    /// in Latin-1 map to themselves, the others to U+0100 and on, in order.
    ByteToUnicode,
}

impl Representation {
    /// Returns the name in the metadata.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Utf8 => "utf8",
            Self::SentencePiece => "sentencepiece",
            Self::ByteToUnicode => "byte_to_unicode",
        }
    }
}

impl Vocabulary {
    /// Reads `count` tokens, each followed by a score if `scored`.
    pub(super) fn read(
        cursor: &mut Cursor<'_>,
        count: i32,
        scored: bool,
        limits: &Limits,
    ) -> Result<Self> {
        let (start, token_bytes) = (cursor.at(), if scored { 8 } else { 4 });
        let count = usize::try_from(count).map_err(|_| {
            Error::format(format!("the vocabulary has {count} tokens, which no file can")).at(start)
        })?;
        if count > MAX_TOKENS {
            let message =
                format!("the vocabulary has {count} tokens, more than the limit of {MAX_TOKENS}");
            return Err(Error::memory(message).at(start));
        }

        if count as u64 * token_bytes > cursor.left() {
            let message = format!(
                "a vocabulary of {count} tokens does not fit into the {} bytes left",
                cursor.left()
            );
            return Err(Error::corrupt(message).at(start));
        }

        let mut vocabulary = Self::default();
        for id in 0..count {
            let at = cursor.at();
            let len = cursor.i32("the length of a token")?;
            let len = usize::try_from(len).ok().filter(|&len| len <= MAX_TOKEN_LEN);
            let len = len.ok_or_else(|| {
                Error::format(format!("token {id} has no plausible length")).at(at)
            })?;
            vocabulary.bytes.extend_from_slice(cursor.take(len, "a token")?);
            vocabulary.ends.push(vocabulary.bytes.len());
            if scored {
                vocabulary.scores.push(cursor.f32("the score of a token")?);
            }
            limits.check_metadata(cursor.at() - start).map_err(|error| error.at(start))?;
        }

        Ok(vocabulary)
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn tokens(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.ends.len()).map(|id| self.token(id))
    }

    pub(super) fn scores(&self) -> &[f32] {
        &self.scores
    }

    fn token(&self, id: usize) -> &[u8] {
        let start = id.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..self.ends[id]]
    }

    /// Returns the lossless representation: LLaMA's pieces if `pieces` is set and the tokens fit,
    /// otherwise UTF-8 or bytes.
    pub(super) fn representation(&self, pieces: bool) -> Representation {
        let utf8 = |mut ids: Range<usize>| ids.all(|id| str::from_utf8(self.token(id)).is_ok());
        let bytes = 3..259;
        if pieces
            && self.len() >= bytes.end
            && bytes.clone().zip(0_u8..=255).all(|(id, byte)| self.token(id) == [byte])
            && utf8(bytes.end..self.len())
        {
            return Representation::SentencePiece;
        }
        if utf8(0..self.len()) { Representation::Utf8 } else { Representation::ByteToUnicode }
    }

    /// Returns all tokens as text.
    pub(super) fn texts(&self, representation: Representation) -> impl Iterator<Item = String> {
        let alphabet = byte_to_unicode();
        self.tokens().enumerate().map(move |(id, token)| match (representation, id) {
            (Representation::Utf8, _) => String::from_utf8_lossy(token).into_owned(),
            // In Llama's vocabulary three special tokens come first, and then one for each byte.
            (Representation::SentencePiece, 0) => "<unk>".to_owned(),
            (Representation::SentencePiece, 1) => "<s>".to_owned(),
            (Representation::SentencePiece, 2) => "</s>".to_owned(),
            (Representation::SentencePiece, 3..259) => format!("<0x{:02X}>", id - 3),
            (Representation::SentencePiece, _) => {
                String::from_utf8_lossy(token).replace(' ', "\u{2581}")
            }
            (Representation::ByteToUnicode, _) => {
                token.iter().map(|&byte| alphabet[usize::from(byte)]).collect()
            }
        })
    }
}

/// Returns the character of every byte in GPT-2's vocabularies.
fn byte_to_unicode() -> [char; 256] {
    let mut alphabet = ['\0'; 256];
    let mut next = '\u{100}'..;
    for (character, byte) in alphabet.iter_mut().zip(0_u8..=255) {
        let prints = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
        *character = if prints { char::from(byte) } else { next.next().unwrap_or_default() };
    }
    alphabet
}
