//! Writing an APR2 file in one pass.
//!
//! The front is laid out from names, dtypes and shapes, with slack for what is learnt on the way; tensors stream after
//! it; trailer and footer come last. If the front changed, it is patched and its CRC combined with the running one.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use apr_core::digest::{ChunkSums, Crc32, Digest, TensorDigest};
use apr_core::{
    CheckpointWriter, Error, Escaped, FileInfo, Layout, Metadata, Notes, PlannedTensor, Result, Sink, TensorInfo, keys,
};
use serde_json::{Map, Value, json};

use super::companion::{CompanionFile, embed_companions};
use super::header::{Flags, Header, VERSION_MAJOR};
use super::index::{INDEX_HEADER_LEN, IndexEntry, TIED, check_info};
use super::layout::{BLOCK_ALIGNMENT, FOOTER_LEN, align};
use super::trailer::{Footer, digests_len, encode_digests};

/// Room left in the front, so that a loss note or a small edit patches it instead of moving the data.
const FRONT_SLACK: u64 = 1024;

/// Zeros for padding; no gap between tensors is longer.
const ZEROS: [u8; 64] = [0; 64];

/// How to lay the file out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteOptions {
    /// Start tensors at multiples of 32 bytes as GGUF does, instead of 64.
    pub align_32: bool,
    /// Name of the file in the layout.
    pub file_name: String,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self { align_32: false, file_name: "model.apr".into() }
    }
}

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

    /// The front as it was written by `begin`.
    front: Vec<u8>,
    /// Of the data section so far.
    crc: Crc32,
    /// The entry that is due, how many of its bytes have come, and their digest.
    due: usize,
    received: u64,
    digest: TensorDigest,
    digests: Vec<Digest>,
}

/// Plans a file: tensors are stored in the order given, companions after them. A tensor that the metadata tie to one of
/// the same dtype and shape ([`keys::TIED`]) is not stored again, and not in the layout.
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
    let (companion_infos, companions) = embed_companions(&mut metadata, companions)?;

    let infos = || tensors.iter().chain(&companion_infos);
    let ties = ties(tensors, &metadata);
    let entries = place_tensors(infos(), &ties, alignment_flag.alignment())?;
    let mut by_name: Vec<usize> = (0..entries.len()).collect();
    by_name.sort_unstable_by(|&a, &b| entries[a].info.name.cmp(&entries[b].info.name));
    check_unique(&entries, &by_name)?;

    let quantized = tensors.iter().any(|tensor| tensor.dtype.is_quantized());
    let flags = if quantized { alignment_flag.union(Flags::QUANTIZED) } else { alignment_flag };
    let front_len = front_len(&metadata, infos());
    let data_offset = align(front_len + FRONT_SLACK, BLOCK_ALIGNMENT).and_then(|offset| u32::try_from(offset).ok());
    let data_offset = data_offset.ok_or_else(|| {
        Error::memory(format!("metadata and index take {front_len} bytes; the header can address 4 GiB"))
    })?;

    let visible = tensors.len();
    let layout = plan_layout(&entries, visible, data_offset, &options.file_name)?;
    Ok(Apr2Writer {
        metadata,
        entries,
        by_name,
        flags,
        data_offset,
        visible,
        layout,
        companions,
        front: Vec::new(),
        crc: Crc32::new(),
        due: 0,
        received: 0,
        digest: TensorDigest::new(),
        digests: Vec::new(),
    })
}

/// Names of the tensors whose bytes are another one's: as the metadata tell, where the two are alike.
fn ties<'a>(tensors: &'a [TensorInfo], metadata: &Metadata) -> BTreeSet<&'a str> {
    let Some(tied) = metadata.object(keys::TIED) else { return BTreeSet::new() };
    let by_name: BTreeMap<&str, &TensorInfo> = tensors.iter().map(|info| (info.name.as_str(), info)).collect();
    let is_tied = |info: &TensorInfo| {
        let target = tied.get(&info.name).and_then(Value::as_str).filter(|target| !tied.contains_key(*target));
        let target = target.and_then(|target| by_name.get(target));
        target.is_some_and(|target| target.dtype == info.dtype && target.shape == info.shape)
    };
    tensors.iter().filter(|info| is_tied(info)).map(|info| info.name.as_str()).collect()
}

fn place_tensors<'a>(
    infos: impl Iterator<Item = &'a TensorInfo>,
    ties: &BTreeSet<&str>,
    alignment: u64,
) -> Result<Vec<IndexEntry>> {
    let mut next = 0_u64;
    infos
        .map(|info| {
            let len = check_info(info)?;
            let (size, flags) = if ties.contains(info.name.as_str()) { (0, TIED) } else { (len, 0) };
            let offset = next;
            // A tensor without bytes takes a place too: offsets that differ keep the order readable from the index.
            let end = offset.checked_add(size.max(1)).and_then(|end| align(end, alignment));
            next = end.ok_or_else(|| Error::format("the tensors together exceed 2^64 bytes").for_tensor(&info.name))?;
            Ok(IndexEntry { info: info.clone(), offset, size, flags })
        })
        .collect()
}

fn check_unique(entries: &[IndexEntry], by_name: &[usize]) -> Result<()> {
    let twice = by_name.windows(2).find(|pair| entries[pair[0]].info.name == entries[pair[1]].info.name);
    match twice {
        Some(pair) => Err(Error::format("two tensors have this name").for_tensor(&entries[pair[0]].info.name)),
        None => Ok(()),
    }
}

fn front_len<'a>(metadata: &Metadata, infos: impl Iterator<Item = &'a TensorInfo>) -> u64 {
    let index_len = INDEX_HEADER_LEN + infos.map(IndexEntry::encoded_len).sum::<usize>();
    u64::from(Header::LEN) + (metadata.to_json().len() + index_len) as u64
}

fn plan_layout(entries: &[IndexEntry], visible: usize, data_offset: u32, file_name: &str) -> Result<Layout> {
    let data_offset = u64::from(data_offset);
    let tensors: Vec<_> = entries[..visible]
        .iter()
        .enumerate()
        .filter(|(_, entry)| !entry.is_tied())
        .map(|(source, entry)| PlannedTensor {
            source,
            file: 0,
            offset: data_offset.saturating_add(entry.offset),
            len: entry.size,
        })
        .collect();
    let data_end = entries.last().map_or(Some(0), |last| last.offset.checked_add(last.size));
    let len = data_end
        .and_then(|end| align(data_offset.checked_add(end)?, BLOCK_ALIGNMENT))
        .and_then(|end| end.checked_add(digests_len(entries.len()) + u64::from(FOOTER_LEN)))
        .ok_or_else(|| Error::format("the file would exceed 2^64 bytes"))?;
    Ok(Layout { files: vec![FileInfo { name: file_name.to_string(), len }], tensors, losses: Vec::new() })
}

impl Apr2Writer {
    /// Header, metadata, index and zeros up to the data section; `None` when they don't fit before it.
    fn encode_front(&self) -> Result<Option<Vec<u8>>> {
        let metadata = self.metadata.to_json();
        let mut index = Vec::new();
        let count = u32::try_from(self.entries.len())
            .map_err(|_| Error::format(format!("{} tensors; an index holds 2^32 - 1", self.entries.len())))?;
        index.extend_from_slice(&count.to_le_bytes());
        index.extend_from_slice(&[0; 4]);
        for &entry in &self.by_name {
            self.entries[entry].encode(&mut index)?;
        }
        let len = u64::from(Header::LEN) + (metadata.len() + index.len()) as u64;
        if len > self.data_offset.into() {
            return Ok(None);
        }
        let word = |value: usize| u32::try_from(value).map_err(|_| Error::memory("the front exceeds 4 GiB"));
        let header = Header {
            version_major: VERSION_MAJOR,
            version_minor: 0,
            flags: self.flags,
            metadata_offset: Header::LEN,
            metadata_size: word(metadata.len())?,
            index_offset: word(Header::LEN as usize + metadata.len())?,
            index_size: word(index.len())?,
            data_offset: self.data_offset,
        };
        let mut front = header.encode().to_vec();
        front.extend_from_slice(&metadata);
        front.extend_from_slice(&index);
        front.resize(self.data_offset as usize, 0);
        Ok(Some(front))
    }

    /// Ends tensors that have all their bytes, and starts the next one at its place.
    fn settle(&mut self, sink: &mut dyn Sink) -> Result<()> {
        while let Some(entry) = self.entries.get(self.due).filter(|entry| entry.size == self.received) {
            self.digests.push(core::mem::take(&mut self.digest).value());
            let written = entry.offset + entry.size;
            self.due += 1;
            self.received = 0;
            if let Some(next) = self.entries.get(self.due) {
                let gap = next.offset - written;
                self.pad(sink, gap)?;
            }
        }
        Ok(())
    }

    fn pad(&mut self, sink: &mut dyn Sink, len: u64) -> Result<()> {
        let zeros = &ZEROS[..usize::try_from(len).unwrap_or(ZEROS.len())];
        self.crc.update(zeros);
        sink.write_all(zeros)
    }

    /// Writes the notes down where the front has room, in full or as a count; returns the front's final bytes.
    fn take_notes(&mut self, notes: &Notes) -> Result<Vec<u8>> {
        let losses = notes.losses.iter().filter_map(|loss| serde_json::to_value(loss).ok()).collect();
        let mut front = None;
        for (key, name, new) in [(keys::LOSS, "name", losses), (keys::VIOLATIONS, "tensor", notes.violations.clone())] {
            front = self.note(key, name, new)?.or(front);
        }
        Ok(front.unwrap_or_else(|| self.front.clone()))
    }

    /// Adds to the list under `key`, whose entries name what they are about under `name`.
    fn note(&mut self, key: &str, name: &str, new: Vec<Value>) -> Result<Option<Vec<u8>>> {
        if new.is_empty() {
            return Ok(None);
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
            if let Some(front) = self.encode_front()? {
                return Ok(Some(front));
            }
        }
        match before {
            Some(before) => self.metadata.set(key, before),
            None => drop(self.metadata.remove(key)),
        }
        Ok(None)
    }

    /// Appends bytes to the entry that is due.
    fn append(&mut self, sink: &mut dyn Sink, bytes: &[u8], sums: Option<ChunkSums>) -> Result<()> {
        let entry = &self.entries[self.due];
        let end = self.received + bytes.len() as u64;
        if end > entry.size {
            let message = format!("{end} bytes came, but {} were planned", entry.size);
            return Err(Error::corrupt(message).for_tensor(&entry.info.name));
        }
        if let Some(sums) = sums {
            self.crc.append(sums);
            self.digest.append(sums);
        } else {
            self.crc.update(bytes);
            self.digest.update(bytes);
        }
        self.received = end;
        sink.write_all(bytes)?;
        self.settle(sink)
    }
}

impl CheckpointWriter for Apr2Writer {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn wants_sums(&self) -> bool {
        true
    }

    fn begin(&mut self, sink: &mut dyn Sink) -> Result<()> {
        let front = self.encode_front()?;
        self.front = front.ok_or_else(|| Error::memory("metadata and index outgrew the plan"))?;
        sink.write_all(&self.front)?;
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

    fn finish(&mut self, sink: &mut dyn Sink, notes: &Notes) -> Result<()> {
        if self.due < self.visible {
            let entry = &self.entries[self.due];
            let missing = entry.size - self.received;
            let message = format!("{missing} of {} bytes never came", entry.size);
            return Err(Error::corrupt(message).for_tensor(&entry.info.name));
        }
        for companion in core::mem::take(&mut self.companions) {
            self.append(sink, &companion, None)?;
        }
        if !notes.is_empty() && sink.can_patch() {
            let front = self.take_notes(notes)?;
            sink.patch(0, &front)?;
            self.front = front;
        }

        let gap = sink.position().next_multiple_of(BLOCK_ALIGNMENT) - sink.position();
        self.pad(sink, gap)?;
        let digests: Vec<Digest> = self.by_name.iter().map(|&entry| self.digests[entry]).collect();
        let block = encode_digests(&digests);
        self.crc.update(&block);
        sink.write_all(&block)?;

        let mut crc = Crc32::new();
        crc.update(&self.front);
        crc.append_crc(&self.crc);
        let footer = Footer { crc32: crc.value(), file_size: sink.position() + u64::from(FOOTER_LEN) };
        sink.write_all(&footer.encode())
    }
}

impl core::fmt::Debug for Apr2Writer {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let due = self.entries.get(self.due).map(|entry| entry.info.name.as_str());
        f.debug_struct("Apr2Writer").field("due", &due.map(Escaped)).finish_non_exhaustive()
    }
}
