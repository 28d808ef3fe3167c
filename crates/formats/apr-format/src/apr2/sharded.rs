//! Reading the shards of one model as if they were one file.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use apr_core::{
    ByteSource, CheckpointReader, Code, Companion, ContainerFacts, Error, Escaped, Features,
    FileInfo, Format, IoCause, Limits, Metadata, Result, Signed, SourceSet, Stored, StoredRange,
    TensorInfo, absence_warning, has_no, has_own, keys,
};
use once_cell::race::OnceBox;
use serde_json::{Value, json};

use super::header::Flags;
use super::manifest::{Contents, Manifest, ShardEntry, signed_digest};
use super::reader::{Apr2Reader, open_with_keys};
use super::seal::Keys;

/// A sharded APR2 model opened for reading.
///
/// [`CheckpointReader::files`] lists the manifest, then the shards. A shard's front is read when
/// the shard is first used. If the manifest does not describe the tensors, all fronts are read on
/// opening.
pub struct ShardedApr2 {
    name: String,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    /// Shard of each of `tensors`, and its position in `members` of that shard.
    places: Vec<(usize, usize)>,
    shards: Vec<Shard>,
    companions: Vec<Companion>,
    files: Vec<FileInfo>,
    warnings: Vec<String>,
    limits: Limits,
    keys: Keys,
    /// Signatures of the manifest, and the digest that they sign.
    signed: Option<Signed>,
    /// `true` if the manifest repeats the metadata of the first shard.
    repeats: bool,
}

struct Shard {
    entry: ShardEntry,
    /// The file, or why it can't be used.
    source: Result<Arc<dyn ByteSource>>,
    /// Positions in the model of the tensors that the manifest puts here.
    members: Vec<usize>,
    opened: OnceBox<OpenShard>,
}

struct OpenShard {
    reader: Apr2Reader,
    /// Position in `reader` of each of the shard's members.
    positions: Vec<usize>,
}

/// Opens the shards that a manifest names, through the set.
///
/// With a manifest of this project's no byte of a shard is read before it is needed, and one that
/// is absent or of the wrong length is a warning until then. Other manifests do not describe the
/// tensors: the fronts of all shards are read.
///
/// # Errors
/// Those of [`Manifest::parse`]; where all fronts are read, those of [`ShardedApr2::shard`].
pub fn open_manifest(
    json: &[u8],
    name: &str,
    set: &dyn SourceSet,
    limits: &Limits,
    keys: &Keys,
) -> Result<ShardedApr2> {
    let Manifest { shards: entries, tensor_shard_map, contents, signatures } =
        Manifest::parse(json, name, limits)?;
    let signed = signatures.map(|signatures| Signed {
        digest: signed_digest(json, &signatures),
        signatures: Some(signatures),
        licence: None,
    });
    let mut files = vec![FileInfo { name: name.to_string(), len: json.len() as u64 }];
    files
        .extend(entries.iter().map(|entry| FileInfo { name: entry.file.clone(), len: entry.size }));
    let shards = entries.into_iter().map(|entry| {
        let source = open_source(set, &entry, name);
        // A name that leads out of the folder is no matter of a file that may turn up.
        let source = source.map_or_else(
            |error| if error.code() == Code::Format { Err(error) } else { Ok(Err(error)) },
            |source| Ok(Ok(source)),
        )?;
        Ok(Shard { entry, source, members: Vec::new(), opened: OnceBox::new() })
    });

    let mut model = ShardedApr2 {
        name: name.to_string(),
        metadata: Metadata::new(),
        tensors: Vec::new(),
        places: Vec::new(),
        shards: shards.collect::<Result<_>>()?,
        companions: Vec::new(),
        files,
        warnings: Vec::new(),
        limits: *limits,
        keys: keys.clone(),
        signed,
        repeats: contents.is_some(),
    };

    model.warnings.extend(model.absence_warning());
    match contents {
        Some(contents) => model.take_contents(contents, &tensor_shard_map),
        None => model.read_contents(&tensor_shard_map)?,
    }

    Ok(model)
}

/// Returns the metadata that a manifest and the first shard have in common. Companions and what is
/// learnt while the tensors are written are in one of the two.
fn repeated(metadata: &Metadata) -> impl Iterator<Item = (&str, Value)> {
    const OWN: [&str; 3] = [keys::FILES, keys::LOSS, keys::VIOLATIONS];
    metadata.iter().filter(|(key, _)| !OWN.contains(key)).map(|(key, value)| {
        let mut value = value.clone();
        if key == keys::QUANTIZATION
            && let Some(quantization) = value.as_object_mut()
        {
            quantization.remove(keys::DEGRADATION);
        }
        (key, value)
    })
}

fn open_source(
    set: &dyn SourceSet,
    entry: &ShardEntry,
    manifest: &str,
) -> Result<Arc<dyn ByteSource>> {
    let source = set.open(&entry.file).map_err(|error| asked_for(error, &entry.file, manifest))?;
    if source.len() != entry.size {
        let (len, size) = (source.len(), entry.size);
        let message =
            format!("the shard has {len} bytes, but {} states {size}", Escaped::short(manifest));
        return Err(Error::corrupt(message).in_file(&entry.file));
    }
    Ok(Arc::from(source))
}

fn asked_for(error: Error, shard: &str, manifest: &str) -> Error {
    if error.code() != Code::Io {
        return error.in_file(shard);
    }
    let message = format!("{} names this shard: {}", Escaped::short(manifest), error.message());
    Error::io(error.cause().unwrap_or(IoCause::Other), message)
        .in_file(error.file().unwrap_or(shard))
}

impl ShardedApr2 {
    /// Returns one warning for all shards that can't be used.
    fn absence_warning(&self) -> Option<String> {
        let absent: Vec<&Error> =
            self.shards.iter().filter_map(|shard| shard.source.as_ref().err()).collect();
        absence_warning(&absent, self.shards.len())
    }

    fn take_contents(&mut self, contents: Contents, map: &[(String, usize)]) {
        let Contents { metadata, companions, tensors } = contents;
        for (position, info) in tensors.iter().enumerate() {
            let found = map.binary_search_by(|(name, _)| name.as_str().cmp(&info.name));
            let shard = found.map_or(0, |at| map[at].1);
            let members = &mut self.shards[shard].members;
            self.places.push((shard, members.len()));
            members.push(position);
        }
        (self.metadata, self.companions, self.tensors) = (metadata, companions, tensors);
    }

    /// Reads from the shards what the manifest does not describe. Tensors are listed shard by
    /// shard, in stored order.
    fn read_contents(&mut self, map: &[(String, usize)]) -> Result<()> {
        let readers = (0..self.shards.len())
            .map(|shard| self.open_reader(shard))
            .collect::<Result<Vec<_>>>()?;
        for (shard, reader) in readers.iter().enumerate() {
            for info in reader.tensors() {
                self.places.push((shard, self.shards[shard].members.len()));
                self.shards[shard].members.push(self.tensors.len());
                self.tensors.push(info.clone());
            }
        }

        self.check_map(map)?;
        if let Some(first) = readers.first() {
            self.metadata = first.metadata().clone();
            self.companions = first.companions().to_vec();
        }

        for (shard, reader) in readers.into_iter().enumerate() {
            let positions = (0..reader.tensors().len()).collect();
            // Nobody else has the model yet, so that nothing can be in the cell.
            let _ = self.shards[shard].opened.set(Box::new(OpenShard { reader, positions }));
        }

        Ok(())
    }

    /// Holds the tensors found in the shards against the manifest's map.
    fn check_map(&self, map: &[(String, usize)]) -> Result<()> {
        let mut found = vec![false; map.len()];
        for (info, &(shard, _)) in self.tensors.iter().zip(&self.places) {
            match map.binary_search_by(|(name, _)| name.as_str().cmp(&info.name)) {
                Ok(at) if map[at].1 == shard => found[at] = true,
                at => return Err(self.stray(&info.name, shard, at.ok().map(|at| map[at].1))),
            }
        }
        match map.iter().zip(found).find(|(_, found)| !found) {
            Some(((name, shard), _)) => Err(self.lacks(name, *shard)),
            None => Ok(()),
        }
    }

    fn lacks(&self, tensor: &str, shard: usize) -> Error {
        let message =
            format!("{} lists it, but this shard has no such tensor", Escaped::short(&self.name));
        Error::corrupt(message).for_tensor(tensor).in_file(&self.shards[shard].entry.file)
    }

    /// Returns the error for a tensor in a shard that the manifest does not assign it to.
    /// `elsewhere` is the shard that the manifest lists.
    fn stray(&self, tensor: &str, shard: usize, elsewhere: Option<usize>) -> Error {
        let manifest = Escaped::short(&self.name);
        let message = match elsewhere {
            Some(other) => {
                let other = Escaped::short(&self.shards[other].entry.file);
                format!("it is in this shard, but {manifest} lists it in '{other}'")
            }
            None => format!("it is in this shard, but {manifest} does not list it"),
        };
        Error::corrupt(message).for_tensor(tensor).in_file(&self.shards[shard].entry.file)
    }

    /// Opens the file of a shard and holds its footer against the manifest.
    fn open_reader(&self, shard: usize) -> Result<Apr2Reader> {
        let Shard { entry, source, .. } = &self.shards[shard];
        let source = source.as_ref().map_err(Error::clone)?;
        let reader = open_with_keys(Arc::clone(source), &entry.file, &self.limits, &self.keys)?;
        let (stated, expected) = (reader.footer().crc32, entry.crc32);
        if stated != expected {
            let manifest = Escaped::short(&self.name);
            let message = format!(
                "the footer's CRC-32 is {stated:08x}, but {manifest} states {expected:08x}"
            );
            return Err(Error::checksum(message).in_file(&entry.file));
        }

        if entry.signed_digest.is_some()
            && reader.signed()?.map(|signed| signed.digest) != entry.signed_digest
        {
            let message = format!(
                "this is not the shard that {} was signed with",
                Escaped::short(&self.name)
            );
            return Err(Error::new(Code::Signature, message).in_file(&entry.file));
        }
        Ok(reader)
    }

    fn opened(&self, shard: usize) -> Result<&OpenShard> {
        self.shards[shard].opened.get_or_try_init(|| {
            let reader = self.open_reader(shard)?;
            if shard == 0 && self.repeats {
                self.compare_with(&reader)?;
            }
            let positions = self.find_members(shard, &reader)?;
            Ok(Box::new(OpenShard { reader, positions }))
        })
    }

    /// Compares what the manifest repeats with the first shard, when that is opened. A manifest has
    /// no checksum, but the shard does.
    fn compare_with(&self, first: &Apr2Reader) -> Result<()> {
        let differs = |what: &str| {
            let shard = Escaped::short(&self.shards[0].entry.file);
            let message = format!("{what} differ from '{shard}', which this repeats");
            Err(Error::checksum(message).in_file(&self.name))
        };
        let own: BTreeMap<&str, Value> = repeated(&self.metadata).collect();
        let stored: BTreeMap<&str, Value> = repeated(first.metadata()).collect();
        let mut keys = own.keys().chain(stored.keys());
        if let Some(key) = keys.find(|key| own.get(**key) != stored.get(**key)) {
            return differs(&format!("the metadata ('{}')", Escaped::short(key)));
        }
        let sorted = |companions: &[Companion]| {
            let mut listed: Vec<(String, u64)> =
                companions.iter().map(|file| (file.name.clone(), file.len)).collect();
            listed.sort_unstable();
            listed
        };
        if sorted(&self.companions) != sorted(first.companions()) {
            return differs("the companions");
        }
        Ok(())
    }

    /// Returns the positions of a shard's members in its file. The file must hold them as
    /// described, and no other tensors.
    fn find_members(&self, shard: usize, reader: &Apr2Reader) -> Result<Vec<usize>> {
        let members = &self.shards[shard].members;
        let find = |&member: &usize| {
            let info = &self.tensors[member];
            let position =
                reader.position(&info.name).ok_or_else(|| self.lacks(&info.name, shard))?;
            let TensorInfo { dtype, shape, .. } = &reader.tensors()[position];
            if (dtype, shape) != (&info.dtype, &info.shape) {
                let (manifest, told, expected) =
                    (Escaped::short(&self.name), &info.shape, info.dtype);
                let message = format!(
                    "it is {dtype} of shape {shape}, but {manifest} states {expected} of shape \
                     {told}"
                );
                return Err(Error::corrupt(message)
                    .for_tensor(&info.name)
                    .in_file(&self.shards[shard].entry.file));
            }
            Ok(position)
        };

        let positions = members.iter().map(find).collect::<Result<Vec<_>>>()?;
        if positions.len() < reader.tensors().len() {
            let mut listed = vec![false; reader.tensors().len()];
            positions.iter().for_each(|&position| listed[position] = true);
            if let Some(stray) = listed.iter().position(|listed| !listed) {
                let name = &reader.tensors()[stray].name;
                let elsewhere = self.tensors.iter().position(|info| info.name == *name);
                return Err(self.stray(name, shard, elsewhere.map(|tensor| self.places[tensor].0)));
            }
        }

        Ok(positions)
    }

    /// Returns the number of shards.
    #[must_use]
    pub fn shard_count(&self) -> usize {
        self.shards.len()
    }

    /// Opens a shard by itself.
    ///
    /// # Errors
    /// E007 when it is absent; E002 when its length is not the manifest's, it lacks a tensor, or
    /// has one that is not its own; E004 when its footer has another CRC-32 than the manifest; E006
    /// when it has another digest than a signed manifest; otherwise as [`open`](super::open).
    pub fn shard(&self, shard: usize) -> Result<&Apr2Reader> {
        Ok(&self.opened(shard)?.reader)
    }

    /// Returns the manifest with the digests of all shards, ready to be signed. Reads no tensors.
    ///
    /// # Errors
    /// As [`shard`](Self::shard); E006 when a shard has no digests of its tensors.
    pub fn to_sign(&self) -> Result<Manifest> {
        let digest_of = |shard: usize| {
            let reader = Self::shard(self, shard)?;
            reader.check_uncovered()?;
            let message = "the shard has no digests of its tensors that a signature could cover";
            let missing =
                || Error::new(Code::Signature, message).in_file(&self.shards[shard].entry.file);
            Ok(reader.signed()?.ok_or_else(missing)?.digest)
        };

        let shards = self.shards.iter().enumerate().map(|(position, shard)| {
            let signed_digest = Some(digest_of(position)?);
            Ok(ShardEntry { signed_digest, ..shard.entry.clone() })
        });
        let mut metadata = self.metadata.clone();
        metadata.remove(keys::FILES);
        let shard_of = |(info, place): (&TensorInfo, &(usize, usize))| (info.name.clone(), place.0);
        let mut tensor_shard_map: Vec<_> =
            self.tensors.iter().zip(&self.places).map(shard_of).collect();
        tensor_shard_map.sort_unstable();
        Ok(Manifest {
            shards: shards.collect::<Result<_>>()?,
            tensor_shard_map,
            contents: Some(Contents {
                metadata,
                companions: self.companions.clone(),
                tensors: self.tensors.clone(),
            }),
            signatures: self.signed.as_ref().and_then(|signed| signed.signatures.clone()),
        })
    }

    /// Returns the shard of a tensor, and the tensor's position in it.
    fn locate(&self, tensor: usize) -> Result<(&Apr2Reader, usize)> {
        let (shard, member) = self.places[tensor];
        let OpenShard { reader, positions } =
            self.opened(shard).map_err(|error| error.for_tensor(&self.tensors[tensor].name))?;
        Ok((reader, positions[member]))
    }
}

impl CheckpointReader for ShardedApr2 {
    has_own!(metadata, tensors, container, files, warnings);
    has_no!(left_out);

    fn format(&self) -> &'static Format {
        &super::FORMAT
    }

    /// Opens the shard. If that fails, only the file of the result is correct.
    fn stored(&self, tensor: usize) -> Stored<'_> {
        let file = self.places[tensor].0 + 1;
        match self.locate(tensor) {
            Ok((reader, position)) => reader.stored(position).behind_files(file),
            Err(_) => Stored::derived(StoredRange { file, offset: 0, len: 0 }),
        }
    }

    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        let (reader, position) = self.locate(tensor)?;
        reader.read_tensor(position, offset, buf)
    }

    fn tensor_slice(&self, tensor: usize) -> Option<&[u8]> {
        let (reader, position) = self.locate(tensor).ok()?;
        reader.tensor_slice(position)
    }

    fn companions(&self) -> &[Companion] {
        &self.companions
    }

    fn read_companion(&self, companion: usize) -> Result<Vec<u8>> {
        let Companion { name, len } = &self.companions[companion];
        let first = Self::shard(self, 0)?;
        let found =
            first.companions().iter().position(|known| known.name == *name && known.len == *len);
        let found = found.ok_or_else(|| {
            let (manifest, name) = (Escaped::short(&self.name), Escaped::short(name));
            let message = format!(
                "{manifest} lists the companion '{name}' of {len} bytes, which is not in this shard"
            );
            Error::corrupt(message).in_file(&self.shards[0].entry.file)
        })?;
        first.read_companion(found)
    }
}

impl ContainerFacts for ShardedApr2 {
    /// Returns the features of the first shard, which all shards share. `signed` describes the
    /// manifest.
    fn features(&self) -> Features {
        let of_a_shard = Self::shard(self, 0).map(ContainerFacts::features).unwrap_or_default();
        Features { signed: self.signed.is_some(), ..of_a_shard }
    }

    /// Returns `true` if the first shard is locked. All shards are encrypted for the same keys.
    fn is_locked(&self) -> bool {
        Self::shard(self, 0).is_ok_and(ContainerFacts::is_locked)
    }

    fn check_uncovered(&self) -> Result<()> {
        (0..self.shards.len()).try_for_each(|shard| Self::shard(self, shard)?.check_uncovered())
    }

    /// Returns the signatures of the manifest, which cover the shards. Signatures of single shards
    /// are not included.
    fn signed(&self) -> Result<Option<Signed>> {
        Ok(self.signed.clone())
    }

    fn shard_count(&self) -> usize {
        self.shards.len()
    }

    fn shard(&self, shard: usize) -> Result<&dyn CheckpointReader> {
        Ok(Self::shard(self, shard)?)
    }

    /// Returns the header fields of the first shard that all shards share, and the number of
    /// shards.
    fn header_fields(&self) -> Value {
        let Ok(first) = Self::shard(self, 0) else {
            return json!({ "shards": self.shards.len() });
        };
        let header = first.header();
        let quantized = self.tensors.iter().any(|info| info.dtype.is_quantized());
        let flags = if quantized { header.flags.union(Flags::QUANTIZED) } else { header.flags };
        json!({
            "version": format!("{}.{}", header.version_major, header.version_minor),
            "flags": flags.names(),
            "alignment": flags.alignment(),
            "shards": self.shards.len(),
        })
    }
}
