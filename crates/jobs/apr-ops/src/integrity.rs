//! Checksums that a source states: of its tensors, and of what they are made of.
//!
//! The bytes of most tensors are summed while a pass reads them. Others are made of parts of the
//! file that no pass reads as they lie there (a storage that several tensors view, weights that are
//! permuted on the way): those are read for their checksum alone, each once.

use std::collections::BTreeSet;

use apr_core::{StoredPart, StoredRange, Sum};
use apr_registry::digest::{CHUNK_LEN, ChunkSums};
use apr_registry::{CheckpointReader, Code, Error, Pipeline, Result};
use apr_view::chunks::{Chunk, pieces, take};
pub(crate) use apr_view::integrity::{Mismatch, Tally, about_part};

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

    /// Returns the checks of these tensors' parts, and of the stored bytes of decoded tensors.
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

/// A part of a file that is not what was written.
#[derive(Debug, Clone)]
pub(crate) enum Damage {
    /// Its bytes do not match their checksum.
    Mismatch(Mismatch),
    /// Its bytes don't decode: there is nothing to compare.
    Undecodable(Error),
}

impl Damage {
    /// Returns the error for a tensor that is made of the part.
    fn into_error(self, reader: &dyn CheckpointReader, tensor: usize, range: StoredRange) -> Error {
        match self {
            Self::Mismatch(mismatch) => mismatch.into_error(reader, tensor, range),
            Self::Undecodable(error) => about_part(error, reader, tensor, range),
        }
    }
}

/// Returns `true` if an error of reading a tensor is about bytes that were read, so that a report
/// can list it and go on with other tensors.
pub(crate) fn is_of_bytes(error: &Error) -> bool {
    matches!(error.code(), Code::Corrupt | Code::Checksum)
}

/// Reads parts for their checksums; reports the damaged ones, each with the first tensor that is
/// made of it.
///
/// # Errors
/// E007 when reading fails.
pub(crate) fn damages<P: Pipeline>(
    checks: &Checks<'_>,
    pipeline: &P,
) -> Result<Vec<(usize, StoredRange, Damage)>> {
    #[derive(Default)]
    struct Summed {
        bytes: Vec<u8>,
        sums: Option<ChunkSums>,
        failure: Option<Error>,
    }
    let chunks = |(at, check): (usize, &Check<'_>)| {
        pieces(check.part.range.len, CHUNK_LEN).map(move |chunk| (at, chunk))
    };
    let tasks: Vec<(usize, Chunk)> = checks.list.iter().enumerate().flat_map(chunks).collect();
    let produce = |at: usize, slot: &mut Summed| {
        let (check, chunk) = tasks[at];
        let part = &checks.list[check].part;
        let bytes = take(&mut slot.bytes, chunk.len);
        slot.failure = match part.read(chunk.offset, bytes) {
            Err(error) if !is_of_bytes(&error) => return Err(error),
            read => read.err(),
        };
        slot.sums = chunk.summable.then(|| ChunkSums::of(bytes, chunk.offset, part.range.len));
        Ok(())
    };

    let (mut tally, mut failure, mut found) = (Tally::default(), None, Vec::new());
    pipeline.run(tasks.len(), produce, |at, slot: &mut Summed| {
        let (check, chunk) = tasks[at];
        let Check { tensor, part } = checks.list[check];
        failure = failure.take().or(slot.failure.take());
        tally.append(part.sum, &slot.bytes[..chunk.len], slot.sums);
        if chunk.last {
            let mismatch = tally.finish(part.sum).map(Damage::Mismatch);
            let damage = failure.take().map(Damage::Undecodable).or(mismatch);
            found.extend(damage.map(|damage| (tensor, part.place, damage)));
        }
        Ok(())
    })?;
    Ok(found)
}

/// Returns the checksum that the source states for exactly the bytes that reading a tensor returns.
pub(crate) fn of_plain(reader: &dyn CheckpointReader, tensor: usize) -> Option<Sum> {
    let stored = reader.stored(tensor);
    stored.sum().filter(|_| !stored.is_encoded())
}

/// Ends with the first of these tensors that is made of bytes which don't match their checksum.
/// Bytes that are read as they lie in the file are left to the pass that reads them.
///
/// # Errors
/// E004 with the tensor and its file, E002 for bytes that don't decode, E007 when reading fails.
pub(crate) fn check_parts<P: Pipeline>(
    reader: &dyn CheckpointReader,
    tensors: impl IntoIterator<Item = usize>,
    pipeline: &P,
) -> Result<()> {
    match damages(&Checks::of_decoded(reader, tensors), pipeline)?.into_iter().next() {
        Some((tensor, range, damage)) => Err(damage.into_error(reader, tensor, range)),
        None => Ok(()),
    }
}
