//! The file of a model without the data of its tensors, to travel with them and to become the same file again.
//!
//! ```text
//! "APRONNX\x01"   8 bytes
//! length          u32 of the header
//! header          JSON: {"file": "model.onnx", "len": 90210, "holes": [[offset, len], ...],
//!                        "data": [{"file": "model.onnx_data", "len": 81920, "kept": [[offset, len], ...]}, ...]}
//! rest            the file's bytes outside of the holes, then those of other files that are kept
//! ```
//!
//! A hole is the data of one or several tensors. Small ones stay, so that the graph can be told from this alone. `data` are
//! the other files that the model's tensors are in. What lies between the tensors there is kept up to 4 MiB; beyond, it is
//! taken for padding, and becomes zeros.

mod holed;
mod restore;
mod writer;

use std::sync::Arc;

use apr_core::{ByteSource, CheckpointReader, Error, Limits, Result, check_file_name, read_vec};
use apr_graph::Graph;
use serde::{Deserialize, Serialize};

use crate::reader::{OnnxReader, SMALL, open_skeleton};
use holed::{Absent, Holed};

pub use restore::{RestoreOptions, restore, tensors};
pub use writer::RestoredWriter;

/// What a checkpoint calls the companion.
pub const COMPANION: &str = "model.onnx.graph";

const MAGIC: &[u8; 8] = b"APRONNX\x01";

/// Bytes in front of the header.
const HEAD: usize = 12;

/// Most bytes between the tensors of other files that are kept.
const MAX_BETWEEN: u64 = 4 << 20;

/// What is known of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    /// Its name.
    file: String,
    /// Its length in bytes.
    len: u64,
    /// Offsets and lengths of what was cut out, in order.
    holes: Vec<(u64, u64)>,
    /// The other files.
    data: Vec<Data>,
}

/// Another file with data of tensors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Data {
    /// Its path from the folder of the model.
    file: String,
    /// Its length in bytes.
    len: u64,
    /// Offsets and lengths of what is kept of it, in order.
    kept: Vec<(u64, u64)>,
}

impl Header {
    /// What is to be cut out of the model's file, and kept of others.
    fn of(reader: &OnnxReader) -> Self {
        let files = reader.files();
        let mut budget = MAX_BETWEEN;
        let mut data = Vec::with_capacity(files.len() - 1);
        for (position, file) in files.iter().enumerate().skip(1) {
            let kept = between(&ranges(reader, position, 0), file.len);
            let total: u64 = kept.iter().map(|(_, len)| len).sum();
            let rest = budget.checked_sub(total);
            budget = rest.unwrap_or(budget);
            let kept = if rest.is_some() { kept } else { Vec::new() };
            data.push(Data { file: file.name.clone(), len: file.len, kept });
        }
        let name = files[0].name.rsplit(['/', '\\']).next().unwrap_or_default();
        Self { file: name.to_owned(), len: files[0].len, holes: ranges(reader, 0, SMALL), data }
    }

    fn json(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Bytes that are kept, of all files.
    fn kept(&self) -> u64 {
        let own = self.holes.iter().fold(self.len, |len, (_, hole)| len.saturating_sub(*hole));
        self.data.iter().flat_map(|data| &data.kept).fold(own, |sum, (_, len)| sum.saturating_add(*len))
    }
}

/// Where tensors of more than `least` bytes lie in a file, in order and without overlaps.
fn ranges(reader: &OnnxReader, file: usize, least: u64) -> Vec<(u64, u64)> {
    let own = reader.flat_ranges().map(|(_, range)| range).filter(|range| range.file == file && range.len > least);
    let mut all: Vec<(u64, u64)> = own.map(|range| (range.offset, range.len)).collect();
    all.sort_unstable();
    let mut ranges: Vec<(u64, u64)> = Vec::with_capacity(all.len());
    for (offset, len) in all {
        match ranges.last_mut() {
            // Tensors may share their data.
            Some((start, held)) if offset < *start + *held => *held = (*held).max(offset + len - *start),
            _ => ranges.push((offset, len)),
        }
    }
    ranges
}

/// What lies between ranges of a file of this length.
fn between(ranges: &[(u64, u64)], len: u64) -> Vec<(u64, u64)> {
    let ends = [0].into_iter().chain(ranges.iter().map(|(offset, len)| offset + len));
    let starts = ranges.iter().map(|(offset, _)| *offset).chain([len]);
    ends.zip(starts).filter(|(end, start)| end < start).map(|(end, start)| (end, start - end)).collect()
}

/// Bytes of a model's skeleton.
pub(crate) fn len(reader: &OnnxReader) -> u64 {
    let header = Header::of(reader);
    (HEAD + header.json().len()) as u64 + header.kept()
}

/// The skeleton of a model.
///
/// # Errors
/// E007 when reading fails.
pub(crate) fn cut(reader: &OnnxReader) -> Result<Vec<u8>> {
    let header = Header::of(reader);
    let json = header.json();
    let mut skeleton = MAGIC.to_vec();
    skeleton.extend(u32::try_from(json.len()).unwrap_or(u32::MAX).to_le_bytes());
    skeleton.extend(json);
    let mut at = 0;
    for &(offset, len) in header.holes.iter().chain([&(header.len, 0)]) {
        skeleton.extend(read_vec(&reader.sources()[0], at, offset - at)?);
        at = offset + len;
    }
    for (data, source) in header.data.iter().zip(&reader.sources()[1..]) {
        for &(offset, len) in &data.kept {
            skeleton.extend(read_vec(source, offset, len)?);
        }
    }
    Ok(skeleton)
}

/// A model as its skeleton has it.
struct Skeleton {
    header: Header,
    /// The model's file. The data of large tensors are zeros.
    own: Arc<Holed>,
    /// What is kept of the other files, in the order of the header.
    others: Vec<Vec<u8>>,
}

impl Skeleton {
    fn parse(mut bytes: Vec<u8>, limits: &Limits) -> Result<Self> {
        let bad = |what: &str| Error::corrupt(format!("the skeleton of the ONNX file {what}")).in_file(COMPANION);
        let head = bytes.get(..HEAD).filter(|head| head.starts_with(MAGIC));
        let head = head.ok_or_else(|| bad("has another beginning"))?;
        let json_len = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
        limits.check_metadata(json_len.into())?;
        let json_len = usize::try_from(json_len).unwrap_or(usize::MAX);
        let json = HEAD.checked_add(json_len).and_then(|end| bytes.get(HEAD..end)).ok_or_else(|| bad("is cut off"))?;
        let header: Header =
            serde_json::from_slice(json).map_err(|error| bad(&format!("has a bad header: {error}")))?;
        check_file_name(&header.file)?;
        let mut others = Vec::new();
        let mut kept = Vec::new();
        for (_, len) in header.data.iter().flat_map(|data| &data.kept) {
            let len = usize::try_from(*len).ok();
            kept.push(len.ok_or_else(|| bad("is cut off"))?);
        }
        for len in kept.into_iter().rev() {
            let start = bytes.len().checked_sub(len).filter(|start| *start >= HEAD + json_len);
            others.push(bytes.split_off(start.ok_or_else(|| bad("is cut off"))?));
        }
        others.reverse();
        let own = Holed::new(bytes, HEAD + json_len, &header.holes, header.len);
        let own = own.ok_or_else(|| bad("does not fit the holes that its header lists"))?;
        Ok(Self { header, own: Arc::new(own), others })
    }

    /// The model, under the names of its file or under those that the graph reveals.
    fn open(&self, limits: &Limits, as_stored: bool) -> Result<OnnxReader> {
        let source: Arc<dyn ByteSource> = Arc::<Holed>::clone(&self.own);
        let others = Absent::new(self.header.data.iter().map(|data| (data.file.clone(), data.len)));
        open_skeleton(&source, &self.header.file, &others, limits, as_stored)
    }

    /// What is kept of another file between two places.
    fn kept(&self, file: usize, start: u64, len: u64) -> Option<&[u8]> {
        let before: usize = self.header.data[..file].iter().map(|data| data.kept.len()).sum();
        let position = self.header.data[file].kept.iter().position(|kept| *kept == (start, len))?;
        self.others.get(before + position).map(Vec::as_slice)
    }
}

/// What a checkpoint computes, where it came from an ONNX file: weights have the names of that checkpoint's tensors before
/// an import renamed them.
///
/// # Errors
/// E002 for a damaged companion, E007 when reading fails, E008 over the limits.
pub fn graph_of(reader: &dyn CheckpointReader, limits: &Limits) -> Result<Option<Graph>> {
    let Some(bytes) = read_companion(reader)? else { return Ok(None) };
    Skeleton::parse(bytes, limits)?.open(limits, false)?.graph()
}

/// The companion of a checkpoint that has the ONNX file around the tensors.
///
/// # Errors
/// E007 when reading fails.
pub fn read_companion(reader: &dyn CheckpointReader) -> Result<Option<Vec<u8>>> {
    let position = reader.companions().iter().position(|companion| companion.name == COMPANION);
    position.map(|position| reader.read_companion(position)).transpose()
}
