//! Writing the file again, and checking what it can't take.

use std::fmt;
use std::sync::Arc;

use apr_core::digest::ChunkSums;
use apr_core::{
    CheckpointReader, CheckpointWriter, Due, Error, Layout, Notes, PlannedTensor, Result, Sink,
};

use crate::reader::OnnxReader;
use crate::write::OnnxWriter;

/// A model's file being written as it was; [`restore`](super::restore()) makes it.
pub struct RestoredWriter {
    writer: OnnxWriter,
    layout: Layout,
    /// The part of the layout that is checked.
    checks: Layout,
    /// Names of its tensors.
    names: Vec<String>,
    /// The file as it was, but for the data that the writer gets.
    reader: Arc<OnnxReader>,
    /// Position in it of the tensors that are checked.
    stored: Vec<usize>,
    /// Number of tensor bytes still to be written; the tensors to check follow them.
    left: u64,
    checked: Due,
    /// Number of checked bytes of the current tensor.
    offset: u64,
}

impl RestoredWriter {
    /// Creates a writer. `same` has the positions of unchangeable tensors, here and in `reader`.
    pub(super) fn new(
        writer: OnnxWriter,
        reader: Arc<OnnxReader>,
        same: Vec<(usize, usize)>,
    ) -> Result<Self> {
        let mut layout = writer.layout().clone();
        let left = layout.tensors.iter().map(|planned| planned.len).sum();
        let mut checks = Layout::default();
        let mut names = Vec::with_capacity(same.len());
        for &(source, stored) in &same {
            let info = &reader.tensors()[stored];
            checks.tensors.push(PlannedTensor {
                source,
                file: 0,
                offset: 0,
                len: info.byte_len()?,
            });
            names.push(info.name.clone());
        }

        layout.tensors.extend(&checks.tensors);
        let stored = same.into_iter().map(|(_, stored)| stored).collect();
        Ok(Self {
            writer,
            layout,
            checks,
            names,
            reader,
            stored,
            left,
            checked: Due::default(),
            offset: 0,
        })
    }

    /// Compares bytes with the bytes of the original file.
    fn check(&mut self, bytes: &[u8]) -> Result<()> {
        // Empty ones are complete from the start.
        while self.checked.complete(&self.checks).is_some() {
            self.offset = 0;
        }

        let (position, offset) = (self.checked.position(), self.offset);
        self.checked.take(&self.checks, &self.names, bytes.len() as u64)?;
        self.offset += bytes.len() as u64;
        let Some(&stored) = self.stored.get(position) else { return Ok(()) };
        let mut expected = vec![0; bytes.len()];
        self.reader.read_tensor(stored, offset, &mut expected)?;
        if expected == bytes {
            return Ok(());
        }

        let message = "its values changed, but its form in the ONNX file can't store others; only \
                       tensors with contiguous bytes can change";
        Err(Error::version(message).for_tensor(&self.names[position]))
    }
}

impl CheckpointWriter for RestoredWriter {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn begin(&mut self, sink: &mut dyn Sink) -> Result<()> {
        self.writer.begin(sink)
    }

    fn write_chunk(
        &mut self,
        sink: &mut dyn Sink,
        bytes: &[u8],
        sums: Option<ChunkSums>,
    ) -> Result<()> {
        if self.left == 0 && !bytes.is_empty() {
            return self.check(bytes);
        }
        self.writer.write_chunk(sink, bytes, sums)?;
        self.left = self.left.saturating_sub(bytes.len() as u64);
        Ok(())
    }

    fn finish(&mut self, sink: &mut dyn Sink, notes: &Notes) -> Result<()> {
        self.writer.finish(sink, notes)
    }
}

impl fmt::Debug for RestoredWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RestoredWriter").field("layout", &self.layout).finish_non_exhaustive()
    }
}
