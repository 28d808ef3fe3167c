//! The file of a model without the data of its tensors, from which its graph is read.
//!
//! A reader whose file holds a graph offers the skeleton of that file as a
//! [companion](apr_core::Companion), which travels with the tensors: the graph can be shown after
//! a conversion too. (ONNX has a skeleton of its own, which becomes the same file again.)
//!
//! ```text
//! "APRGRPH\x01"   8 bytes
//! length          u32 of the header, little-endian
//! header          JSON: {"format": "tflite", "file": "model.tflite", "len": 90210,
//!                        "holes": [[offset, length], ...]}
//! rest            the file's bytes outside of the holes
//! ```
//!
//! A hole is the data of one or several tensors. Those of at most [`SMALL`] bytes stay: they are
//! shapes and axes, which a graph is computed with.
//!
//! # Limits
//!
//! | what | most | |
//! |---|---|---|
//! | the skeleton | [`Limits::max_companion`] | the reader leaves the graph out |
//! | the header | [`Limits::max_metadata`] | E008 |
//! | what is looked at to read a graph | [`Skeleton::limits`] | E008 |
//!
//! ```
//! use std::sync::Arc;
//!
//! use apr_core::{CheckpointReader, Format, Limits, Table};
//! use apr_skeleton::Skeleton;
//!
//! static FORMAT: Format = Format { id: "tflite", ..Format::READ_ONLY };
//! let (file, limits): (Vec<u8>, _) = ((0..=255).cycle().take(8192).collect(), Limits::default());
//! let mut table = Table::of_file(&FORMAT, "a.tflite", Arc::new(file));
//! apr_skeleton::offer(&mut table, [(100, 8000)], &limits)?;
//! let bytes = table.read_companion(0)?;
//! assert_eq!(bytes.len() as u64, table.companions()[0].len);
//! assert!(bytes.len() < 400);
//!
//! let skeleton = Skeleton::parse(bytes, &limits)?;
//! let mut last = [7; 4];
//! apr_core::ByteSource::read_at(skeleton.source(), 8096, &mut last)?;
//! assert_eq!(last, [0, 0, 0, 0], "the data of tensors read as zeros");
//! # Ok::<(), apr_core::Error>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod holed;

use apr_core::{
    ByteSource, CheckpointReader, Companion, Error, FileInfo, Limits, Result, Table,
    check_file_name, read_vec,
};
use serde::{Deserialize, Serialize};

pub use holed::Holed;

/// Name of the companion in a checkpoint.
pub const COMPANION: &str = "model.graph";

/// Maximum size in bytes of a tensor whose data are kept.
pub const SMALL: u64 = 1024;

/// The first bytes; the last of them is the version.
const MAGIC: &[u8; 8] = b"APRGRPH\x01";

/// Bytes in front of the header.
const HEAD: usize = 12;

/// Header with information about the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    /// The format's id.
    format: String,
    /// The file's plain name.
    file: String,
    /// Length of the file in bytes.
    len: u64,
    /// Offsets and lengths of the holes, in order.
    holes: Vec<(u64, u64)>,
}

/// Ranges to cut out of a file.
#[derive(Debug, Clone)]
struct Cut {
    header: Header,
    json: Vec<u8>,
}

impl Cut {
    /// Creates the cut for a file of `len` bytes.
    fn new(format: &str, name: &str, len: u64, data: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let within = |(offset, size): &(u64, u64)| {
            *size > SMALL && offset.checked_add(*size).is_some_and(|end| end <= len)
        };
        let mut all: Vec<(u64, u64)> = data.into_iter().filter(within).collect();
        all.sort_unstable();
        let mut holes: Vec<(u64, u64)> = Vec::with_capacity(all.len());
        for (offset, size) in all {
            match holes.last_mut() {
                Some((start, held)) if offset < *start + *held => {
                    *held = (*held).max(offset + size - *start);
                }
                _ => holes.push((offset, size)),
            }
        }

        let file = name.rsplit(['/', '\\']).next().unwrap_or_default();
        let header = Header { format: format.to_owned(), file: file.to_owned(), len, holes };
        let json = apr_core::json::to_vec(&header).unwrap_or_default();
        Self { header, json }
    }

    /// Bytes of the skeleton.
    fn len(&self) -> u64 {
        let holes = self.header.holes.iter().map(|(_, size)| size).sum();
        (HEAD + self.json.len()) as u64 + self.header.len.saturating_sub(holes)
    }

    /// The skeleton of the file, which `source` reads.
    ///
    /// # Errors
    /// E007 when reading fails.
    fn read(&self, source: &dyn ByteSource) -> Result<Vec<u8>> {
        let mut skeleton = MAGIC.to_vec();
        skeleton.extend(u32::try_from(self.json.len()).unwrap_or(u32::MAX).to_le_bytes());
        skeleton.extend(&self.json);
        let mut at = 0;
        // An empty hole at the end stands for what follows the last one.
        for &(offset, size) in self.header.holes.iter().chain([&(self.header.len, 0)]) {
            skeleton.extend(read_vec(source, at, offset - at)?);
            at = offset + size;
        }
        Ok(skeleton)
    }
}

/// Offers the first file of a table, without data of tensors, as a companion.
///
/// `data` are the ranges of tensors' data, as offsets and lengths in bytes, in any order. They may
/// overlap; a range that extends beyond the file's end is ignored.
///
/// # Errors
/// E008 where the skeleton is larger than a companion may be.
pub fn offer(
    table: &mut Table,
    data: impl IntoIterator<Item = (u64, u64)>,
    limits: &Limits,
) -> Result<()> {
    let Some(FileInfo { name, len }) = table.files().first() else { return Ok(()) };
    let cut = Cut::new(table.format().id, name, *len, data);
    limits.check_companion(cut.len())?;
    let companion = Companion { name: COMPANION.to_owned(), len: cut.len() };
    table.offer(companion, move |sources| cut.read(&*sources[0]));
    Ok(())
}

/// A file without the data of its tensors.
#[derive(Debug)]
pub struct Skeleton {
    header: Header,
    source: Holed,
}

impl Skeleton {
    /// Returns the skeleton stored with a checkpoint that was converted from one of these formats,
    /// given by id.
    ///
    /// # Errors
    /// E002 for a damaged companion, E007 if reading fails, E008 if it exceeds the limits.
    pub fn of(
        reader: &dyn CheckpointReader,
        formats: &[&str],
        limits: &Limits,
    ) -> Result<Option<Self>> {
        let position = reader.companions().iter().position(|companion| companion.name == COMPANION);
        let Some(position) = position else { return Ok(None) };
        let skeleton = Self::parse(reader.read_companion(position)?, limits)?;
        Ok(Some(skeleton).filter(|skeleton| formats.contains(&skeleton.format())))
    }

    /// The skeleton in the bytes of a companion.
    ///
    /// # Errors
    /// E002 for a damaged companion, E008 over the limits.
    pub fn parse(bytes: Vec<u8>, limits: &Limits) -> Result<Self> {
        let bad = |what: &str| {
            Error::corrupt(format!("the skeleton of the model's file {what}")).in_file(COMPANION)
        };
        let head = bytes.get(..HEAD).filter(|head| head.starts_with(MAGIC));
        let head = head.ok_or_else(|| bad("has another beginning"))?;
        let json_len = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
        limits.check_metadata(json_len.into())?;
        let start = HEAD + usize::try_from(json_len).unwrap_or(usize::MAX - HEAD);
        let json = bytes.get(HEAD..start).ok_or_else(|| bad("is cut off"))?;
        let header: Header = serde_json::from_slice(json)
            .map_err(|error| bad(&format!("has a bad header: {}", apr_core::foreign(&error))))?;
        check_file_name(&header.file)?;
        let source = Holed::new(bytes, start, &header.holes, header.len);
        let source = source.ok_or_else(|| bad("does not fit the holes that its header lists"))?;
        Ok(Self { header, source })
    }

    /// The id of the file's format.
    #[must_use]
    pub fn format(&self) -> &str {
        &self.header.format
    }

    /// The file's name.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.header.file
    }

    /// Returns the file, in which holes read as zeros.
    #[must_use]
    pub fn source(&self) -> &Holed {
        &self.source
    }

    /// Limits for reading the graph: a file that is nearly all holes causes no more work, and no
    /// larger allocations, than one of the bytes that are there.
    #[must_use]
    pub fn limits(&self, limits: &Limits) -> Limits {
        /// Allowed bytes for each stored byte: a table of a few bytes is read once for every use of
        /// it.
        const EACH: u64 = 64;
        const LEAST: u64 = 1 << 20;

        let kept = self.source.kept_len();
        let most = kept.saturating_mul(EACH).saturating_add(LEAST);
        let mut own = *limits;
        own.max_index = own.max_index.min(most);
        own.max_metadata = own.max_metadata.min(kept.saturating_add(LEAST));
        own
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_skeletons_are_errors() {
        let file = vec![5; 5000];
        let cut = Cut::new("tflite", "folder/a.tflite", 5000, [(10, 4000), (20, 4000), (0, 9)]);
        let bytes = cut.read(&file).expect("readable");
        let limits = Limits::default();
        let skeleton = Skeleton::parse(bytes.clone(), &limits).expect("a skeleton");
        assert_eq!((skeleton.format(), skeleton.file()), ("tflite", "a.tflite"));
        assert_eq!(skeleton.header.holes, [(10, 4010)], "ranges that overlap are one hole");
        for len in 0..bytes.len() {
            assert!(Skeleton::parse(bytes[..len].to_vec(), &limits).is_err(), "cut at {len}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut broken = bytes.clone();
            broken[bit / 8] ^= 1 << (bit % 8);
            // An error, or another file.
            let _ = Skeleton::parse(broken, &limits);
        }
    }

    #[test]
    fn a_large_claim_gets_no_large_limit() {
        let header =
            br#"{"format":"x","file":"a","len":1099511627776,"holes":[[0,1099511627776]]}"#;
        let mut bytes = MAGIC.to_vec();
        bytes.extend(u32::try_from(header.len()).expect("short").to_le_bytes());
        bytes.extend(header);
        let skeleton = Skeleton::parse(bytes, &Limits::default()).expect("a skeleton");
        assert_eq!(skeleton.source().len(), 1 << 40);
        assert_eq!(skeleton.limits(&Limits::default()).max_index, 1 << 20);
    }
}
