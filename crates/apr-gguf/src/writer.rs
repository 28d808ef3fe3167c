//! Writing what was planned, byte after byte and file after file.

use apr_core::digest::ChunkSums;
use apr_core::{CheckpointWriter, Error, Layout, Notes, PlannedTensor, Result, Sink};

/// A GGUF checkpoint being written; [`plan`](crate::plan()) makes it.
///
/// Nothing is ever patched, so any sink will do, a pipe too. Parts follow each other. Losses have no place in the
/// format: callers report them.
#[derive(Debug)]
pub struct GgufWriter {
    plan: Plan,
    /// Position in the layout of the tensor that is due.
    due: usize,
    /// How many of its bytes are written.
    written: u64,
}

/// Everything that is known before the first byte of a tensor.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) layout: Layout,
    /// Names of the layout's tensors.
    pub(crate) names: Vec<String>,
    /// What precedes the data of each file, padding included.
    pub(crate) headers: Vec<Vec<u8>>,
    /// Every tensor's bytes are followed by zeros up to a multiple of this.
    pub(crate) alignment: u64,
    /// Whether the sink hears the files' names.
    pub(crate) named: bool,
}

impl GgufWriter {
    pub(crate) fn new(plan: Plan) -> Self {
        Self { plan, due: 0, written: 0 }
    }

    fn due(&self) -> Option<&PlannedTensor> {
        self.plan.layout.tensors.get(self.due)
    }

    fn start_file(&self, sink: &mut dyn Sink, file: usize) -> Result<()> {
        if self.plan.named {
            sink.next_file(&self.plan.layout.files[file].name)?;
        }
        sink.write_all(&self.plan.headers[file])
    }

    /// Goes on while the tensor that is due is complete, which empty ones are from the start.
    fn advance(&mut self, sink: &mut dyn Sink) -> Result<()> {
        while let Some(complete) = self.due().filter(|tensor| tensor.len == self.written) {
            let (file, len) = (complete.file, complete.len);
            let padding = len.next_multiple_of(self.plan.alignment) - len;
            sink.write_all(&vec![0; usize::try_from(padding).unwrap_or_default()])?;
            (self.due, self.written) = (self.due + 1, 0);
            if let Some(next) = self.due().filter(|next| next.file != file) {
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

    fn write_chunk(&mut self, sink: &mut dyn Sink, bytes: &[u8], _sums: Option<ChunkSums>) -> Result<()> {
        let len = bytes.len() as u64;
        match self.due() {
            Some(tensor) if len > tensor.len - self.written => {
                let (left, planned) = (tensor.len - self.written, tensor.len);
                let message = format!("{len} more bytes come, but {left} of the planned {planned} are left");
                return Err(Error::corrupt(message).for_tensor(&self.plan.names[self.due]));
            }
            None if len > 0 => {
                return Err(Error::corrupt(format!("{len} bytes come after the last planned tensor")));
            }
            _ => {}
        }
        sink.write_all(bytes)?;
        self.written += len;
        self.advance(sink)
    }

    fn finish(&mut self, _sink: &mut dyn Sink, _notes: &Notes) -> Result<()> {
        let Some(tensor) = self.due() else { return Ok(()) };
        let message = format!("it ends after {} bytes, but {} are planned", self.written, tensor.len);
        Err(Error::corrupt(message).for_tensor(&self.plan.names[self.due]))
    }
}
