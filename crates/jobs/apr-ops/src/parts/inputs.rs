//! What the parts read, held against what the plan says of it.

use std::collections::HashMap;

use apr_core::{Coding, Phase, Progress, Stored, StoredRange, below_changes, pass_on};
use apr_registry::digest::{CHUNK_LEN, ChunkSums, Digest, TensorDigest};
use apr_registry::{ByteSource, CheckpointReader, Pipeline, Result};
use apr_view::UNDECODABLE;
use apr_view::chunks::{Chunk, pieces, take};
use serde_json::json;

/// A checkpoint of which the tensors of its files have the digests that a plan states: whoever
/// reads them for a job compares them on the way.
pub struct Pinned<'a> {
    base: &'a dyn CheckpointReader,
    files: PinnedFiles<'a>,
    /// Tensors of the files, by their places.
    places: HashMap<StoredRange, Vec<usize>>,
    /// Tensors of the files, by name.
    names: HashMap<&'a str, usize>,
}

/// The tensors of the files.
struct PinnedFiles<'a> {
    base: &'a dyn CheckpointReader,
    digests: Vec<Digest>,
}

impl<'a> Pinned<'a> {
    /// Creates a reader over one that a job makes of `input`, with a digest for each tensor of the
    /// files ([`pinned_files`]) of the input, or without any.
    #[must_use]
    pub fn new(
        base: &'a dyn CheckpointReader,
        input: &'a dyn CheckpointReader,
        digests: Vec<Digest>,
    ) -> Self {
        let files = pinned_files(input);
        let mut places: HashMap<StoredRange, Vec<usize>> = HashMap::new();
        for tensor in 0..files.tensors().len() {
            let stored = files.stored(tensor);
            if !stored.is_derived() && stored.range.len > 0 {
                places.entry(stored.range).or_default().push(tensor);
            }
        }
        let names = files.tensors().iter().enumerate();
        let names = names.map(|(tensor, info)| (&*info.name, tensor)).collect();
        Self { base, files: PinnedFiles { base: files, digests }, places, names }
    }

    /// Returns `true` if the parts of a weight are tensors of the files.
    fn has_parts_of(&self, coding: &Coding<'_>) -> bool {
        let (files, own) = (self.files.tensors(), coding.base.tensors());
        coding.parts.iter().all(|part| files.get(part.tensor) == own.get(part.tensor))
    }

    /// Returns the tensor of the files at a place: the one with this name, if several are there.
    fn at(&self, place: StoredRange, name: &str) -> Option<usize> {
        let named = || self.names.get(name).copied();
        match self.places.get(&place)?[..] {
            [only] => Some(only),
            ref several => named().filter(|tensor| several.contains(tensor)),
        }
    }

    /// Returns the tensor of the files that a tensor is.
    fn same(&self, tensor: usize, stored: &Stored<'_>) -> Option<usize> {
        let info = &self.base.tensors()[tensor];
        let named = self.names.get(info.name.as_str()).copied().filter(|&named| {
            let known = self.files.base.stored(named);
            let is_alike = known.is_derived() == stored.is_derived();
            is_alike && known.ranges() == stored.ranges() && self.files.tensors()[named] == *info
        });
        named.or_else(|| self.at(stored.range, &info.name).filter(|_| !stored.is_derived()))
    }
}

/// Returns the checkpoint whose tensors have digests in a plan: that of the files.
#[must_use]
pub fn pinned_files(reader: &dyn CheckpointReader) -> &dyn CheckpointReader {
    below_changes(reader)
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
        if self.files.digests.is_empty() {
            return stored;
        }
        let name = &self.base.tensors()[tensor].name;
        if let Some(coding) = stored.coding().filter(|coding| self.has_parts_of(coding)) {
            let positions: Vec<usize> = coding.parts.iter().map(|part| part.tensor).collect();
            let pinned = match positions[..] {
                [part] if coding.kind == UNDECODABLE => self.files.stored(part),
                _ => Stored::derived_from(&self.files, &positions),
            };
            return pinned.with_coding(Coding { base: &self.files, ..coding });
        }
        let Some(same) = self.same(tensor, &stored) else {
            let found = stored.ranges().iter().filter_map(|place| self.at(*place, name));
            let own = found.filter_map(|at| self.files.stored(at).own_part(&self.files, at));
            let parts = own.collect();
            return if stored.is_derived() { stored.with_parts(parts) } else { stored };
        };
        let digest = self.files.digests.get(same).copied().or(stored.digest());
        stored.with_digest(digest)
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
/// are those of [`pinned_files`].
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
