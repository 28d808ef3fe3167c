//! A folder as a checkpoint.

use std::fmt;
use std::sync::Arc;

use apr_core::{
    ByteSource, CheckpointReader, ContainerFacts, Error, Escaped, FileInfo, Format, Limits,
    Metadata, Result, Shape, SourceSet, Stored, StoredRange, TensorInfo, check_range, counted,
    has_no, has_own,
};
use serde_json::{Value, json};

use crate::FORMAT;
use crate::array::Array;
use crate::chunk::{Cache, Chunk};
use crate::store::{Files, Place, Store};
use crate::tree::{Leaf, Tree};

/// Maximum number of bytes of all arrays: this many for any files, and `MAX_GROWTH` times their
/// lengths.
const FREE_BYTES: u64 = 1 << 30;
const MAX_GROWTH: u64 = 1032;

/// Bytes that are counted for a chunk.
const CHUNK_COST: u64 = size_of::<Chunk>() as u64 + 64;

/// A checkpoint of Orbax opened for reading; [`open_in`] makes it.
pub struct OrbaxReader {
    files: Vec<FileInfo>,
    tensors: Vec<TensorInfo>,
    arrays: Vec<Chunked>,
    cache: Cache,
    metadata: Metadata,
    fields: Value,
    left_out: Vec<String>,
    warnings: Vec<String>,
}

/// An array and its chunks.
struct Chunked {
    array: Array,
    chunks: Vec<Chunk>,
    /// The first chunk.
    place: StoredRange,
    /// `true` if a file stores the array unencoded.
    is_plain: bool,
}

/// Opens the checkpoint that `_METADATA` describes, with the files of its folder. No chunk is read.
///
/// # Errors
/// E001 for what is no description of a tree, E002 for damaged files and missing chunks, E003 for
/// those of zarr 3 and others that are not read, E004 for a wrong checksum, E007 where a file is
/// missing, E008 over a limit.
pub fn open_in(set: &dyn SourceSet, name: &str, limits: &Limits) -> Result<OrbaxReader> {
    let located = |error: Error| if error.file().is_some() { error } else { error.in_file(name) };
    open(set, name, limits).map_err(located)
}

fn open(set: &dyn SourceSet, name: &str, limits: &Limits) -> Result<OrbaxReader> {
    let mut files = Files::new(set);
    let tree = Tree::parse(&files.whole(name, limits)?)?;
    if tree.zarr3 {
        return Err(Error::version(
            "this checkpoint has its arrays in zarr 3 (use_zarr3), which is not read; Orbax writes \
             zarr 2 by default",
        ));
    }
    let store = Store::open(tree.ocdbt, &mut files, limits)?;
    let mut opened = Opened {
        store,
        files,
        complete: tree.complete,
        limits,
        cache: Cache::default(),
        kept: 0,
        found: Vec::new(),
        left_out: Vec::new(),
        refused: Vec::new(),
    };
    let has_params = tree.leaves.iter().any(|leaf| leaf.name.starts_with("params/"));
    let is_optimizer = |leaf: &&Leaf| has_params && leaf.name.starts_with("opt_state/");
    let skipped = tree.leaves.iter().filter(is_optimizer).count();
    if skipped > 0 {
        let count = counted(skipped as u64, "value");
        opened.left_out.push(format!("the optimizer's state ({count})"));
    }
    for leaf in tree.leaves.iter().filter(|leaf| !is_optimizer(leaf)) {
        opened.add(leaf)?;
    }
    opened.finish(tree.custom, tree.ocdbt)
}

struct Opened<'a> {
    store: Store,
    files: Files<'a>,
    /// `true` if all chunks must exist.
    complete: bool,
    limits: &'a Limits,
    cache: Cache,
    /// Bytes of places and names so far.
    kept: u64,
    found: Vec<(TensorInfo, Chunked)>,
    left_out: Vec<String>,
    refused: Vec<Error>,
}

impl Opened<'_> {
    fn add(&mut self, leaf: &Leaf) -> Result<()> {
        if leaf.is_text {
            self.left_out.push(format!("{} (a text)", Escaped::short(&leaf.name)));
            return Ok(());
        }
        self.keep((leaf.name.len() + leaf.key.len()) as u64 + 256)?;
        match self.array(leaf) {
            Ok(chunked) => {
                let shape = Shape::from(chunked.array.dims.clone());
                let info =
                    TensorInfo { name: leaf.name.clone(), dtype: chunked.array.dtype, shape };
                self.found.push((info, chunked));
                Ok(())
            }
            Err(error) if error.code() == apr_core::Code::Version && error.file().is_none() => {
                self.refused.push(error.for_tensor(&leaf.name));
                Ok(())
            }
            Err(error) => Err(error.for_tensor(&leaf.name)),
        }
    }

    fn keep(&mut self, bytes: u64) -> Result<()> {
        self.kept = self.kept.saturating_add(bytes);
        self.limits.check_index(self.kept)
    }

    fn array(&mut self, leaf: &Leaf) -> Result<Chunked> {
        let described = format!("{}/.zarray", leaf.key);
        let place = self.store.find(&described, &mut self.files)?;
        let missing = |key: &str| Error::corrupt(format!("'{}' is missing", Escaped::short(key)));
        let place = place.ok_or_else(|| missing(&described))?;
        let array = Array::parse(&self.files.read(&place, self.limits)?)?;
        let count = array.chunks().unwrap_or(u64::MAX);
        self.keep(count.saturating_mul(CHUNK_COST))?;
        let len = array.chunk_len().unwrap_or(u64::MAX);
        let (mut chunks, mut first) = (Vec::new(), None);
        for number in 0..count {
            let key = format!("{}/{}", leaf.key, array.key(number));
            match self.store.find(&key, &mut self.files)? {
                Some(place) => {
                    let (source, range) = self.source(&place);
                    first.get_or_insert(range);
                    let encoded = (range.offset, place.len());
                    let chunk = Chunk::new(source, encoded, len, array.compressor, &self.cache);
                    chunks.push(chunk.map_err(|error| self.in_chunk(error, &place))?);
                }
                None if self.complete => return Err(missing(&key)),
                None if !array.fills_zeros => {
                    return Err(Error::version("its chunks are filled with something but zeros"));
                }
                None => chunks.push(Chunk::filled()),
            }
        }
        let place = first.unwrap_or(StoredRange { file: 0, offset: 0, len: 0 });
        let is_plain = matches!(&chunks[..], [chunk] if chunk.is_plain())
            && place.len > 0
            && array.byte_len() == Some(place.len);
        Ok(Chunked { array, chunks, place, is_plain })
    }

    /// Returns a source with the bytes of a value, and their range, which is empty for an inline
    /// value.
    fn source(&self, place: &Place) -> (Arc<dyn ByteSource>, StoredRange) {
        match place {
            Place::Inline(bytes) => {
                let source: Arc<dyn ByteSource> = Arc::new(bytes.to_vec());
                (source, StoredRange { file: 0, offset: 0, len: 0 })
            }
            Place::Range(range) => (Arc::clone(&self.files.sources[range.file]), *range),
        }
    }

    fn in_chunk(&self, error: Error, place: &Place) -> Error {
        match place {
            Place::Range(range) => error.in_file(&self.files.infos[range.file].name),
            Place::Inline(_) => error,
        }
    }

    fn finish(mut self, custom: Option<Value>, ocdbt: bool) -> Result<OrbaxReader> {
        if self.found.is_empty() && !self.refused.is_empty() {
            return Err(self.refused.swap_remove(0));
        }
        let files: u64 = self.files.infos.iter().map(|info| info.len).fold(0, u64::saturating_add);
        let all =
            self.found.iter().map(|(_, chunked)| chunked.array.byte_len().unwrap_or(u64::MAX));
        let all = all.fold(0, u64::saturating_add);
        if all > files.saturating_mul(MAX_GROWTH).saturating_add(FREE_BYTES) {
            return Err(Error::memory(format!(
                "the arrays take {all} bytes, which {files} bytes of files do not justify"
            )));
        }
        self.left_out.extend(self.refused.iter().map(|error| {
            let name = Escaped::short(error.tensor().unwrap_or_default());
            format!("{name} ({})", error.message())
        }));
        let mut metadata = Metadata::new();
        if let Some(custom) = custom {
            metadata.set("orbax", custom);
        }
        let (tensors, arrays) = self.found.into_iter().unzip();
        Ok(OrbaxReader {
            files: self.files.infos,
            tensors,
            arrays,
            cache: self.cache,
            metadata,
            fields: json!({ "container": if ocdbt { "OCDBT" } else { "zarr" } }),
            left_out: self.left_out,
            warnings: Vec::new(),
        })
    }
}

impl ContainerFacts for OrbaxReader {
    fn header_fields(&self) -> Value {
        self.fields.clone()
    }
}

impl CheckpointReader for OrbaxReader {
    has_own!(metadata, tensors, container, files, left_out, warnings);
    has_no!(companions);

    fn format(&self) -> &'static Format {
        &FORMAT
    }

    fn stored(&self, tensor: usize) -> Stored<'_> {
        let chunked = &self.arrays[tensor];
        if chunked.is_plain { Stored::plain(chunked.place) } else { Stored::derived(chunked.place) }
    }

    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        let Chunked { array, chunks, place, .. } = &self.arrays[tensor];
        let locate = |error: Error| {
            error.for_tensor(&self.tensors[tensor].name).in_file(&self.files[place.file].name)
        };
        let available = self.tensors[tensor].byte_len()?;
        check_range(offset, buf.len(), available).map_err(locate)?;
        // What no chunk has is zero.
        buf.fill(0);
        let mut rest = buf;
        array
            .runs(offset, rest.len() as u64, |run| {
                let len = usize::try_from(run.len).unwrap_or(usize::MAX);
                let (head, tail) = std::mem::take(&mut rest).split_at_mut(len);
                rest = tail;
                chunks[run.chunk].read(&self.cache, run.offset, head)
            })
            .map_err(locate)
    }

    fn tensor_slice(&self, _: usize) -> Option<&[u8]> {
        None
    }
}

impl fmt::Debug for OrbaxReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OrbaxReader")
            .field("files", &self.files)
            .field("tensors", &self.tensors)
            .finish_non_exhaustive()
    }
}
