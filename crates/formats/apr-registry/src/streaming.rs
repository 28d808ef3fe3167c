//! Loading tensor by tensor, as a page or a network reader does.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use apr_core::digest::{Digest, TensorDigest};
use apr_core::{
    ByteSource, CheckpointReader, Encoded, Error, Escaped, Metadata, Result, SourceSet, TensorInfo,
    keys, read_vec,
};
use apr_format::apr2::{self, Header};

use crate::few_reads::{FewReads, FewReadsSet, Hold};
use crate::open::is_manifest;
use crate::options::OpenOptions;

/// A tensor in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tensor {
    /// Name, dtype and shape.
    pub info: TensorInfo,
    /// Bytes of the tensor, little-endian, in the layout of its dtype; shared with the loader's
    /// cache.
    pub bytes: Arc<[u8]>,
}

/// Loads a model piece by piece.
pub trait StreamingLoader {
    /// Returns the metadata only, which is small and fast.
    ///
    /// # Errors
    /// Returns the errors of the format's reader.
    fn load_metadata(&mut self) -> Result<Metadata>;

    /// Names, dtypes and shapes of the tensors, in the order their bytes are stored.
    ///
    /// # Errors
    /// What the format's reader says.
    fn load_index(&mut self) -> Result<Vec<TensorInfo>>;

    /// Returns one tensor, verified against its digest if the file has one.
    ///
    /// # Errors
    /// E001 if there is no such tensor, E004 if its bytes do not match its digest, E007 if reading
    /// fails, E008 if it exceeds the address space.
    fn load_tensor(&mut self, name: &str) -> Result<Tensor>;

    /// Loads tensors that will be needed next, as far as the cache has space for them.
    ///
    /// Errors are reported by [`load_tensor`](Self::load_tensor), which fails again.
    fn prefetch(&mut self, names: &[&str]);
}

/// Implementation of [`StreamingLoader`] for any checkpoint, with a fixed-size cache for prefetched
/// tensors.
///
/// From APR2 sources it reads as few ranges as the format allows, because each may be a network
/// request: the header, the rest of the front, the trailer, and one range for each tensor. For a
/// sharded model it reads the manifest, and then the shards of the requested tensors in the same
/// way.
///
/// ```
/// use apr_registry::{
///     CheckpointWriter, DType, Limits, Metadata, Notes, Shape, StreamingLoader, TensorInfo,
///     TensorLoader, apr2,
/// };
///
/// let tensors = [TensorInfo { name: "bias".into(), dtype: DType::U8, shape: Shape::from([2]) }];
/// let mut writer =
///     apr2::plan(&tensors, &Metadata::new(), Vec::new(), &apr2::WriteOptions::default())?;
/// let mut file = Vec::new();
/// writer.begin(&mut file)?;
/// writer.write_chunk(&mut file, &[7, 8], None)?;
/// writer.finish(&mut file, &Notes::default())?;
///
/// let mut loader = TensorLoader::open(file, "model.apr", &Limits::default(), 1 << 20)?;
/// loader.prefetch(&["bias"]);
/// assert_eq!(loader.load_tensor("bias")?.bytes.as_ref(), [7, 8]);
/// # Ok::<(), apr_registry::Error>(())
/// ```
pub struct TensorLoader {
    reader: Box<dyn CheckpointReader>,
    by_name: BTreeMap<String, usize>,
    cache: Cache,
    /// Switch that makes the source keep the bytes it reads, because they will be read again.
    held: Hold,
}

impl TensorLoader {
    /// Creates a loader for an opened checkpoint that caches at most `budget` bytes of tensors.
    #[must_use]
    pub fn new(reader: Box<dyn CheckpointReader>, budget: u64) -> Self {
        let by_name =
            reader.tensors().iter().enumerate().map(|(at, info)| (info.name.clone(), at)).collect();
        Self { reader, by_name, cache: Cache { budget, ..Cache::default() }, held: Hold::default() }
    }

    /// Opens an APR2 file in three reads, or four if it is encrypted.
    ///
    /// Passing only limits opens plain models; the keys of [`OpenOptions`] open encrypted ones.
    ///
    /// # Errors
    /// Returns the same errors as [`apr2::open_with_keys`].
    pub fn open<S: ByteSource + 'static>(
        source: S,
        name: &str,
        options: impl Into<OpenOptions>,
        budget: u64,
    ) -> Result<Self> {
        let OpenOptions { limits, keys, .. } = options.into();
        let held = Hold::default();
        let reader =
            apr2::open_with_keys(FewReads::new(source, &limits, &held), name, &limits, &keys)?;
        Ok(Self { held, ..Self::new(Box::new(reader), budget) })
    }

    /// Opens the file `name` of a folder: an APR2 file, or the manifest of a sharded model.
    ///
    /// # Errors
    /// Those of [`apr2::open_with_keys`] and [`apr2::open_manifest`].
    pub fn open_in(
        set: &dyn SourceSet,
        name: &str,
        options: impl Into<OpenOptions>,
        budget: u64,
    ) -> Result<Self> {
        let options = options.into();
        let limits = &options.limits;
        let source = set.open(name).map_err(|error| error.in_file(name))?;
        let read = |offset: u64, len: u64| {
            read_vec(&source, offset, len).map_err(|error| error.in_file(name))
        };
        let mut json = read(0, source.len().min(Header::LEN.into()))?;
        if !is_manifest(name, &json) {
            return Self::open(source, name, &options, budget);
        }

        limits.check_metadata(source.len()).map_err(|error| error.in_file(name))?;
        json.extend(read(json.len() as u64, source.len() - json.len() as u64)?);
        let held = Hold::default();
        let set = FewReadsSet::new(set, limits, &held);
        let reader = apr2::open_manifest(&json, name, &set, limits, &options.keys)?;
        Ok(Self { held, ..Self::new(Box::new(reader), budget) })
    }

    fn position(&self, name: &str) -> Result<usize> {
        let found = self.by_name.get(name).copied();
        found.ok_or_else(|| self.located(Error::format("no such tensor")).for_tensor(name))
    }

    /// Adds the name of the model to an error that does not name the file.
    fn located(&self, error: Error) -> Error {
        match self.reader.files().first() {
            Some(file) if error.file().is_none() => error.in_file(&file.name),
            _ => error,
        }
    }

    /// Reads a tensor in one piece and checks it.
    fn read(&self, tensor: usize) -> Result<Arc<[u8]>> {
        let info = &self.reader.tensors()[tensor];
        let len = usize::try_from(info.byte_len()?)
            .map_err(|_| Error::memory("it exceeds memory").for_tensor(&info.name))?;
        let mut bytes = vec![0; len];
        let owner = self.owner(tensor);
        let stored = self.reader.stored(owner);

        // A digest is of the bytes in the file: where those are others, they are looked at first,
        // and decoded then.
        let found = if let Some(encoded) = stored.encoded() {
            let _held = self.held.on();
            let digest = |_| stored_digest(encoded, stored.range.len);
            let found = stored.digest().map(digest).transpose()?;
            self.check_digest(tensor, owner, found)?;
            self.reader.read_tensor(tensor, 0, &mut bytes)?;
            return Ok(bytes.into());
        } else {
            self.reader.read_tensor(tensor, 0, &mut bytes)?;
            let mut digest = TensorDigest::new();
            digest.update(&bytes);
            Some(digest.value())
        };

        self.check_digest(tensor, owner, found)?;
        Ok(bytes.into())
    }

    fn check_digest(&self, tensor: usize, owner: usize, found: Option<Digest>) -> Result<()> {
        let info = &self.reader.tensors()[tensor];
        let stored = self.reader.stored(owner);
        if stored.digest().is_some_and(|expected| found.is_some_and(|found| found != expected)) {
            let range = stored.range;
            let error = Error::checksum("its bytes do not match its digest")
                .for_tensor(&info.name)
                .at(range.offset);
            return Err(match self.reader.files().get(range.file) {
                Some(file) => error.in_file(&file.name),
                None => error,
            });
        }
        Ok(())
    }

    /// The tensor whose bytes a tied one has.
    fn owner(&self, tensor: usize) -> usize {
        let name = &self.reader.tensors()[tensor].name;
        let tied =
            self.reader.metadata().object(keys::TIED).and_then(|tied| tied.get(name)?.as_str());
        tied.and_then(|target| self.by_name.get(target).copied()).unwrap_or(tensor)
    }
}

/// Returns the digest of a tensor's `len` bytes as stored in the file.
fn stored_digest(encoded: Encoded<'_>, len: u64) -> Result<Digest> {
    let len = usize::try_from(len).map_err(|_| Error::memory("it exceeds memory"))?;
    let mut stored = vec![0; len];
    encoded.read_verbatim(0, &mut stored)?;
    let mut digest = TensorDigest::new();
    digest.update(&stored);
    Ok(digest.value())
}

impl StreamingLoader for TensorLoader {
    fn load_metadata(&mut self) -> Result<Metadata> {
        Ok(self.reader.metadata().clone())
    }

    fn load_index(&mut self) -> Result<Vec<TensorInfo>> {
        Ok(self.reader.tensors().to_vec())
    }

    fn load_tensor(&mut self, name: &str) -> Result<Tensor> {
        let tensor = self.position(name)?;
        let bytes = match self.cache.use_of(tensor) {
            Some(bytes) => bytes,
            None => self.read(tensor)?,
        };
        Ok(Tensor { info: self.reader.tensors()[tensor].clone(), bytes })
    }

    /// Loads the tensors in the given order, until the next one does not fit.
    ///
    /// Tensors of earlier calls are evicted, the least recently used first.
    fn prefetch(&mut self, names: &[&str]) {
        let wanted: Vec<usize> =
            names.iter().filter_map(|name| self.by_name.get(*name).copied()).collect();
        for &tensor in &wanted {
            if self.cache.use_of(tensor).is_some() {
                continue;
            }
            let Ok(len) = self.reader.tensors()[tensor].byte_len() else { continue };
            if !self.cache.make_room(len, &wanted) {
                return;
            }
            if let Ok(bytes) = self.read(tensor) {
                self.cache.put(tensor, bytes);
            }
        }
    }
}

impl std::fmt::Debug for TensorLoader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = self.reader.files().first().map(|file| Escaped(&file.name));
        f.debug_struct("TensorLoader")
            .field("file", &name)
            .field("cached", &self.cache.held)
            .finish_non_exhaustive()
    }
}

/// Tensors in memory, the one used longest ago first.
#[derive(Default)]
struct Cache {
    /// Maximum number of bytes.
    budget: u64,
    /// Bytes of `tensors`.
    held: u64,
    tensors: VecDeque<(usize, Arc<[u8]>)>,
}

impl Cache {
    /// A tensor, which is then the one used last.
    fn use_of(&mut self, tensor: usize) -> Option<Arc<[u8]>> {
        let at = self.tensors.iter().position(|(held, _)| *held == tensor)?;
        let entry = self.tensors.remove(at)?;
        let bytes = Arc::clone(&entry.1);
        self.tensors.push_back(entry);
        Some(bytes)
    }

    /// Drops tensors that are not wanted until `len` bytes fit; returns whether they do.
    fn make_room(&mut self, len: u64, wanted: &[usize]) -> bool {
        while self.held.checked_add(len).is_none_or(|sum| sum > self.budget) {
            let Some(at) = self.tensors.iter().position(|(held, _)| !wanted.contains(held)) else {
                return false;
            };
            self.held -= self.tensors.remove(at).map_or(0, |(_, bytes)| bytes.len());
        }
        true
    }

    fn put(&mut self, tensor: usize, bytes: Arc<[u8]>) {
        self.held += bytes.len();
        self.tensors.push_back((tensor, bytes));
    }
}
