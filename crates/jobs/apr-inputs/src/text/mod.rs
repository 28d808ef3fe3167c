//! Texts as the tokens of a model, and tokens as text.
//!
//! A tokenizer comes as `tokenizer.json`, as the files of older libraries, as ranks of tiktoken and
//! Mistral's `tekken.json`, or as the keys of a GGUF file. SentencePiece's BPE in a GGUF file is
//! cut as llama.cpp does, and the pieces of a SentencePiece file as that library does
//! ([`Merging`]); everything else becomes a `tokenizer.json`, which the `tokenizers` library runs.

#[cfg(feature = "text")]
mod bounds;
#[cfg(feature = "text")]
mod bpe;
#[cfg(feature = "text")]
mod byte_pairs;
#[cfg(any(test, not(feature = "text")))]
#[cfg_attr(feature = "text", expect(dead_code, reason = "tests compare it with the library"))]
mod byte_vocabulary;
mod pair;
#[cfg(feature = "text")]
mod pipeline;
#[cfg(not(feature = "text"))]
#[path = "pipeline_off.rs"]
mod pipeline;
mod stream;

use std::sync::Arc;

use apr_core::{CheckpointReader, Error, KeyValues, Result};
use apr_tokenizer::gguf::{Options, sentencepiece_file, tokenizer_file, tokenizer_key_values};
use apr_tokenizer::{MergedPiece, Merging, tokenizer_of_ranks};

use serde::Serialize;

pub use pair::{PairTokens, PairWindow, Windows};
use pipeline::Pipeline;
pub use stream::TextStream;

/// Bytes of a text that is cut into tokens.
pub const MAX_TEXT: usize = 16 << 20;

/// Files and keys of a model's tokenizer, before they are parsed.
#[derive(Debug, Clone)]
pub struct TokenizerSource {
    keys: Option<Arc<KeyValues>>,
    files: Vec<(String, Vec<u8>)>,
}

impl TokenizerSource {
    /// The keys and files of a checkpoint.
    ///
    /// # Errors
    /// E007 and E008 when a file can't be read.
    pub fn of(reader: &dyn CheckpointReader) -> Result<Self> {
        let keys = reader
            .metadata()
            .key_values()?
            .filter(|keys| keys.find("tokenizer.ggml.model").is_some());
        let mut files = Vec::new();
        for (position, companion) in reader.companions().iter().enumerate() {
            if is_for_text(&companion.name) {
                files.push((companion.name.clone(), reader.read_companion(position)?));
            }
        }
        Ok(Self { keys, files })
    }

    /// Creates the source from GGUF's keys, and from files by name.
    #[must_use]
    pub fn new(keys: Option<KeyValues>, files: Vec<(String, Vec<u8>)>) -> Self {
        Self { keys: keys.map(Arc::new), files }
    }

    /// Reads the tokenizer, with warnings about unsupported behaviour. Returns `None` if the model
    /// has no tokenizer.
    ///
    /// # Errors
    /// E001 if it can't be parsed, E003 for an unknown kind, E008 for one that causes excessive
    /// work.
    pub fn read(&self) -> Result<Option<(TextTokens, Vec<String>)>> {
        if let Some(keys) = &self.keys {
            return from_keys(keys).map(Some);
        }

        if let Some((name, json)) = self.files.iter().find(|(name, _)| name == "tokenizer.json") {
            let pipeline = Pipeline::read(json).map_err(|error| error.in_file(name))?;
            return Ok(Some((TextTokens(TokenizerKind::Pipeline(pipeline)), Vec::new())));
        }

        // What llama.cpp would do with a list of ranks is of no matter here either.
        if sentencepiece_file(&self.files).is_none()
            && let Some(json) = tokenizer_of_ranks(&self.files)?
        {
            let pipeline = Pipeline::read(&json)?;
            return Ok(Some((TextTokens(TokenizerKind::Pipeline(pipeline)), Vec::new())));
        }

        let found = tokenizer_key_values("llama", &self.files, None, &Options::default())?;
        if found.key_values.is_empty() {
            return Ok(None);
        }

        let keys: KeyValues = found.key_values.iter().collect();
        if let Some((name, model)) = sentencepiece_file(&self.files)
            && let Some(merging) =
                Merging::from_sentencepiece(&keys, model).map_err(|error| error.in_file(name))?
        {
            // What llama.cpp does otherwise is of no matter here.
            return Ok(Some((TextTokens(TokenizerKind::Merging(Box::new(merging))), Vec::new())));
        }
        let (tokens, mut warnings) = from_keys(&keys)?;
        warnings.splice(0..0, found.warnings);
        Ok(Some((tokens, warnings)))
    }
}

fn is_for_text(name: &str) -> bool {
    let ends = [".json", ".txt", ".model", ".tiktoken"];
    ends.iter().any(|end| name.ends_with(end)) && !name.ends_with(".index.json")
}

fn from_keys(keys: &KeyValues) -> Result<(TextTokens, Vec<String>)> {
    if keys.text("tokenizer.ggml.model") == Some("llama") {
        return Ok((
            TextTokens(TokenizerKind::Merging(Box::new(Merging::from_key_values(keys)?))),
            Vec::new(),
        ));
    }

    let keys = keys.to_vec();
    let (file, mut warnings) = tokenizer_file(&keys)?
        .ok_or_else(|| Error::version("the model states that it has no tokenizer"))?;

    let pipeline = Pipeline::of(file, &mut warnings)?;

    // What has no place in the files, or loses its number, changes no ids.
    let changes =
        |warning: &String| warning.starts_with("tokenizer.ggml.pre") || warning.contains("merge");
    Ok((
        TextTokens(TokenizerKind::Pipeline(pipeline)),
        warnings.into_iter().filter(changes).collect(),
    ))
}

/// A token of a text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Piece {
    /// Id of the token.
    pub id: i64,
    /// Spelling in the vocabulary.
    pub token: String,
    /// Start of the token's part of the text, in characters.
    pub start: usize,
    /// End of the token's part of the text, in characters. It equals the start for a token without
    /// text.
    pub end: usize,
    /// `true` for a token that is not text, but marks the beginning of a text, its end or a role.
    pub special: bool,
}

fn check_length(text: &str) -> Result<()> {
    if text.len() > MAX_TEXT {
        return Err(Error::memory(format!(
            "the text has {} bytes, and at most {MAX_TEXT} are tokenized",
            text.len()
        )));
    }
    Ok(())
}

/// A model's tokenizer.
#[derive(Debug, Clone)]
pub struct TextTokens(TokenizerKind);

#[derive(Debug, Clone)]
enum TokenizerKind {
    Merging(Box<Merging>),
    Pipeline(Pipeline),
}

impl TextTokens {
    /// The tokens of a text. Special tokens that the text spells out become what they are; `ends`
    /// adds those that begin and end a text where the model wants them.
    ///
    /// # Errors
    /// E001 for a character that the vocabulary lacks, E008 for a text that is too long.
    pub fn encode(&self, text: &str, ends: bool) -> Result<Vec<i64>> {
        check_length(text)?;
        match &self.0 {
            TokenizerKind::Merging(merging) => merging.encode(text, ends),
            TokenizerKind::Pipeline(pipeline) => pipeline.encode(text, ends),
        }
    }

    /// The tokens of a text, each with its spelling and its place; `ends` as for
    /// [`TextTokens::encode`].
    ///
    /// # Errors
    /// Those of [`TextTokens::encode`].
    pub fn pieces(&self, text: &str, ends: bool) -> Result<Vec<Piece>> {
        check_length(text)?;
        match &self.0 {
            TokenizerKind::Merging(merging) => {
                let piece = |piece: MergedPiece| Piece {
                    token: merging.token(piece.id).unwrap_or_default().to_owned(),
                    id: piece.id,
                    start: piece.start,
                    end: piece.end,
                    special: merging.is_special(piece.id),
                };
                Ok(merging.pieces(text, ends)?.into_iter().map(piece).collect())
            }
            TokenizerKind::Pipeline(pipeline) => pipeline.pieces(text, ends),
        }
    }

    /// [`TextTokens::encode`] with `most` tokens at most: of a longer text the end is left out, and
    /// the tokens that end it stay. The second value is how many were left out.
    ///
    /// # Errors
    /// Those of [`TextTokens::encode`].
    pub fn encode_at_most(&self, text: &str, most: usize) -> Result<(Vec<i64>, usize)> {
        let whole = self.encode(text, true)?;
        let Some(excess) = whole.len().checked_sub(most).filter(|excess| *excess > 0) else {
            return Ok((whole, 0));
        };
        let plain = self.encode(text, false)?;
        let starts = |at: &usize| whole[*at..].starts_with(&plain);
        let before = (0..=whole.len() - plain.len().min(whole.len())).find(starts).unwrap_or(0);
        let kept = plain.len().saturating_sub(excess);
        let mut tokens = whole[..before + kept].to_vec();
        tokens.extend(&whole[(before + plain.len()).min(whole.len())..]);
        tokens.truncate(most);
        Ok((tokens, excess))
    }

    /// Returns the text of tokens, without the tokens that begin and end a text.
    ///
    /// # Errors
    /// E001 if the tokenizer fails.
    pub fn decode(&self, tokens: &[i64]) -> Result<String> {
        match &self.0 {
            TokenizerKind::Merging(merging) => {
                Ok(String::from_utf8_lossy(&merging.text_of(tokens)).into_owned())
            }
            TokenizerKind::Pipeline(pipeline) => pipeline.decode(tokens),
        }
    }

    /// Returns the bytes of the text of tokens, as in [`TextTokens::decode`]. Generated text need
    /// not be UTF-8.
    ///
    /// # Errors
    /// E001 if the tokenizer fails.
    pub fn decode_bytes(&self, tokens: &[i64]) -> Result<Vec<u8>> {
        match &self.0 {
            TokenizerKind::Merging(merging) => Ok(merging.text_of(tokens)),
            TokenizerKind::Pipeline(pipeline) => pipeline.decode_bytes(tokens),
        }
    }

    /// Returns the text of tokens, with the names of the tokens that represent no text.
    ///
    /// # Errors
    /// E001 if the tokenizer fails.
    pub fn decode_all(&self, tokens: &[i64]) -> Result<String> {
        match &self.0 {
            TokenizerKind::Merging(merging) => {
                Ok(String::from_utf8_lossy(&merging.spelled_out(tokens)).into_owned())
            }
            TokenizerKind::Pipeline(pipeline) => pipeline.decode_all(tokens),
        }
    }

    /// One more than the largest id.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            TokenizerKind::Merging(merging) => merging.len(),
            TokenizerKind::Pipeline(pipeline) => pipeline.len(),
        }
    }

    /// Returns `true` if there are no tokens.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The id of a token.
    #[must_use]
    pub fn id(&self, token: &str) -> Option<i64> {
        match &self.0 {
            TokenizerKind::Merging(merging) => merging.id(token),
            TokenizerKind::Pipeline(pipeline) => pipeline.id(token),
        }
    }

    /// A token as the vocabulary spells it.
    #[must_use]
    pub fn token(&self, id: i64) -> Option<String> {
        match &self.0 {
            TokenizerKind::Merging(merging) => merging.token(id).map(str::to_owned),
            TokenizerKind::Pipeline(pipeline) => pipeline.token(id),
        }
    }
}
