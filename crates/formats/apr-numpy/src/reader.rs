//! NumPy's files as checkpoints.

use std::sync::Arc;

use apr_archive::{Archive, Cache, EntrySum};
use apr_core::{
    ByteSource, CheckpointReader, Code, Error, Escaped, FileInfo, Limits, Result, SharedSource,
    Stored, StoredRange, Table, TensorBytes, TensorDecoder,
};

use crate::array::Array;
use crate::header;
use crate::{NPY, NPZ};

/// Name for the array of a `.npy` file, which has no name of its own.
const ONLY: &str = "array";

/// An array that is not stored as a tensor's bytes are, or is in an archive.
struct ArrayDecoder {
    array: Array,
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
pub fn open<S: ByteSource + 'static>(source: S, name: &str, limits: &Limits) -> Result<Table> {
    let (table, damage) = open_damaged(source, name, limits)?;
    damage.into_iter().next().map_or(Ok(table), Err)
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
) -> Result<(Table, Vec<Error>)> {
    let mut magic = [0; 4];
    let is_archive = source.read_at(0, &mut magic).is_ok() && magic == *b"PK\x03\x04";
    let source: SharedSource = Arc::new(source);
    let opened = if is_archive {
        open_archive(&source, name, limits)
    } else {
        open_array(source, name).map(|table| (table, Vec::new()))
    };
    let (table, damage) = opened.map_err(|error| error.in_file(name))?;
    Ok((table, damage.into_iter().map(|error| error.in_file(name)).collect()))
}

fn open_array(source: SharedSource, name: &str) -> Result<Table> {
    let array = Array::new(header::read(&*source)?, 0, source.len())?;
    let end = array.offset + array.len;
    let more = source.len() - end;
    let mut table = Table::of_file(&NPY, name, source);
    table.show("container", NPY.id);
    if more > 0 {
        table.warnings.push(format!("{more} bytes after the array are not read"));
    }
    let range = StoredRange { file: 0, offset: array.offset, len: array.len };
    let info = array.info(ONLY);
    let bytes = match array.is_flat() {
        true => TensorBytes::Plain(range),
        false => TensorBytes::decoded(ArrayDecoder { array, entry: None }),
    };
    table.add(info, bytes)?;
    Ok(table)
}

fn open_archive(source: &SharedSource, name: &str, limits: &Limits) -> Result<(Table, Vec<Error>)> {
    let mut archive = Archive::read(source, limits)?;
    let file = FileInfo { name: name.to_owned(), len: source.len() };
    let decoded = Arc::new(archive.decoded(Arc::clone(source))?);
    let mut table = Table::new(&NPZ);
    table.add_file(file, Arc::clone(&decoded) as SharedSource);
    table.show("container", NPZ.id);
    table.show("entries", archive.entries.len());
    let cache = Arc::new(Cache::default());
    let (mut refused, mut damaged) = (None, Vec::new());
    for entry in &archive.entries {
        let Some(array) = entry.name.strip_suffix(".npy") else {
            table.left_out.push(Escaped::short(&entry.name).to_string());
            continue;
        };
        let read = entry.open(source, &cache).and_then(|content| header::read(&*content));
        match read.and_then(|header| Array::new(header, entry.offset, entry.len)) {
            Ok(found) => {
                let info = found.info(array);
                let entry = Some((entry.sum(0), entry.is_stored()));
                table.add(info, TensorBytes::decoded(ArrayDecoder { array: found, entry }))?;
            }
            Err(error) => {
                // An entry whose bytes are not those that were written is damaged, whether its
                // checksum or its stream shows it. Other entries can't be read here.
                let damage = entry.check_crc(&*decoded).err();
                let is_damage = |code| matches!(code, Code::Checksum | Code::Corrupt);
                if let Some(damage) = damage.filter(|found| is_damage(found.code())) {
                    damaged.push(damage.for_tensor(array));
                    continue;
                }
                let error = error.for_tensor(array).at(entry.place);
                table.warnings.push(format!(
                    "'{}' is not read: {}",
                    Escaped::short(array),
                    error.message()
                ));
                table.left_out.push(Escaped::short(&entry.name).to_string());
                refused.get_or_insert(error);
            }
        }
    }

    // One array that can't be read takes nothing from the others; alone, it is the answer.
    match refused.filter(|_| table.tensors().is_empty() && damaged.is_empty()) {
        Some(error) => Err(error),
        None => Ok((table, damaged)),
    }
}

impl TensorDecoder for ArrayDecoder {
    /// Range of the elements in the file, or of the compressed bytes that hold them.
    fn range(&self) -> StoredRange {
        let Array { offset, len, .. } = self.array;
        match self.entry {
            Some((sum, false)) => sum.place,
            _ => StoredRange { file: 0, offset, len },
        }
    }

    fn read(&self, sources: &[SharedSource], offset: u64, buf: &mut [u8]) -> Result<()> {
        self.array.read(&*sources[0], offset, buf)
    }

    fn stored<'a>(&'a self, sources: &'a [SharedSource]) -> Stored<'a> {
        let parts = self.entry.map(|(sum, _)| sum.part(&*sources[0]));
        let is_stored = self.entry.is_none_or(|(_, is_stored)| is_stored);
        let stored = match self.array.is_flat() && is_stored {
            true => Stored::plain(self.range()),
            false => Stored::derived(self.range()),
        };
        stored.with_parts(parts.into_iter().collect())
    }

    fn slice<'a>(&'a self, sources: &'a [SharedSource]) -> Option<&'a [u8]> {
        let Array { offset, len, .. } = self.array;
        self.array.is_flat().then(|| sources[0].slice_at(offset, len))?
    }
}
