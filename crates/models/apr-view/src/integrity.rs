//! Checksums that a file states, compared with the bytes that were read.

use std::fmt;

use apr_core::digest::{CHUNK_LEN, ChunkSums, Crc32, TensorDigest};
use apr_core::{CheckpointReader, Error, Result, StoredPart, StoredRange, Sum};

use crate::chunks::{pieces, take};

/// Checksum of bytes that are appended in order.
#[derive(Default)]
pub struct Tally {
    crc: Crc32,
    digest: TensorDigest,
}

impl Tally {
    /// Appends bytes, with their checksums if those were already computed.
    pub fn append(&mut self, stated: Sum, bytes: &[u8], sums: Option<ChunkSums>) {
        match (stated, sums) {
            (Sum::Crc32(_), Some(sums)) => self.crc.append(sums),
            (Sum::Crc32(_), None) => self.crc.update(bytes),
            (Sum::Digest(_), Some(sums)) => self.digest.append(sums),
            (Sum::Digest(_), None) => self.digest.update(bytes),
        }
    }

    /// Returns the mismatch after all bytes have been appended, and resets the tally for the next
    /// bytes.
    pub fn finish(&mut self, stated: Sum) -> Option<Mismatch> {
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
pub enum Mismatch {
    /// CRC-32 checksums differ.
    Crc32 {
        /// Checksum stored in the file.
        stated: u32,
        /// Checksum of the bytes.
        found: u32,
    },
    /// Two BLAKE3-256.
    Digest,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Crc32 { stated, found } => {
                write!(
                    f,
                    "the CRC-32 of its bytes is {found:#010x}, the file states {stated:#010x}"
                )
            }
            Self::Digest => f.write_str("its bytes do not match its digest"),
        }
    }
}

impl Mismatch {
    /// E004 for a tensor, with its file.
    #[must_use]
    pub fn into_error(
        self,
        reader: &dyn CheckpointReader,
        tensor: usize,
        range: StoredRange,
    ) -> Error {
        self.into_error_about(reader, &reader.tensors()[tensor].name, range)
    }

    /// E004 for a tensor that the error calls by another name than `reader` does.
    #[must_use]
    pub fn into_error_about(
        self,
        reader: &dyn CheckpointReader,
        name: &str,
        range: StoredRange,
    ) -> Error {
        let error = Error::checksum(self.to_string()).for_tensor(name).at(range.offset);
        in_file_of(error, reader, range)
    }
}

/// Adds the tensor that is made of a part, and the file of the part, to an error of reading it.
#[must_use]
pub fn about_part(
    error: Error,
    reader: &dyn CheckpointReader,
    tensor: usize,
    place: StoredRange,
) -> Error {
    in_file_of(error.for_tensor(&reader.tensors()[tensor].name), reader, place)
}

fn in_file_of(error: Error, reader: &dyn CheckpointReader, range: StoredRange) -> Error {
    match reader.files().get(range.file) {
        Some(file) => error.in_file(&file.name),
        None => error,
    }
}

/// Reads a part of a file once, a chunk at a time, and returns its mismatch.
///
/// # Errors
/// E007 when reading fails.
pub(crate) fn mismatch_of(part: &StoredPart<'_>) -> Result<Option<Mismatch>> {
    let len = part.range.len;
    let (mut tally, mut buffer) = (Tally::default(), Vec::new());
    for chunk in pieces(len, CHUNK_LEN) {
        let bytes = take(&mut buffer, chunk.len);
        part.read(chunk.offset, bytes)?;

        // A CRC-32 is as fast in order.
        let by_chunk = chunk.len > 0 && matches!(part.sum, Sum::Digest(_));
        let sums = by_chunk.then(|| ChunkSums::of(bytes, chunk.offset, len));
        tally.append(part.sum, bytes, sums);
    }
    Ok(tally.finish(part.sum))
}
