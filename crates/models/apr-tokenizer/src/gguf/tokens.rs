//! Tokens by id, as GGUF lists them.

use std::collections::{HashMap, HashSet};

use apr_core::Escaped;
use apr_gguf::Array;

use super::hugging_face::AddedToken;

/// Types of tokens, llama.cpp's and SentencePiece's numbers.
pub(super) const NORMAL: i32 = 1;
pub(super) const UNKNOWN: i32 = 2;
/// Never in the text of a user.
pub(super) const CONTROL: i32 = 3;
/// Found in a text before anything else.
pub(super) const USER_DEFINED: i32 = 4;
/// An id without a token.
pub(super) const UNUSED: i32 = 5;
/// Type of byte tokens such as `<0x41>`.
pub(super) const BYTE: i32 = 6;

/// Score of an id without a token.
const UNUSED_SCORE: f32 = -10000.0;

/// Score of a token beside the trained ones.
pub(super) const ADDED_SCORE: f32 = -1000.0;

/// Prefix of the tokens for gaps in T5's texts.
///
/// The libraries treat these tokens as special, and llama.cpp finds them in texts.
pub(super) const GAP: &str = "<extra_id_";

/// SentencePiece's letter for a space.
pub(super) const SPACE: char = '\u{2581}';

/// Texts, scores and types by id.
#[derive(Debug)]
pub(super) struct Tokens {
    pub(super) texts: Vec<String>,
    pub(super) scores: Vec<f32>,
    pub(super) types: Vec<i32>,
}

impl Tokens {
    /// `count` ids without a token.
    pub(super) fn padding(count: usize) -> Self {
        Self {
            texts: (0..count).map(padding).collect(),
            scores: vec![UNUSED_SCORE; count],
            types: vec![UNUSED; count],
        }
    }

    pub(super) fn len(&self) -> usize {
        self.texts.len()
    }

    /// Fills a slot; one beyond the tokens is left out.
    pub(super) fn set(&mut self, id: u64, text: String, score: f32, token_type: i32) -> bool {
        let Some(id) = usize::try_from(id).ok().filter(|&id| id < self.len()) else { return false };
        self.texts[id] = text;
        self.scores[id] = score;
        self.types[id] = token_type;
        true
    }

    /// Fills the slot of a token that is found in a text before anything else.
    pub(super) fn set_added(&mut self, token: &AddedToken, score: f32) -> bool {
        let control = token.special || looks_special(&token.content);
        // What is found first is found in the text as it is, before its spaces become letters.
        let text = if control { token.content.clone() } else { token.content.replace(SPACE, " ") };
        self.set(token.id, text, score, if control { CONTROL } else { USER_DEFINED })
    }

    /// Position of a text.
    pub(super) fn find(&self, text: &str) -> Option<u64> {
        self.texts.iter().zip(0..).find(|(there, _)| *there == text).map(|(_, id)| id)
    }

    /// Takes the text from all but the first token that has it: llama.cpp does not load two tokens
    /// of one text.
    pub(super) fn distinguish(&mut self) -> Option<String> {
        let mut first = HashMap::with_capacity(self.len());
        let mut repeated = Vec::new();
        for (id, text) in self.texts.iter().enumerate() {
            // llama.cpp reads them as C strings, and names empty ones itself.
            let read = text.split('\0').next().unwrap_or_default();
            if !read.is_empty() && *first.entry(read).or_insert(id) != id {
                repeated.push(id);
            }
        }

        let example = self.texts.get(*repeated.first()?)?.clone();
        let taken: HashSet<_> =
            self.texts.iter().filter(|text| text.starts_with("[PAD")).cloned().collect();
        for &id in &repeated {
            let mut name = padding(id);
            while taken.contains(&name) {
                name.push('_');
            }
            self.texts[id] = name;
            self.types[id] = UNUSED;
        }

        let (count, example) =
            (apr_core::counted(repeated.len() as u64, "token"), Escaped::short(&example));
        Some(format!(
            "{count} with the text of an earlier one can't be written twice, as '{example}': padded"
        ))
    }

    /// `tokens`, `scores` if they matter, `token_type`.
    pub(super) fn arrays(&self, with_scores: bool) -> impl Iterator<Item = (&'static str, Array)> {
        let scores = with_scores.then(|| ("scores", Array::F32(self.scores.clone())));
        [("tokens", Array::String(self.texts.clone()))]
            .into_iter()
            .chain(scores)
            .chain([("token_type", Array::I32(self.types.clone()))])
    }
}

/// Text of an id without a token.
pub(super) fn padding(id: usize) -> String {
    format!("[PAD{id}]")
}

/// Returns `true` if llama.cpp's rules make a token special although it is not marked as such.
fn looks_special(text: &str) -> bool {
    let between = |start, end| text.starts_with(start) && text.ends_with(end);
    matches!(text, "<pad>" | "<mask>" | "<2mass>" | "[@BOS@]")
        || between("<|", "|>")
        || between("<\u{ff5c}", "\u{ff5c}>")
        || between("<unused", ">")
}
