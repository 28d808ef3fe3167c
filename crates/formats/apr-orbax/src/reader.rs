//! A folder as a checkpoint.

use std::sync::Arc;

use apr_core::{
    Error, Escaped, Limits, Result, Shape, SharedSource, SourceSet, Stored, StoredRange, Table,
    TensorBytes, TensorDecoder, TensorInfo, counted,
};
use serde_json::Value;

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

/// An array and its chunks.
struct Chunked {
    array: Array,
    chunks: Vec<Chunk>,
    /// The first chunk.
    place: StoredRange,
    /// `true` if a file stores the array unencoded.
    is_plain: bool,
    /// Chunks of all arrays that were decoded.
    cache: Arc<Cache>,
}

/// Opens the checkpoint that `_METADATA` describes, with the files of its folder. No chunk is read.
///
/// # Errors
/// E001 for what is no description of a tree, E002 for damaged files and missing chunks, E003 for
/// those of zarr 3 and others that are not read, E004 for a wrong checksum, E007 where a file is
/// missing, E008 over a limit.
pub fn open_in(set: &dyn SourceSet, name: &str, limits: &Limits) -> Result<Table> {
    let located = |error: Error| if error.file().is_some() { error } else { error.in_file(name) };
    open(set, name, limits).map_err(located)
}

fn open(set: &dyn SourceSet, name: &str, limits: &Limits) -> Result<Table> {
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
        cache: Arc::default(),
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
    cache: Arc<Cache>,
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
        Ok(Chunked { array, chunks, place, is_plain, cache: Arc::clone(&self.cache) })
    }

    /// Returns a source with the bytes of a value, and their range, which is empty for an inline
    /// value.
    fn source(&self, place: &Place) -> (SharedSource, StoredRange) {
        match place {
            Place::Inline(bytes) => {
                let source: SharedSource = Arc::new(bytes.to_vec());
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

    fn finish(self, custom: Option<Value>, ocdbt: bool) -> Result<Table> {
        let files: u64 = self.files.infos.iter().map(|info| info.len).fold(0, u64::saturating_add);
        let all =
            self.found.iter().map(|(_, chunked)| chunked.array.byte_len().unwrap_or(u64::MAX));
        let all = all.fold(0, u64::saturating_add);
        if all > files.saturating_mul(MAX_GROWTH).saturating_add(FREE_BYTES) {
            return Err(Error::memory(format!(
                "the arrays take {all} bytes, which {files} bytes of files do not justify"
            )));
        }
        let mut table = Table::new(&FORMAT);
        for (file, source) in self.files.infos.into_iter().zip(self.files.sources) {
            table.add_file(file, source);
        }
        for (info, chunked) in self.found {
            table.add(info, TensorBytes::decoded(chunked))?;
        }
        table.left_out = self.left_out;
        table.leave_out(self.refused)?;
        if let Some(custom) = custom {
            table.metadata.set("orbax", custom);
        }
        table.show("container", if ocdbt { "OCDBT" } else { "zarr" });
        Ok(table)
    }
}

impl TensorDecoder for Chunked {
    fn range(&self) -> StoredRange {
        self.place
    }

    fn read(&self, _: &[SharedSource], offset: u64, buf: &mut [u8]) -> Result<()> {
        // What no chunk has is zero.
        buf.fill(0);
        let mut rest = buf;
        self.array.runs(offset, rest.len() as u64, |run| {
            let len = usize::try_from(run.len).unwrap_or(usize::MAX);
            let (head, tail) = std::mem::take(&mut rest).split_at_mut(len);
            rest = tail;
            self.chunks[run.chunk].read(&self.cache, run.offset, head)
        })
    }

    fn stored<'a>(&'a self, _: &'a [SharedSource]) -> Stored<'a> {
        if self.is_plain { Stored::plain(self.place) } else { Stored::derived(self.place) }
    }
}
