//! JSON that is handed on piece by piece while it is made.

use alloc::vec::Vec;

use serde::Serialize;

use crate::{Result, json};

/// Bytes after which a piece is handed on.
const PIECE_LEN: usize = 64 << 10;

/// Collects small parts of a JSON text, and hands them on in pieces.
pub(crate) struct JsonPieces<'a> {
    piece: Vec<u8>,
    take: &'a mut dyn FnMut(&[u8]) -> Result<()>,
}

impl<'a> JsonPieces<'a> {
    pub(crate) fn new(take: &'a mut dyn FnMut(&[u8]) -> Result<()>) -> Self {
        Self { piece: Vec::new(), take }
    }

    /// Adds text unchanged.
    pub(crate) fn text(&mut self, text: &str) -> Result<()> {
        self.piece.extend_from_slice(text.as_bytes());
        self.hand_on(PIECE_LEN)
    }

    /// Adds the compact JSON of a value.
    pub(crate) fn value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<()> {
        self.piece.extend_from_slice(&compact(value));
        self.hand_on(PIECE_LEN)
    }

    /// Adds the items of a list without its brackets.
    pub(crate) fn items<T: Serialize>(&mut self, list: &T) -> Result<()> {
        let json = compact(list);
        self.piece.extend_from_slice(json.get(1..json.len() - 1).unwrap_or_default());
        self.hand_on(PIECE_LEN)
    }

    /// Passes on the rest.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.hand_on(1)
    }

    fn hand_on(&mut self, least: usize) -> Result<()> {
        if self.piece.len() >= least {
            (self.take)(&self.piece)?;
            self.piece.clear();
        }
        Ok(())
    }
}

fn compact<T: Serialize + ?Sized>(value: &T) -> Vec<u8> {
    json::to_vec(value)
        .unwrap_or_else(|_| unreachable!("a JSON map with string keys always serializes"))
}
