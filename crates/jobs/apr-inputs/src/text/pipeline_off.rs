//! Where the binary was built without the feature `text`.

use apr_core::{Error, Result};
use apr_tokenizer::gguf::TokenizerFile;

use super::{PairTokens, PairWindow, Piece, Windows};

/// No pipeline ever is.
#[derive(Debug, Clone)]
pub(super) enum Pipeline {}

impl Pipeline {
    pub(super) fn read(_: &[u8]) -> Result<Self> {
        Err(Error::version(
            "tokenizers of this kind need the feature `text`, which this build lacks",
        ))
    }

    pub(super) fn of(_: TokenizerFile<'_>, _: &mut Vec<String>) -> Result<Self> {
        Self::read(&[])
    }

    pub(super) fn encode(&self, _: &str, _: bool) -> Result<Vec<i64>> {
        match *self {}
    }

    pub(super) fn pair(&self, _: &str, _: &str, _: Windows) -> Result<Vec<PairWindow>> {
        match *self {}
    }

    pub(super) fn pair_at_most(&self, _: &str, _: &str, _: usize) -> Result<(PairTokens, usize)> {
        match *self {}
    }

    pub(super) fn pieces(&self, _: &str, _: bool) -> Result<Vec<Piece>> {
        match *self {}
    }

    pub(super) fn decode_all(&self, _: &[i64]) -> Result<String> {
        match *self {}
    }

    pub(super) fn decode_bytes(&self, _: &[i64]) -> Result<Vec<u8>> {
        match *self {}
    }

    pub(super) fn decode(&self, _: &[i64]) -> Result<String> {
        match *self {}
    }

    pub(super) fn len(&self) -> usize {
        match *self {}
    }

    pub(super) fn id(&self, _: &str) -> Option<i64> {
        match *self {}
    }

    pub(super) fn token(&self, _: i64) -> Option<String> {
        match *self {}
    }
}
