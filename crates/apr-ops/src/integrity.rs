//! Checksums that a source states: of its tensors, and of what they are made of.
//!
//! The bytes of most tensors are summed while a pass reads them. Others are made of parts of the
//! file that no pass reads as they lie there (a storage that several tensors view, weights that are
//! permuted on the way): those are read for their checksum alone, each once.

use std::collections::BTreeSet;

use apr_core::{StoredPart, StoredRange, Sum};
use apr_registry::digest::{CHUNK_LEN, ChunkSums, Crc32, TensorDigest};
use apr_registry::{CheckpointReader, Error, Pipeline, Result};
use apr_view::chunks::{Chunk, pieces, take};

use crate::physics::Violation;

/// A part of a file that is read for its checksum.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Check<'a> {
    /// The first tensor that is made of it.
    pub(crate) tensor: usize,
    pub(crate) part: StoredPart<'a>,
}

/// The parts that are read for their checksums, each once.
#[derive(Default)]
pub(crate) struct Checks<'a> {
    pub(crate) list: Vec<Check<'a>>,
    seen: BTreeSet<(usize, u64, u64)>,
}

impl<'a> Checks<'a> {
    /// The parts of these tensors.
    pub(crate) fn of(
        reader: &'a dyn CheckpointReader,
        tensors: impl IntoIterator<Item = usize>,
    ) -> Self {
        let mut checks = Self::default();
        tensors.into_iter().for_each(|tensor| checks.add(tensor, reader.stored(tensor).parts()));
        checks
    }

    /// The parts of these tensors, and the bytes in the file of those that are read as others.
    fn of_decoded(
        reader: &'a dyn CheckpointReader,
        tensors: impl IntoIterator<Item = usize>,
    ) -> Self {
        let mut checks = Self::default();
        for tensor in tensors {
            let stored = reader.stored(tensor);
            let own = stored.own_part(reader, tensor).filter(|_| stored.is_encoded());
            checks.add(tensor, own.as_slice());
            checks.add(tensor, stored.parts());
        }
        checks
    }

    /// Adds the parts of a tensor that were not there before.
    pub(crate) fn add(&mut self, tensor: usize, parts: &[StoredPart<'a>]) {
        for &part in parts {
            let StoredRange { file, offset, len } = part.range;
            if self.seen.insert((file, offset, len)) {
                self.list.push(Check { tensor, part });
            }
        }
    }
}

/// The checksum of bytes that come in order.
#[derive(Default)]
pub(crate) struct Tally {
    crc: Crc32,
    digest: TensorDigest,
}

impl Tally {
    /// Appends bytes, with their sums where those were computed already.
    pub(crate) fn append(&mut self, stated: Sum, bytes: &[u8], sums: Option<ChunkSums>) {
        match (stated, sums) {
            (Sum::Crc32(_), Some(sums)) => self.crc.append(sums),
            (Sum::Crc32(_), None) => self.crc.update(bytes),
            (Sum::Digest(_), Some(sums)) => self.digest.append(sums),
            (Sum::Digest(_), None) => self.digest.update(bytes),
        }
    }

    /// What is wrong once all bytes have come; the next ones are others.
    pub(crate) fn finish(&mut self, stated: Sum) -> Option<Mismatch> {
        let Self { crc, digest } = std::mem::take(self);
        match stated {
            Sum::Crc32(stated) => {
                let found = crc.value();
                (found != stated).then_some(Mismatch::Crc32 { stated, found })
            }
            Sum::Digest(stated) => (digest.value() != stated).then_some(Mismatch::Digest),
        }
    }
}

/// Bytes that are not those their checksum was taken of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mismatch {
    Crc32 { stated: u32, found: u32 },
    Digest,
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Self::Crc32 { stated, found } => Violation::Checksum { stated, found }.fmt(f),
            Self::Digest => f.write_str("its bytes do not match its digest"),
        }
    }
}

impl Mismatch {
    /// E004 for a tensor.
    pub(crate) fn into_error(
        self,
        reader: &dyn CheckpointReader,
        tensor: usize,
        range: StoredRange,
    ) -> Error {
        let error = Error::checksum(self.to_string())
            .for_tensor(&reader.tensors()[tensor].name)
            .at(range.offset);
        match reader.files().get(range.file) {
            Some(file) => error.in_file(&file.name),
            None => error,
        }
    }
}

/// Reads parts for their checksums; reports what does not match, and of which tensor.
///
/// # Errors
/// E007 when reading fails.
pub(crate) fn mismatches<P: Pipeline>(
    checks: &Checks<'_>,
    pipeline: &P,
) -> Result<Vec<(usize, StoredRange, Mismatch)>> {
    #[derive(Default)]
    struct Summed {
        bytes: Vec<u8>,
        sums: Option<ChunkSums>,
    }
    let chunks = |(at, check): (usize, &Check<'_>)| {
        pieces(check.part.range.len, CHUNK_LEN).map(move |chunk| (at, chunk))
    };
    let tasks: Vec<(usize, Chunk)> = checks.list.iter().enumerate().flat_map(chunks).collect();
    let produce = |at: usize, slot: &mut Summed| {
        let (check, chunk) = tasks[at];
        let part = &checks.list[check].part;
        let bytes = take(&mut slot.bytes, chunk.len);
        part.read(chunk.offset, bytes)?;
        slot.sums = chunk.summable.then(|| ChunkSums::of(bytes, chunk.offset, part.range.len));
        Ok(())
    };

    let (mut tally, mut found) = (Tally::default(), Vec::new());
    pipeline.run(tasks.len(), produce, |at, slot: &mut Summed| {
        let (check, chunk) = tasks[at];
        let Check { tensor, part } = checks.list[check];
        tally.append(part.sum, &slot.bytes[..chunk.len], slot.sums);
        if chunk.last {
            found.extend(tally.finish(part.sum).map(|mismatch| (tensor, part.place, mismatch)));
        }
        Ok(())
    })?;
    Ok(found)
}

/// What the source states of the very bytes that reading a tensor gives.
pub(crate) fn of_plain(reader: &dyn CheckpointReader, tensor: usize) -> Option<Sum> {
    let stored = reader.stored(tensor);
    stored.sum().filter(|_| !stored.is_encoded())
}

/// Ends with the first of these tensors that is made of bytes which don't match their checksum.
/// Bytes that are read as they lie in the file are left to the pass that reads them.
///
/// # Errors
/// E004 with the tensor and its file, E007 when reading fails.
pub(crate) fn check_parts<P: Pipeline>(
    reader: &dyn CheckpointReader,
    tensors: impl IntoIterator<Item = usize>,
    pipeline: &P,
) -> Result<()> {
    match mismatches(&Checks::of_decoded(reader, tensors), pipeline)?.first() {
        Some(&(tensor, range, mismatch)) => Err(mismatch.into_error(reader, tensor, range)),
        None => Ok(()),
    }
}
