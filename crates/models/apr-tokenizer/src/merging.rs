//! Texts as tokens and back, for vocabularies of pieces with scores: SentencePiece's BPE, as LLaMA
//! has it.
//!
//! The vocabulary comes as GGUF's keys, which every such tokenizer can be written as
//! ([`tokenizer_key_values`](crate::gguf::tokenizer_key_values)). Neighbouring pieces are merged,
//! those with the best score first, until no two of them make a token; a character that is no token
//! becomes its bytes. The pieces of a SentencePiece file of any kind are cut as its library does.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use apr_core::{Array, Error, KeyValues, Result, Value};

use crate::processor::Processor;
use crate::vocabulary::SentencePiece;

/// Character for a space in a token.
const SPACE: &str = "\u{2581}";
/// Number of a token's type that is a byte, `<0x0A>`.
const BYTE: i64 = 6;
/// Numbers of the types that do not represent text: unknown, control.
const SILENT: [i64; 2] = [2, 3];
/// Numbers of the types that a text may spell out: unknown, control, user-defined.
const SPELLED: [i64; 3] = [2, 3, 4];

/// A vocabulary that texts are cut by.
#[derive(Debug, Clone)]
pub struct Merging {
    pieces: Vec<String>,
    kinds: Vec<i64>,
    scores: Vec<f32>,
    ids: HashMap<String, usize>,
    /// Begins and ends a text.
    bos: Option<i64>,
    eos: Option<i64>,
    unknown: Option<i64>,
    adds_bos: bool,
    adds_eos: bool,
    adds_space: bool,
    /// Tokens that are found in a text first.
    ///
    /// If one is a prefix of another, the longer one is first.
    spelled: Vec<usize>,
    /// Processor that splits texts as SentencePiece does, for SentencePiece files.
    processor: Option<Box<Processor>>,
}

impl Merging {
    /// The tokenizer that GGUF's keys describe.
    ///
    /// # Errors
    /// E003 for another kind of tokenizer, E001 where keys are missing.
    pub fn from_key_values(keys: &KeyValues) -> Result<Self> {
        let kind = keys.text("tokenizer.ggml.model").unwrap_or("none");
        if kind != "llama" {
            let message =
                format!("texts are not cut into tokens yet for tokenizers of the kind '{kind}'");
            return Err(Error::version(message));
        }
        Self::of_keys(keys)
    }

    /// The tokenizer of a SentencePiece file, with the settings that `keys` have for it. Texts are
    /// cut as the library does, not as llama.cpp does. `None` where the pieces have other ids than
    /// the tokens, as those of XLM-RoBERTa do.
    ///
    /// # Errors
    /// E001 where keys are missing, and for a file that can't be understood.
    pub fn from_sentencepiece(keys: &KeyValues, model: &[u8]) -> Result<Option<Self>> {
        let model = SentencePiece::read(model).map_err(Error::format)?;
        let mut merging = Self::of_keys(keys)?;
        let count = model.pieces.len();
        let own = merging.pieces.iter().take(count).map(String::as_str);
        if !own.eq(model.pieces.iter().map(|piece| piece.text)) {
            return Ok(None);
        }
        let Some(processor) = Processor::of(&model) else { return Ok(None) };
        // The library knows what the user defined; what was added beside the file stays.
        let kinds = &merging.kinds;
        merging.spelled.retain(|at| *at >= count || SILENT.contains(&kinds[*at]));
        merging.processor = Some(Box::new(processor));
        Ok(Some(merging))
    }

    fn of_keys(keys: &KeyValues) -> Result<Self> {
        let key = |name: &str| keys.get(&format!("tokenizer.ggml.{name}"));
        let missing =
            |name: &str| Error::format(format!("the key tokenizer.ggml.{name} is missing"));
        let Some(Value::Array(Array::String(pieces))) = key("tokens") else {
            return Err(missing("tokens"));
        };
        let Some(Value::Array(Array::F32(scores))) = key("scores") else {
            return Err(missing("scores"));
        };
        let kinds = match key("token_type") {
            Some(Value::Array(Array::I32(kinds))) => kinds.into_iter().map(i64::from).collect(),
            _ => vec![1; pieces.len()],
        };
        if scores.len() != pieces.len() || kinds.len() != pieces.len() {
            return Err(Error::format("tokens, their scores and their types are not as many"));
        }

        let flag = |name: &str, default: bool| match key(name) {
            Some(Value::Bool(flag)) => flag,
            _ => default,
        };

        // What lies beyond the vocabulary, as the largest number of 32 bits does, is no token.
        let count = pieces.len() as i64;
        let id = |name: &str| {
            let id = key(name).and_then(|value| value.as_i64());
            id.filter(|id| (0..count).contains(id))
        };
        let mut spelled: Vec<usize> =
            (0..pieces.len()).filter(|&at| SPELLED.contains(&kinds[at])).collect();
        spelled.retain(|&at| !pieces[at].is_empty());
        spelled.sort_by_key(|&at| std::cmp::Reverse(pieces[at].len()));

        // Where no keys say it, 1 begins a text and 2 ends it in llama.cpp; of Unigram, 1 ends it.
        let is_unigram = keys.text("tokenizer.ggml.model") == Some("t5");
        let or = |name: &str, default: Option<i64>| match key(name) {
            Some(_) => id(name),
            None => default,
        };
        Ok(Self {
            spelled,
            ids: pieces.iter().cloned().zip(0..).collect(),
            bos: or("bos_token_id", Some(1).filter(|_| !is_unigram)),
            eos: or("eos_token_id", Some(if is_unigram { 1 } else { 2 })),
            unknown: id("unknown_token_id"),
            adds_bos: flag("add_bos_token", !is_unigram),
            adds_eos: flag("add_eos_token", is_unigram),
            processor: None,
            adds_space: flag("add_space_prefix", true),
            pieces,
            kinds,
            scores,
        })
    }

    /// The tokens of a text. Special tokens that it spells out become what they are; with `ends`,
    /// those that begin and end a text are added where the model wants them.
    ///
    /// # Errors
    /// E001 for a character that is neither a token nor bytes of the vocabulary.
    pub fn encode(&self, text: &str, ends: bool) -> Result<Vec<i64>> {
        Ok(self.pieces(text, ends)?.into_iter().map(|piece| piece.id).collect())
    }

    /// Tokenizes a text, and returns each token with its position in the text.
    ///
    /// # Errors
    /// Those of [`Merging::encode`].
    pub fn pieces(&self, text: &str, ends: bool) -> Result<Vec<MergedPiece>> {
        let begin = self.bos.filter(|_| self.adds_bos && ends);
        let mut made: Vec<_> =
            begin.map(|id| MergedPiece { id, start: 0, end: 0 }).into_iter().collect();
        let (mut rest, mut place) = (text, 0);
        while !rest.is_empty() {
            let (plain, special) = self.until_special(rest);
            if !plain.is_empty() {
                self.plain(plain, place, &mut made)?;
                place += plain.chars().count();
            }
            let spelled = special.map_or("", |at| self.pieces[at].as_str());
            let end = place + spelled.chars().count();
            made.extend(special.map(|at| MergedPiece { id: at as i64, start: place, end }));
            place = end;
            rest = &rest[plain.len() + spelled.len()..];
        }

        let end = self.eos.filter(|_| self.adds_eos && ends);
        made.extend(end.map(|id| MergedPiece { id, start: place, end: place }));
        Ok(made)
    }

    /// The tokens of a text without special ones, which begins at this character.
    fn plain(&self, text: &str, place: usize, made: &mut Vec<MergedPiece>) -> Result<()> {
        if let Some(processor) = &self.processor {
            made.extend(processor.pieces(text, place));
            return Ok(());
        }

        // Behind a special token, a text begins again.
        let prefix = if self.adds_space { SPACE } else { "" };
        let spaced = format!("{prefix}{}", text.replace(' ', SPACE));

        // The space before a text counts as a part of the first character.
        let (mut at, added) = (0, usize::from(self.adds_space));
        for piece in self.merge(&spaced) {
            let start = place + usize::saturating_sub(at, added);
            at += piece.chars().count();
            let end = place + usize::saturating_sub(at, added).max(1);
            self.push(piece, |id| made.push(MergedPiece { id, start, end }))?;
        }
        Ok(())
    }

    /// The text before the first special token that it spells out, and that token.
    fn until_special<'t>(&self, text: &'t str) -> (&'t str, Option<usize>) {
        let found = self.spelled.iter().filter_map(|&at| Some((text.find(&self.pieces[at])?, at)));
        // Of several at the same place, the longest, which comes first in the list.
        match found.min_by_key(|(place, _)| *place) {
            Some((place, at)) => (&text[..place], Some(at)),
            None => (text, None),
        }
    }

    fn push(&self, piece: &str, mut take: impl FnMut(i64)) -> Result<()> {
        if let Some(&id) = self.ids.get(piece) {
            take(id as i64);
            return Ok(());
        }
        for byte in piece.bytes() {
            let id = self.ids.get(&format!("<0x{byte:02X}>")).map(|&id| id as i64).or(self.unknown);
            take(id.ok_or_else(|| Error::format(format!("no token has the character '{piece}'")))?);
        }
        Ok(())
    }

    /// Cuts a text into the pieces that are left when all merges are made.
    fn merge<'t>(&self, text: &'t str) -> Vec<&'t str> {
        let starts: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        let count = starts.len();
        let end = |at: usize| starts.get(at).copied().unwrap_or(text.len());

        // Where the piece that begins at a character ends, and where the one before it begins; 0
        // for pieces that are gone.
        let mut next: Vec<usize> = (1..=count).collect();
        let mut before: Vec<Option<usize>> = (0..count).map(|at| at.checked_sub(1)).collect();
        let mut alive = vec![true; count];

        // A search for the best pair before each merge would take the square of the length.
        let mut queue = BinaryHeap::new();
        let offer = |queue: &mut BinaryHeap<Merge>, next: &[usize], left: usize| {
            let right = next[left];
            if right < count
                && let Some(&id) = self.ids.get(&text[end(left)..end(next[right])])
            {
                queue.push(Merge { score: self.scores[id], left, right, end: next[right] });
            }
        };

        (0..count).for_each(|left| offer(&mut queue, &next, left));
        while let Some(Merge { left, right, end, .. }) = queue.pop() {
            // Offers about pieces that have grown since are out of date.
            if !alive[left] || !alive[right] || next[left] != right || next[right] != end {
                continue;
            }
            alive[right] = false;
            next[left] = end;
            if end < count {
                before[end] = Some(left);
            }
            if let Some(earlier) = before[left] {
                offer(&mut queue, &next, earlier);
            }
            offer(&mut queue, &next, left);
        }

        (0..count).filter(|&at| alive[at]).map(|at| &text[end(at)..end(next[at])]).collect()
    }

    /// The bytes that a token adds to a text. Several tokens may make one character.
    #[must_use]
    pub fn bytes(&self, token: i64) -> Vec<u8> {
        let Some(at) = usize::try_from(token).ok().filter(|&at| at < self.pieces.len()) else {
            return Vec::new();
        };
        let piece = &self.pieces[at];
        if SILENT.contains(&self.kinds[at]) {
            return Vec::new();
        }

        // An ordinary token may have such a text, too: its kind says what it is.
        let byte = piece.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
        match byte
            .and_then(|digits| u8::from_str_radix(digits, 16).ok())
            .filter(|_| self.kinds[at] == BYTE)
        {
            Some(byte) => vec![byte],
            None => piece.replace(SPACE, " ").into_bytes(),
        }
    }

    /// The bytes of tokens in a row.
    #[must_use]
    pub fn text_of(&self, tokens: &[i64]) -> Vec<u8> {
        tokens.iter().flat_map(|token| self.bytes(*token)).collect()
    }

    /// Returns the bytes of a sequence of tokens, with the names of special tokens.
    ///
    /// Special tokens are tokens that do not represent text.
    #[must_use]
    pub fn spelled_out(&self, tokens: &[i64]) -> Vec<u8> {
        let bytes = |token: &i64| match self.token(*token).filter(|_| self.is_special(*token)) {
            Some(name) => name.as_bytes().to_vec(),
            None => self.bytes(*token),
        };
        tokens.iter().flat_map(bytes).collect()
    }

    /// Number of tokens.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Returns `true` if there are no tokens.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Returns `true` if a token does not represent text.
    #[must_use]
    pub fn is_special(&self, token: i64) -> bool {
        let kind = usize::try_from(token).ok().and_then(|at| self.kinds.get(at));
        kind.is_some_and(|kind| SILENT.contains(kind))
    }

    /// The id of a token.
    #[must_use]
    pub fn id(&self, token: &str) -> Option<i64> {
        self.ids.get(token).map(|&id| id as i64)
    }

    /// A token as the vocabulary spells it.
    #[must_use]
    pub fn token(&self, id: i64) -> Option<&str> {
        self.pieces.get(usize::try_from(id).ok()?).map(String::as_str)
    }
}

/// A token of a text, and its place there in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct MergedPiece {
    /// Id of the token.
    pub id: i64,
    /// Byte offset of the start in the text.
    pub start: usize,
    /// Byte offset of the end.
    ///
    /// Equal to the start for a token that does not cover a part of the text.
    pub end: usize,
}

/// Two neighbours that make a token.
#[derive(Debug, PartialEq)]
struct Merge {
    score: f32,
    left: usize,
    right: usize,
    end: usize,
}

impl Eq for Merge {}

impl Ord for Merge {
    /// The best score first, then the one further left.
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Merge {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use apr_core::KeyValue;

    use super::*;

    fn vocabulary() -> Merging {
        let pieces =
            ["<unk>", "<s>", "</s>", "<0x21>", "\u{2581}", "a", "b", "ab", "\u{2581}ab", "ba"];
        let scores = [0.0, 0.0, 0.0, 0.0, -9.0, -9.0, -9.0, -1.0, -3.0, -2.0];
        let kinds = [2, 3, 3, 6, 1, 1, 1, 1, 1, 1];
        let mut keys = KeyValues::new();
        let texts = pieces.map(str::to_owned).to_vec();
        for pair in [
            KeyValue::new("tokenizer.ggml.model", "llama"),
            KeyValue::new("tokenizer.ggml.tokens", Value::Array(Array::String(texts))),
            KeyValue::new("tokenizer.ggml.scores", Value::Array(Array::F32(scores.to_vec()))),
            KeyValue::new("tokenizer.ggml.token_type", Value::Array(Array::I32(kinds.to_vec()))),
        ] {
            keys.push(&pair).unwrap();
        }
        Merging::from_key_values(&keys).unwrap()
    }

    #[test]
    fn the_best_merge_is_applied_first_and_unknown_text_becomes_bytes() {
        let vocabulary = vocabulary();
        assert_eq!(vocabulary.encode("abab!", true).unwrap(), [1, 8, 7, 3]);
        assert_eq!(vocabulary.encode("", true).unwrap(), [1]);
        let places = vocabulary.pieces("abab!", true).unwrap();
        let places: Vec<_> = places.iter().map(|piece| (piece.start, piece.end)).collect();
        assert_eq!(places, [(0, 0), (0, 2), (2, 4), (4, 5)]);
        assert!(vocabulary.encode("x", true).is_err(), "neither a token nor a byte");
    }

    #[test]
    fn special_tokens_that_a_text_spells_out_are_themselves() {
        let vocabulary = vocabulary();
        assert_eq!(vocabulary.encode("<s>ab</s>ab", false).unwrap(), [1, 8, 2, 8]);
        assert_eq!(vocabulary.encode("</s>", true).unwrap(), [1, 2]);
    }

    #[test]
    fn tokens_give_their_bytes_back() {
        let vocabulary = vocabulary();
        let text: Vec<u8> =
            [1, 8, 7, 3, 2].iter().flat_map(|token| vocabulary.bytes(*token)).collect();
        assert_eq!(text, b" abab!");
        assert_eq!(vocabulary.bytes(99), b"");
        assert_eq!(vocabulary.text_of(&[1, 8, 7, 3, 99, -1, 2]), b" abab!");
        assert_eq!((vocabulary.id("ab"), vocabulary.token(7)), (Some(7), Some("ab")));
        assert_eq!(
            (vocabulary.id("abc"), vocabulary.token(-1), vocabulary.token(10)),
            (None, None, None)
        );
    }

    #[test]
    fn keys_that_are_not_as_many_as_the_tokens_are_an_error() {
        let keys = |scores: usize| {
            let mut keys = KeyValues::new();
            for pair in [
                KeyValue::new("tokenizer.ggml.model", "llama"),
                KeyValue::new("tokenizer.ggml.tokens", vec!["<unk>".to_owned(), "a".to_owned()]),
                KeyValue::new("tokenizer.ggml.scores", vec![0.0_f32; scores]),
            ] {
                keys.push(&pair).unwrap();
            }
            Merging::from_key_values(&keys)
        };
        assert_eq!(keys(2).unwrap().token(1), Some("a"), "types are not needed");
        assert!(keys(1).unwrap_err().message().contains("not as many"));
    }

    #[test]
    fn other_tokenizers_are_rejected_with_their_name() {
        let mut keys = KeyValues::new();
        keys.push(&KeyValue::new("tokenizer.ggml.model", "gpt2")).unwrap();
        assert!(Merging::from_key_values(&keys).unwrap_err().message().contains("gpt2"));
    }

    /// `fixtures/sentencepiece/ids.json` has what `SentencePieceProcessor.encode` returns.
    #[test]
    fn pieces_of_a_sentencepiece_file_match_the_library() {
        let file = std::fs::read(apr_testkit::locate::fixture("sentencepiece/ids.json")).unwrap();
        let all: serde_json::Value = serde_json::from_slice(&file).unwrap();
        let texts: Vec<&str> =
            all["texts"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
        for (name, case) in all["models"].as_object().unwrap() {
            let model = crate::vocabulary::decode_base64(case["model"].as_str().unwrap()).unwrap();
            let files = [("tokenizer.model".to_owned(), model.clone())];
            let options = crate::gguf::Options::default();
            let found = crate::gguf::tokenizer_key_values("llama", &files, None, &options).unwrap();
            let keys: KeyValues = found.key_values.iter().collect();
            let merging = Merging::from_sentencepiece(&keys, &model).unwrap().expect(name);
            for (text, ids) in texts.iter().zip(case["ids"].as_array().unwrap()) {
                let ids: Vec<i64> = serde_json::from_value(ids.clone()).unwrap();
                assert_eq!(merging.encode(text, false).unwrap(), ids, "{name}: {text:?}");
                let pieces = merging.pieces(text, false).unwrap();
                let count = text.chars().count();
                assert!(pieces.iter().all(|piece| piece.start <= piece.end && piece.end <= count));
            }
        }
    }
}
