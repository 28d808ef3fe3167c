//! Writing what was planned, byte after byte.

use apr_core::digest::{ChunkSums, Crc32};
use apr_core::{CheckpointWriter, Due, Layout, Notes, Result, Sink};

use crate::record::{Record, end_records};

/// Content of the entry `byteorder`.
pub(crate) const BYTE_ORDER: &[u8] = b"little";

/// Content of the entry `version`.
pub(crate) const VERSION: &[u8] = b"3\n";

/// A state dict being written; [`plan`](crate::plan()) makes it.
///
/// Nothing is ever patched, so any sink will do, a pipe too. Losses have no place in the format:
/// callers report them.
#[derive(Debug)]
pub struct PytorchWriter {
    plan: StateDictPlan,
    /// Entries in front of the first storage.
    first: usize,
    due: Due,
    /// Checksum of those.
    crc: Crc32,
    /// Checksums of the entries so far, which the directory repeats.
    crcs: Vec<u32>,
}

/// Everything that is known before the first byte of a tensor.
#[derive(Debug)]
pub(crate) struct StateDictPlan {
    pub(crate) layout: Layout,
    /// Names of the layout's tensors.
    pub(crate) names: Vec<String>,
    /// The entries before the storages, the entries of the layout's tensors, and the version.
    pub(crate) records: Vec<Record>,
    /// Contents of the entries in front of the storages.
    pub(crate) front: Vec<Vec<u8>>,
    /// `true` if the sink receives the name of the file.
    pub(crate) named: bool,
}

impl PytorchWriter {
    pub(crate) fn new(plan: StateDictPlan) -> Self {
        let first = plan.front.len();
        Self { plan, first, due: Due::default(), crc: Crc32::new(), crcs: Vec::new() }
    }

    /// Writes an entry whose content is available.
    fn write_record(&mut self, sink: &mut dyn Sink, record: usize, content: &[u8]) -> Result<()> {
        let mut crc = Crc32::new();
        crc.update(content);
        self.crcs.push(crc.value());
        let record = &self.plan.records[record];
        sink.write_all(&record.local())?;
        sink.write_all(content)?;
        sink.write_all(&record.descriptor(crc.value()))
    }

    fn start_tensor(&self, sink: &mut dyn Sink) -> Result<()> {
        match self.due.tensor(&self.plan.layout) {
            Some(_) => sink.write_all(&self.plan.records[self.first + self.due.position()].local()),
            None => Ok(()),
        }
    }

    /// Finishes tensors as long as the current one is complete.
    ///
    /// Empty tensors are complete from the start.
    fn advance(&mut self, sink: &mut dyn Sink) -> Result<()> {
        while self.due.complete(&self.plan.layout).is_some() {
            let crc = std::mem::take(&mut self.crc).value();
            sink.write_all(
                &self.plan.records[self.first + self.due.position() - 1].descriptor(crc),
            )?;
            self.crcs.push(crc);
            self.start_tensor(sink)?;
        }
        Ok(())
    }

    fn write_directory(&self, sink: &mut dyn Sink) -> Result<()> {
        let offset = self.plan.records.last().map_or(0, |record| record.end);
        let mut len = 0;
        for (record, &crc) in self.plan.records.iter().zip(&self.crcs) {
            sink.write_all(&record.central(crc))?;
            len += record.central_len();
        }
        sink.write_all(&end_records(self.plan.records.len() as u64, offset, len))
    }
}

impl CheckpointWriter for PytorchWriter {
    fn layout(&self) -> &Layout {
        &self.plan.layout
    }

    fn begin(&mut self, sink: &mut dyn Sink) -> Result<()> {
        if let Some(file) = self.plan.layout.files.first().filter(|_| self.plan.named) {
            sink.next_file(&file.name)?;
        }
        for (record, content) in std::mem::take(&mut self.plan.front).into_iter().enumerate() {
            self.write_record(sink, record, &content)?;
        }
        self.start_tensor(sink)?;
        self.advance(sink)
    }

    fn write_chunk(
        &mut self,
        sink: &mut dyn Sink,
        bytes: &[u8],
        sums: Option<ChunkSums>,
    ) -> Result<()> {
        self.due.take(&self.plan.layout, &self.plan.names, bytes.len() as u64)?;
        sink.write_all(bytes)?;
        match sums {
            Some(sums) => self.crc.append(sums),
            None => self.crc.update(bytes),
        }
        self.advance(sink)
    }

    fn finish(&mut self, sink: &mut dyn Sink, _notes: &Notes) -> Result<()> {
        self.due.finish(&self.plan.layout, &self.plan.names)?;
        let version = self.plan.records.len() - 1;
        self.write_record(sink, version, VERSION)?;
        self.write_directory(sink)
    }
}
