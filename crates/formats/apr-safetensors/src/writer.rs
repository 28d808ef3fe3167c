//! Writing what was planned, byte after byte and file after file.

use apr_core::digest::ChunkSums;
use apr_core::{CheckpointWriter, Due, Layout, Notes, PlannedTensor, Result, Sink};

/// A safetensors checkpoint being written; [`plan`](crate::plan()) creates it.
///
/// Written bytes are never changed, so any sink works, including a pipe. Shards are written one
/// after the other, and the index last. The format can't record losses: callers report them.
#[derive(Debug)]
pub struct SafetensorsWriter {
    plan: SafetensorsPlan,
    due: Due,
}

/// Everything that is known before the first byte of a tensor.
#[derive(Debug)]
pub(crate) struct SafetensorsPlan {
    pub(crate) layout: Layout,
    /// Names of the layout's tensors.
    pub(crate) names: Vec<String>,
    /// Length, JSON and padding of each file.
    pub(crate) headers: Vec<Vec<u8>>,
    pub(crate) index: Option<Vec<u8>>,
    /// `true` if the sink receives the files' names.
    pub(crate) named: bool,
}

impl SafetensorsWriter {
    pub(crate) fn new(plan: SafetensorsPlan) -> Self {
        Self { plan, due: Due::default() }
    }

    /// The bytes before the data, with a header of `len` bytes: `None` if it is longer than that,
    /// or there are several files.
    pub(crate) fn front_of(&self, len: u64) -> Option<Vec<u8>> {
        let [header] = self.plan.headers.as_slice() else { return None };
        let json = header.get(size_of::<u64>()..)?.trim_ascii_end();
        let padding = len.checked_sub(json.len() as u64)?;
        let padding = usize::try_from(padding).ok()?;
        Some([&len.to_le_bytes(), json, &vec![b' '; padding]].concat())
    }

    /// The offset of each tensor from the first byte of the data, if they are in the order in which
    /// they were given.
    pub(crate) fn offsets_in_data(&self) -> Option<Vec<u64>> {
        let start = self.plan.headers.first()?.len() as u64;
        let tensors = self.plan.layout.tensors.iter().enumerate();
        tensors
            .map(|(at, planned)| (planned.source == at).then(|| planned.offset - start))
            .collect()
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
        while let Some(PlannedTensor { file, .. }) = self.due.complete(&self.plan.layout) {
            if let Some(next) = self.due.tensor(&self.plan.layout).filter(|next| next.file != file)
            {
                self.start_file(sink, next.file)?;
            }
        }
        Ok(())
    }
}

impl CheckpointWriter for SafetensorsWriter {
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

    fn finish(&mut self, sink: &mut dyn Sink, _notes: &Notes) -> Result<()> {
        self.due.finish(&self.plan.layout, &self.plan.names)?;
        let Some(index) = &self.plan.index else { return Ok(()) };
        if let Some(file) = self.plan.layout.files.last() {
            sink.next_file(&file.name)?;
        }
        sink.write_all(index)
    }
}
