//! Writing an APR2 file in one pass.
//!
//! The front is laid out from names, dtypes and shapes, with slack for what is learnt on the way;
//! tensors stream after it; trailer and footer come last. If the front changed, it is patched and
//! its CRC combined with the running one.

mod front;
mod stages;

use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

use apr_core::digest::{ChunkSums, Crc32, Digest, TensorDigest};
use apr_core::{
    CheckpointWriter, ChunkEncoder, Error, Escaped, IoCause, Layout, Metadata, Notes, Result, Sink,
    TensorInfo, keys,
};
use serde_json::Map;

use super::companion::{CompanionFile, embed_companions};
use super::encode::Encoder;
use super::header::Flags;
use super::index::IndexEntry;
use super::layout::{BLOCK_ALIGNMENT, FOOTER_LEN, align};
use super::options::{STREAMING_FRONT, WriteOptions};
use super::plan::{
    FRONT_SLACK, check_unique, front_len, no_streaming, place_tensors, plan_layout, ties,
};
use super::signing::SigningKey;
use super::trailer::{Footer, digests_len, encode_digests};
use front::Front;
use stages::Stage;

/// Zeros for padding; no gap between tensors is longer.
const ZEROS: [u8; 64] = [0; 64];

/// An APR2 file being written; see [`plan`].
pub struct Apr2Writer {
    metadata: Metadata,
    /// Tensors and companion tensors, in stored order.
    entries: Vec<IndexEntry>,
    /// Positions in `entries`, sorted by name.
    by_name: Vec<usize>,
    flags: Flags,
    data_offset: u32,
    /// Number of entries that are not companions.
    visible: usize,
    layout: Layout,
    companions: Vec<Vec<u8>>,
    signers: Vec<SigningKey>,
    /// The digest that was signed.
    signed_digest: Option<Digest>,
    encoder: Arc<Encoder>,

    /// The front as `begin` wrote it.
    front: Option<Front>,
    front_crc: Crc32,
    /// Checksum so far of the data section after the ENCR block.
    crc: Crc32,
    /// The current entry, the number of its bytes received, and its processing stage.
    due: usize,
    received: u64,
    stage: Stage,
    /// Position of the next byte, and start of the current entry, from the start of the data
    /// section.
    position: u64,
    entry_start: u64,
    digest: TensorDigest,
    digests: Vec<Digest>,
    /// Number of blocks compressed by this writer that did not decode to their input.
    mismatches: u64,
}

/// Plans a file: tensors are stored in the order given, companions after them. A tensor that the
/// metadata tie to one of the same dtype and shape ([`keys::TIED`]) is not stored again, and not in
/// the layout.
///
/// Of a file that gets compressed the layout is the one without compression, which it does not
/// exceed, until [`finish`](CheckpointWriter::finish) has made it the one of the file.
///
/// # Errors
/// E001 when a tensor does not fit the index (name, dimensions, dtype, shape) or two share a name,
/// E008 when metadata and index exceed the 4 GiB that the header can address.
pub fn plan(
    tensors: &[TensorInfo],
    metadata: &Metadata,
    companions: Vec<CompanionFile>,
    options: &WriteOptions,
) -> Result<Apr2Writer> {
    let alignment_flag = if options.align_32 { Flags::ALIGNED_32 } else { Flags::ALIGNED_64 };
    let mut metadata = metadata.clone();
    metadata.set(keys::APR_VERSION, "2.0.0");
    metadata.set_default(keys::MODEL_TYPE, "unknown");
    metadata.set_default(keys::ARCHITECTURE, Map::new());
    let (mut companion_infos, mut companions) = embed_companions(&mut metadata, companions)?;
    let mut encoder = Encoder::new(options);
    if let Some((info, json)) = encoder.hide(&mut metadata) {
        companion_infos.push(info);
        companions.push(json);
    }

    let infos = || tensors.iter().chain(&companion_infos);
    let ties = ties(tensors, &metadata);
    let entries = place_tensors(
        infos(),
        &ties,
        &options.forms,
        alignment_flag.alignment(),
        encoder.block_len(),
    )?;
    encoder.expect(&entries);
    let mut by_name: Vec<usize> = (0..entries.len()).collect();
    by_name.sort_unstable_by(|&a, &b| entries[a].info.name.cmp(&entries[b].info.name));
    check_unique(&entries, &by_name)?;

    let front_len = front_len(&metadata, infos());
    let data_offset = align(front_len + FRONT_SLACK, BLOCK_ALIGNMENT)
        .and_then(|offset| u32::try_from(offset).ok());
    let data_offset = data_offset.ok_or_else(|| {
        Error::memory(format!(
            "metadata and index take {front_len} bytes; the header can address 4 GiB"
        ))
    })?;
    let streaming = options.streaming
        && u64::from(data_offset) + encoder.block_len() <= u64::from(STREAMING_FRONT);
    let flags = [
        (tensors.iter().any(|tensor| tensor.dtype.is_quantized()), Flags::QUANTIZED),
        (options.sharded, Flags::SHARDED),
        (streaming, Flags::STREAMING),
        (encoder.encrypts(), Flags::ENCRYPTED),
        (options.signatures_len() > 0, Flags::SIGNED),
    ];
    let flags = flags
        .into_iter()
        .filter(|(set, _)| *set)
        .fold(alignment_flag, |flags, (_, flag)| flags.union(flag));

    let visible = tensors.len();
    let tail = digests_len(entries.len()) + options.signatures_len();
    let mut layout = plan_layout(
        &entries,
        visible,
        (data_offset, encoder.block_len()),
        tail,
        &options.file_name,
    )?;
    let position = encoder.block_len();
    if options.streaming && !streaming {
        layout.losses.push(no_streaming(data_offset));
    }

    Ok(Apr2Writer {
        metadata,
        entries,
        by_name,
        flags,
        data_offset,
        visible,
        layout,
        companions,
        signers: options.signers.clone(),
        signed_digest: None,
        encoder: Arc::new(encoder),
        front: None,
        front_crc: Crc32::new(),
        crc: Crc32::new(),
        due: 0,
        received: 0,
        stage: Stage::default(),
        position,
        entry_start: position,
        digest: TensorDigest::new(),
        digests: Vec::new(),
        mismatches: 0,
    })
}

impl Apr2Writer {
    /// Completes tensors that have all their bytes, and starts the next one at its offset.
    fn settle(&mut self, sink: &mut dyn Sink) -> Result<()> {
        while self.due < self.entries.len() && self.received == self.encoder.expected(self.due) {
            self.finish_entry(sink)?;
            let written = self.position;
            self.due += 1;
            self.received = 0;
            if self.due < self.entries.len() {
                let least = self.entries[self.due - 1].offset + 1;
                let next = align(written.max(least), self.flags.alignment());
                let next = next.ok_or_else(|| Error::format("the file would exceed 2^64 bytes"))?;
                self.pad(sink, next - written)?;
                self.entry_start = self.position;
            }
        }

        Ok(())
    }

    fn pad(&mut self, sink: &mut dyn Sink, len: u64) -> Result<()> {
        let zeros = &ZEROS[..usize::try_from(len).unwrap_or(ZEROS.len())];
        self.crc.update(zeros);
        self.position += len;
        sink.write_all(zeros)
    }

    /// Takes bytes that belong to the entry that is due.
    fn append(&mut self, sink: &mut dyn Sink, bytes: &[u8], sums: Option<ChunkSums>) -> Result<()> {
        self.count(bytes.len())?;
        if self.encoder.is_compressed(self.due) {
            self.collect(sink, bytes)?;
        } else if self.encoder.encrypts() {
            self.store(sink, bytes)?;
        } else {
            self.emit(sink, bytes, sums)?;
        }
        self.settle(sink)
    }

    /// Counts bytes of the entry that is due.
    fn count(&mut self, len: usize) -> Result<()> {
        let planned = self.encoder.expected(self.due);
        let end = self.received + len as u64;
        if end > planned {
            let message = format!("received {end} bytes, but {planned} were planned");
            return Err(Error::corrupt(message).for_tensor(&self.entries[self.due].info.name));
        }
        self.received = end;
        Ok(())
    }

    /// Writes bytes of the current entry in their final, stored form.
    fn emit(&mut self, sink: &mut dyn Sink, bytes: &[u8], sums: Option<ChunkSums>) -> Result<()> {
        if let Some(sums) = sums {
            self.crc.append(sums);
            self.digest.append(sums);
        } else {
            self.crc.update(bytes);
            self.digest.update(bytes);
        }
        self.position += bytes.len() as u64;
        sink.write_all(bytes)
    }

    /// The digest that was signed; none without signers and before the file is finished.
    pub(super) fn signed_digest(&self) -> Option<Digest> {
        self.signed_digest
    }

    /// Updates the layout to the file as it was written.
    fn measure(&mut self, file_size: u64) {
        for planned in &mut self.layout.tensors {
            let entry = &self.entries[planned.source];
            planned.offset = u64::from(self.data_offset) + entry.offset;
            planned.len = entry.size;
        }
        self.layout.files[0].len = file_size;
    }
}

impl CheckpointWriter for Apr2Writer {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn wants_sums(&self) -> bool {
        true
    }

    fn mismatches(&self) -> u64 {
        self.mismatches
    }

    fn encoder(&self) -> Option<Arc<dyn ChunkEncoder>> {
        let encoder: Arc<dyn ChunkEncoder> = self.encoder.clone();
        Some(encoder).filter(|_| self.encoder.compresses() || self.encoder.encrypts())
    }

    fn begin(&mut self, sink: &mut dyn Sink) -> Result<()> {
        if self.encoder.compresses() && !sink.can_patch() {
            let message = "compressed tensors need a file: their sizes are known at the end, and \
                the index is at the front";
            return Err(Error::io(IoCause::Other, message));
        }

        let front = self
            .encode_front()?
            .ok_or_else(|| Error::memory("metadata and index outgrew the plan"))?;
        self.front_crc = self.write_front(&front, &mut |bytes| sink.write_all(bytes))?;
        self.front = Some(front);
        self.position = self.encoder.block_len();
        let first = align(self.position, self.flags.alignment()).unwrap_or(self.position);
        if !self.entries.is_empty() {
            self.pad(sink, first - self.position)?;
        }

        self.entry_start = self.position;
        self.settle(sink)
    }

    fn write_chunk(
        &mut self,
        sink: &mut dyn Sink,
        bytes: &[u8],
        sums: Option<ChunkSums>,
    ) -> Result<()> {
        if bytes.is_empty() {
            // An empty tensor ended when its turn came; sums of nothing must not reach the next
            // one's digest.
            return Ok(());
        }
        if self.due >= self.visible {
            return Err(Error::corrupt(format!(
                "received {} bytes after the last tensor",
                bytes.len()
            )));
        }
        self.append(sink, bytes, sums)
    }

    fn write_piece(&mut self, sink: &mut dyn Sink, piece: &[u8], encoded: &[u8]) -> Result<()> {
        if piece.is_empty() || self.due >= self.visible {
            return self.write_chunk(sink, piece, None);
        }
        self.count(piece.len())?;
        if self.encoder.is_compressed(self.due) {
            self.take_piece(sink, piece, encoded)?;
        } else {
            self.emit(sink, encoded, None)?;
        }
        self.settle(sink)
    }

    fn finish(&mut self, sink: &mut dyn Sink, notes: &Notes) -> Result<()> {
        if self.due < self.visible {
            let planned = self.encoder.expected(self.due);
            let missing = planned - self.received;
            let message = format!("{missing} of {planned} bytes are missing");
            return Err(Error::corrupt(message).for_tensor(&self.entries[self.due].info.name));
        }

        for companion in core::mem::take(&mut self.companions) {
            self.append(sink, &companion, None)?;
        }

        let front = core::mem::take(&mut self.front);
        let mut front = front.ok_or_else(|| Error::io(IoCause::Other, "the file was not begun"))?;
        if sink.can_patch() && (!notes.is_empty() || self.encoder.compresses()) {
            self.take_notes(notes)?;
            front = self
                .encode_front()?
                .ok_or_else(|| Error::memory("metadata and index outgrew the plan"))?;
            let mut offset = 0;
            self.front_crc = self.write_front(&front, &mut |bytes| {
                sink.patch(offset, bytes)?;
                offset += bytes.len() as u64;
                Ok(())
            })?;
        }

        let gap = sink.position().next_multiple_of(BLOCK_ALIGNMENT) - sink.position();
        self.pad(sink, gap)?;
        let digests: Vec<Digest> = self.by_name.iter().map(|&entry| self.digests[entry]).collect();
        let digests = encode_digests(&digests);
        for block in [&digests, &self.sign(&front, &digests)?] {
            self.crc.update(block);
            sink.write_all(block)?;
        }

        let mut crc = core::mem::take(&mut self.front_crc);
        crc.append_crc(&self.crc);
        let file_size = sink.position() + u64::from(FOOTER_LEN);
        self.measure(file_size);
        sink.write_all(&Footer { crc32: crc.value(), file_size }.encode())
    }
}

impl core::fmt::Debug for Apr2Writer {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let due = self.entries.get(self.due).map(|entry| entry.info.name.as_str());
        f.debug_struct("Apr2Writer").field("due", &due.map(Escaped)).finish_non_exhaustive()
    }
}
