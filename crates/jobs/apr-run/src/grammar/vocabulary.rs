//! The bytes that each token of a vocabulary writes.

use apr_core::Result;
use apr_inputs::text::TextTokens;
use llguidance::toktrie::{INVALID_TOKEN, TokRxInfo, TokTrie};

/// Maximum length of a token in bytes. No text is written with a longer one, and the library's
/// trees are not deeper.
const LONGEST: usize = 1000;

/// A text whose last token has others behind it.
const BEFORE: &str = "a";

/// Bytes that the tokens of a vocabulary write, by their ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Words(Vec<Word>);

/// A token for the library: its bytes, or the name of a token that writes no text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Word {
    bytes: Vec<u8>,
    is_text: bool,
}

impl Words {
    /// Creates the words for positions within a text.
    pub(super) fn within(tokens: &TextTokens) -> Result<Self> {
        let before = tokens.encode(BEFORE, false).ok().and_then(|ids| ids.last().copied());
        Self::behind(tokens, &before.map_or_else(Vec::new, |id| vec![id]))
    }

    /// Behind these tokens.
    pub(super) fn behind(tokens: &TextTokens, before: &[i64]) -> Result<Self> {
        let known = tokens.decode_bytes(before)?;
        let mut ids = before.to_vec();
        let mut words = Vec::new();
        for id in 0..i64::try_from(tokens.len()).unwrap_or(i64::MAX) {
            ids.push(id);
            let written = tokens.token(id).is_some().then(|| tokens.decode_bytes(&ids));
            ids.pop();
            let bytes = written.transpose()?.unwrap_or_default();
            // What changes the text before it is not chosen.
            let bytes = bytes.strip_prefix(&known[..]).unwrap_or_default();
            words.push(match bytes.len() {
                0 => Word { bytes: name(tokens, id), is_text: false },
                1..=LONGEST => Word { bytes: bytes.to_vec(), is_text: true },
                _ => Word::default(),
            });
        }
        Ok(Self(words))
    }

    /// Returns the library's tree, in which the tokens `ends` end a text and write no bytes.
    pub(super) fn tree(&self, ends: &[i64]) -> TokTrie {
        let ends: Vec<u32> = ends
            .iter()
            .filter_map(|id| u32::try_from(*id).ok())
            .filter(|id| self.0.get(*id as usize).is_some())
            .collect();
        let mut words: Vec<Vec<u8>> = self.0.iter().map(|word| word.bytes.clone()).collect();
        for end in &ends {
            if self.0[*end as usize].is_text {
                words[*end as usize].clear();
            }
        }
        let size = u32::try_from(words.len()).unwrap_or(u32::MAX);
        let tree = TokTrie::from(&TokRxInfo::new(size, INVALID_TOKEN), &words);
        if ends.is_empty() { tree } else { tree.with_eos_tokens(&ends) }
    }

    /// Returns the bytes that a token writes.
    pub(super) fn text(&self, id: i64) -> &[u8] {
        let word = usize::try_from(id).ok().and_then(|at| self.0.get(at));
        word.filter(|word| word.is_text).map_or(&[], |word| &word.bytes)
    }
}

/// Returns the name in grammars of a token that writes no text, such as `<|im_end|>`.
fn name(tokens: &TextTokens, id: i64) -> Vec<u8> {
    let name = tokens.token(id).filter(|name| name.starts_with('<') && name.ends_with('>'));
    let name = name.filter(|name| name.len() <= LONGEST);
    name.map_or_else(Vec::new, |name| {
        let mut bytes = vec![TokTrie::SPECIAL_TOKEN_MARKER];
        bytes.extend(name.bytes());
        bytes
    })
}
