//! A tokenizer's tokens, whichever of its files they were read from.

use std::collections::BTreeMap;

use apr_core::{counted, grouped};

/// Tokens of a vocabulary; the largest in use have a million.
pub(crate) const MAX_TOKENS: usize = 2 << 20;

/// Tokens by id, and their properties in the file.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Tokenizer {
    /// The companion that holds the tokens.
    pub file: String,
    /// Texts of the tokens, by id.
    pub tokens: BTreeMap<u64, String>,
    /// `BPE`, `WordPiece` or `SentencePiece Unigram`, if the file states it.
    pub model_type: Option<String>,
    /// Ids of tokens that do not represent text, by token.
    pub special: BTreeMap<String, u64>,
    /// Ids that the file gives a role: `("unk", 0)`.
    pub roles: Vec<(&'static str, u64)>,
    /// The first id that two texts claim, with both; it keeps the earlier one.
    pub clash: Option<(u64, String, String)>,
}

impl Tokenizer {
    /// Adds a token. An id that is taken keeps its text and is noted as a clash.
    pub(super) fn add(&mut self, id: u64, text: String) {
        match self.tokens.get(&id) {
            None => drop(self.tokens.insert(id, text)),
            Some(there) if *there != text && self.clash.is_none() => {
                self.clash = Some((id, there.clone(), text));
            }
            Some(_) => {}
        }
    }

    pub(super) fn add_special(&mut self, id: u64, text: &str) {
        self.add(id, text.to_owned());
        self.special.insert(text.to_owned(), id);
    }

    /// Refuses what is not a vocabulary: no tokens, too many, or ids far beyond their number, which
    /// one number in a file could otherwise turn into an array of terabytes.
    pub(super) fn check(self) -> std::result::Result<Self, String> {
        let count = self.tokens.len();
        let Some((&last, _)) = self.tokens.last_key_value() else {
            return Err("it holds no tokens".to_owned());
        };
        check_count(count)?;
        check_id(last, count)?;
        Ok(self)
    }
}

pub(super) fn check_id(id: u64, tokens: usize) -> std::result::Result<(), String> {
    let tokens = tokens as u64;
    if id > 4 * tokens + 1024 {
        return Err(format!(
            "the token id {} is out of range for {}",
            grouped(id),
            counted(tokens, "token")
        ));
    }
    Ok(())
}

pub(super) fn check_count(tokens: usize) -> std::result::Result<(), String> {
    if tokens > MAX_TOKENS {
        return Err(format!("it holds over {} tokens", grouped(MAX_TOKENS as u64)));
    }
    Ok(())
}
