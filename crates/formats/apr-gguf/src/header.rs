//! Parsing the header: version, key-value pairs, tensor infos.

use std::collections::HashSet;

use apr_core::{
    ByteSource, DType, Error, Escaped, KeyValues, KeyValuesBuilder, Limits, Result, Shape,
    TensorInfo, Value,
};

use crate::cursor::{Cursor, Scalar, Section, reserved};
use crate::dtype::{from_ggml_type, removed_type};

/// First bytes of a file, whatever its byte order.
pub(crate) const MAGIC: [u8; 4] = *b"GGUF";

/// The newest version there is, and the one that is written.
pub(crate) const VERSION: u32 = 3;

/// Default alignment of tensor data, in bytes.
pub(crate) const DEFAULT_ALIGNMENT: u64 = 32;

/// The pair that states another.
pub(crate) const ALIGNMENT: &str = "general.alignment";

/// Dimensions that a ggml tensor has at most.
pub(crate) const MAX_DIMS: u32 = 4;

/// Arrays within each other; no known writer nests any.
const MAX_DEPTH: usize = 4;

/// Contents of the file before the data.
#[derive(Debug)]
pub(crate) struct Header {
    pub(crate) version: u32,
    pub(crate) big_endian: bool,
    pub(crate) pairs: KeyValues,
    /// `true` if a pair states the alignment.
    pub(crate) states_alignment: bool,
    /// Alignment of the data section and all tensors in it, in bytes.
    pub(crate) alignment: u64,
    /// Tensors in the header's order.
    pub(crate) entries: Vec<Entry>,
    /// First byte after the last entry.
    pub(crate) end: u64,
}

/// A tensor as the header describes it.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) info: TensorInfo,
    /// Offset from the start of the data section, in bytes.
    pub(crate) offset: u64,
}

impl Header {
    pub(crate) fn parse(source: &dyn ByteSource, file_len: u64, limits: &Limits) -> Result<Self> {
        let mut cursor = Cursor::new(source, file_len, limits);
        check_magic(&mut cursor)?;
        let version = read_version(&mut cursor)?;

        // Version 2 widened lengths and counts from 32 bits to 64.
        cursor.wide = version > 1;
        let tensor_count = cursor.length("the number of tensors")?;
        let pair_count = cursor.length("the number of key-value pairs")?;

        cursor.enter(Section::KeyValues);
        let pairs = read_pairs(&mut cursor, pair_count)?;
        let stated = stated_alignment(&pairs)?;

        cursor.enter(Section::Tensors);
        let entries = read_entries(&mut cursor, tensor_count)?;
        if let Some(name) = duplicate(entries.iter().map(|entry| entry.info.name.as_str())) {
            return Err(Error::format("the header has two tensors of this name").for_tensor(name));
        }

        Ok(Self {
            version,
            big_endian: cursor.big_endian,
            pairs,
            states_alignment: stated.is_some(),
            alignment: stated.unwrap_or(DEFAULT_ALIGNMENT),
            entries,
            end: cursor.position(),
        })
    }
}

fn check_magic(cursor: &mut Cursor<'_>) -> Result<()> {
    let magic = cursor.take("the magic", 4)?;
    if magic == MAGIC {
        return Ok(());
    }
    let message = match magic {
        b"FUGG" => {
            "this is not GGUF: the magic is byte-swapped, which no writer of either byte order does"
        }
        _ => "this is not GGUF: the file does not start with that word",
    };
    Err(Error::format(message).at(0))
}

/// Reads the version and detects the byte order. A small version has zeros in its lower half when
/// its bytes are swapped.
fn read_version(cursor: &mut Cursor<'_>) -> Result<u32> {
    let offset = cursor.position();
    let mut version: u32 = cursor.scalar("the version")?;
    if version.trailing_zeros() >= 16 && version != 0 {
        cursor.big_endian = true;
        version = version.swap_bytes();
    }

    match version {
        1..=VERSION => Ok(version),
        0 => Err(Error::format("the version is 0; the first one was 1").at(offset)),
        newer => {
            let message = format!("GGUF version {newer}; this build reads 1 to {VERSION}");
            Err(Error::version(message).at(offset))
        }
    }
}

/// The first of several equal names.
pub(crate) fn duplicate<'a>(names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let mut seen = HashSet::with_capacity(names.size_hint().0);
    names.into_iter().find(|name| !seen.insert(*name))
}

/// The alignment that a pair states.
pub(crate) fn stated_alignment(pairs: &KeyValues) -> Result<Option<u64>> {
    match pairs.get(ALIGNMENT) {
        None => Ok(None),
        Some(Value::U32(alignment)) if alignment.is_power_of_two() => Ok(Some(alignment.into())),
        Some(Value::U32(alignment)) => {
            Err(Error::format(format!("{ALIGNMENT} is {alignment}, which is not a power of two")))
        }
        Some(other) => Err(Error::format(format!(
            "{ALIGNMENT} is of type {} instead of u32",
            other.type_name()
        ))),
    }
}

fn read_pairs(cursor: &mut Cursor<'_>, count: u64) -> Result<KeyValues> {
    // A key of one byte and a value of one byte.
    cursor.expect("the list of key-value pairs", count, cursor.length_len() + 6)?;
    let mut pairs = KeyValuesBuilder::default();
    for _ in 0..count {
        let offset = cursor.position();
        let key = cursor.text("the key of a key-value pair")?;
        if key.is_empty() {
            return Err(Error::format("a key-value pair has an empty key").at(offset));
        }
        pairs.begin(&key)?;
        read_value(cursor, pairs.bytes()).map_err(|error| name_key(&error, &key, offset))?;
    }
    pairs.finish()
}

fn name_key(error: &Error, key: &str, offset: u64) -> Error {
    if error.code() == apr_core::Code::Io {
        return error.clone();
    }
    let message = format!("the key '{}': {}", Escaped::short(key), error.message());
    Error::new(error.code(), message).at(error.offset().unwrap_or(offset))
}

/// Reads type and value, and packs them as version 3 has them.
fn read_value(cursor: &mut Cursor<'_>, out: &mut Vec<u8>) -> Result<()> {
    let offset = cursor.position();
    let number: u32 = cursor.scalar("its type")?;
    out.extend(number.to_le_bytes());
    if number == ARRAY {
        return read_array(cursor, 1, out);
    }
    let known = read_items(cursor, "its value", number, 1, out)?;
    if known { Ok(()) } else { Err(unknown_type(number).at(offset)) }
}

/// GGUF's number of an array.
const ARRAY: u32 = 9;

/// Reads that many values of one type, which is not an array; whether there is such a type.
fn read_items(
    cursor: &mut Cursor<'_>,
    what: &str,
    number: u32,
    count: u64,
    out: &mut Vec<u8>,
) -> Result<bool> {
    match number {
        0 => copy::<u8>(cursor, what, count, out)?,
        1 => copy::<i8>(cursor, what, count, out)?,
        2 => copy::<u16>(cursor, what, count, out)?,
        3 => copy::<i16>(cursor, what, count, out)?,
        4 => copy::<u32>(cursor, what, count, out)?,
        5 => copy::<i32>(cursor, what, count, out)?,
        6 => copy::<f32>(cursor, what, count, out)?,
        7 => {
            let (offset, start) = (cursor.position(), out.len());
            copy::<u8>(cursor, what, count, out)?;

            // The specification allows 0 and 1 alone.
            for (at, &byte) in (offset..).zip(&out[start..]) {
                truth(byte).map_err(|error| error.at(at))?;
            }
        }
        8 => {
            // Each has its length before it: a count that the file has no room for ends here.
            cursor.expect(what, count, cursor.length_len())?;
            for _ in 0..count {
                cursor.copy_text(what, out)?;
            }
        }
        10 => copy::<u64>(cursor, what, count, out)?,
        11 => copy::<i64>(cursor, what, count, out)?,
        12 => copy::<f64>(cursor, what, count, out)?,
        _ => return Ok(false),
    }

    Ok(true)
}

fn copy<T: Scalar>(
    cursor: &mut Cursor<'_>,
    what: &str,
    count: u64,
    out: &mut Vec<u8>,
) -> Result<()> {
    cursor.copy_scalars::<T>(what, count, out)
}

fn unknown_type(number: u32) -> Error {
    Error::format(format!("{number} is not the type of a value; there are 0 to 12"))
}

fn truth(byte: u8) -> Result<()> {
    match byte {
        0 | 1 => Ok(()),
        other => Err(Error::format(format!("a bool is {other} instead of 0 or 1"))),
    }
}

fn read_array(cursor: &mut Cursor<'_>, depth: usize, out: &mut Vec<u8>) -> Result<()> {
    const WHAT: &str = "its array";

    let offset = cursor.position();
    if depth > MAX_DEPTH {
        return Err(
            Error::format(format!("arrays are nested more than {MAX_DEPTH} deep")).at(offset)
        );
    }

    let number: u32 = cursor.scalar("the type of its items")?;
    let count = cursor.length("the number of its items")?;

    // The smallest of items, before any of them is counted or made room for.
    cursor.expect(WHAT, count, 1)?;
    cursor.count_items(count)?;
    out.extend(number.to_le_bytes());
    out.extend(count.to_le_bytes());
    if number == ARRAY {
        cursor.expect(WHAT, count, cursor.length_len() + 4)?;
        return (0..count).try_for_each(|_| read_array(cursor, depth + 1, out));
    }

    let what = if number == 8 { "a text of its array" } else { WHAT };
    let known = read_items(cursor, what, number, count, out)?;
    if known { Ok(()) } else { Err(unknown_type(number).at(offset)) }
}

fn read_entries(cursor: &mut Cursor<'_>, count: u64) -> Result<Vec<Entry>> {
    // Name's length, number of dimensions, type, offset.
    cursor.expect("the list of tensors", count, cursor.length_len() + 4 + 4 + 8)?;
    cursor.limits().check_tensors(count).map_err(|error| error.at(cursor.position()))?;
    let mut entries = Vec::with_capacity(reserved(count));
    for _ in 0..count {
        let name = cursor.text("the name of a tensor")?;
        let entry = read_entry(cursor).map_err(|error| error.for_tensor(&name))?;
        let (dtype, shape, offset) = entry;
        entries.push(Entry { info: TensorInfo { name, dtype, shape }, offset });
    }
    Ok(entries)
}

fn read_entry(cursor: &mut Cursor<'_>) -> Result<(DType, Shape, u64)> {
    let offset = cursor.position();
    let dims: u32 = cursor.scalar("the number of dimensions")?;
    if dims > MAX_DIMS {
        let message = format!("it has {dims} dimensions; a ggml tensor has {MAX_DIMS} at most");
        return Err(Error::format(message).at(offset));
    }

    let mut dims = (0..dims).map(|_| cursor.length("a dimension")).collect::<Result<Vec<_>>>()?;

    // In ggml, dimensions are `int64_t`.
    if let Some(dim) = dims.iter().find(|&&dim| i64::try_from(dim).is_err()) {
        return Err(Error::format(format!("a dimension of {dim} is over 2^63")).at(offset));
    }

    // Innermost first in the file, outermost first everywhere else.
    dims.reverse();
    let shape = Shape::from(dims);

    let type_offset = cursor.position();
    let number: u32 = cursor.scalar("the type")?;
    let dtype = match (from_ggml_type(number), removed_type(number)) {
        (Some(dtype), _) => dtype,
        (None, Some((name, advice))) => {
            let message = format!("its type {number} ({name}) was removed from ggml; {advice}");
            return Err(Error::version(message).at(type_offset));
        }
        (None, None) => {
            return Err(
                Error::format(format!("{number} is not the type of a ggml tensor")).at(type_offset)
            );
        }
    };

    if !shape.row_len().is_multiple_of(dtype.block_len()) {
        let (row, block) = (shape.row_len(), dtype.block_len());
        let message = format!(
            "rows of {row} elements are not a multiple of the {block} in a block of {dtype}"
        );
        return Err(Error::format(message).at(offset));
    }

    if dtype.stored_len(&shape).is_none() {
        return Err(Error::format(format!(
            "the shape {shape} of {dtype} takes more than 2^64 bytes"
        ))
        .at(offset));
    }

    Ok((dtype, shape, cursor.scalar("the offset")?))
}
