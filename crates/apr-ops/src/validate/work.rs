//! What a validation reads, and what any thread makes of a piece of it.

use apr_core::{Extent, ExtentKind};
use apr_registry::digest::{CHUNK, ChunkSums};
use apr_registry::{CheckpointReader, Code, Error, Result};
use apr_tensor::stats::Moments;
use apr_view::chunks::{Chunk, chunks, pieces, take};
use apr_view::values::{self, Buffers};

use super::{Pass, ValidateOptions};

/// Bytes read at a time of what is no tensor.
const PIECE_BYTES: usize = 1 << 20;

/// A piece of the file and what to do with it.
#[derive(Debug, Clone, Copy)]
pub(super) struct FileChunk {
    pub(super) kind: ExtentKind,
    /// Start of the extent in the file.
    pub(super) base: u64,
    pub(super) len: u64,
    pub(super) chunk: Chunk,
    /// Bytes of a tensor as they lie in the file, where its values are others and come apart.
    pub(super) verbatim: bool,
    /// Whether the file's checksum covers these very bytes.
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
    /// Why bytes of the tensor don't decode.
    pub(super) failure: Option<Error>,
}

/// Reads a piece and does all that needs no order with it.
pub(super) fn produce(
    reader: &dyn CheckpointReader,
    options: ValidateOptions<'_>,
    wants_sums: bool,
    task: FileChunk,
    slot: &mut CheckBuffers,
) -> Result<()> {
    let bytes = take(&mut slot.bytes, task.chunk.len);
    (slot.sums, slot.moments, slot.beyond, slot.nonzero, slot.failure) = (None, None, 0, false, None);
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

/// Reads a chunk of a tensor; returns why it does not decode, which is a finding like others: the tensors after it are
/// looked at too.
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
        Err(error) if !reader.stored(tensor).is_encoded() || error.code() == Code::Io => Err(error),
        Err(error) => Ok(Some(error)),
    }
}

/// Reads bytes of a tensor as they lie in the file.
fn read_verbatim(reader: &dyn CheckpointReader, tensor: usize, chunk: Chunk, bytes: &mut [u8]) -> Result<()> {
    match reader.stored(tensor).encoded() {
        Some(encoded) => encoded.read_verbatim(chunk.offset, bytes),
        None => reader.read_tensor(tensor, chunk.offset, bytes),
    }
}

impl Pass<'_> {
    /// The whole file where it has a checksum, otherwise the tensors; nothing where no check reads bytes.
    pub(super) fn tasks(&self) -> Result<Vec<FileChunk>> {
        let extents = self.extents()?;
        let decoded = self.decoded(&extents)?;
        let mut tasks = Vec::new();
        extents.into_iter().try_for_each(|extent| self.cut(extent, true, &mut tasks))?;
        decoded.into_iter().try_for_each(|extent| self.cut(extent, false, &mut tasks))?;
        Ok(tasks)
    }

    /// Hashing is most of the work of a pass, and a format may have nothing to compare with.
    pub(super) fn wants_sums(&self) -> bool {
        self.checksum.is_some() || self.digests
    }

    /// Whether a check asks for the values of tensors, and they can be read.
    fn reads_values(&self) -> bool {
        self.options.reads_values() && !self.reader.container().is_locked()
    }

    fn extents(&self) -> Result<Vec<Extent>> {
        if let Some(checksum) = &self.checksum {
            return Ok(checksum.extents.clone());
        }
        let compares = self.digests || (self.options.checksum && self.sums() > 0);
        let tensors = if compares || self.reads_values() { self.reader.tensors().len() } else { 0 };
        (0..tensors).map(|tensor| self.extent(tensor)).collect()
    }

    fn extent(&self, tensor: usize) -> Result<Extent> {
        let len = self.reader.tensors()[tensor].byte_len()?;
        Ok(Extent { kind: ExtentKind::Tensor(tensor), offset: self.reader.stored(tensor).range.offset, len })
    }

    /// Tensors that a checksum covers as they are stored, which is not as they are read.
    fn decoded(&self, extents: &[Extent]) -> Result<Vec<Extent>> {
        if self.checksum.is_none() || !self.reads_values() {
            return Ok(Vec::new());
        }
        let tensors = self.reader.tensors();
        let mut is_read = vec![false; tensors.len()];
        for extent in extents {
            if let ExtentKind::Tensor(tensor) = extent.kind {
                is_read[tensor] = true;
            }
        }
        let unread = (0..tensors.len()).filter(|&tensor| !is_read[tensor] && self.reader.stored(tensor).range.len > 0);
        unread.map(|tensor| self.extent(tensor)).collect()
    }

    /// Cuts a part of the file into pieces; `summed` if the file's checksum covers its very bytes.
    fn cut(&self, Extent { kind, offset: base, len }: Extent, summed: bool, tasks: &mut Vec<FileChunk>) -> Result<()> {
        let task = |chunk| FileChunk { kind, base, len, chunk, verbatim: false, summed };
        let ExtentKind::Tensor(tensor) = kind else {
            tasks.extend(pieces(len, PIECE_BYTES).map(task));
            return Ok(());
        };
        let info = &self.reader.tensors()[tensor];
        let stored = self.reader.stored(tensor);
        if !stored.is_encoded() {
            tasks.extend(chunks(info, len).map(task));
            return Ok(());
        }
        if self.wants_sums() {
            let len = stored.range.len;
            tasks.extend(pieces(len, CHUNK).map(|chunk| FileChunk { len, verbatim: true, ..task(chunk) }));
        }
        if self.reads_values() {
            let len = info.byte_len()?;
            tasks.extend(chunks(info, len).map(|chunk| FileChunk { len, ..task(chunk) }));
        }
        Ok(())
    }
}
