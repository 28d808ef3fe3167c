//! `tokenizer.json`, run by the library that it was written for.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use apr_core::{Error, Escaped, Result};
use apr_tokenizer::Spelling;
use apr_tokenizer::gguf::TokenizerFile;
use serde::{Deserialize, Deserializer};
use tokenizers::models::TrainerWrapper;
use tokenizers::{
    DecoderWrapper, Encoding, Model, ModelWrapper, NormalizerWrapper, PostProcessor,
    PostProcessorWrapper, PreTokenizerWrapper, Token, TokenizerImpl, TruncationDirection,
};

use super::Piece;
use super::bounds::{self, Bounds};
use super::bpe::BpeFile;
use super::byte_pairs::BytePairs;
use super::{PairTokens, PairWindow, Windows};
use crate::guard::guarded;

/// Name of the tokenizer in errors.
const WHAT: &str = "the tokenizer";

/// Normalizer, pre-tokenizer, model, post-processor and decoder.
pub(super) type Steps = TokenizerImpl<
    PipelineModel,
    NormalizerWrapper,
    PreTokenizerWrapper,
    PostProcessorWrapper,
    DecoderWrapper,
>;

/// A tokenizer of several steps.
#[derive(Debug, Clone)]
pub(super) struct Pipeline {
    tokenizer: Arc<Steps>,
    bounds: Bounds,
}

impl Pipeline {
    pub(super) fn read(json: &[u8]) -> Result<Self> {
        // What is wrong with a file that is read otherwise, the library says.
        match serde_json::from_slice::<BpeFile<'_>>(json) {
            Ok(file) => Self::of_bpe(file),
            Err(_) => Self::new(bounds::check(json)?, || {
                Steps::from_bytes(json).map_err(|error| wrong(&*error))
            }),
        }
    }

    /// Creates the pipeline from the keys of a GGUF file, and warns of merges that are left out.
    pub(super) fn of(mut file: TokenizerFile<'_>, warnings: &mut Vec<String>) -> Result<Self> {
        match BpeFile::of(&mut file, warnings) {
            Some(file) => Self::of_bpe(file),
            None => Self::read(&apr_core::json::to_vec(&file).map_err(|error| wrong(&error))?),
        }
    }

    fn of_bpe(file: BpeFile<'_>) -> Result<Self> {
        let before = [&file.normalizer, &file.pre_tokenizer, &file.post_processor];
        Self::new(bounds::check_parts(before, &file.decoder)?, || file.steps())
    }

    fn new(bounds: Bounds, make: impl FnOnce() -> Result<Steps>) -> Result<Self> {
        // Threads belong to the caller.
        tokenizers::utils::parallelism::set_parallelism(false);
        let tokenizer = guarded(WHAT, || {
            let mut tokenizer = make()?;
            // A text is taken whole: what a model can't take is said, not cut off.
            tokenizer.with_truncation(None).map_err(|error| wrong(&*error))?;
            tokenizer.with_padding(None);
            Ok(Arc::new(tokenizer))
        })?;
        Ok(Self { tokenizer, bounds })
    }

    pub(super) fn encode(&self, text: &str, ends: bool) -> Result<Vec<i64>> {
        self.bounds.check_text(text)?;
        let encode = || self.tokenizer.encode_fast(text, ends).map_err(|error| wrong(&*error));
        let encoding = guarded(WHAT, encode)?;
        Ok(encoding.get_ids().iter().map(|id| i64::from(*id)).collect())
    }

    pub(super) fn pieces(&self, text: &str, ends: bool) -> Result<Vec<Piece>> {
        self.bounds.check_text(text)?;
        let encode =
            || self.tokenizer.encode_char_offsets(text, ends).map_err(|error| wrong(&*error));
        let encoding = guarded(WHAT, encode)?;
        let special = self.tokenizer.get_added_tokens_decoder();
        let piece = |(at, id): (usize, &u32)| {
            let (start, end) = encoding.get_offsets().get(at).copied().unwrap_or_default();
            let added = encoding.get_special_tokens_mask().get(at) == Some(&1);
            Piece {
                id: i64::from(*id),
                token: encoding.get_tokens().get(at).cloned().unwrap_or_default(),
                start,
                end,
                special: added || special.get(id).is_some_and(|token| token.special),
            }
        };
        Ok(encoding.get_ids().iter().enumerate().map(piece).collect())
    }

    pub(super) fn pair(
        &self,
        question: &str,
        text: &str,
        windows: Windows,
    ) -> Result<Vec<PairWindow>> {
        self.bounds.check_text(question)?;
        self.bounds.check_text(text)?;
        let (encoding, own) = guarded(WHAT, || {
            let own = self.tokenizer.encode_fast(question, false);
            let pair = self.tokenizer.encode((question, text), true);
            Ok((pair.map_err(|error| wrong(&*error))?, own.map_err(|error| wrong(&*error))?.len()))
        })?;

        // The library would cut it, too, but version 0.23.2 loses windows then.
        let whole = Whole::of(&encoding, own);
        let around = whole.ids.len() - whole.text.len();
        let room = windows.most.checked_sub(around).filter(|room| *room > windows.shared);
        let room = room.ok_or_else(|| {
            Error::format(format!(
                "the question takes {around} of {} tokens, which leaves no space for the context",
                windows.most
            ))
        })?;
        Ok(whole.windows(room, room - windows.shared))
    }

    pub(super) fn pair_at_most(
        &self,
        first: &str,
        second: &str,
        most: usize,
    ) -> Result<(PairTokens, usize)> {
        self.bounds.check_text(first)?;
        self.bounds.check_text(second)?;
        let (encoding, left_out) = guarded(WHAT, || {
            let encode = |text| self.tokenizer.encode(text, false).map_err(|error| wrong(&*error));
            let (mut first, mut second) = (encode(first)?, encode(second)?);
            let (a, b) = (first.len(), second.len());
            let around = self.tokenizer.get_post_processor().map_or(0, |it| it.added_tokens(true));
            let (kept_a, kept_b) = longest_first(a, b, most.saturating_sub(around));
            first.truncate(kept_a, 0, TruncationDirection::Right);
            second.truncate(kept_b, 0, TruncationDirection::Right);
            // Where a template has no types of its own, the second text has another.
            second.set_type_ids(vec![1; second.len()]);
            let pair = self.tokenizer.post_process(first, Some(second), true);
            Ok((pair.map_err(|error| wrong(&*error))?, a - kept_a + (b - kept_b)))
        })?;
        let numbers = |numbers: &[u32]| numbers.iter().map(|number| i64::from(*number)).collect();
        let (ids, types) = (numbers(encoding.get_ids()), numbers(encoding.get_type_ids()));
        Ok((PairTokens { ids, types }, left_out))
    }

    pub(super) fn decode(&self, tokens: &[i64]) -> Result<String> {
        self.text(tokens, true)
    }

    pub(super) fn decode_all(&self, tokens: &[i64]) -> Result<String> {
        self.text(tokens, false)
    }

    /// Returns the bytes of the text. The library writes replacement characters for bytes that are
    /// not UTF-8.
    pub(super) fn decode_bytes(&self, tokens: &[i64]) -> Result<Vec<u8>> {
        let special = self.tokenizer.get_added_tokens_decoder();
        let is_text = |id: &u32| special.get(id).is_none_or(|token| !token.special);
        let ids = tokens.iter().filter_map(|token| u32::try_from(*token).ok()).filter(is_text);
        let spelled = ids.filter_map(|id| self.tokenizer.id_to_token(id));
        if let Some(DecoderWrapper::ByteLevel(_)) = self.tokenizer.get_decoder() {
            return Ok(spelled.flat_map(|token| Spelling::Letters.bytes(&token)).collect());
        }
        let text = self.decode(tokens)?;
        Ok(match text.contains(char::REPLACEMENT_CHARACTER) {
            true => restored(&text, spelled),
            false => text.into_bytes(),
        })
    }

    fn text(&self, tokens: &[i64], plain: bool) -> Result<String> {
        let ids: Vec<u32> = tokens.iter().filter_map(|token| u32::try_from(*token).ok()).collect();
        guarded(WHAT, || self.tokenizer.decode(&ids, plain).map_err(|error| wrong(&*error)))
    }

    pub(super) fn len(&self) -> usize {
        let last = self.tokenizer.get_vocab(true).into_values().max();
        last.map_or(0, |last| last as usize + 1)
    }

    pub(super) fn id(&self, token: &str) -> Option<i64> {
        self.tokenizer.token_to_id(token).map(i64::from)
    }

    pub(super) fn token(&self, id: i64) -> Option<String> {
        self.tokenizer.id_to_token(u32::try_from(id).ok()?)
    }
}

/// Returns a text with the bytes that its replacement characters represent. `ByteFallback` writes
/// one for each byte if consecutive byte tokens are not UTF-8 together.
fn restored(text: &str, tokens: impl Iterator<Item = String>) -> Vec<u8> {
    /// Adds the meaning of each replacement character: a byte, or the character itself.
    fn end(run: &mut Vec<u8>, lost: &mut Vec<Option<u8>>) {
        match std::str::from_utf8(run) {
            Ok(text) => lost.extend(text.matches(char::REPLACEMENT_CHARACTER).map(|_| None)),
            Err(_) => lost.extend(run.iter().map(|byte| Some(*byte))),
        }
        run.clear();
    }

    let (mut run, mut lost) = (Vec::new(), Vec::new());
    for token in tokens {
        match Spelling::Pieces.bytes(&token)[..] {
            [byte] if token.len() == 6 => run.push(byte),
            _ => {
                end(&mut run, &mut lost);
                lost.extend(token.matches(char::REPLACEMENT_CHARACTER).map(|_| None));
            }
        }
    }
    end(&mut run, &mut lost);
    if lost.len() != text.matches(char::REPLACEMENT_CHARACTER).count() {
        return text.as_bytes().to_vec();
    }
    let mut lost = lost.into_iter();
    let mut made = Vec::with_capacity(text.len());
    for letter in text.chars() {
        let byte = (letter == char::REPLACEMENT_CHARACTER).then(|| lost.next().flatten()).flatten();
        match byte {
            Some(byte) => made.push(byte),
            None => made.extend(letter.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    made
}

/// Model that turns a word into tokens.
#[derive(Debug, Clone)]
pub(super) enum PipelineModel {
    /// BPE, but for its rare kinds.
    BytePairs(BytePairs),
    Library(ModelWrapper),
}

impl PipelineModel {
    fn model(&self) -> &dyn Model<Trainer = TrainerWrapper> {
        match self {
            Self::BytePairs(tables) => tables,
            Self::Library(model) => model,
        }
    }
}

impl<'de> Deserialize<'de> for PipelineModel {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        ModelWrapper::deserialize(deserializer).map(Self::Library)
    }
}

impl Model for PipelineModel {
    type Trainer = TrainerWrapper;

    fn tokenize(&self, word: &str) -> tokenizers::Result<Vec<Token>> {
        self.model().tokenize(word)
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        self.model().token_to_id(token)
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        self.model().id_to_token(id)
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        self.model().get_vocab()
    }

    fn get_vocab_size(&self) -> usize {
        self.model().get_vocab_size()
    }

    fn save(&self, folder: &Path, prefix: Option<&str>) -> tokenizers::Result<Vec<PathBuf>> {
        self.model().save(folder, prefix)
    }

    fn get_trainer(&self) -> TrainerWrapper {
        self.model().get_trainer()
    }
}

/// The tokens of a question and of all of a text.
struct Whole<'e> {
    encoding: &'e Encoding,
    ids: Vec<i64>,
    types: Vec<i64>,
    /// The tokens of the text.
    text: Range<usize>,
}

impl<'e> Whole<'e> {
    /// Assigns tokens to the question and the text. The first `question` tokens that are not
    /// special belong to the question.
    fn of(encoding: &'e Encoding, question: usize) -> Self {
        let numbers = |numbers: &[u32]| numbers.iter().map(|number| i64::from(*number)).collect();
        let special = encoding.get_special_tokens_mask().iter().enumerate();
        let ordinary = special.filter(|(_, special)| **special == 0).map(|(at, _)| at);
        let of_text: Vec<usize> = ordinary.skip(question).collect();
        let text = match (of_text.first(), of_text.last()) {
            (Some(first), Some(last)) => *first..last + 1,
            _ => encoding.len()..encoding.len(),
        };
        let (ids, types) = (numbers(encoding.get_ids()), numbers(encoding.get_type_ids()));
        Self { encoding, ids, types, text }
    }

    /// Windows of `room` tokens of the text, each `step` tokens after the one before.
    fn windows(&self, room: usize, step: usize) -> Vec<PairWindow> {
        let mut windows = Vec::new();
        let mut start = self.text.start;
        loop {
            let end = (start + room).min(self.text.end);
            windows.push(self.window(start..end));
            if end == self.text.end {
                return windows;
            }
            start += step;
        }
    }

    fn window(&self, part: Range<usize>) -> PairWindow {
        let cut = |all: &[i64]| {
            [&all[..self.text.start], &all[part.clone()], &all[self.text.end..]].concat()
        };
        let mut words = vec![None; self.text.start];
        words.extend(self.words(part.clone()).into_iter().map(Some));
        words.extend(vec![None; self.ids.len() - self.text.end]);
        PairWindow { ids: cut(&self.ids), types: cut(&self.types), words }
    }

    /// Returns the ranges of the words of these tokens, limited to the part. If a tokenizer has no
    /// words, each token is a word.
    fn words(&self, part: Range<usize>) -> Vec<Range<usize>> {
        let offsets = &self.encoding.get_offsets()[part.clone()];
        let words = &self.encoding.get_word_ids()[part];
        let mut spans: Vec<Range<usize>> = offsets.iter().map(|(from, to)| *from..*to).collect();
        let is_one = |at: usize| words[at].is_some() && words[at] == words[at + 1];
        for at in 0..spans.len().saturating_sub(1) {
            if is_one(at) {
                spans[at + 1].start = spans[at].start;
            }
        }
        for at in (0..spans.len().saturating_sub(1)).rev() {
            if is_one(at) {
                spans[at].end = spans[at + 1].end;
            }
        }
        spans
    }
}

pub(super) fn wrong(error: &(dyn std::error::Error + Send + Sync)) -> Error {
    Error::format(format!("unsupported tokenizer: {}", Escaped::short(&apr_core::foreign(&error))))
}

/// Returns the numbers of tokens to keep of two texts, for `most` in all.
fn longest_first(first: usize, second: usize, most: usize) -> (usize, usize) {
    let (short, long) = (first.min(second), first.max(second));
    let (short, long) = match short.saturating_add(long) <= most {
        true => (short, long),
        // The longer one alone is cut, as far as it stays the longer one.
        false if short.saturating_mul(2) <= most => (short, most - short),
        false => (most / 2, most - most / 2),
    };
    if first > second { (long, short) } else { (short, long) }
}

#[cfg(test)]
mod tests {
    use super::longest_first;

    /// `truncate_encodings` of tokenizers 0.23.
    #[test]
    fn the_longer_of_two_texts_is_cut_first() {
        assert_eq!(longest_first(3, 4, 7), (3, 4));
        assert_eq!(longest_first(3, 9, 7), (3, 4));
        assert_eq!(longest_first(9, 3, 7), (4, 3));
        assert_eq!(longest_first(9, 9, 7), (3, 4));
        assert_eq!(longest_first(10, 9, 7), (4, 3));
        assert_eq!(longest_first(2, 2, 0), (0, 0));
    }
}
