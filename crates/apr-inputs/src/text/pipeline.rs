//! `tokenizer.json`, run by the library that it was written for.

use apr_core::{Error, Escaped, Result};
use tokenizers::Tokenizer;

use super::Piece;
use super::bounds::{self, Bounds};
use crate::guard::guarded;

/// For errors.
const WHAT: &str = "the tokenizer";

/// A tokenizer of normalizer, pre-tokenizer, model and post-processor.
#[derive(Debug, Clone)]
pub(super) struct Pipeline {
    tokenizer: Box<Tokenizer>,
    bounds: Bounds,
}

impl Pipeline {
    pub(super) fn read(json: &[u8]) -> Result<Self> {
        let bounds = bounds::check(json)?;
        // Threads belong to the caller.
        tokenizers::utils::parallelism::set_parallelism(false);
        let tokenizer = guarded(WHAT, || {
            let mut tokenizer = Tokenizer::from_bytes(json).map_err(|error| wrong(&*error))?;
            // A text is taken whole: what a model can't take is said, not cut off.
            tokenizer.with_truncation(None).map_err(|error| wrong(&*error))?;
            tokenizer.with_padding(None);
            Ok(Box::new(tokenizer))
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

    pub(super) fn decode(&self, tokens: &[i64]) -> Result<String> {
        self.text(tokens, true)
    }

    pub(super) fn decode_all(&self, tokens: &[i64]) -> Result<String> {
        self.text(tokens, false)
    }

    fn text(&self, tokens: &[i64], plain: bool) -> Result<String> {
        let ids: Vec<u32> = tokens.iter().filter_map(|token| u32::try_from(*token).ok()).collect();
        guarded(WHAT, || self.tokenizer.decode(&ids, plain).map_err(|error| wrong(&*error)))
    }

    pub(super) fn id(&self, token: &str) -> Option<i64> {
        self.tokenizer.token_to_id(token).map(i64::from)
    }

    pub(super) fn token(&self, id: i64) -> Option<String> {
        self.tokenizer.id_to_token(u32::try_from(id).ok()?)
    }
}

fn wrong(error: &(dyn std::error::Error + Send + Sync)) -> Error {
    Error::format(format!("the tokenizer can't be used: {}", Escaped::short(&error.to_string())))
}
