//! NumPy's files as checkpoints.

use std::fmt;
use std::sync::Arc;

use apr_archive::{Archive, Cache, EntrySum};
use apr_core::{
    ByteSource, CheckpointReader, Code, ContainerFacts, Error, Escaped, FileInfo, Format, Limits,
    Metadata, Result, Shape, Stored, StoredRange, TensorInfo, check_range, has_no, has_own,
};
use serde_json::{Value, json};

use crate::array::Array;
use crate::header;
use crate::{NPY, NPZ};

/// Name for the array of a `.npy` file, which has no name of its own.
const ONLY: &str = "array";

/// NumPy's arrays opened for reading; [`open`] makes it.
pub struct NumpyReader {
    source: Box<dyn ByteSource>,
    format: &'static Format,
    files: Vec<FileInfo>,
    tensors: Vec<TensorInfo>,
    /// One for each tensor.
    places: Vec<ArrayLocation>,
    metadata: Metadata,
    fields: Value,
    left_out: Vec<String>,
    warnings: Vec<String>,
}

/// Position of an array.
#[derive(Debug)]
struct ArrayLocation {
    array: Array,
    /// Range of the elements in the file, or of the compressed bytes that hold them.
    range: StoredRange,
    /// Checksum of the archive entry that holds the array, and whether the entry is stored
    /// uncompressed.
    entry: Option<(EntrySum, bool)>,
}

/// Opens a `.npy` or `.npz` file. Only headers are read.
///
/// # Errors
/// E001 for what is not NumPy's or holds objects, E002 for a damaged file, E003 for arrays of other
/// things than numbers, E004 for an entry that does not match its checksum, E007 when reading
/// fails, E008 over a limit.
pub fn open<S: ByteSource + 'static>(
    source: S,
    name: &str,
    limits: &Limits,
) -> Result<NumpyReader> {
    let (reader, damage) = open_damaged(source, name, limits)?;
    damage.into_iter().next().map_or(Ok(reader), Err)
}

/// Opens a file like [`open`]; returns the errors of damaged entries beside the arrays of the
/// others.
///
/// # Errors
/// Those of [`open`] that are not of an entry alone.
pub fn open_damaged<S: ByteSource + 'static>(
    source: S,
    name: &str,
    limits: &Limits,
) -> Result<(NumpyReader, Vec<Error>)> {
    let mut magic = [0; 4];
    let is_archive = source.read_at(0, &mut magic).is_ok() && magic == *b"PK\x03\x04";
    let source: Box<dyn ByteSource> = Box::new(source);
    let opened = if is_archive {
        open_archive(source, name, limits)
    } else {
        open_array(source, name).map(|reader| (reader, Vec::new()))
    };
    let (reader, damage) = opened.map_err(|error| error.in_file(name))?;
    Ok((reader, damage.into_iter().map(|error| error.in_file(name)).collect()))
}

fn open_array(source: Box<dyn ByteSource>, name: &str) -> Result<NumpyReader> {
    let array = Array::new(header::read(&*source)?, 0, source.len())?;
    let end = array.offset + array.len;
    let warnings = match source.len() - end {
        0 => Vec::new(),
        more => vec![format!("{more} bytes after the array are not read")],
    };
    let range = StoredRange { file: 0, offset: array.offset, len: array.len };
    let files = vec![FileInfo { name: name.to_owned(), len: source.len() }];
    let mut reader = NumpyReader::new(source, &NPY, files, json!({ "container": "npy" }));
    reader.add(ONLY.to_owned(), ArrayLocation { array, range, entry: None });
    reader.warnings = warnings;
    Ok(reader)
}

fn open_archive(
    source: Box<dyn ByteSource>,
    name: &str,
    limits: &Limits,
) -> Result<(NumpyReader, Vec<Error>)> {
    let mut archive = Archive::read(&*source, limits)?;
    let files = vec![FileInfo { name: name.to_owned(), len: source.len() }];
    let source: Arc<dyn ByteSource> = Arc::from(source);
    let decoded = archive.decoded(Arc::clone(&source))?;
    let fields = json!({ "container": "npz", "entries": archive.entries.len() });
    let mut reader = NumpyReader::new(Box::new(decoded), &NPZ, files, fields);
    let cache = Arc::new(Cache::default());
    let (mut refused, mut damaged) = (None, Vec::new());
    for entry in &archive.entries {
        let Some(array) = entry.name.strip_suffix(".npy") else {
            reader.left_out.push(Escaped::short(&entry.name).to_string());
            continue;
        };
        let read = entry.open(&source, &cache).and_then(|content| header::read(&*content));
        match read.and_then(|header| Array::new(header, entry.offset, entry.len)) {
            Ok(found) => reader.add(array.to_owned(), ArrayLocation::in_entry(found, entry)),
            Err(error) => {
                // An entry whose bytes are not those that were written is damaged, whether its
                // checksum or its stream shows it. Other entries can't be read here.
                let damage = entry.check_crc(&*reader.source).err();
                let is_damage = |code| matches!(code, Code::Checksum | Code::Corrupt);
                if let Some(damage) = damage.filter(|found| is_damage(found.code())) {
                    damaged.push(damage.for_tensor(array));
                    continue;
                }
                let error = error.for_tensor(array).at(entry.place);
                reader.warnings.push(format!(
                    "'{}' is not read: {}",
                    Escaped::short(array),
                    error.message()
                ));
                reader.left_out.push(Escaped::short(&entry.name).to_string());
                refused.get_or_insert(error);
            }
        }
    }

    // One array that can't be read takes nothing from the others; alone, it is the answer.
    match refused.filter(|_| reader.tensors.is_empty() && damaged.is_empty()) {
        Some(error) => Err(error),
        None => Ok((reader, damaged)),
    }
}

impl ArrayLocation {
    fn in_entry(array: Array, entry: &apr_archive::Entry) -> Self {
        let (sum, is_stored) = (entry.sum(0), entry.is_stored());
        let own = StoredRange { file: 0, offset: array.offset, len: array.len };
        let range = if is_stored { own } else { sum.place };
        Self { array, range, entry: Some((sum, is_stored)) }
    }
}

impl NumpyReader {
    fn new(
        source: Box<dyn ByteSource>,
        format: &'static Format,
        files: Vec<FileInfo>,
        fields: Value,
    ) -> Self {
        let (tensors, places, left_out, warnings) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self {
            source,
            format,
            files,
            tensors,
            places,
            metadata: Metadata::new(),
            fields,
            left_out,
            warnings,
        }
    }

    fn add(&mut self, name: String, place: ArrayLocation) {
        let shape = Shape::from(place.array.header.shape.clone());
        self.tensors.push(TensorInfo { name, dtype: place.array.header.dtype, shape });
        self.places.push(place);
    }

    fn locate(&self, tensor: usize, error: Error) -> Error {
        error.for_tensor(&self.tensors[tensor].name).in_file(&self.files[0].name)
    }
}

impl ContainerFacts for NumpyReader {
    fn header_fields(&self) -> Value {
        self.fields.clone()
    }
}

impl CheckpointReader for NumpyReader {
    has_own!(metadata, tensors, container, files, left_out, warnings);
    has_no!(companions);

    fn format(&self) -> &'static Format {
        self.format
    }

    fn stored(&self, tensor: usize) -> Stored<'_> {
        let ArrayLocation { array, range, entry } = &self.places[tensor];
        let parts = entry.map(|(sum, _)| sum.part(&*self.source));
        let lies_plainly = array.is_flat() && entry.is_none_or(|(_, is_stored)| is_stored);
        let stored = if lies_plainly { Stored::plain(*range) } else { Stored::derived(*range) };
        stored.with_parts(parts.into_iter().collect())
    }

    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        let array = &self.places[tensor].array;
        check_range(offset, buf.len(), array.len).map_err(|error| self.locate(tensor, error))?;
        if buf.is_empty() {
            return Ok(());
        }
        array.read(&*self.source, offset, buf).map_err(|error| self.locate(tensor, error))
    }

    fn tensor_slice(&self, tensor: usize) -> Option<&[u8]> {
        let array = &self.places.get(tensor)?.array;
        if array.is_flat() { self.source.slice_at(array.offset, array.len) } else { None }
    }
}

impl fmt::Debug for NumpyReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NumpyReader")
            .field("files", &self.files)
            .field("tensors", &self.tensors)
            .finish_non_exhaustive()
    }
}
