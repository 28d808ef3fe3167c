//! Companions, where the format of the weights does not hold them.

use apr_core::digest::ChunkSums;
use apr_core::{CheckpointWriter, FileInfo, Layout, Loss, Notes, Result, Sink};
use apr_format::apr2::CompanionFile;

/// Writer that stores companions as separate files after the weights, or reports them lost without
/// a folder.
pub(crate) struct WithCompanions<W> {
    weights: W,
    companions: Vec<CompanionFile>,
    layout: Layout,
}

impl<W: CheckpointWriter> WithCompanions<W> {
    pub(crate) fn new(weights: W, companions: Vec<CompanionFile>, folder: bool) -> Self {
        let mut layout = weights.layout().clone();
        if folder {
            let files = companions.iter();
            layout.files.extend(
                files
                    .map(|file| FileInfo { name: file.name.clone(), len: file.bytes.len() as u64 }),
            );
            return Self { weights, companions, layout };
        }

        layout.losses.extend(companions.into_iter().map(|file| Loss {
            name: file.name,
            what: "companion file".into(),
            why: "a single file can't hold companion files; write a folder to keep them".into(),
        }));
        Self { weights, companions: Vec::new(), layout }
    }
}

impl<W: CheckpointWriter> CheckpointWriter for WithCompanions<W> {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn wants_sums(&self) -> bool {
        self.weights.wants_sums()
    }

    fn begin(&mut self, sink: &mut dyn Sink) -> Result<()> {
        self.weights.begin(sink)
    }

    fn write_chunk(
        &mut self,
        sink: &mut dyn Sink,
        bytes: &[u8],
        sums: Option<ChunkSums>,
    ) -> Result<()> {
        self.weights.write_chunk(sink, bytes, sums)
    }

    fn finish(&mut self, sink: &mut dyn Sink, notes: &Notes) -> Result<()> {
        self.weights.finish(sink, notes)?;
        self.companions.iter().try_for_each(|file| {
            sink.next_file(&file.name)?;
            sink.write_all(&file.bytes)
        })
    }
}
