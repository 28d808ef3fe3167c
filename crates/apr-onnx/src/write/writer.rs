//! Writing what was planned, piece by piece.

use std::collections::VecDeque;

use apr_core::digest::ChunkSums;
use apr_core::{CheckpointWriter, Due, Layout, Notes, Result, Sink};

use super::message::Piece;

/// An ONNX model being written; [`plan`](super::plan) makes it.
///
/// Nothing is ever patched, so any sink will do; where tensors lie beside the model, one that holds two files.
#[derive(Debug)]
pub struct OnnxWriter {
    pub(super) layout: Layout,
    /// Names of the layout's tensors.
    pub(super) names: Vec<String>,
    /// What is left of the model's file.
    pub(super) pieces: VecDeque<Piece>,
    /// Whether the sink hears the files' names.
    pub(super) named: bool,
    pub(super) due: Due,
    pub(super) file: usize,
    /// Bytes in the file beside the model so far.
    pub(super) beside: u64,
}

impl OnnxWriter {
    /// Writes what comes before the bytes of the next tensor.
    fn go_on(&mut self, sink: &mut dyn Sink) -> Result<()> {
        loop {
            if self.file == 0 {
                self.known_bytes(sink)?;
            }
            self.begin_tensor(sink)?;
            if self.due.complete(&self.layout).is_none() {
                return Ok(());
            }
        }
    }

    /// Writes the known bytes up to the next hole, and takes the hole away.
    fn known_bytes(&mut self, sink: &mut dyn Sink) -> Result<()> {
        while let Some(piece) = self.pieces.pop_front() {
            match piece {
                Piece::Bytes(bytes) => sink.write_all(&bytes)?,
                Piece::Hole(..) => break,
            }
        }
        Ok(())
    }

    /// Goes to the place of the tensor that is due.
    fn begin_tensor(&mut self, sink: &mut dyn Sink) -> Result<()> {
        let Some(tensor) = self.due.tensor(&self.layout).copied() else { return Ok(()) };
        if tensor.file == 0 {
            return Ok(());
        }
        if self.file == 0 {
            self.file = 1;
            sink.next_file(&self.layout.files[1].name)?;
        }
        const ZEROS: [u8; 4 << 10] = [0; 4 << 10];
        while self.beside < tensor.offset {
            let len = usize::try_from(tensor.offset - self.beside).unwrap_or(ZEROS.len()).min(ZEROS.len());
            sink.write_all(&ZEROS[..len])?;
            self.beside += len as u64;
        }
        Ok(())
    }
}

impl CheckpointWriter for OnnxWriter {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn begin(&mut self, sink: &mut dyn Sink) -> Result<()> {
        if self.named {
            sink.next_file(&self.layout.files[0].name)?;
        }
        self.go_on(sink)
    }

    fn write_chunk(&mut self, sink: &mut dyn Sink, bytes: &[u8], _sums: Option<ChunkSums>) -> Result<()> {
        self.due.take(&self.layout, &self.names, bytes.len() as u64)?;
        sink.write_all(bytes)?;
        if self.file == 1 {
            self.beside += bytes.len() as u64;
        }
        match self.due.complete(&self.layout) {
            Some(_) => self.go_on(sink),
            None => Ok(()),
        }
    }

    fn finish(&mut self, sink: &mut dyn Sink, _notes: &Notes) -> Result<()> {
        self.due.finish(&self.layout, &self.names)?;
        if self.file == 0 {
            self.known_bytes(sink)?;
        }
        Ok(())
    }
}
