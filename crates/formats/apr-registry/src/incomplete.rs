//! Sharded models of which a shard is absent or damaged, and archives of which an entry is damaged,
//! opened for reports.
//!
//! The rule is that of sharded `.apr` models: a report describes and checks the shards that are
//! there and lists the others. Of an archive, the entries that can be read count as one shard, and
//! each damaged one as another. Nothing is computed from such a model, because reading a tensor of
//! it fails with the error of the first of the others.

use std::collections::BTreeMap;

use apr_core::{
    Absence, CheckpointReader, Code, ContainerFacts, Error, FileInfo, Format, IoCause, Limits,
    Metadata, Result, ShardIndex, SourceSet, Stored, StoredRange, TensorInfo, absence_warning,
    has_no, has_own,
};
use serde_json::{Value, json};

use crate::formats::{Bytes, Reader};

/// A model with the shards that could be opened.
pub(crate) struct Incomplete {
    format: &'static Format,
    shards: Vec<Result<Reader>>,
    /// Number of tensors in the shards that could not be opened.
    absent: u64,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    /// Shard of each of `tensors`, and its position there.
    places: Vec<(usize, usize)>,
    files: Vec<FileInfo>,
    warnings: Vec<String>,
    fields: Value,
}

/// Returns `true` if an error of a shard is no reason to withhold a report on the others.
fn may_be_of_a_shard(error: &Error) -> bool {
    matches!(error.code(), Code::Io | Code::Corrupt | Code::Checksum | Code::Format)
}

impl Incomplete {
    /// Opens the shards that an index lists. `whole` is the error of opening all of them.
    ///
    /// # Errors
    /// `whole`, if it is not the error of a shard, or if no shard can be opened.
    pub(crate) fn of_index(
        (json, name): (&[u8], &str),
        set: &dyn SourceSet,
        limits: &Limits,
        whole: Error,
        open: impl Fn(Bytes, &str) -> Result<Reader>,
    ) -> Result<Self> {
        if !may_be_of_a_shard(&whole) {
            return Err(whole);
        }
        let Ok(index) = ShardIndex::<Value>::parse(json, name, limits) else {
            return Err(whole);
        };
        let names = index.shards().iter().map(String::as_str);
        let open = |shard: &str| {
            open(set.open(shard).map_err(|error| index.asked_for(shard, error))?, shard)
        };
        let mut listed: BTreeMap<&str, u64> = BTreeMap::new();
        index.weights().for_each(|(_, shard)| *listed.entry(shard).or_default() += 1);
        let absent = |shards: &[Result<Reader>]| {
            let failed = index.shards().iter().zip(shards).filter(|(_, shard)| shard.is_err());
            failed.filter_map(|(name, _)| listed.get(name.as_str())).sum()
        };
        Self::of(names, open, absent, whole)
    }

    /// Opens the parts of a split GGUF model of which `named` is one. `whole` is the error of
    /// opening all of them.
    ///
    /// # Errors
    /// `whole`, if it is not the error of a part, or if no part can be opened.
    #[cfg(feature = "gguf")]
    pub(crate) fn of_parts(
        named: &str,
        set: &dyn SourceSet,
        limits: &Limits,
        whole: Error,
    ) -> Result<Self> {
        /// Maximum number of parts that are looked for. Each takes a call of the system.
        const MOST: usize = 10_000;

        let names = apr_gguf::part_names(named).filter(|names| names.len() <= MOST);
        let Some(names) = names.filter(|_| may_be_of_a_shard(&whole)) else { return Err(whole) };
        let all = std::cell::Cell::new(None);
        let open = |part: &str| -> Result<Reader> {
            let source = set.open(part).map_err(|error| apr_gguf::asked_for(error, part, named))?;
            let (reader, tensors) = apr_gguf::open_part(source, part, limits)?;
            all.set(all.get().or(tensors));
            Ok(Box::new(reader))
        };
        let absent = |parts: &[Result<Reader>]| {
            let present = parts.iter().flatten().map(|part| part.tensors().len() as u64).sum();
            all.get().map_or(0, |all: u64| all.saturating_sub(present))
        };
        Self::of(names.iter().map(String::as_str), open, absent, whole)
    }

    fn of<'n>(
        names: impl Iterator<Item = &'n str> + Clone,
        open: impl Fn(&str) -> Result<Reader>,
        absent: impl Fn(&[Result<Reader>]) -> u64,
        whole: Error,
    ) -> Result<Self> {
        let opened = |name| open(name).map_err(|error| error.in_file(name));
        let shards: Vec<Result<Reader>> = names.clone().map(opened).collect();
        let is_memory = |error: &&Error| error.code() == Code::Memory;
        if let Some(error) = shards.iter().filter_map(|shard| shard.as_ref().err()).find(is_memory)
        {
            return Err(error.clone());
        }
        let errors: Vec<&Error> = shards.iter().filter_map(|shard| shard.as_ref().err()).collect();
        let Some(first) = shards.iter().flatten().next() else { return Err(whole) };
        // If all of them open, they contradict the index or one another.
        let Some(warning) = absence_warning(&errors, shards.len()) else { return Err(whole) };

        let (mut tensors, mut places) = (Vec::new(), Vec::new());
        for (shard, reader) in shards.iter().enumerate() {
            let Ok(reader) = reader else { continue };
            places.extend((0..reader.tensors().len()).map(|tensor| (shard, tensor)));
            tensors.extend_from_slice(reader.tensors());
        }
        let file = |(shard, name): (&Result<Reader>, &str)| match shard {
            Ok(reader) => reader.files().first().cloned(),
            Err(_) => Some(FileInfo { name: name.to_owned(), len: 0 }),
        };
        Ok(Self {
            format: first.format(),
            absent: absent(&shards),
            metadata: first.metadata().clone(),
            tensors,
            places,
            files: shards.iter().zip(names).filter_map(file).collect(),
            warnings: vec![warning],
            fields: json!({ "shards": shards.len() }),
            shards,
        })
    }

    /// Returns the reader of an archive, or what can be read of it for a report, if entries of it
    /// are damaged. `damage` has their errors, and `absent` tensors are in them.
    ///
    /// # Errors
    /// The error of the first damaged entry, unless the options ask for reports.
    #[cfg(any(feature = "numpy", feature = "keras"))]
    pub(crate) fn unless_whole(
        reader: Reader,
        damage: Vec<Error>,
        absent: u64,
        options: &crate::OpenOptions,
    ) -> Result<Reader> {
        let Some(first) = damage.first() else { return Ok(reader) };
        if !options.absent_shards {
            return Err(first.clone());
        }
        let warning = match damage.len() {
            1 => format!("an entry of the archive can't be read: {first}"),
            entries => {
                format!("{entries} entries of the archive can't be read; the first: {first}")
            }
        };
        let warnings = reader.warnings().iter().cloned().chain([warning]).collect();
        let file = reader.files().first().cloned();
        let files = file.into_iter().cycle().take(damage.len() + 1).collect();
        Ok(Box::new(Self {
            format: reader.format(),
            absent,
            metadata: reader.metadata().clone(),
            tensors: reader.tensors().to_vec(),
            places: (0..reader.tensors().len()).map(|tensor| (0, tensor)).collect(),
            files,
            warnings,
            fields: reader.container().header_fields(),
            shards: std::iter::once(Ok(reader)).chain(damage.into_iter().map(Err)).collect(),
        }))
    }

    /// Returns the error of the first shard that could not be opened.
    fn error(&self) -> Error {
        let none = || Error::io(IoCause::NotFound, "a shard can't be read");
        self.shards.iter().find_map(|shard| shard.as_ref().err().cloned()).unwrap_or_else(none)
    }
}

impl CheckpointReader for Incomplete {
    has_own!(metadata, tensors, container, files, warnings);
    has_no!(companions, left_out, slices);

    fn format(&self) -> &'static Format {
        self.format
    }

    fn stored(&self, tensor: usize) -> Stored<'_> {
        let (shard, position) = self.places[tensor];
        match &self.shards[shard] {
            Ok(reader) => reader.stored(position).in_file(shard),
            Err(_) => Stored::derived(StoredRange { file: shard, offset: 0, len: 0 }),
        }
    }

    /// Fails for all tensors, so that nothing is computed from a part of the model. The
    /// [shards](apr_core::Container::shard) can be read.
    fn read_tensor(&self, tensor: usize, _offset: u64, _buf: &mut [u8]) -> Result<()> {
        Err(self.error().for_tensor(&self.tensors[tensor].name))
    }
}

impl ContainerFacts for Incomplete {
    fn header_fields(&self) -> Value {
        self.fields.clone()
    }

    fn shard_count(&self) -> usize {
        self.shards.len()
    }

    fn shard(&self, shard: usize) -> Result<&dyn CheckpointReader> {
        match self.shards.get(shard) {
            Some(opened) => Ok(&**opened.as_ref().map_err(Error::clone)?),
            None => Err(Error::format(format!("no shard {shard}"))),
        }
    }

    fn absence(&self) -> Option<Absence> {
        Some(Absence { error: self.error(), tensors: self.absent })
    }
}
