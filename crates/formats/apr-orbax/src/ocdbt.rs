//! TensorStore's database of keys and values in files: a manifest, and a B+tree whose nodes and
//! values lie in files of data.
//!
//! ```text
//! manifest, node   u32 (big-endian) magic, u64 length, varint version 0, varint 0 or 1
//!                  (Zstandard), body, u32 CRC-32C of all before
//! manifest's body  16 bytes uuid, varint kind, varint bytes of an inline value, varint bytes of a
//!                  node, u8 arity of the tree of versions, varint compression [i32 level], files,
//!                  versions, nodes of versions
//! node's body      u8 height, files, varint entries; columns of keys, then those of values
//! files            varint count, columns: shared prefixes, lengths, lengths of the base, names
//! ```

use std::collections::HashMap;
use std::sync::Arc;

use apr_core::{Crc32c, Error, Escaped, Limits, Result, StoredRange, read_vec};

use crate::store::{Files, Place};
use crate::zstd;

const MANIFEST: &str = "manifest.ocdbt";
const MANIFEST_MAGIC: u32 = 0x0cdb_3a2a;
const NODE_MAGIC: u32 = 0x0cdb_20de;

/// Bytes that a node or a manifest decodes to.
const MAX_DECODED: u64 = 64 << 20;

/// Bytes of the keys or paths of a node together, which share prefixes.
const MAX_TEXTS: usize = 16 << 20;

/// Bytes of a key or a path.
const MAX_NAME: usize = 65_535;

/// Nodes between the root and a leaf: TensorStore's heights are a byte, real ones 1 or 2.
const MAX_HEIGHT: u8 = 16;

/// Position of a node or a value.
#[derive(Debug, Clone)]
struct Location {
    file: Arc<DataFile>,
    offset: u64,
    len: u64,
}

/// A file of data: its path, and the part of it that paths in its nodes begin with.
#[derive(Debug, Clone)]
struct DataFile {
    path: String,
    base: String,
}

/// Reads the latest version of a database, and returns the position of each value.
pub(crate) fn read(files: &mut Files<'_>, limits: &Limits) -> Result<HashMap<String, Place>> {
    let manifest = files.whole(MANIFEST, limits)?;
    let root = root(&manifest, limits).map_err(|error| error.in_file(MANIFEST))?;
    let mut database = Database { files, limits, kept: 0, places: HashMap::new() };
    if let Some((root, height)) = root {
        database.node(&root, height, "")?;
    }
    Ok(database.places)
}

/// Returns the latest root and its height, if there is a root.
fn root(manifest: &[u8], limits: &Limits) -> Result<Option<(Location, u8)>> {
    let body = body(manifest, MANIFEST_MAGIC, limits)?;
    let mut cursor = Cursor { bytes: &body, at: 0 };
    cursor.take(16)?;
    if cursor.varint()? != 0 {
        return Err(Error::version(
            "the manifest of this database is in several files, which are not read",
        ));
    }
    let (_inline, _node, _arity) = (cursor.varint()?, cursor.varint()?, cursor.byte()?);
    if cursor.varint()? == 1 {
        cursor.take(4)?;
    }
    let files = cursor.files("")?;
    let count = cursor.count()?;
    cursor.column(count, Cursor::varint)?;
    let heights = cursor.column(count, Cursor::byte)?;
    let locations = cursor.locations(&files, count)?;
    Ok(locations.into_iter().zip(heights).next_back().filter(|(root, _)| root.len > 0))
}

/// Returns the decoded bytes between head and checksum.
fn body(bytes: &[u8], magic: u32, limits: &Limits) -> Result<Vec<u8>> {
    let damaged = |what: &str| Error::corrupt(format!("a node of the database {what}"));
    let (rest, sum) = bytes.split_last_chunk::<4>().ok_or_else(|| damaged("is cut off"))?;
    let mut cursor = Cursor { bytes: rest, at: 0 };
    let found = u32::from_be_bytes(cursor.array()?);
    let len = u64::from_le_bytes(cursor.array()?);
    if found != magic || len != bytes.len() as u64 {
        return Err(damaged("has another mark or length than it should"));
    }
    let mut crc = Crc32c::new();
    crc.update(rest);
    if crc.value() != u32::from_le_bytes(*sum) {
        return Err(Error::checksum("a node of the database does not match its checksum"));
    }
    let version = cursor.varint()?;
    if version != 0 {
        return Err(Error::version(format!("version {version} of TensorStore's database")));
    }
    match cursor.varint()? {
        0 => Ok(cursor.rest().to_vec()),
        1 => zstd::decode(cursor.rest(), MAX_DECODED.min(limits.max_index)),
        other => Err(Error::version(format!("compression {other} of a database"))),
    }
}

struct Database<'a, 's> {
    files: &'a mut Files<'s>,
    limits: &'a Limits,
    /// Bytes of nodes and keys so far.
    kept: u64,
    places: HashMap<String, Place>,
}

impl Database<'_, '_> {
    fn keep(&mut self, bytes: u64) -> Result<()> {
        self.kept = self.kept.saturating_add(bytes);
        self.limits.check_index(self.kept)
    }

    /// Reads a node and those below it, whose keys begin with `prefix`.
    fn node(&mut self, at: &Location, height: u8, prefix: &str) -> Result<()> {
        let file = self.files.open(&at.file.path)?;
        self.keep(at.len.max(64))?;
        let bytes = read_vec(&self.files.sources[file], at.offset, at.len);
        let found = bytes.and_then(|bytes| body(&bytes, NODE_MAGIC, self.limits));
        let located = |error: Error| error.at(at.offset).in_file(&at.file.path);
        let found = found.map_err(located)?;
        self.keep(found.len() as u64)?;
        let mut cursor = Cursor { bytes: &found, at: 0 };
        if height > MAX_HEIGHT || cursor.byte()? != height {
            return Err(located(Error::corrupt("a node of the database has another height")));
        }
        let files = cursor.files(&at.file.base).map_err(located)?;
        if height == 0 {
            return self
                .leaf(cursor, &files, prefix)
                .map_err(|error| if error.file().is_some() { error } else { located(error) });
        }
        let children = children(cursor, &files, prefix).map_err(located)?;
        // All of them are in memory at once, one node of each height.
        self.keep(children.iter().map(|(_, prefix)| prefix.len() as u64 + 64).sum())?;
        for (child, prefix) in children {
            self.node(&child, height - 1, &prefix)?;
        }
        Ok(())
    }

    fn leaf(
        &mut self,
        mut cursor: Cursor<'_>,
        files: &[Arc<DataFile>],
        prefix: &str,
    ) -> Result<()> {
        let count = cursor.count()?;
        let keys = cursor.keys(count, false)?;
        let lens = cursor.column(count, Cursor::varint)?;
        let kinds = cursor.column(count, Cursor::varint)?;
        let indirect = kinds.iter().filter(|&&kind| kind != 0).count();
        let ids = cursor.column(indirect, Cursor::varint)?;
        let offsets = cursor.column(indirect, Cursor::varint)?;
        let mut places = ids.into_iter().zip(offsets);
        for ((key, _), (len, kind)) in keys.into_iter().zip(lens.into_iter().zip(kinds)) {
            let place = match kind {
                0 => Place::Inline(Arc::from(cursor.take(len)?)),
                1 => {
                    let (id, offset) = places.next().ok_or_else(Cursor::cut_off)?;
                    let data = file_of(files, id)?;
                    let file = self.files.open(&data.path)?;
                    let end = offset.checked_add(len);
                    if end.is_none_or(|end| end > self.files.infos[file].len) {
                        let message = format!(
                            "the value of '{}' reaches past the end of the file, which is \
                             truncated",
                            Escaped::short(&key)
                        );
                        return Err(Error::corrupt(message).at(offset).in_file(&data.path));
                    }
                    Place::Range(StoredRange { file, offset, len })
                }
                other => return Err(Error::version(format!("values of kind {other}"))),
            };
            let key = format!("{prefix}{key}");
            self.keep(key.len() as u64 + 64)?;
            self.places.insert(key, place);
        }
        Ok(())
    }
}

/// Returns the nodes below one, each with the common prefix of its keys.
fn children(
    mut cursor: Cursor<'_>,
    files: &[Arc<DataFile>],
    prefix: &str,
) -> Result<Vec<(Location, String)>> {
    let count = cursor.count()?;
    if count.saturating_mul(prefix.len()) > MAX_TEXTS {
        return Err(Error::corrupt("keys of the database are too long"));
    }
    let keys = cursor.keys(count, true)?;
    let locations = cursor.locations(files, count)?;
    let children = keys.into_iter().zip(locations).map(|((key, shared), location)| {
        let shared = key.get(..shared).ok_or_else(Cursor::cut_off)?;
        if prefix.len() + shared.len() > MAX_NAME {
            return Err(Error::corrupt("a key of the database is too long"));
        }
        Ok((location, format!("{prefix}{shared}")))
    });
    children.collect()
}

fn file_of(files: &[Arc<DataFile>], id: u64) -> Result<&Arc<DataFile>> {
    let file = usize::try_from(id).ok().and_then(|id| files.get(id));
    file.ok_or_else(|| Error::corrupt(format!("file {id} of {} of a node", files.len())))
}

/// Reads a body from front to back.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn cut_off() -> Error {
        Error::corrupt("a node of the database ends before its entries do")
    }

    fn take(&mut self, len: u64) -> Result<&'a [u8]> {
        let end = usize::try_from(len).ok().and_then(|len| self.at.checked_add(len));
        let taken = end.and_then(|end| self.bytes.get(self.at..end));
        let taken = taken.ok_or_else(Self::cut_off)?;
        self.at += taken.len();
        Ok(taken)
    }

    fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let bytes = self.take(N as u64)?;
        bytes.try_into().map_err(|_| Self::cut_off())
    }

    fn byte(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    /// Reads a number of seven bits per byte, the lowest first.
    fn varint(&mut self) -> Result<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Error::corrupt("a number of the database is longer than 64 bits"))
    }

    /// Reads a count of entries, each of which takes at least one byte.
    fn count(&mut self) -> Result<usize> {
        let count = usize::try_from(self.varint()?).unwrap_or(usize::MAX);
        if count > self.rest().len() { Err(Self::cut_off()) } else { Ok(count) }
    }

    fn column<T>(&mut self, count: usize, read: fn(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        (0..count).map(|_| read(self)).collect()
    }

    /// Reads texts that share a prefix with the previous one, and whose lengths have been read.
    fn texts(&mut self, prefixes: &[u64], lens: &[u64]) -> Result<Vec<String>> {
        let mut texts: Vec<String> = Vec::with_capacity(lens.len());
        let mut total = 0_usize;
        for (at, &len) in lens.iter().enumerate() {
            let before = at.checked_sub(1).map(|at| (&texts[at], prefixes.get(at)));
            let shared = match before {
                Some((text, Some(&shared))) => {
                    usize::try_from(shared).ok().and_then(|shared| text.get(..shared))
                }
                _ => Some(""),
            };
            let mut text = shared.ok_or_else(Self::cut_off)?.to_owned();
            let suffix = std::str::from_utf8(self.take(len)?);
            text.push_str(suffix.map_err(|_| Error::corrupt("a key is not UTF-8"))?);
            total = total.saturating_add(text.len());
            // Short suffixes of long texts: a node says no more with them than with its length.
            if text.len() > MAX_NAME || total > MAX_TEXTS {
                return Err(Error::corrupt("keys of the database are too long"));
            }
            texts.push(text);
        }
        Ok(texts)
    }

    /// Reads keys, each with the length of the prefix that all keys below it share.
    fn keys(&mut self, count: usize, has_children: bool) -> Result<Vec<(String, usize)>> {
        let prefixes = self.column(count.saturating_sub(1), Self::varint)?;
        let lens = self.column(count, Self::varint)?;
        let shared = self.column(if has_children { count } else { 0 }, Self::varint)?;
        let keys = self.texts(&prefixes, &lens)?;
        let shared = shared.into_iter().map(|len| usize::try_from(len).unwrap_or(usize::MAX));
        Ok(keys.into_iter().zip(shared.chain(std::iter::repeat(0))).collect())
    }

    fn files(&mut self, before: &str) -> Result<Vec<Arc<DataFile>>> {
        let count = self.count()?;
        if count.saturating_mul(before.len()) > MAX_TEXTS {
            return Err(Error::corrupt("paths of the database are too long"));
        }
        let prefixes = self.column(count.saturating_sub(1), Self::varint)?;
        let lens = self.column(count, Self::varint)?;
        let bases = self.column(count, Self::varint)?;
        let paths = self.texts(&prefixes, &lens)?;
        let files = paths.into_iter().zip(bases).map(|(path, base)| {
            let base = usize::try_from(base).ok().and_then(|base| path.get(..base));
            let base = format!("{before}{}", base.ok_or_else(Self::cut_off)?);
            let path = format!("{before}{path}");
            if path.len() > MAX_NAME {
                Err(Self::cut_off())
            } else {
                Ok(Arc::new(DataFile { path, base }))
            }
        });
        files.collect()
    }

    /// Reads the positions of nodes. Skips statistics, which are not used here.
    fn locations(&mut self, files: &[Arc<DataFile>], count: usize) -> Result<Vec<Location>> {
        let ids = self.column(count, Self::varint)?;
        let offsets = self.column(count, Self::varint)?;
        let lens = self.column(count, Self::varint)?;
        for _ in 0..3 {
            self.column(count, Self::varint)?;
        }
        let places = ids.into_iter().zip(offsets.into_iter().zip(lens));
        let locations = places.map(|(id, (offset, len))| {
            Ok(Location { file: Arc::clone(file_of(files, id)?), offset, len })
        });
        locations.collect()
    }
}
