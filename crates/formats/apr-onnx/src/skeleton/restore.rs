//! The file again.

use std::collections::HashMap;
use std::sync::Arc;

use apr_core::{
    CheckpointReader, DType, Error, Escaped, Limits, Loss, Result, Shape, StoredRange, TensorInfo,
};

use super::writer::RestoredWriter;
use super::{COMPANION, Skeleton};
use crate::reader::{Narrow, OnnxReader};
use crate::write::OnnxWriter;
use crate::write::message::Piece;

/// Options for restoring the file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RestoreOptions {
    /// Name of the file. Empty: the original name.
    pub file_name: String,
    /// `true` to announce a single file to the sink. Several files are always announced.
    pub named_files: bool,
}

/// Plans the ONNX file that a skeleton was cut out of, with these tensors in it: under the names,
/// in the layout and with the dtypes that they had in the file. Where no value changed, the file is
/// the same byte for byte. Other files with data are written beside it.
///
/// A tensor that is a constant of the graph may be missing, and is then what it was. One that the
/// file holds in a form that has no room for other values must have its own.
///
/// # Errors
/// E001 where a tensor is missing or has another dtype or shape, E002 for a damaged skeleton, E008
/// over the limits.
pub fn restore(
    skeleton: Vec<u8>,
    tensors: &[TensorInfo],
    options: &RestoreOptions,
    limits: &Limits,
) -> Result<RestoredWriter> {
    let skeleton = Skeleton::parse(skeleton, limits)?;
    let reader = Arc::new(skeleton.open(limits, true)?);
    let mut restoration = Restoration { skeleton, reader, ranges: Vec::new(), same: Vec::new() };
    let losses = restoration.assign(tensors)?;
    let files = restoration.files(options)?;
    let Restoration { reader, same, .. } = restoration;
    RestoredWriter::new(OnnxWriter::new(files, tensors, losses, options.named_files), reader, same)
}

/// The tensors that a skeleton has room for: names, dtypes and shapes.
///
/// # Errors
/// E002 for a damaged skeleton, E008 over the limits.
pub fn tensors(skeleton: Vec<u8>, limits: &Limits) -> Result<Vec<TensorInfo>> {
    Ok(Skeleton::parse(skeleton, limits)?.open(limits, true)?.tensors().to_vec())
}

/// Location of a tensor in the restored files.
#[derive(Debug, Clone, Copy)]
struct TensorDestination {
    range: StoredRange,
    /// Position of the tensor among the given tensors.
    position: usize,
    /// Packing of the elements in the file, and their number.
    packing: Option<(Narrow, u64)>,
}

struct Restoration {
    skeleton: Skeleton,
    /// The file with holes, under the names that it has.
    reader: Arc<OnnxReader>,
    /// Locations of the tensors.
    ranges: Vec<TensorDestination>,
    /// Tensors that must be what they were: position, and position in the file.
    same: Vec<(usize, usize)>,
}

impl Restoration {
    /// Finds the location of each tensor. Returns the tensors that the file does not have.
    fn assign(&mut self, tensors: &[TensorInfo]) -> Result<Vec<Loss>> {
        let by_name: HashMap<&str, usize> = tensors
            .iter()
            .enumerate()
            .map(|(position, info)| (info.name.as_str(), position))
            .collect();
        let mut is_used = vec![false; tensors.len()];
        for (stored, info) in self.reader.tensors().iter().enumerate() {
            let flat = self.reader.flat_range(stored);
            let Some(&position) = by_name.get(info.name.as_str()) else {
                // Small data are still in the skeleton; what was cut out has to be given.
                if flat.is_some_and(|(range, _)| self.skeleton.lacks(range)) {
                    let message = "the ONNX file has this tensor, and the checkpoint lacks it";
                    return Err(Error::format(message).for_tensor(&info.name));
                }
                continue;
            };

            is_used[position] = true;
            check_kind(info, &tensors[position])?;
            match flat {
                Some((range, narrow)) => {
                    let count = info.shape.elements().unwrap_or_default();
                    let packing = narrow.map(|narrow| (narrow, count));
                    self.ranges.push(TensorDestination { range, position, packing });
                }
                None => self.same.push((position, stored)),
            }
        }

        let unused = tensors.iter().zip(is_used).filter(|(_, is_used)| !is_used);
        let loss = |(info, _): (&TensorInfo, bool)| Loss {
            name: info.name.clone(),
            what: "tensor".into(),
            why: "the graph of the ONNX file does not use it".into(),
        };
        Ok(unused.map(loss).collect())
    }

    /// The files as pieces.
    fn files(&mut self, options: &RestoreOptions) -> Result<Vec<(String, Vec<Piece>)>> {
        self.ranges.sort_by_key(|place| (place.range.file, place.range.offset, place.range.len));
        let mut ranges = self.ranges.as_slice();
        let own = if options.file_name.is_empty() {
            &self.skeleton.header.file
        } else {
            &options.file_name
        };
        let names = [(own, self.skeleton.header.len)].into_iter();
        let names =
            names.chain(self.skeleton.header.data.iter().map(|data| (&data.file, data.len)));
        let mut files = Vec::new();
        for (file, (name, len)) in names.enumerate() {
            let (own, rest) =
                ranges.split_at(ranges.partition_point(|place| place.range.file <= file));
            ranges = rest;
            files.push((name.clone(), self.pieces(file, len, own)?));
        }

        Ok(files)
    }

    /// Returns a file as pieces: the tensors and the bytes between them.
    fn pieces(&self, file: usize, len: u64, ranges: &[TensorDestination]) -> Result<Vec<Piece>> {
        let mut pieces = Vec::new();
        let mut at = 0;
        let mut last: Option<StoredRange> = None;
        for &TensorDestination { range, position, packing } in ranges {
            if range.offset < at && range.len > 0 {
                // Tied tensors have the same bytes, which are written once.
                if last == Some(range) {
                    continue;
                }
                let name = Escaped::short(&self.skeleton.header.file);
                let message = format!(
                    "two tensors of '{name}' share some of their bytes, which this version of apr \
                     does not write"
                );
                return Err(Error::version(message).at(range.offset));
            }

            self.between(file, at, range.offset, &mut pieces)?;
            pieces.push(match packing {
                None => Piece::Hole(position, range.len),
                Some((narrow, count)) => Piece::Packed(position, narrow, count),
            });
            at = at.max(range.offset + range.len);
            last = Some(range);
        }

        self.between(file, at, len, &mut pieces)?;
        Ok(pieces)
    }

    /// Adds the bytes between two tensors to the pieces.
    fn between(&self, file: usize, start: u64, end: u64, pieces: &mut Vec<Piece>) -> Result<()> {
        let Some(len) = end.checked_sub(start).filter(|len| *len > 0) else { return Ok(()) };
        if let Some(other) = file.checked_sub(1) {
            let between = self.skeleton.others[other].pieces(start, len).into_iter();
            pieces.extend(between.map(|piece| match piece {
                Ok(kept) => Piece::Bytes(kept.to_vec()),
                Err(len) => Piece::Zeros(len),
            }));
            return Ok(());
        }
        let kept = self.skeleton.own.kept(start, len).ok_or_else(|| {
            let message =
                "the skeleton of the ONNX file lacks bytes that do not belong to a tensor";
            Error::corrupt(message).at(start).in_file(COMPANION)
        })?;
        pieces.push(Piece::Bytes(kept.to_vec()));
        Ok(())
    }
}

/// Refuses a tensor that does not fit its place.
fn check_kind(stored: &TensorInfo, info: &TensorInfo) -> Result<()> {
    if (info.dtype, &info.shape) == (stored.dtype, &stored.shape) {
        return Ok(());
    }
    let kind = |dtype: DType, shape: &Shape| format!("{dtype} {shape}");
    let message = format!(
        "it is {}, and the graph of the ONNX file computes with {}",
        kind(info.dtype, &info.shape),
        kind(stored.dtype, &stored.shape)
    );
    Err(Error::format(message).for_tensor(&info.name))
}
