//! Writing an APR2 file in one pass.
//!
//! The front is laid out from names, dtypes and shapes, with slack for what is learnt on the way; tensors stream after
//! it; trailer and footer come last. If the front changed, it is patched and its CRC combined with the running one.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

use apr_core::digest::{ChunkSums, Crc32, Digest, TensorDigest};
use apr_core::{
    CheckpointWriter, ChunkEncoder, Error, Escaped, IoCause, Layout, Metadata, Notes, Result, Sink, TensorInfo, keys,
};
use serde_json::{Map, Value, json};

use super::belt::{Parcel, Work};
use super::companion::{CompanionFile, embed_companions};
use super::encode::{Encoder, PIECE};
use super::encrypt::CHUNK;
use super::header::{Flags, Header, VERSION_MAJOR};
use super::index::{BLOCK_HEADER_LEN, CODEC, IndexEntry};
use super::layout::{BLOCK_ALIGNMENT, FOOTER_LEN, align};
use super::plan::{
    FRONT_SLACK, STREAMING_FRONT, WriteOptions, check_unique, front_len, no_streaming, place_tensors, plan_layout, ties,
};
#[cfg(feature = "signing")]
use super::trailer::signed_digest;
use super::trailer::{Footer, digests_len, encode_digests};

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
    /// Entries that are no companions.
    visible: usize,
    layout: Layout,
    companions: Vec<Vec<u8>>,
    #[cfg(feature = "signing")]
    signers: Vec<crate::crypto::SigningKey>,
    /// What was signed.
    #[cfg(feature = "signing")]
    signed_digest: Option<Digest>,
    encoder: Arc<Encoder>,

    /// As it was written by `begin`.
    front: Option<Front>,
    /// Of the data section after the ENCR block so far.
    crc: Crc32,
    /// The entry that is due, how many of its bytes have come, and what becomes of them.
    due: usize,
    received: u64,
    stage: Stage,
    /// Where the next byte goes, and where the entry that is due starts, from the start of the data section.
    position: u64,
    entry_start: u64,
    digest: TensorDigest,
    digests: Vec<Digest>,
    /// Blocks that this writer had compressed and that did not decode to what they were made of.
    mismatches: u64,
}

/// Plans a file: tensors are stored in the order given, companions after them. A tensor that the metadata tie to one of
/// the same dtype and shape ([`keys::TIED`]) is not stored again, and not in the layout.
///
/// Of a file that gets compressed the layout is the one without compression, which it does not exceed, until
/// [`finish`](CheckpointWriter::finish) has made it the one of the file.
///
/// # Errors
/// E001 when a tensor does not fit the index (name, dimensions, dtype, shape) or two share a name, E008 when metadata
/// and index exceed the 4 GiB that the header can address.
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
    let entries = place_tensors(infos(), &ties, &options.forms, alignment_flag.alignment(), &encoder)?;
    encoder.expect(&entries);
    let mut by_name: Vec<usize> = (0..entries.len()).collect();
    by_name.sort_unstable_by(|&a, &b| entries[a].info.name.cmp(&entries[b].info.name));
    check_unique(&entries, &by_name)?;

    let front_len = front_len(&metadata, infos());
    let data_offset = align(front_len + FRONT_SLACK, BLOCK_ALIGNMENT).and_then(|offset| u32::try_from(offset).ok());
    let data_offset = data_offset.ok_or_else(|| {
        Error::memory(format!("metadata and index take {front_len} bytes; the header can address 4 GiB"))
    })?;
    let streaming = options.streaming && u64::from(data_offset) + encoder.block_len() <= u64::from(STREAMING_FRONT);
    let flags = [
        (tensors.iter().any(|tensor| tensor.dtype.is_quantized()), Flags::QUANTIZED),
        (options.sharded, Flags::SHARDED),
        (streaming, Flags::STREAMING),
        (encoder.encrypts(), Flags::ENCRYPTED),
        (options.signatures_len() > 0, Flags::SIGNED),
    ];
    let flags = flags.into_iter().filter(|(set, _)| *set).fold(alignment_flag, |flags, (_, flag)| flags.union(flag));

    let visible = tensors.len();
    let tail = digests_len(entries.len()) + options.signatures_len();
    let mut layout = plan_layout(&entries, visible, (data_offset, encoder.block_len()), tail, &options.file_name)?;
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
        #[cfg(feature = "signing")]
        signers: options.signers.clone(),
        #[cfg(feature = "signing")]
        signed_digest: None,
        encoder: Arc::new(encoder),
        front: None,
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

/// The front as bytes, and where its sections end.
struct Front {
    /// Header, metadata, index, zeros up to the data section, and the ENCR block.
    bytes: Vec<u8>,
    #[cfg(feature = "signing")]
    metadata_end: usize,
    #[cfg(feature = "signing")]
    index_end: usize,
}

/// What is to become of the tensor that is due.
#[derive(Debug, Default)]
struct Stage {
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

/// Whether a tensor that was to be compressed is.
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

/// Pieces after which a tensor that compression did not make smaller is stored as it is.
const PATIENCE: usize = 8 * PIECE;

impl Apr2Writer {
    /// Everything before the tensors; `None` when it does not fit before the data section.
    fn encode_front(&self) -> Result<Option<Front>> {
        let mut bytes = self.metadata.to_json();
        let mut index = Vec::new();
        let count = u32::try_from(self.entries.len())
            .map_err(|_| Error::format(format!("{} tensors; an index holds 2^32 - 1", self.entries.len())))?;
        index.extend_from_slice(&count.to_le_bytes());
        index.extend_from_slice(&[0; 4]);
        for &entry in &self.by_name {
            self.entries[entry].encode(&mut index)?;
        }
        let metadata_len = bytes.len();
        let len = u64::from(Header::LEN) + (metadata_len + index.len()) as u64;
        if len > self.data_offset.into() {
            return Ok(None);
        }
        let word = |value: usize| u32::try_from(value).map_err(|_| Error::memory("the front exceeds 4 GiB"));
        let metadata_end = Header::LEN as usize + metadata_len;
        let compressed = self.entries.iter().any(|entry| entry.flags & CODEC != 0);
        let header = Header {
            version_major: VERSION_MAJOR,
            version_minor: 0,
            flags: if compressed { self.flags.union(Flags::COMPRESSED) } else { self.flags },
            metadata_offset: Header::LEN,
            metadata_size: word(metadata_len)?,
            index_offset: word(metadata_end)?,
            index_size: word(index.len())?,
            data_offset: self.data_offset,
        };
        let encr_block = self.encoder.encr_block(&header.encode(), [&bytes, &index]);
        // In place: metadata may be as large as a vocabulary.
        drop(bytes.splice(0..0, header.encode()));
        bytes.extend_from_slice(&index);
        bytes.resize(self.data_offset as usize, 0);
        bytes.extend_from_slice(&encr_block);
        Ok(Some(Front {
            bytes,
            #[cfg(feature = "signing")]
            metadata_end,
            #[cfg(feature = "signing")]
            index_end: metadata_end + index.len(),
        }))
    }

    /// Ends tensors that have all their bytes, and starts the next one at its place.
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

    /// Writes what is held back of the entry that is due, and what was learnt of it into the index.
    fn finish_entry(&mut self, sink: &mut dyn Sink) -> Result<()> {
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
            let message = format!("{end} bytes came, but {planned} were planned");
            return Err(Error::corrupt(message).for_tensor(&self.entries[self.due].info.name));
        }
        self.received = end;
        Ok(())
    }

    /// Compresses bytes as soon as they make a piece.
    fn collect(&mut self, sink: &mut dyn Sink, mut bytes: &[u8]) -> Result<()> {
        while self.stage.partial.len() + bytes.len() >= PIECE {
            let (now, later) = bytes.split_at(PIECE - self.stage.partial.len());
            let mut piece = core::mem::take(&mut self.stage.partial);
            piece.extend_from_slice(now);
            self.put_off(sink, Work::Compress, piece)?;
            bytes = later;
        }
        if !bytes.is_empty() {
            self.stage.partial.reserve_exact(PIECE - self.stage.partial.len());
            self.stage.partial.extend_from_slice(bytes);
        }
        Ok(())
    }

    /// Puts work on bytes of the entry that is due off, and goes on with what was done meanwhile.
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

    /// Goes on with work of a kind until at most so many parcels are put off.
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

    /// Takes a piece in both forms, and stores one of them as soon as it is clear which: the compressed one, once it has
    /// saved more than the lengths before the blocks to come can cost; the plain one, where it has not after some pieces
    /// or at the end. So no tensor gets larger, and the outcome does not depend on threads.
    fn take_piece(&mut self, sink: &mut dyn Sink, piece: &[u8], compressed: &[u8]) -> Result<()> {
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
        let saved = (held as u64).checked_sub(held_compressed as u64).filter(|_| !compressed.is_empty());
        if saved.is_some_and(|saved| saved > to_come.saturating_mul(BLOCK_HEADER_LEN.into())) {
            self.stage.verdict = Verdict::Compressed;
        } else if compressed.is_empty() || taken == expected || held >= PATIENCE {
            self.stage.verdict = Verdict::Plain;
            self.encoder.give_up(self.due);
        } else {
            return Ok(());
        }
        let (held, held_compressed) =
            (core::mem::take(&mut self.stage.held), core::mem::take(&mut self.stage.held_compressed));
        self.store(sink, if self.stage.verdict == Verdict::Compressed { &held_compressed } else { &held })
    }

    /// Takes bytes of the stored form.
    fn store(&mut self, sink: &mut dyn Sink, mut bytes: &[u8]) -> Result<()> {
        self.stage.stored += bytes.len() as u64;
        if !self.encoder.encrypts() {
            return self.emit(sink, bytes, None);
        }
        // A full piece waits for the next byte, because the last chunk is marked.
        while self.stage.to_seal.len() + bytes.len() > PIECE {
            let (now, later) = bytes.split_at(PIECE - self.stage.to_seal.len());
            let mut piece = core::mem::take(&mut self.stage.to_seal);
            piece.extend_from_slice(now);
            let first = self.stage.chunk_number;
            self.stage.chunk_number += (PIECE / CHUNK) as u64;
            self.put_off(sink, Work::Seal { first, to_end: false }, piece)?;
            bytes = later;
        }
        if !bytes.is_empty() {
            self.stage.to_seal.reserve_exact(PIECE - self.stage.to_seal.len());
            self.stage.to_seal.extend_from_slice(bytes);
        }
        Ok(())
    }

    /// Writes bytes of the entry that is due as they shall lie in the file.
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

    /// Writes the notes down where the front has room, in full or as a count.
    fn take_notes(&mut self, notes: &Notes) -> Result<()> {
        let losses = notes.losses.iter().filter_map(|loss| serde_json::to_value(loss).ok()).collect();
        for (key, name, new) in [(keys::LOSS, "name", losses), (keys::VIOLATIONS, "tensor", notes.violations.clone())] {
            self.note(key, name, new)?;
        }
        let before = self.metadata.get(keys::QUANTIZATION).cloned();
        if let (Some(degradation), Some(before)) = (&notes.degradation, before)
            && self.metadata.note_degradation(degradation.clone())
            && self.encode_front()?.is_none()
        {
            self.metadata.set(keys::QUANTIZATION, before);
        }
        Ok(())
    }

    /// Adds to the list under `key`, whose entries name what they are about under `name`.
    fn note(&mut self, key: &str, name: &str, new: Vec<Value>) -> Result<()> {
        if new.is_empty() {
            return Ok(());
        }
        // A conversion of a converted file adds to what is already noted.
        let before = self.metadata.get(key).cloned();
        let mut full = before.as_ref().and_then(Value::as_array).cloned().unwrap_or_default();
        full.extend(new);
        let names: BTreeSet<_> = full.iter().filter_map(|entry| entry.get(name)?.as_str()).collect();
        let what = format!("{} entries", names.len());
        let summary = json!([{ name: "*", "what": what, "why": "see the conversion's report" }]);
        for value in [Value::Array(full), summary] {
            self.metadata.set(key, value);
            if self.encode_front()?.is_some() {
                return Ok(());
            }
        }
        match before {
            Some(before) => self.metadata.set(key, before),
            None => drop(self.metadata.remove(key)),
        }
        Ok(())
    }

    /// The digest that was signed; none without signers and before the file is finished.
    #[cfg(feature = "signing")]
    pub(super) fn signed_digest(&self) -> Option<Digest> {
        self.signed_digest
    }

    /// The layout as the file turned out.
    fn measure(&mut self, file_size: u64) {
        for planned in &mut self.layout.tensors {
            let entry = &self.entries[planned.source];
            planned.offset = u64::from(self.data_offset) + entry.offset;
            planned.len = entry.size;
        }
        self.layout.files[0].len = file_size;
    }

    /// The SIGN block; empty without signers.
    #[cfg(feature = "signing")]
    fn sign(&mut self, front: &Front, digests: &[u8]) -> Result<Vec<u8>> {
        if self.signers.is_empty() {
            return Ok(Vec::new());
        }
        let (header, rest) = front.bytes[..front.index_end].split_at(Header::LEN as usize);
        let (metadata, index) = rest.split_at(front.metadata_end - Header::LEN as usize);
        let digest = signed_digest([header, metadata, index, &front.bytes[self.data_offset as usize..], digests]);
        self.signed_digest = Some(digest);
        let mut block = crate::crypto::SignBlock::default();
        self.signers.iter().try_for_each(|key| block.sign(key, &digest))?;
        Ok(block.encode())
    }

    #[cfg(not(feature = "signing"))]
    #[allow(clippy::unused_self, clippy::unnecessary_wraps, reason = "as with the feature")]
    fn sign(&mut self, _front: &Front, _digests: &[u8]) -> Result<Vec<u8>> {
        Ok(Vec::new())
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
            let message =
                "compressed tensors need a file: their sizes are known at the end, and the index is at the front";
            return Err(Error::io(IoCause::Other, message));
        }
        let front = self.encode_front()?.ok_or_else(|| Error::memory("metadata and index outgrew the plan"))?;
        sink.write_all(&front.bytes)?;
        self.front = Some(front);
        self.position = self.encoder.block_len();
        let first = align(self.position, self.flags.alignment()).unwrap_or(self.position);
        if !self.entries.is_empty() {
            self.pad(sink, first - self.position)?;
        }
        self.entry_start = self.position;
        self.settle(sink)
    }

    fn write_chunk(&mut self, sink: &mut dyn Sink, bytes: &[u8], sums: Option<ChunkSums>) -> Result<()> {
        if bytes.is_empty() {
            // An empty tensor ended when its turn came; sums of nothing must not reach the next one's digest.
            return Ok(());
        }
        if self.due >= self.visible {
            return Err(Error::corrupt(format!("{} bytes came after the last tensor", bytes.len())));
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
            let message = format!("{missing} of {planned} bytes never came");
            return Err(Error::corrupt(message).for_tensor(&self.entries[self.due].info.name));
        }
        for companion in core::mem::take(&mut self.companions) {
            self.append(sink, &companion, None)?;
        }
        let front = core::mem::take(&mut self.front);
        let mut front = front.ok_or_else(|| Error::io(IoCause::Other, "the file was not begun"))?;
        if sink.can_patch() && (!notes.is_empty() || self.encoder.compresses()) {
            self.take_notes(notes)?;
            front = self.encode_front()?.ok_or_else(|| Error::memory("metadata and index outgrew the plan"))?;
            sink.patch(0, &front.bytes)?;
        }

        let gap = sink.position().next_multiple_of(BLOCK_ALIGNMENT) - sink.position();
        self.pad(sink, gap)?;
        let digests: Vec<Digest> = self.by_name.iter().map(|&entry| self.digests[entry]).collect();
        let digests = encode_digests(&digests);
        for block in [&digests, &self.sign(&front, &digests)?] {
            self.crc.update(block);
            sink.write_all(block)?;
        }

        let mut crc = Crc32::new();
        crc.update(&front.bytes);
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
