//! The file of a model without the data of its tensors, to travel with them and to become the same
//! file again.
//!
//! ```text
//! "APRONNX\x01"   8 bytes
//! length          u32 of the header
//! header          JSON: {"file": "model.onnx", "len": 90210, "holes": [[offset, len], ...],
//!                        "data": [{"file": "model.onnx_data", "len": 81920,
//!                                  "kept": [[offset, len], ...]}, ...]}
//! rest            the file's bytes outside of the holes, then those of other files that are kept
//! ```
//!
//! A hole is the data of one or several tensors. Small ones stay, so that the graph can be told
//! from this alone. `data` are the other files that the model's tensors are in. What lies between
//! the tensors there is kept up to 4 MiB; beyond, it is taken for padding, and becomes zeros.

mod cut;
mod holed;
mod restore;
mod writer;

use std::sync::Arc;

use apr_core::{ByteSource, CheckpointReader, Error, Limits, Result, check_file_name};
use apr_graph::Graph;

use crate::reader::{OnnxReader, open_skeleton};
use cut::{HEAD, Header, MAGIC};
use holed::{Absent, Holed};

pub use cut::COMPANION;
pub(crate) use cut::Uncut;
pub use restore::{RestoreOptions, restore, tensors};
pub use writer::RestoredWriter;

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
        let bad = |what: &str| {
            Error::corrupt(format!("the skeleton of the ONNX file {what}")).in_file(COMPANION)
        };
        let head = bytes.get(..HEAD).filter(|head| head.starts_with(MAGIC));
        let head = head.ok_or_else(|| bad("has another beginning"))?;
        let json_len = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
        limits.check_metadata(json_len.into())?;
        let json_len = usize::try_from(json_len).unwrap_or(usize::MAX);
        let json = HEAD
            .checked_add(json_len)
            .and_then(|end| bytes.get(HEAD..end))
            .ok_or_else(|| bad("is cut off"))?;
        let header: Header = serde_json::from_slice(json)
            .map_err(|error| bad(&format!("has a bad header: {error}")))?;
        check_file_name(&header.file)?;
        let mut others = Vec::new();
        let mut kept = Vec::new();
        for (_, len) in header.data.iter().flat_map(|data| &data.kept) {
            let len = usize::try_from(*len).ok();
            kept.push(len.ok_or_else(|| bad("is cut off"))?);
        }

        // From the last one back, so that only what is split off is moved.
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

/// What a checkpoint computes, where it came from an ONNX file: weights have the names of that
/// checkpoint's tensors before an import renamed them.
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
