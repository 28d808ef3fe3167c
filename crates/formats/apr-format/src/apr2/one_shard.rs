//! Writing one shard of a model and nothing else, so that several processes can write the shards of
//! one model.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use apr_core::digest::ChunkSums;
use apr_core::{
    CheckpointWriter, ChunkEncoder, Error, Layout, Metadata, Notes, PlannedTensor, Result, Sink,
    TensorInfo,
};

use super::companion::CompanionFile;
use super::options::WriteOptions;
use super::shard_writer::Cut;
use super::writer::{Apr2Writer, plan};

/// Plans one of the shards that [`plan_shards`](super::plan_shards) plans, counted from 0, without
/// any other file.
///
/// Its file is byte-identical to the one that a single process writes with all shards. If the model
/// is not split, the only shard is the plain file. Positions in the layout are positions in
/// `tensors`. Notes belong to the manifest; [`Manifest::note`](super::Manifest::note) adds them.
///
/// # Errors
/// The errors of [`plan_shards`](super::plan_shards); E001 if there is no such shard.
pub fn plan_shard(
    tensors: &[TensorInfo],
    metadata: &Metadata,
    companions: Vec<CompanionFile>,
    options: &WriteOptions,
    shard_size: u64,
    number: usize,
) -> Result<Box<dyn CheckpointWriter>> {
    let cut = Cut::plan(tensors, metadata, &companions, options, shard_size)?;
    if number >= cut.shards.len().max(1) {
        let count = cut.shards.len();
        return Err(Error::format(format!("no shard {number}, numbered from 0, of {count}")));
    }
    if cut.shards.len() <= 1 {
        return Ok(Box::new(plan(tensors, metadata, companions, options)?));
    }
    let (writer, file_name) = cut.writer(number, companions, options)?;
    Ok(Box::new(OneShard::new(writer, file_name, &cut.shards[number])))
}

/// A shard being written; see [`plan_shard`].
struct OneShard {
    writer: Apr2Writer,
    file_name: String,
    /// Positions of the shard's tensors among all tensors.
    members: Vec<usize>,
    /// The writer's layout, with these positions.
    layout: Layout,
}

impl OneShard {
    fn new(writer: Apr2Writer, file_name: String, members: &[usize]) -> Self {
        let mut shard =
            Self { writer, file_name, members: members.to_vec(), layout: Layout::default() };
        shard.measure();
        shard
    }

    fn measure(&mut self) {
        let own = self.writer.layout();
        let place = |planned: &PlannedTensor| PlannedTensor {
            source: self.members[planned.source],
            ..*planned
        };
        self.layout = Layout { tensors: own.tensors.iter().map(place).collect(), ..own.clone() };
    }
}

impl CheckpointWriter for OneShard {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn wants_sums(&self) -> bool {
        self.writer.wants_sums()
    }

    fn encoder(&self) -> Option<Arc<dyn ChunkEncoder>> {
        self.writer.encoder()
    }

    fn mismatches(&self) -> u64 {
        self.writer.mismatches()
    }

    fn write_piece(&mut self, sink: &mut dyn Sink, piece: &[u8], encoded: &[u8]) -> Result<()> {
        self.writer.write_piece(sink, piece, encoded)
    }

    fn begin(&mut self, sink: &mut dyn Sink) -> Result<()> {
        sink.next_file(&self.file_name)?;
        self.writer.begin(sink)
    }

    fn write_chunk(
        &mut self,
        sink: &mut dyn Sink,
        bytes: &[u8],
        sums: Option<ChunkSums>,
    ) -> Result<()> {
        self.writer.write_chunk(sink, bytes, sums)
    }

    fn finish(&mut self, sink: &mut dyn Sink, _notes: &Notes) -> Result<()> {
        self.writer.finish(sink, &Notes::default())?;
        self.measure();
        Ok(())
    }
}
