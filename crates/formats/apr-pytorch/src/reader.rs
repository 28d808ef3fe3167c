//! A checkpoint as its users see it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use apr_archive::{Entry, tar};
use apr_core::{
    ByteSource, Companion, Error, Escaped, FileInfo, Limits, Metadata, Result, Shape, SharedSource,
    Stored, StoredPart, StoredRange, Sum, Table, TensorBytes, TensorDecoder, TensorInfo, keys,
    read_vec,
};
use serde_json::{Map, Value};

use crate::content::Content;
use crate::contents::{ContentOrigin, Contents};
use crate::flatten::{Flat, flatten};
use crate::options::OpenOptions;
use crate::view::Range;
use crate::{archive, legacy, overlaps, rest, tar_checkpoint, trainer};

/// Key of the plain values in the metadata: path to value.
const VALUES: &str = "pytorch";

/// Total tensor bytes allowed for any file, in addition to [`MAX_GROWTH`] times its length.
///
/// Views of one storage, especially expanded ones, can declare any size.
const FREE_BYTES: u64 = 1 << 30;
const MAX_GROWTH: u64 = 16;

/// Number of bytes needed to detect the container: a TAR header.
const HEAD_LEN: u64 = 512;

/// Opens a checkpoint. Only its pickle is read; `name` appears in errors and in
/// [`CheckpointReader::files`](apr_core::CheckpointReader::files).
///
/// Tensors are named by their path, in order of appearance. Metadata holds `pytorch`, the plain
/// values by their path, and [`keys::TIED`], which maps each tensor that is another one under a
/// second name to the first.
///
/// # Errors
/// E001 for what is not a PyTorch file or wants to import anything unknown, E002 for a truncated or
/// contradictory one, E003 for big-endian, quantized and sparse ones, and compressions other than
/// DEFLATE, E004 for a pickle whose checksum is wrong, E007 when reading fails, E008 over a limit.
pub fn open<S: ByteSource + 'static>(source: S, name: &str, limits: &Limits) -> Result<Table> {
    open_with(source, name, limits, &OpenOptions::default())
}

/// Opens a checkpoint, or a part of one.
///
/// # Errors
/// Those of [`open`]; E001 when no tensor has the prefix.
pub fn open_with<S: ByteSource + 'static>(
    source: S,
    name: &str,
    limits: &Limits,
    options: &OpenOptions,
) -> Result<Table> {
    if name.ends_with(".distcp") {
        let message = "this is one file of a distributed checkpoint: open its folder, which \
                       contains .metadata";
        return Err(Error::format(message).in_file(name));
    }
    open_boxed(Box::new(source), name, limits, options)?.table()
}

pub(crate) fn open_boxed(
    source: Box<dyn ByteSource>,
    name: &str,
    limits: &Limits,
    options: &OpenOptions,
) -> Result<Opened> {
    let reader = read(source, name, limits, options);
    reader.map_err(|error| error.in_file(name))
}

fn read(
    source: Box<dyn ByteSource>,
    name: &str,
    limits: &Limits,
    options: &OpenOptions,
) -> Result<Opened> {
    let head = read_vec(&*source, 0, source.len().min(HEAD_LEN))?;

    // An archive without entries begins with its end record.
    let contents = if head.starts_with(b"PK\x03\x04") || head.starts_with(b"PK\x05\x06") {
        let (contents, source) = archive::read(source, options, limits)?;
        let origin = contents.origin.clone().unwrap_or_default();
        let reader = Opened::new(source, name, contents, options, limits);
        return reader.map_err(|error| origin.located(error));
    } else if tar::recognise(&head) {
        tar_checkpoint::read(&*source, options, limits)?
    } else if head.starts_with(&[0x80]) {
        let (contents, source) = legacy::read(source, options, limits)?;
        return Opened::new(source, name, contents, options, limits);
    } else {
        // Protocols 0 and 1 have no mark of their own; PyTorch never used them for a file,
        // attackers do.
        rest::check_rest(&*source, 0, source.len(), limits)?;
        return Err(Error::format(
            "this is not a PyTorch file: neither ZIP, TAR nor a pickle of protocol 2 or later",
        )
        .at(0));
    };

    Opened::new(source, name, contents, options, limits)
}

/// A checkpoint that is being opened. Shards become one, and tensors may be selected.
pub(crate) struct Opened {
    sources: Vec<SharedSource>,
    /// One for each source.
    files: Vec<FileInfo>,
    pub(crate) tensors: Vec<TensorInfo>,
    /// One for each tensor.
    #[expect(clippy::vec_box, reason = "the table takes over the boxes")]
    places: Vec<Box<StoredTensor>>,
    metadata: Metadata,
    header_fields: Map<String, Value>,
    left_out: Vec<String>,
    pub(crate) warnings: Vec<String>,
    /// The files of TorchScript's program, in the first source.
    code: Vec<(String, Entry)>,
    limits: Limits,
}

/// A tensor of a checkpoint.
#[derive(Clone)]
struct StoredTensor {
    file: usize,
    content: Content,
    /// Offsets in the file of its scales or indices.
    beside: Vec<u64>,
    storages: Arc<Storages>,
}

/// The storages of a file.
struct Storages {
    /// CRC-32 of storages, by offset and length.
    checksums: BTreeMap<(u64, u64), u32>,
    /// Mapping of the source to the file.
    origin: ContentOrigin,
}

impl Opened {
    /// The shards of one checkpoint as if they were one file. There is at least one, and no name is
    /// in two of them.
    pub(crate) fn join(shards: Vec<Self>) -> Self {
        let mut shards = shards.into_iter();
        let mut joined = shards.next().unwrap_or_else(|| unreachable!("an index names a shard"));
        joined.warnings = joined.shard_warnings();
        for shard in shards {
            let file = joined.files.len();
            joined.warnings.extend(shard.shard_warnings());
            joined.places.extend(shard.places.into_iter().map(|mut place| {
                place.file += file;
                place
            }));
            joined.sources.extend(shard.sources);
            joined.files.extend(shard.files);
            joined.tensors.extend(shard.tensors);
            joined.left_out.extend(shard.left_out);
            for key in [VALUES, keys::TIED] {
                let Some(Value::Object(more)) = shard.metadata.get(key).cloned() else { continue };
                let mut all = joined.metadata.object(key).cloned().unwrap_or_default();
                for (name, value) in more {
                    all.entry(name).or_insert(value);
                }
                joined.metadata.set(key, all);
            }
        }

        joined
    }

    /// Keeps the tensors under a prefix, and takes it off their names.
    pub(crate) fn select(mut self, prefix: &str) -> Result<Self> {
        let positions =
            (0..).zip(&self.tensors).map(|(position, info)| (info.name.clone(), position));
        let kept = strip(positions.collect(), prefix, 0, &mut self.warnings)?;
        self.tensors = kept
            .iter()
            .map(|(name, at)| TensorInfo { name: name.clone(), ..self.tensors[*at].clone() })
            .collect();
        self.places = kept.iter().map(|(_, at)| self.places[*at].clone()).collect();
        self.metadata.remove(keys::TIED);
        self.tie();
        Ok(self)
    }

    /// Notes which tensors are another one under a second name.
    fn tie(&mut self) {
        let mut first = HashMap::new();
        let mut tied = Map::new();
        for (position, (info, place)) in self.tensors.iter().zip(&self.places).enumerate() {
            // Empty tensors share no bytes, wherever they lie.
            if let Some(identity) = place.content.identity().filter(|_| place.content.len() > 0) {
                let owner = *first
                    .entry((place.file, identity, info.dtype, &info.shape))
                    .or_insert(position);
                if owner < position {
                    tied.insert(info.name.clone(), self.tensors[owner].name.clone().into());
                }
            }
        }

        if !tied.is_empty() {
            self.metadata.set(keys::TIED, tied);
        }
    }

    fn shard_warnings(&self) -> Vec<String> {
        let name = Escaped::short(&self.files[0].name);
        self.warnings.iter().map(|warning| format!("{name}: {warning}")).collect()
    }

    /// Returns the table of the checkpoint.
    pub(crate) fn table(self) -> Result<Table> {
        let mut table = Table::new(&crate::FORMAT);
        for (file, source) in self.files.into_iter().zip(self.sources) {
            table.add_file(file, source);
        }
        for (info, place) in self.tensors.into_iter().zip(self.places) {
            table.add(info, TensorBytes::Decoded(place))?;
        }
        table.metadata = self.metadata;
        table.fields = self.header_fields;
        table.left_out = self.left_out;
        table.warnings = self.warnings;
        for (name, entry) in self.code {
            let (companion, limits) = (Companion { name, len: entry.len }, self.limits);
            table.offer(companion, move |sources| entry.content(&*sources[0], &limits));
        }
        Ok(table)
    }

    fn new(
        source: Box<dyn ByteSource>,
        name: &str,
        mut contents: Contents,
        options: &OpenOptions,
        limits: &Limits,
    ) -> Result<Self> {
        let prefix = options.prefix.as_deref().unwrap_or_default();
        let Flat { tensors: mut paths, values, dropped, outside, arrays, array } =
            flatten(&contents.heap, contents.root, prefix, limits)?;
        let mut warnings = std::mem::take(&mut contents.warnings);
        let kind;
        if options.prefix.is_some() {
            kind = trainer::recognise(&contents.heap, contents.root).map(|trainer| trainer.name);
            paths = strip(paths, prefix, outside, &mut warnings)?;
        } else {
            let found = trainer::weights(&contents.heap, contents.root, paths);
            (kind, paths) = (found.kind, found.tensors);
            contents.left_out.extend(found.left_out);
            warnings.extend(found.warning);
            let key = found.key.map(|key| (apr_core::WEIGHTS_KEY.to_owned(), key.into()));
            contents.header_fields.extend(key);
        }
        if let Some(kind) = kind {
            contents.header_fields.insert("kind".into(), kind.into());
        }

        if dropped > 0 {
            warnings.push(format!(
                "{dropped} values of the pickle are too many or too long to be kept as metadata"
            ));
        }

        if let Some(array) = array {
            let array = Escaped::short(&array);
            warnings.push(match arrays {
                1 => format!("the NumPy array '{array}' is not read"),
                _ => format!("{arrays} NumPy arrays are not read, the first is '{array}'"),
            });
        }

        let (mut tensors, mut places) = (Vec::new(), Vec::new());
        let mut metadata = Metadata::new();
        let mut names = HashSet::new();
        let mut places_budget = limits.max_index;
        let origin = contents.origin.take().unwrap_or_else(|| ContentOrigin::whole(source.len()));
        let file_len = origin.file_len;
        let mut budget = file_len.saturating_mul(MAX_GROWTH).saturating_add(FREE_BYTES);
        let constants = contents.constants.take();
        let mut of_program = Vec::new();
        if let Some(constants) = &constants {
            let found = flatten(&constants.heap, constants.root, "", limits)?;
            let named = |(path, tensor)| (format!("CONSTANTS.c{path}"), tensor);
            of_program.extend(found.tensors.into_iter().map(named));
            contents.checksums.extend(&constants.checksums);
        }
        let checksums = std::mem::take(&mut contents.checksums).into_iter().collect();
        let storages = Arc::new(Storages { checksums, origin });
        let of_program = constants.iter().flat_map(|constants| {
            of_program.iter().map(|(name, found)| (&**constants, name.clone(), *found))
        });
        let paths = paths.into_iter().map(|(name, found)| (&contents, name, found));
        for (contents, name, found) in paths.chain(of_program) {
            let beside = contents.beside(&found).map_err(|error| error.for_tensor(&name))?;
            let (dtype, shape, content) = contents
                .content(&*source, found, &mut places_budget)
                .map_err(|error| error.for_tensor(&name))?;
            if !names.insert(name.clone()) {
                return Err(
                    Error::format("the checkpoint has two tensors of this name").for_tensor(name)
                );
            }

            budget = budget.checked_sub(content.cost()).ok_or_else(|| {
                let message = "reading the tensors up to this one takes more than 16 times the \
                    file's length, and over 1 GiB";
                Error::memory(message).for_tensor(&name)
            })?;
            let info = TensorInfo { name, dtype, shape: Shape::from(shape) };
            tensors.push(info);
            let storages = Arc::clone(&storages);
            places.push(Box::new(StoredTensor { file: 0, content, beside, storages }));
        }

        if !values.is_empty() {
            metadata.set(VALUES, values);
        }
        warnings.extend(trainer::without_elements(kind, &tensors));

        let files = vec![FileInfo { name: name.to_owned(), len: file_len }];
        let header_fields = contents.header_fields;
        let mut opened = Self {
            sources: vec![source.into()],
            files,
            tensors,
            places,
            metadata,
            header_fields,
            left_out: contents.left_out,
            warnings,
            code: contents.code.into_iter().collect(),
            limits: *limits,
        };

        opened.tie();
        opened.warnings.extend(overlaps::warning(
            opened.tensors.iter().zip(opened.places.iter().map(|place| &place.content)),
        ));
        Ok(opened)
    }
}

/// The tensors under a prefix, without it; `outside` it were others already.
fn strip<T>(
    paths: Vec<(String, T)>,
    prefix: &str,
    outside: usize,
    warnings: &mut Vec<String>,
) -> Result<Vec<(String, T)>> {
    let (all, example) = (paths.len() + outside, paths.first().map(|(name, _)| name.clone()));
    let under = |(name, tensor): (String, T)| {
        let rest = name.strip_prefix(prefix).filter(|rest| !rest.is_empty())?;
        Some((rest.to_owned(), tensor))
    };
    let kept: Vec<_> = paths.into_iter().filter_map(under).collect();
    let shown = Escaped::short(prefix);
    if let Some(example) = example.filter(|_| kept.is_empty()) {
        let example = Escaped::short(&example);
        return Err(Error::format(format!(
            "no tensor's name starts with '{shown}'; the first one is '{example}'"
        )));
    }

    if kept.len() < all {
        warnings.push(format!("{} tensors outside '{shown}' are not read", all - kept.len()));
    }

    Ok(kept)
}

impl StoredTensor {
    /// The storages that the tensor is made of and that have a checksum.
    fn parts<'a>(&self, sources: &'a [SharedSource]) -> Vec<StoredPart<'a>> {
        let Self { file, content, beside, storages } = self;
        if content.len() == 0 {
            return Vec::new();
        }

        let around = |&at: &u64| {
            // The last storage that begins at this place or before it.
            let (&(offset, len), &crc32) =
                storages.checksums.range(..=(at, u64::MAX)).next_back()?;
            let range = StoredRange { file: *file, offset, len };
            let place = self.place(offset, len);
            (at - offset < len).then(|| {
                StoredPart::of_file(&*sources[*file], range, Sum::Crc32(crc32)).lying_at(place)
            })
        };

        let mut parts: Vec<_> =
            std::iter::once(&content.view().offset).chain(beside).filter_map(around).collect();
        parts.sort_by_key(|part| part.range.offset);
        parts.dedup_by_key(|part| part.range.offset);
        parts
    }

    /// Returns the range in the file for a range of its source.
    ///
    /// For compressed entries, it is the range of the compressed bytes.
    fn place(&self, offset: u64, len: u64) -> StoredRange {
        let Range { offset, len } = self.storages.origin.place(Range { offset, len });
        StoredRange { file: self.file, offset, len }
    }
}

impl TensorDecoder for StoredTensor {
    /// For a tensor that is not contiguous, this is the range from its first element to its last.
    fn range(&self) -> StoredRange {
        let view = self.content.view();
        self.place(view.offset, view.span)
    }

    fn read(&self, sources: &[SharedSource], offset: u64, buf: &mut [u8]) -> Result<()> {
        self.content.read(&*sources[self.file], offset, buf)
    }

    fn stored<'a>(&'a self, sources: &'a [SharedSource]) -> Stored<'a> {
        let Storages { checksums, origin } = &*self.storages;
        match &self.content {
            Content::Stored(view) if view.is_flat() && origin.is_verbatim(view.offset) => {
                // The checksum is that of the storage, for a tensor that is all of it.
                let own = checksums.get(&(view.offset, view.len)).copied();
                let parts = if own.is_none() { self.parts(sources) } else { Vec::new() };
                Stored::plain(self.range()).with_crc32(own).with_parts(parts)
            }
            _ => Stored::derived(self.range()).with_parts(self.parts(sources)),
        }
    }

    fn slice<'a>(&'a self, sources: &'a [SharedSource]) -> Option<&'a [u8]> {
        match &self.content {
            Content::Stored(view) if view.is_flat() => {
                sources[self.file].slice_at(view.offset, view.len)
            }
            _ => None,
        }
    }
}
