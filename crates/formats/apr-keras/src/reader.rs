//! A file as a checkpoint.

use std::collections::HashMap;
use std::sync::Arc;

use apr_archive::{Archive, EntrySum, Section};
use apr_core::{
    ByteSource, CheckpointReader, Code, DType, Error, Escaped, HEAD_LEN, Limits, Result, Shape,
    SharedSource, Stored, StoredRange, Table, TensorBytes, TensorDecoder, TensorInfo, UniqueNames,
    counted, read_vec,
};
use serde_json::{Map, Value};

use crate::hdf5::{ChunkReader, Dataset, Datatype, File, Place, Shared, fill, find_signature};
use crate::names::{Numbered, is_of_optimizer, of_layer};
use crate::walk::{Contents, Found};
use crate::{ARCHIVE, HDF5, METADATA};

/// A file of HDF5.
struct Part {
    file: File<'static>,
    /// Offset in the opened file; `None` if the part is compressed.
    start: Option<u64>,
    /// Checksum in the archive's entry, and the decoded archive.
    entry: Option<(EntrySum, Shared<'static>)>,
}

/// A dataset, with its chunk reader.
struct Weight {
    part: Arc<Part>,
    dataset: Dataset,
    /// Bytes of the tensor.
    len: u64,
    chunks: Option<ChunkReader>,
    /// Bytes that are reversed together for big-endian data; 1 for other data.
    swapped: usize,
}

/// Opens weights or a model: an HDF5 file, or an archive of Keras 3. Structures are read, no
/// weights.
///
/// # Errors
/// E001 for what is neither, E002 for a damaged file, E003 for one whose values no format here
/// holds, E004 for an entry that does not match its checksum, E007 when reading fails, E008 over a
/// limit.
pub fn open<S: ByteSource + 'static>(source: S, name: &str, limits: &Limits) -> Result<Table> {
    let (table, damage) = open_damaged(source, name, limits)?;
    damage.into_iter().next().map_or(Ok(table), Err)
}

/// Opens a file like [`open`]; returns the errors of damaged entries of an archive beside the
/// weights of the others.
///
/// # Errors
/// Those of [`open`] that are not of an entry alone, and the first of those if no weights are left.
pub fn open_damaged<S: ByteSource + 'static>(
    source: S,
    name: &str,
    limits: &Limits,
) -> Result<(Table, Vec<Error>)> {
    let opened = open_shared(Arc::new(source), name, limits);
    let (table, damage) = opened.map_err(|error| error.in_file(name))?;
    Ok((table, damage.into_iter().map(|error| error.in_file(name)).collect()))
}

fn open_shared(
    source: Shared<'static>,
    name: &str,
    limits: &Limits,
) -> Result<(Table, Vec<Error>)> {
    let head = read_vec(&source, 0, source.len().min(HEAD_LEN))?;
    let mut opened = Opened::default();
    let format = if find_signature(&source)?.is_some() {
        opened.add(Arc::clone(&source), (Some(0), None), "", limits)?;
        &HDF5
    } else if head.starts_with(b"PK\x03\x04") {
        opened.add_archive(&source, limits)?;
        &ARCHIVE
    } else {
        return Err(Error::format("neither an HDF5 file nor an archive of Keras").at(0));
    };
    let damage = std::mem::take(&mut opened.damage);
    Ok((opened.finish(Table::of_file(format, name, source))?, damage))
}

/// A file that is being opened.
#[derive(Default)]
struct Opened {
    parts: Vec<Arc<Part>>,
    contents: Vec<Contents>,
    fields: Map<String, Value>,
    left_out: Vec<String>,
    warnings: Vec<String>,
    /// Errors of damaged entries of an archive.
    damage: Vec<Error>,
}

/// Returns `true` if an error is about the bytes of an entry.
fn is_damage(error: &Error) -> bool {
    matches!(error.code(), Code::Checksum | Code::Corrupt)
}

impl Opened {
    fn add(
        &mut self,
        source: Shared<'static>,
        (start, entry): (Option<u64>, Option<(EntrySum, Shared<'static>)>),
        name: &str,
        limits: &Limits,
    ) -> Result<()> {
        let located = |error: Error| match name {
            "" => error,
            _ => Error::new(error.code(), format!("'{}': {error}", Escaped::short(name))),
        };
        let read = |source| {
            let file = File::open(source, limits)?;
            Contents::of(&file).map(|contents| (file, contents))
        };
        let (file, mut contents) = read(source).map_err(located)?;
        let skipped = &mut contents.skipped;
        let more = skipped.count - skipped.listed.len();
        self.left_out.append(&mut skipped.listed);
        self.left_out.extend((more > 0).then(|| format!("{more} more links")));
        self.warnings.append(&mut contents.warnings);
        for (key, value) in &contents.texts {
            self.describe(key, value.as_bytes(), limits)?;
        }
        self.contents.push(contents);
        self.parts.push(Arc::new(Part { file, start, entry }));
        Ok(())
    }

    /// A `.keras` file: configuration, versions, and weights in one file or in several.
    fn add_archive(&mut self, source: &Shared<'static>, limits: &Limits) -> Result<()> {
        let mut archive = Archive::read(source, limits)?;
        let decoded: Shared<'static> = Arc::new(archive.decoded(Arc::clone(source))?);
        for entry in archive.entries.iter().filter(|entry| !entry.name.ends_with('/')) {
            match entry.name.as_str() {
                name @ ("config.json" | "metadata.json") => {
                    let json = match entry.content(&decoded, limits) {
                        Err(error) if is_damage(&error) => {
                            self.damage.push(error);
                            continue;
                        }
                        content => content?,
                    };
                    let key = if name == "config.json" { "model_config" } else { "versions" };
                    self.describe(key, &json, limits)?;
                }
                name if name.ends_with(".h5") => {
                    entry.check_packing()?;
                    let section = Section::new(Arc::clone(&decoded), entry.offset, entry.len)?;
                    let start = entry.is_stored().then_some(entry.place);
                    let sum = (entry.sum(0), Arc::clone(&decoded));
                    if let Err(error) =
                        self.add(Arc::new(section), (start, Some(sum)), name, limits)
                    {
                        // What damage looks like is no reason of its own.
                        match entry.check_crc(&decoded) {
                            Err(damage) if is_damage(&damage) => self.damage.push(damage),
                            compared => return compared.and(Err(error)),
                        }
                    }
                }
                // Which file has which variable follows from the files.
                "model.weights.json" => {}
                name => self.left_out.push(Escaped::short(name).to_string()),
            }
        }
        if self.parts.is_empty() {
            let none = "missing *.weights.h5 in the archive";
            return Err(self.damage.first().cloned().unwrap_or_else(|| Error::format(none)));
        }
        Ok(())
    }

    /// Stores the file's description of the model.
    fn describe(&mut self, key: &str, value: &[u8], limits: &Limits) -> Result<()> {
        limits.check_metadata(value.len() as u64)?;
        let value: Value = match (key, serde_json::from_slice(value)) {
            ("backend" | "keras_version", _) => String::from_utf8_lossy(value).into(),
            (_, Ok(value)) => value,
            (_, Err(error)) => {
                self.warnings
                    .push(format!("its {key} is not valid JSON: {}", apr_core::foreign(&error)));
                return Ok(());
            }
        };
        match (key, value) {
            ("versions", Value::Object(versions)) => self.fields.extend(versions),
            (key, value) => drop(self.fields.insert(key.to_owned(), value)),
        }
        Ok(())
    }

    fn finish(mut self, mut table: Table) -> Result<Table> {
        let names = self.names();
        let mut weights: Vec<(usize, String, Weight)> = Vec::new();
        let mut refused: Vec<Error> = Vec::new();
        let (mut of_optimizer, mut unique) = (0, UniqueNames::of_tensors());
        for (part, contents) in self.contents.into_iter().enumerate() {
            for Found { path, dataset, dtype } in contents.found {
                if is_of_optimizer(&path) {
                    of_optimizer += 1;
                    continue;
                }
                let name = match names.get(&path) {
                    Some(name) => name.as_str(),
                    None if contents.lists_layers => of_layer(&path),
                    None => &path,
                };
                let name = unique.unique(name.to_owned());
                let weight = dataset
                    .and_then(|dataset| Weight::new(&self.parts[part], dataset, dtype.as_deref()));
                match weight {
                    Ok(weight) => weights.push((part, name, weight)),
                    Err(error) => refused.push(error.for_tensor(name)),
                }
            }
        }

        // As they lie in the file, which is the order of the layers.
        weights.sort_by_key(|(part, _, weight)| (*part, weight.place()));
        for (_, name, weight) in weights {
            let shape = Shape::from(weight.dataset.dims.clone());
            let info = TensorInfo { name, dtype: weight.dtype(), shape };
            // A tensor of an impossible length is listed, and not read.
            let len = info.byte_len().unwrap_or_default();
            let bytes = TensorBytes::decoded(Weight { len, ..weight });
            table.add(info, bytes)?;
        }
        if of_optimizer > 0 {
            let what = counted(of_optimizer, "variable");
            self.left_out.push(format!("the optimizer's state ({what})"));
        }
        table.left_out = self.left_out;
        table.leave_out(refused)?;
        table.warnings = self.warnings;
        show(&mut table, &self.fields);
        if !self.fields.is_empty() {
            table.metadata.set(METADATA, self.fields);
        }
        Ok(table)
    }

    /// Names of the variables that a file of Keras 3 numbers, by their paths.
    fn names(&self) -> HashMap<String, String> {
        let mut named = HashMap::new();
        for contents in &self.contents {
            named.extend(contents.named.iter().map(|(path, name)| (path.clone(), name.clone())));
        }
        let found = || self.contents.iter().flat_map(|contents| &contents.found);
        let paths = found().map(|found| found.path.as_str());
        let paths = paths.filter(|path| !is_of_optimizer(path));
        let names = Numbered::new(&named, self.fields.get("model_config")).names(paths);
        names.into_iter().map(|(path, name)| (path.to_owned(), name)).collect()
    }
}

impl Weight {
    fn new(part: &Arc<Part>, mut dataset: Dataset, dtype: Option<&str>) -> Result<Self> {
        if dataset.datatype == Datatype::Opaque(2) {
            if dtype != Some("bfloat16") {
                return Err(Error::version("no format here holds elements of opaque bytes"));
            }
            dataset.datatype = Datatype::Number { dtype: DType::BF16, is_big_endian: false };
        }
        let Datatype::Number { dtype, is_big_endian } = dataset.datatype else {
            return Err(Error::version("no format here holds its elements"));
        };
        // The two halves of a complex number are turned around each by itself.
        let whole = if dtype == DType::C64 { 4 } else { dtype.block_bytes() };
        let swapped = if is_big_endian { usize::try_from(whole).unwrap_or(1) } else { 1 };
        let is_chunked = matches!(dataset.place, Place::Chunked(_));
        let chunks = is_chunked.then(|| ChunkReader::new(&dataset, dtype.block_bytes()));
        Ok(Self { part: Arc::clone(part), dataset, len: 0, chunks, swapped })
    }

    fn dtype(&self) -> DType {
        match self.dataset.datatype {
            Datatype::Number { dtype, .. } => dtype,
            _ => DType::U8,
        }
    }

    /// Returns the offset of the bytes, in the order in which they are read.
    fn place(&self) -> u64 {
        if let Place::Flat(place) = self.dataset.place { place } else { u64::MAX }
    }

    /// Returns `true` if the file has the tensor's bytes unchanged.
    fn is_flat(&self) -> bool {
        self.swapped == 1 && matches!(self.dataset.place, Place::Flat(_))
    }

    /// Reads bytes as the file has them.
    fn read_stored(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let file = &self.part.file;
        match (&self.dataset.place, &self.chunks) {
            (Place::Flat(place), _) => file.source.read_at(place.saturating_add(offset), buf),
            (_, Some(chunks)) => chunks.read(file, &self.dataset, offset, buf),
            _ => {
                fill(buf, &self.dataset.fill, offset);
                Ok(())
            }
        }
    }
}

impl TensorDecoder for Weight {
    fn range(&self) -> StoredRange {
        match (self.part.start, &self.dataset.place) {
            (Some(start), Place::Flat(place)) => {
                StoredRange { file: 0, offset: start.saturating_add(*place), len: self.len }
            }
            (start, _) => {
                let len = self.len.min(self.part.file.source.len());
                StoredRange { file: 0, offset: start.unwrap_or_default(), len }
            }
        }
    }

    /// Reads bytes in little-endian order.
    fn read(&self, _: &[SharedSource], offset: u64, buf: &mut [u8]) -> Result<()> {
        if self.swapped == 1 {
            return self.read_stored(offset, buf);
        }
        // A range may begin or end within a number.
        let width = self.swapped as u64;
        let (start, end) = (offset / width * width, offset + buf.len() as u64);
        let len = end.next_multiple_of(width) - start;
        let mut whole = vec![0; usize::try_from(len).unwrap_or_default()];
        self.read_stored(start, &mut whole)?;
        whole.chunks_exact_mut(self.swapped).for_each(<[u8]>::reverse);
        let from = usize::try_from(offset - start).unwrap_or_default();
        buf.copy_from_slice(&whole[from..from + buf.len()]);
        Ok(())
    }

    fn stored<'a>(&'a self, _: &'a [SharedSource]) -> Stored<'a> {
        let sum = self.part.entry.iter().map(|(sum, archive)| sum.part(&**archive)).collect();
        let stored = match self.part.start.is_some() && self.is_flat() {
            true => Stored::plain(self.range()),
            false => Stored::derived(self.range()),
        };
        stored.with_parts(sum)
    }

    fn slice<'a>(&'a self, _: &'a [SharedSource]) -> Option<&'a [u8]> {
        self.is_flat().then(|| self.part.file.source.slice_at(self.place(), self.len))?
    }
}

/// Shows the file's description of the model.
fn show(table: &mut Table, fields: &Map<String, Value>) {
    table.show("container", table.format().id);
    // Its configuration is long, and the metadata has it.
    for key in ["keras_version", "backend", "date_saved"] {
        if let Some(value) = fields.get(key) {
            table.show(key, value.clone());
        }
    }
    let class = fields.get("model_config").and_then(|own| own.get("class_name"));
    if let Some(class) = class {
        table.show("class_name", class.clone());
    }
}
