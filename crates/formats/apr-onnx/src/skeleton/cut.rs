//! Cutting: what is left of a model's files without the data of its tensors.

use apr_core::{FileInfo, Result, SharedSource, StoredRange, read_vec};
use serde::{Deserialize, Serialize};

use crate::reader::SMALL;

/// Name of the companion in a checkpoint.
pub const COMPANION: &str = "model.onnx.graph";

/// The first bytes; the last of them is the version.
pub(super) const MAGIC: &[u8; 7] = b"APRONNX";

/// Supported versions of the skeleton.
///
/// In version 1, the kept ranges of another file lie between its tensors. Since version 2, they may
/// also contain tensors.
pub(super) const VERSIONS: [u8; 2] = [1, 2];

/// Bytes in front of the header.
pub(super) const HEAD: usize = 12;

/// Maximum number of bytes between the tensors of other files that are kept.
const MAX_BETWEEN: u64 = 4 << 20;

/// Description of the model's file and its data files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Header {
    /// Name of the model's file.
    pub(super) file: String,
    /// Length of the model's file in bytes.
    pub(super) len: u64,
    /// Offsets and lengths of the removed ranges, in order.
    pub(super) holes: Vec<(u64, u64)>,
    /// Further files with the model's data.
    pub(super) data: Vec<Data>,
}

/// Another file with data of tensors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Data {
    /// Path of the file relative to the model's folder.
    pub(super) file: String,
    /// Length of the file in bytes.
    pub(super) len: u64,
    /// Offsets and lengths of the kept ranges, in order.
    pub(super) kept: Vec<(u64, u64)>,
}

/// Ranges to cut out of the files of a model.
pub(crate) struct Cut(Header);

impl Cut {
    /// Creates the cut for a model by its files, the model's own first.
    ///
    /// `tensors` are the ranges of its tensors. `outside` are those of tensor data in other files,
    /// including tensors that only the graph reads.
    pub(crate) fn new(
        files: &[FileInfo],
        tensors: &[StoredRange],
        outside: &[StoredRange],
    ) -> Self {
        let mut budget = MAX_BETWEEN;
        let mut data = Vec::with_capacity(files.len() - 1);
        for (position, file) in files.iter().enumerate().skip(1) {
            let gaps = between(&ranges(tensors, position, SMALL), file.len);
            let total: u64 = gaps.iter().map(|(_, len)| len).sum();
            let rest = budget.checked_sub(total);
            budget = rest.unwrap_or(budget);

            // Where the gaps are beyond the budget, what no tensor has comes back as zeros.
            let kept = match rest {
                Some(_) => gaps,
                None => common(&ranges(outside, position, 0), &gaps),
            };
            data.push(Data { file: file.name.clone(), len: file.len, kept });
        }
        let name = files[0].name.rsplit(['/', '\\']).next().unwrap_or_default();
        let holes = ranges(tensors, 0, SMALL);
        Self(Header { file: name.to_owned(), len: files[0].len, holes, data })
    }

    /// Bytes of the skeleton.
    pub(crate) fn len(&self) -> u64 {
        (HEAD + self.0.json().len()) as u64 + self.0.kept()
    }

    /// Returns the bytes of the skeleton.
    ///
    /// # Errors
    /// E007 when reading fails.
    pub(crate) fn read(&self, sources: &[SharedSource]) -> Result<Vec<u8>> {
        let Self(header) = self;
        let json = header.json();
        let mut skeleton = MAGIC.to_vec();
        skeleton.extend(VERSIONS.last());
        skeleton.extend(u32::try_from(json.len()).unwrap_or(u32::MAX).to_le_bytes());
        skeleton.extend(json);
        let mut at = 0;
        // An empty hole at the end stands for what follows the last one.
        for &(offset, len) in header.holes.iter().chain([&(header.len, 0)]) {
            skeleton.extend(read_vec(&*sources[0], at, offset - at)?);
            at = offset + len;
        }

        for (data, source) in header.data.iter().zip(&sources[1..]) {
            for &(offset, len) in &data.kept {
                skeleton.extend(read_vec(source, offset, len)?);
            }
        }

        Ok(skeleton)
    }
}

impl Header {
    fn json(&self) -> Vec<u8> {
        apr_core::json::to_vec(self).unwrap_or_default()
    }

    /// Bytes that are kept, of all files.
    fn kept(&self) -> u64 {
        let own = self.holes.iter().fold(self.len, |len, (_, hole)| len.saturating_sub(*hole));
        self.data
            .iter()
            .flat_map(|data| &data.kept)
            .fold(own, |sum, (_, len)| sum.saturating_add(*len))
    }
}

/// Returns the ranges of a file's tensors of more than `least` bytes, in order, merged.
fn ranges(tensors: &[StoredRange], file: usize, least: u64) -> Vec<(u64, u64)> {
    let own = tensors.iter().filter(|range| range.file == file && range.len > least);
    let mut all: Vec<(u64, u64)> = own.map(|range| (range.offset, range.len)).collect();
    all.sort_unstable();
    let mut ranges: Vec<(u64, u64)> = Vec::with_capacity(all.len());
    for (offset, len) in all {
        match ranges.last_mut() {
            // Tensors may share their data.
            Some((start, held)) if offset < *start + *held => {
                *held = (*held).max(offset + len - *start);
            }
            _ => ranges.push((offset, len)),
        }
    }

    ranges
}

/// Returns the intersection of two lists of ranges, each in order and without overlaps.
fn common(one: &[(u64, u64)], other: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut both = Vec::new();
    let mut rest = other;
    for &(offset, len) in one {
        let end = offset + len;
        // A range of the other list may reach into the next of this one.
        let passed = rest.iter().take_while(|(start, held)| start + held <= offset).count();
        rest = &rest[passed..];
        for &(start, held) in rest.iter().take_while(|(start, _)| *start < end) {
            let (low, high) = (start.max(offset), (start + held).min(end));
            both.push((low, high - low));
        }
    }
    both
}

/// Returns the gaps between ranges of a file of this length.
fn between(ranges: &[(u64, u64)], len: u64) -> Vec<(u64, u64)> {
    let ends = [0].into_iter().chain(ranges.iter().map(|(offset, len)| offset + len));
    let starts = ranges.iter().map(|(offset, _)| *offset).chain([len]);
    ends.zip(starts)
        .filter(|(end, start)| end < start)
        .map(|(end, start)| (end, start - end))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_intersection_of_two_lists_has_exactly_the_bytes_in_both() {
        let lists: [&[(u64, u64)]; 5] =
            [&[], &[(0, 10)], &[(1, 2), (4, 3), (9, 1)], &[(2, 4), (6, 1), (8, 2)], &[(5, 1)]];
        let has = |list: &[(u64, u64)], byte: u64| {
            list.iter().any(|(start, len)| (*start..start + len).contains(&byte))
        };
        for one in lists {
            for other in lists {
                let both = common(one, other);
                for byte in 0..10 {
                    assert_eq!(has(&both, byte), has(one, byte) && has(other, byte));
                }
            }
        }
    }
}
