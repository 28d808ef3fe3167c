//! What the bytes of one tensor go through before they are written: compression, then encryption,
//! piece by piece.

use alloc::vec::Vec;

use apr_core::{Result, Sink};

use super::Apr2Writer;
use crate::apr2::belt::{Parcel, Work};
use crate::apr2::encode::ENCODED_PIECE;
use crate::apr2::index::BLOCK_HEADER_LEN;
use crate::crypto::SEALED_CHUNK;

/// Processing state of the current tensor.
#[derive(Debug, Default)]
pub(super) struct Stage {
    /// Bytes that do not make a piece yet.
    partial: Vec<u8>,
    /// Pieces, and their compressed form, until it is clear which of the two is stored.
    held: Vec<u8>,
    held_compressed: Vec<u8>,
    verdict: Verdict,
    /// Bytes that are not encrypted yet, and the number of the chunk that they begin with.
    to_seal: Vec<u8>,
    chunk_number: u64,
    /// Bytes before encryption.
    stored: u64,
}

/// Result of the decision to compress a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Verdict {
    #[default]
    Open,
    Compressed,
    Plain,
}

/// Parcels of a kind that may be put off: enough that threads find some, and few mebibytes.
const MOST_PUT_OFF: usize = 8;

/// Any parcel to be encrypted.
const SEAL: Work = Work::Seal { first: 0, to_end: false };

/// Number of bytes (8 pieces) after which a tensor is stored plain if compression did not make it
/// smaller.
const PATIENCE: usize = 8 * ENCODED_PIECE;

impl Apr2Writer {
    /// Writes the buffered rest of the current entry, and enters its final values into the index.
    pub(super) fn finish_entry(&mut self, sink: &mut dyn Sink) -> Result<()> {
        if !self.stage.partial.is_empty() {
            let piece = core::mem::take(&mut self.stage.partial);
            self.put_off(sink, Work::Compress, piece)?;
        }

        self.take_back_beyond(sink, Work::Compress, 0)?;
        if !self.stage.to_seal.is_empty() {
            let last = core::mem::take(&mut self.stage.to_seal);
            self.put_off(sink, Work::Seal { first: self.stage.chunk_number, to_end: true }, last)?;
        }

        self.take_back_beyond(sink, SEAL, 0)?;
        let Stage { verdict, .. } = core::mem::take(&mut self.stage);
        self.digests.push(core::mem::take(&mut self.digest).value());
        let start = self.entry_start;
        let entry = &mut self.entries[self.due];
        entry.offset = start;
        entry.size = self.position - start;
        if verdict == Verdict::Compressed {
            entry.flags |= self.encoder.coding(self.due).0;
            entry.raw_size = self.encoder.expected(self.due);
        }

        Ok(())
    }

    /// Compresses bytes as soon as they make a piece.
    pub(super) fn collect(&mut self, sink: &mut dyn Sink, mut bytes: &[u8]) -> Result<()> {
        while self.stage.partial.len() + bytes.len() >= ENCODED_PIECE {
            let (now, later) = bytes.split_at(ENCODED_PIECE - self.stage.partial.len());
            let mut piece = core::mem::take(&mut self.stage.partial);
            piece.extend_from_slice(now);
            self.put_off(sink, Work::Compress, piece)?;
            bytes = later;
        }
        if !bytes.is_empty() {
            self.stage.partial.reserve_exact(ENCODED_PIECE - self.stage.partial.len());
            self.stage.partial.extend_from_slice(bytes);
        }
        Ok(())
    }

    /// Defers work on bytes of the current entry, and continues with results that are ready.
    fn put_off(&mut self, sink: &mut dyn Sink, work: Work, input: Vec<u8>) -> Result<()> {
        if work == Work::Compress {
            self.encoder.show_first(self.due, &input);
        }
        let parcel = Parcel { entry: self.due, work, input, output: Vec::new(), mismatches: 0 };
        if let Some(done) = self.encoder.put_off(parcel) {
            self.take_back(sink, &done)?;
        }
        while let Some(done) = self.encoder.take_done(work) {
            self.take_back(sink, &done)?;
        }
        self.take_back_beyond(sink, work, MOST_PUT_OFF)
    }

    /// Processes results of a kind until at most `most` parcels are deferred.
    fn take_back_beyond(&mut self, sink: &mut dyn Sink, kind: Work, most: usize) -> Result<()> {
        while let Some(done) = self.encoder.take_beyond(kind, most)? {
            self.take_back(sink, &done)?;
        }
        Ok(())
    }

    fn take_back(&mut self, sink: &mut dyn Sink, done: &Parcel) -> Result<()> {
        self.mismatches += done.mismatches;
        match done.work {
            Work::Compress => self.take_piece(sink, &done.input, &done.output),
            Work::Seal { .. } => self.emit(sink, &done.output, None),
        }
    }

    /// Accepts a piece in both forms, and stores one of them as soon as the choice is clear.
    ///
    /// The compressed form is chosen once it has saved more than the length fields of the remaining
    /// blocks can cost. The plain form is chosen if that does not happen within some pieces or by
    /// the end. So no tensor gets larger, and the outcome does not depend on threads.
    pub(super) fn take_piece(
        &mut self,
        sink: &mut dyn Sink,
        piece: &[u8],
        compressed: &[u8],
    ) -> Result<()> {
        match self.stage.verdict {
            Verdict::Compressed => return self.store(sink, compressed),
            Verdict::Plain => return self.store(sink, piece),
            Verdict::Open => {}
        }

        self.stage.held.extend_from_slice(piece);
        self.stage.held_compressed.extend_from_slice(compressed);
        let (held, held_compressed) = (self.stage.held.len(), self.stage.held_compressed.len());
        let expected = self.encoder.expected(self.due);
        let taken = self.stage.stored + held as u64;
        let to_come = (expected - taken).div_ceil(self.encoder.coding(self.due).1);
        let saved =
            (held as u64).checked_sub(held_compressed as u64).filter(|_| !compressed.is_empty());
        if saved.is_some_and(|saved| saved > to_come.saturating_mul(BLOCK_HEADER_LEN.into())) {
            self.stage.verdict = Verdict::Compressed;
        } else if compressed.is_empty() || taken == expected || held >= PATIENCE {
            self.stage.verdict = Verdict::Plain;
            self.encoder.give_up(self.due);
        } else {
            return Ok(());
        }

        let (held, held_compressed) = (
            core::mem::take(&mut self.stage.held),
            core::mem::take(&mut self.stage.held_compressed),
        );
        self.store(
            sink,
            if self.stage.verdict == Verdict::Compressed { &held_compressed } else { &held },
        )
    }

    /// Takes bytes of the stored form.
    pub(super) fn store(&mut self, sink: &mut dyn Sink, mut bytes: &[u8]) -> Result<()> {
        self.stage.stored += bytes.len() as u64;
        if !self.encoder.encrypts() {
            return self.emit(sink, bytes, None);
        }

        // A full piece waits for the next byte, because the last chunk is marked.
        while self.stage.to_seal.len() + bytes.len() > ENCODED_PIECE {
            let (now, later) = bytes.split_at(ENCODED_PIECE - self.stage.to_seal.len());
            let mut piece = core::mem::take(&mut self.stage.to_seal);
            piece.extend_from_slice(now);
            let first = self.stage.chunk_number;
            self.stage.chunk_number += (ENCODED_PIECE / SEALED_CHUNK) as u64;
            self.put_off(sink, Work::Seal { first, to_end: false }, piece)?;
            bytes = later;
        }

        if !bytes.is_empty() {
            self.stage.to_seal.reserve_exact(ENCODED_PIECE - self.stage.to_seal.len());
            self.stage.to_seal.extend_from_slice(bytes);
        }

        Ok(())
    }
}
