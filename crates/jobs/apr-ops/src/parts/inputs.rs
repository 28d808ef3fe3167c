//! What the parts read, held against what the plan says of it.

use std::collections::HashMap;

use apr_core::{Coding, Phase, Progress, Stored, of_files, pass_on};
use apr_registry::digest::{CHUNK_LEN, ChunkSums, Digest, TensorDigest};
use apr_registry::{ByteSource, CheckpointReader, Pipeline, Result, TensorInfo};
use apr_view::UNDECODABLE;
use apr_view::chunks::{Chunk, pieces, take};
use serde_json::json;

/// A checkpoint of which the tensors of its files have the digests that a plan states: whoever
/// reads them for a job compares them on the way.
pub struct Pinned<'a> {
    base: &'a dyn CheckpointReader,
    files: PinnedFiles<'a>,
    /// The tensor of the files that each tensor is; none of a weight that is made of several.
    positions: Vec<Option<usize>>,
}

/// The tensors of the files.
struct PinnedFiles<'a> {
    base: &'a dyn CheckpointReader,
    digests: Vec<Digest>,
}

impl<'a> Pinned<'a> {
    /// Creates a reader with a digest for each tensor [of the files](of_files), or without any.
    #[must_use]
    pub fn new(base: &'a dyn CheckpointReader, digests: Vec<Digest>) -> Self {
        let files = of_files(base);
        let names = files.tensors().iter().enumerate();
        let known: HashMap<&str, usize> = names.map(|(at, info)| (&*info.name, at)).collect();
        let position = |info: &TensorInfo| known.get(info.name.as_str()).copied();
        let positions = base.tensors().iter().map(position).collect();
        Self { base, files: PinnedFiles { base: files, digests }, positions }
    }
}

impl CheckpointReader for PinnedFiles<'_> {
    pass_on!(base: format, metadata, tensors, read_tensor, tensor_slice, container, files);
    pass_on!(base: companions, read_companion, left_out, warnings);

    fn stored(&self, tensor: usize) -> Stored<'_> {
        let stored = self.base.stored(tensor);
        let digest = self.digests.get(tensor).copied().or(stored.digest());
        stored.with_digest(digest)
    }
}

impl CheckpointReader for Pinned<'_> {
    pass_on!(base: format, metadata, tensors, read_tensor, tensor_slice, container, files);
    pass_on!(base: companions, read_companion, left_out, warnings);

    fn stored(&self, tensor: usize) -> Stored<'_> {
        let stored = self.base.stored(tensor);
        let Some(coding) = stored.coding() else {
            let digest = self.positions[tensor].and_then(|at| self.files.digests.get(at));
            let digest = digest.copied().or(stored.digest());
            return stored.with_digest(digest);
        };
        let positions: Vec<usize> = coding.parts.iter().map(|part| part.tensor).collect();
        let pinned = match positions[..] {
            [part] if coding.kind == UNDECODABLE => self.files.stored(part),
            _ => Stored::derived_from(&self.files, &positions),
        };
        pinned.with_coding(Coding { base: &self.files, ..coding })
    }
}

/// BLAKE3 of all that is known of a checkpoint before its weights are read: metadata, lengths of
/// files, and name, type, shape and place of each tensor.
#[must_use]
pub fn front_digest(reader: &dyn CheckpointReader) -> Digest {
    let mut digest = TensorDigest::new();
    digest.update(reader.format().id.as_bytes());
    digest.update(&reader.metadata().to_json());
    for file in reader.files() {
        digest.update(&file.len.to_le_bytes());
    }
    for (tensor, info) in reader.tensors().iter().enumerate() {
        let range = reader.stored(tensor).range;
        let line = json!([info.name, info.dtype, info.shape, range.file, range.offset, range.len]);
        digest.update(line.to_string().as_bytes());
    }
    digest.value()
}

/// Returns the BLAKE3 digests of the bytes of each tensor in the file.
///
/// A digest is the one stated by the file, or is computed by reading the tensor. For a plan, these
/// are the tensors [of the files](of_files).
///
/// # Errors
/// E002 and E007 when bytes can't be read.
pub fn tensor_digests<P: Pipeline>(
    reader: &dyn CheckpointReader,
    pipeline: &P,
    progress: &dyn Progress,
) -> Result<Vec<Digest>> {
    let mut digests: Vec<Option<Digest>> =
        (0..reader.tensors().len()).map(|tensor| reader.stored(tensor).digest()).collect();
    let mut tasks: Vec<(usize, u64, Chunk)> = Vec::new();
    for (tensor, _) in digests.iter().enumerate().filter(|(_, digest)| digest.is_none()) {
        let len = len_of(reader, tensor)?;
        tasks.extend(pieces(len, CHUNK_LEN).map(|chunk| (tensor, len, chunk)));
    }

    let produce = |at: usize, slot: &mut (Vec<u8>, Option<ChunkSums>)| {
        let (tensor, len, chunk) = tasks[at];
        let bytes = take(&mut slot.0, chunk.len);
        match reader.stored(tensor).encoded() {
            Some(encoded) => encoded.read_verbatim(chunk.offset, bytes)?,
            None => reader.read_tensor(tensor, chunk.offset, bytes)?,
        }
        slot.1 = (chunk.summable && chunk.len > 0).then(|| ChunkSums::of(bytes, chunk.offset, len));
        Ok(())
    };

    let mut digest = TensorDigest::new();
    progress.begin(Phase::Hashing, tasks.iter().map(|(.., chunk)| chunk.len as u64).sum());
    pipeline.run(tasks.len(), produce, |at, (bytes, sums)| {
        let (tensor, _, chunk) = tasks[at];
        match sums {
            Some(sums) => digest.append(*sums),
            None => digest.update(&bytes[..chunk.len]),
        }
        progress.advance(chunk.len as u64);
        if chunk.last {
            digests[tensor] = Some(std::mem::take(&mut digest).value());
        }
        Ok(())
    })?;
    Ok(digests.into_iter().flatten().collect())
}

/// BLAKE3 of all bytes of a source.
///
/// # Errors
/// E007 when reading fails.
pub fn bytes_digest<P: Pipeline>(
    source: &(impl ByteSource + ?Sized),
    pipeline: &P,
    progress: &dyn Progress,
) -> Result<Digest> {
    let len = source.len();
    let chunks: Vec<Chunk> = pieces(len, CHUNK_LEN).collect();
    let produce = |at: usize, slot: &mut (Vec<u8>, Option<ChunkSums>)| {
        let chunk = chunks[at];
        let bytes = take(&mut slot.0, chunk.len);
        source.read_at(chunk.offset, bytes)?;
        slot.1 = (chunk.len > 0).then(|| ChunkSums::of(bytes, chunk.offset, len));
        Ok(())
    };

    let mut digest = TensorDigest::new();
    progress.begin(Phase::Hashing, len);
    pipeline.run(chunks.len(), produce, |at, (_, sums)| {
        sums.iter().for_each(|sums| digest.append(*sums));
        progress.advance(chunks[at].len as u64);
        Ok(())
    })?;
    Ok(digest.value())
}

/// Bytes of a tensor that its digest is of.
fn len_of(reader: &dyn CheckpointReader, tensor: usize) -> Result<u64> {
    let stored = reader.stored(tensor);
    if stored.is_encoded() { Ok(stored.range.len) } else { reader.tensors()[tensor].byte_len() }
}
