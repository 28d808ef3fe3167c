//! What a validation reads, and what any thread makes of a piece of it.

use apr_core::ExtentKind;
use apr_registry::digest::ChunkSums;
use apr_registry::{CheckpointReader, Code, Error, Result};
use apr_tensor::stats::Moments;
use apr_view::chunks::{Chunk, take};
use apr_view::values::{self, Buffers};

use super::options::ValidateOptions;
use crate::integrity::is_of_bytes;

/// A chunk of the file and the checks to make on it.
#[derive(Debug, Clone, Copy)]
pub(super) struct FileChunk {
    pub(super) kind: ExtentKind,
    /// Start of the extent in the file.
    pub(super) base: u64,
    pub(super) len: u64,
    pub(super) chunk: Chunk,
    /// The chunk contains stored bytes of a tensor whose decoded values are read separately.
    pub(super) verbatim: bool,
    /// `true` if the file's checksum covers exactly these bytes.
    pub(super) summed: bool,
}

#[derive(Default)]
pub(super) struct CheckBuffers {
    pub(super) bytes: Vec<u8>,
    pub(super) buffers: Buffers,
    pub(super) sums: Option<ChunkSums>,
    pub(super) moments: Option<Moments>,
    /// Quants below the range of their symmetric dtype.
    pub(super) beyond: u64,
    pub(super) nonzero: bool,
    /// Reason why bytes of the tensor can't be decoded.
    pub(super) failure: Option<Error>,
}

/// Reads a chunk and does all work that does not depend on the order of chunks.
pub(super) fn produce(
    reader: &dyn CheckpointReader,
    options: ValidateOptions<'_>,
    wants_sums: bool,
    task: FileChunk,
    slot: &mut CheckBuffers,
) -> Result<()> {
    let bytes = take(&mut slot.bytes, task.chunk.len);

    // The slot still has what the piece before left in it.
    (slot.sums, slot.moments, slot.beyond, slot.nonzero, slot.failure) =
        (None, None, 0, false, None);
    let ExtentKind::Tensor(tensor) = task.kind else {
        reader.container().read_raw(task.base + task.chunk.offset, bytes)?;
        slot.nonzero = task.kind == ExtentKind::Padding && bytes.iter().any(|&byte| byte != 0);
        return Ok(());
    };
    slot.failure = read_chunk(reader, tensor, task, bytes)?;
    if slot.failure.is_some() {
        return Ok(());
    }
    if wants_sums && task.chunk.summable {
        slot.sums = Some(ChunkSums::of(bytes, task.chunk.offset, task.len));
    }
    if !task.verbatim && options.reads_values() {
        slot.moments = Some(values::moments(reader, tensor, task.chunk, bytes, &mut slot.buffers)?);
    }
    if !task.verbatim && options.physics {
        slot.beyond = values::beyond_range(&reader.tensors()[tensor], task.chunk.offset, bytes);
    }

    Ok(())
}

/// Reads a chunk of a tensor; returns why it does not decode, which is a finding like others: the
/// tensors after it are looked at too.
fn read_chunk(
    reader: &dyn CheckpointReader,
    tensor: usize,
    task: FileChunk,
    bytes: &mut [u8],
) -> Result<Option<Error>> {
    if task.verbatim {
        read_verbatim(reader, tensor, task.chunk, bytes)?;
        return Ok(None);
    }
    match reader.read_tensor(tensor, task.chunk.offset, bytes) {
        Ok(()) => Ok(None),
        Err(error) => {
            let stored = reader.stored(tensor);
            let is_made = stored.is_encoded() || stored.coding().is_some();
            let is_finding = is_of_bytes(&error) || (is_made && error.code() != Code::Io);
            if is_finding { Ok(Some(error)) } else { Err(error) }
        }
    }
}

/// Reads stored bytes of a tensor.
fn read_verbatim(
    reader: &dyn CheckpointReader,
    tensor: usize,
    chunk: Chunk,
    bytes: &mut [u8],
) -> Result<()> {
    match reader.stored(tensor).encoded() {
        Some(encoded) => encoded.read_verbatim(chunk.offset, bytes),
        None => reader.read_tensor(tensor, chunk.offset, bytes),
    }
}
