//! Writing what was planned, byte after byte and file after file.

use apr_core::digest::ChunkSums;
use apr_core::{CheckpointWriter, Due, Layout, Notes, PlannedTensor, Result, Sink};

/// A GGUF checkpoint being written; [`plan`](crate::plan()) creates it.
///
/// Written bytes are never changed, so any sink works, including a pipe. Parts are written one
/// after the other. The format can't record losses: callers report them.
#[derive(Debug)]
pub struct GgufWriter {
    plan: GgufPlan,
    due: Due,
}

/// Everything that is known before the first byte of a tensor.
#[derive(Debug)]
pub(crate) struct GgufPlan {
    pub(crate) layout: Layout,
    /// Names of the layout's tensors.
    pub(crate) names: Vec<String>,
    /// Bytes before the data of each file, including padding.
    pub(crate) headers: Vec<Vec<u8>>,
    /// Every tensor's bytes are followed by zeros up to a multiple of this.
    pub(crate) alignment: u64,
    /// Bytes after the last tensor, instead of padding.
    pub(crate) tail: Option<Vec<u8>>,
    /// `true` if the sink receives the files' names.
    pub(crate) named: bool,
}

impl GgufWriter {
    pub(crate) fn new(plan: GgufPlan) -> Self {
        Self { plan, due: Due::default() }
    }

    /// Returns the bytes before the data of a single file, and the layout.
    pub(crate) fn only_front(&self) -> Option<(&[u8], &Layout)> {
        let [front] = &self.plan.headers[..] else { return None };
        Some((front, &self.plan.layout))
    }

    fn start_file(&self, sink: &mut dyn Sink, file: usize) -> Result<()> {
        if self.plan.named {
            sink.next_file(&self.plan.layout.files[file].name)?;
        }
        sink.write_all(&self.plan.headers[file])
    }

    /// Moves on to the next tensor while the current one is complete. Empty tensors are complete
    /// from the start.
    fn advance(&mut self, sink: &mut dyn Sink) -> Result<()> {
        while let Some(PlannedTensor { file, len, .. }) = self.due.complete(&self.plan.layout) {
            let padding = len.next_multiple_of(self.plan.alignment) - len;
            let next = self.due.tensor(&self.plan.layout);
            match self.plan.tail.as_ref().filter(|_| next.is_none()) {
                Some(tail) => sink.write_all(tail)?,
                None => sink.write_all(&vec![0; usize::try_from(padding).unwrap_or_default()])?,
            }
            if let Some(next) = next.filter(|next| next.file != file) {
                self.start_file(sink, next.file)?;
            }
        }
        Ok(())
    }
}

impl CheckpointWriter for GgufWriter {
    fn layout(&self) -> &Layout {
        &self.plan.layout
    }

    fn begin(&mut self, sink: &mut dyn Sink) -> Result<()> {
        self.start_file(sink, 0)?;
        self.advance(sink)
    }

    fn write_chunk(
        &mut self,
        sink: &mut dyn Sink,
        bytes: &[u8],
        _sums: Option<ChunkSums>,
    ) -> Result<()> {
        self.due.take(&self.plan.layout, &self.plan.names, bytes.len() as u64)?;
        sink.write_all(bytes)?;
        self.advance(sink)
    }

    fn finish(&mut self, _sink: &mut dyn Sink, _notes: &Notes) -> Result<()> {
        self.due.finish(&self.plan.layout, &self.plan.names)
    }
}
