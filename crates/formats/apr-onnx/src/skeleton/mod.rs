//! The file of a model without the data of its tensors, to travel with them and to become the same
//! file again.
//!
//! ```text
//! "APRONNX\x02"   8 bytes
//! length          u32 of the header
//! header          JSON: {"file": "model.onnx", "len": 90210, "holes": [[offset, len], ...],
//!                        "data": [{"file": "model.onnx_data", "len": 81920,
//!                                  "kept": [[offset, len], ...]}, ...]}
//! rest            the file's bytes outside of the holes, then those of other files that are kept
//! ```
//!
//! A hole is the data of one or several tensors. Small ones stay, so that the graph can be told
//! from this alone. `data` are the other files that the model's tensors are in. What is no large
//! tensor of the checkpoint there is kept, up to 4 MiB; beyond, only what the graph reads is, and
//! the rest is taken for padding, and becomes zeros. Files of version 1 keep what lies between the
//! tensors, or none of it.

mod cut;
mod holed;
mod restore;
mod writer;

use std::sync::Arc;

use apr_core::{
    ByteSource, CheckpointReader, Error, Limits, Result, StoredRange, Unlisted, check_file_name,
};
use apr_graph::Graph;
use apr_skeleton::Holed;

use crate::reader::{OnnxReader, open_skeleton};
use cut::{HEAD, Header, MAGIC, VERSIONS};
use holed::Others;

pub use cut::COMPANION;
pub(crate) use cut::Cut;
pub use restore::{RestoreOptions, restore, tensors};
pub use writer::RestoredWriter;

/// A model as its skeleton has it.
struct Skeleton {
    header: Header,
    /// The model's file. The data of large tensors are zeros.
    own: Arc<Holed>,
    /// The kept ranges of the other files, in the order of the header.
    others: Vec<Arc<Holed>>,
}

impl Skeleton {
    fn parse(mut bytes: Vec<u8>, limits: &Limits) -> Result<Self> {
        let bad = |what: &str| {
            Error::corrupt(format!("the skeleton of the ONNX file {what}")).in_file(COMPANION)
        };
        let is_ours = |head: &&[u8]| head.starts_with(MAGIC) && VERSIONS.contains(&head[7]);
        let head = bytes.get(..HEAD).filter(is_ours);
        let head = head.ok_or_else(|| bad("has another beginning"))?;
        let json_len = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
        limits.check_metadata(json_len.into())?;
        let json_len = usize::try_from(json_len).unwrap_or(usize::MAX);
        let json = HEAD
            .checked_add(json_len)
            .and_then(|end| bytes.get(HEAD..end))
            .ok_or_else(|| bad("is cut off"))?;
        let header: Header = serde_json::from_slice(json)
            .map_err(|error| bad(&format!("has a bad header: {}", apr_core::foreign(&error))))?;
        check_file_name(&header.file)?;
        let mut others = Vec::with_capacity(header.data.len());

        // From the last one back, so that only what is split off is moved.
        for data in header.data.iter().rev() {
            let kept = data
                .kept
                .iter()
                .try_fold(0_usize, |sum, (_, len)| sum.checked_add(usize::try_from(*len).ok()?));
            let start = kept.and_then(|kept| bytes.len().checked_sub(kept));
            let start = start.filter(|start| *start >= HEAD + json_len);
            let kept = bytes.split_off(start.ok_or_else(|| bad("is cut off"))?);
            let other = Holed::of_parts(kept, &data.kept, data.len);
            let other = other.ok_or_else(|| bad("keeps what is past the end of a file"))?;
            others.push(Arc::new(other));
        }

        others.reverse();
        let own = Holed::new(bytes, HEAD + json_len, &header.holes, header.len);
        let own = own.ok_or_else(|| bad("does not fit the holes that its header lists"))?;
        Ok(Self { header, own: Arc::new(own), others })
    }

    /// Opens the model with the names of its file or with the names that the graph reveals.
    fn open(&self, limits: &Limits, as_stored: bool) -> Result<OnnxReader> {
        let source: Arc<dyn ByteSource> = Arc::<Holed>::clone(&self.own);
        let names = self.header.data.iter().map(|data| data.file.clone());
        let others = Others::new(names.zip(self.others.iter().cloned()));
        open_skeleton(&source, &self.header.file, &others, limits, as_stored)
    }

    /// Returns `true` if the skeleton lacks a part of a range of the model's files.
    fn lacks(&self, range: StoredRange) -> bool {
        let file = match range.file.checked_sub(1) {
            None => Some(&self.own),
            Some(other) => self.others.get(other),
        };
        file.is_none_or(|file| file.lacks(range.offset, range.len))
    }
}

/// Returns the computation graph of a checkpoint that was imported from an ONNX file, or `None`.
///
/// Weights have the names of the checkpoint's tensors before an import renamed them.
///
/// # Errors
/// E002 for a damaged companion, E007 when reading fails, E008 over the limits.
pub fn graph_of(reader: &dyn CheckpointReader, limits: &Limits) -> Result<Option<Graph>> {
    let Some(bytes) = read_companion(reader)? else { return Ok(None) };
    Skeleton::parse(bytes, limits)?.open(limits, false)?.graph()
}

/// Returns the content of a checkpoint's original ONNX file that is not among its tensors.
///
/// The list is empty if the checkpoint was not imported from an ONNX file.
///
/// # Errors
/// E002 for a damaged companion, E007 when reading fails, E008 over the limits.
pub fn unlisted(reader: &dyn CheckpointReader, limits: &Limits) -> Result<Vec<Unlisted>> {
    let Some(bytes) = read_companion(reader)? else { return Ok(Vec::new()) };
    let model = Skeleton::parse(bytes, limits)?.open(limits, false)?;
    Ok(model.container().unlisted().to_vec())
}

/// The companion of a checkpoint that has the ONNX file around the tensors.
///
/// # Errors
/// E007 when reading fails.
pub fn read_companion(reader: &dyn CheckpointReader) -> Result<Option<Vec<u8>>> {
    let position = reader.companions().iter().position(|companion| companion.name == COMPANION);
    position.map(|position| reader.read_companion(position)).transpose()
}
