//! The tensor index (`docs/format/apr2.md`, "Index"): one entry a tensor, names strictly ascending.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use apr_core::{DType, Error, Escaped, Result, Shape, StoredForm, TensorInfo};

use super::header::{Flags, Header};
use crate::crypto::plain_len;

/// `tensor_count` and a reserved word.
pub(super) const INDEX_HEADER_LEN: usize = 8;

/// Length of an entry in bytes without its name and dimensions: name length, dtype, n_dims, offset,
/// size, raw size, flags.
const ENTRY_FIXED_LEN: usize = 2 + 1 + 1 + 8 + 8 + 8 + 4;

/// Per-tensor flags (`docs/format/apr2.md`, "Index").
mod flag {
    pub(crate) const CODEC: u32 = 0xf;
    pub(crate) const FILTER: u32 = 0xf0;
    pub(crate) const LAYOUT: u32 = 0xf00;
    pub(crate) const ENCRYPTED: u32 = 1 << 12;
    pub(crate) const TIED: u32 = 1 << 13;
    /// Bits that make up a stored form.
    pub(crate) const FORM: u32 = CODEC | FILTER | LAYOUT;
    pub(super) const KNOWN: u32 = CODEC | FILTER | LAYOUT | ENCRYPTED | TIED;
}

pub(super) use flag::{CODEC, ENCRYPTED, FORM, LAYOUT, TIED};

/// A decoded entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IndexEntry {
    pub(super) info: TensorInfo,
    /// Offset from the start of the data section, in bytes.
    pub(super) offset: u64,
    /// Bytes stored.
    pub(super) size: u64,
    /// Number of bytes after decoding; 0 if codec, filter and layout are all plain.
    pub(super) raw_size: u64,
    pub(super) flags: u32,
}

impl IndexEntry {
    /// Returns `true` if the bytes belong to another tensor.
    pub(super) fn is_tied(&self) -> bool {
        self.flags & flag::TIED != 0
    }

    /// Returns the stored form, or `None` if the bytes are stored plain.
    pub(super) fn form(&self) -> Option<StoredForm> {
        let flags = self.flags & FORM;
        let len = if self.flags & ENCRYPTED != 0 { plain_len(self.size)? } else { self.size };
        (flags != 0).then_some(StoredForm { flags, raw_len: self.raw_size, len })
    }

    /// Bytes of the encoded entry.
    pub(super) fn encoded_len(info: &TensorInfo) -> usize {
        ENTRY_FIXED_LEN + info.name.len() + 8 * info.shape.dims().len()
    }

    /// Appends the encoded entry. The name and the dimensions were checked by [`check_info`].
    pub(super) fn encode(&self, out: &mut Vec<u8>) -> Result<()> {
        let TensorInfo { name, dtype, shape } = &self.info;
        out.extend_from_slice(&check_name_len(name)?.to_le_bytes());
        out.extend_from_slice(name.as_bytes());
        out.push(dtype.apr2_code());
        out.push(check_dims(shape)?);
        for dim in shape.dims() {
            out.extend_from_slice(&dim.to_le_bytes());
        }
        for word in [self.offset, self.size, self.raw_size] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&self.flags.to_le_bytes());
        Ok(())
    }
}

/// Checks that a tensor fits an index entry, and returns its length in bytes.
///
/// # Errors
/// E001 for an empty or over-long name, more than eight dimensions, or a shape that does not go
/// with the dtype.
pub(super) fn check_info(info: &TensorInfo) -> Result<u64> {
    let check = || {
        check_name_len(&info.name)?;
        check_dims(&info.shape).map(drop)
    };
    check().map_err(|error| error.for_tensor(&info.name))?;
    info.byte_len()
}

fn check_name_len(name: &str) -> Result<u16> {
    match u16::try_from(name.len()) {
        Ok(0) => Err(Error::format("a tensor has an empty name")),
        Ok(len) => Ok(len),
        Err(_) => {
            Err(Error::format(format!("the name has {} bytes; 65535 are allowed", name.len())))
        }
    }
}

fn check_dims(shape: &Shape) -> Result<u8> {
    u8::try_from(shape.dims().len())
        .ok()
        .filter(|&dims| usize::from(dims) <= Shape::MAX_DIMS)
        .ok_or_else(|| {
            Error::format(format!(
                "{} dimensions; APR2 allows {}",
                shape.dims().len(),
                Shape::MAX_DIMS
            ))
        })
}

/// Entries and oddities of an index.
#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) entries: Vec<IndexEntry>,
    pub(super) warnings: Vec<String>,
}

/// Decodes the index section; `at` of errors is an offset in the file.
///
/// # Errors
/// E001 for names, dimensions and dtypes that are not allowed, E002 for counts and sizes that do
/// not add up or names out of order, E003 for encodings this version does not read.
pub(super) fn decode_index(bytes: &[u8], header: &Header) -> Result<Index> {
    let mut cursor = Cursor { bytes, position: 0, base: u64::from(header.index_offset) };
    let count = cursor.u32()? as usize;
    let reserved = cursor.u32()?;
    let mut index = Index::default();
    if reserved != 0 {
        index.warnings.push(format!("the reserved word of the index is {reserved}, not 0"));
    }

    // The section justifies the allocation: each entry takes at least its fixed part and one byte
    // of name.
    let possible = bytes.len().saturating_sub(INDEX_HEADER_LEN) / (ENTRY_FIXED_LEN + 1);
    if count > possible {
        return Err(Error::corrupt(format!(
            "the index states {count} tensors, but has space for {possible} at most"
        ))
        .at(cursor.base));
    }

    index.entries.reserve_exact(count);
    for number in 0..count {
        let start = cursor.offset();
        let entry = decode_entry(&mut cursor, number, header.flags.contains(Flags::ENCRYPTED))?;
        if let Some(previous) = index.entries.last() {
            check_order(&previous.info.name, &entry.info.name).map_err(|error| error.at(start))?;
        }
        index.entries.push(entry);
    }

    index.warnings.extend(unknown_flags_warning(&index.entries));
    match cursor.remaining() {
        0 => Ok(index),
        left => {
            Err(Error::corrupt(format!("{left} bytes follow the last index entry"))
                .at(cursor.offset()))
        }
    }
}

/// Returns one warning for all tensors, because a hostile index has millions.
fn unknown_flags_warning(entries: &[IndexEntry]) -> Option<String> {
    let mut odd = entries.iter().filter(|entry| entry.flags & !flag::KNOWN != 0);
    let first = odd.next()?;
    let (name, flags, others) =
        (Escaped::short(&first.info.name), first.flags & !flag::KNOWN, odd.count());
    Some(format!(
        "tensor '{name}' and {others} others have unknown flags set ({flags:#x}); they are ignored"
    ))
}

fn check_order(previous: &str, name: &str) -> Result<()> {
    match previous.as_bytes().cmp(name.as_bytes()) {
        core::cmp::Ordering::Less => Ok(()),
        core::cmp::Ordering::Equal => {
            Err(Error::corrupt("the name appears twice in the index").for_tensor(name))
        }
        core::cmp::Ordering::Greater => Err(Error::corrupt(format!(
            "the index is not sorted: the name follows '{}'",
            Escaped::short(previous)
        ))
        .for_tensor(name)),
    }
}

fn decode_entry(cursor: &mut Cursor<'_>, number: usize, encrypted: bool) -> Result<IndexEntry> {
    let start = cursor.offset();
    let name_len = usize::from(cursor.u16()?);
    let name = core::str::from_utf8(cursor.take(name_len)?).map_err(|_| {
        Error::format(format!("the name of tensor {number} is not UTF-8")).at(start)
    })?;
    if name.is_empty() {
        return Err(Error::format(format!("tensor {number} has an empty name")).at(start));
    }
    decode_fields(cursor, name, encrypted).map_err(|error| error.for_tensor(name).at(start))
}

fn decode_fields(cursor: &mut Cursor<'_>, name: &str, encrypted: bool) -> Result<IndexEntry> {
    let code = cursor.u8()?;
    let dtype = DType::from_apr2_code(code)
        .ok_or_else(|| Error::format(format!("unknown dtype code {code}")))?;
    let n_dims = usize::from(cursor.u8()?);
    if n_dims > Shape::MAX_DIMS {
        return Err(Error::format(format!("{n_dims} dimensions; APR2 allows {}", Shape::MAX_DIMS)));
    }

    let dims = (0..n_dims).map(|_| cursor.u64()).collect::<Result<Vec<_>>>()?;
    let info = TensorInfo { name: name.to_string(), dtype, shape: dims.into() };
    let (offset, size, raw_size) = (cursor.u64()?, cursor.u64()?, cursor.u64()?);
    let flags = cursor.u32()?;
    let len = info.byte_len()?;
    let entry = IndexEntry { info, offset, size, raw_size, flags };
    check_encoding(&entry, encrypted)?;
    check_sizes(&entry, len)?;
    Ok(entry)
}

fn check_encoding(entry: &IndexEntry, encrypted: bool) -> Result<()> {
    let known =
        [(flag::CODEC, "codec", 3), (flag::FILTER, "filter", 1), (flag::LAYOUT, "layout", 3)];
    for (mask, what, last) in known {
        let number = (entry.flags & mask) >> mask.trailing_zeros();
        if number > last {
            return Err(Error::version(format!(
                "{what} {number} is not supported: written by a newer version"
            )));
        }
    }

    if entry.flags & flag::FILTER != 0 && entry.flags & flag::CODEC == 0 {
        return Err(Error::format("a filter without a codec"));
    }

    if (entry.flags & flag::ENCRYPTED != 0) != encrypted {
        let (is, header) = if encrypted { ("not flagged", "is") } else { ("flagged", "is not") };
        return Err(Error::corrupt(format!("it is {is} as encrypted, but the header {header}")));
    }

    Ok(())
}

fn check_sizes(entry: &IndexEntry, len: u64) -> Result<()> {
    let IndexEntry { info: TensorInfo { dtype, shape, .. }, size, raw_size, flags, .. } = entry;
    if entry.is_tied() {
        return match (size, raw_size, flags & FORM) {
            (0, 0, 0) => Ok(()),
            (0, ..) => Err(Error::corrupt(
                "it is tied to another tensor, but flagged as compressed or sparse",
            )),
            _ => Err(Error::corrupt(format!(
                "tied to another tensor, but {size} bytes in the index"
            ))),
        };
    }

    let opened = if flags & ENCRYPTED != 0 { plain_len(*size) } else { Some(*size) };
    let stored = opened.ok_or_else(|| {
        Error::corrupt(format!(
            "the index gives it {size} bytes, which encrypted chunks don't add up to"
        ))
    })?;
    if flags & FORM == 0 {
        if *raw_size != 0 {
            return Err(Error::corrupt(format!(
                "a plain tensor with a raw size of {raw_size}; it should be 0"
            )));
        }
        if stored != len {
            return Err(Error::corrupt(format!(
                "the index gives it {stored} bytes, but {dtype} of shape {shape} takes {len}"
            )));
        }
        return Ok(());
    }

    if flags & LAYOUT == 0 && *raw_size != len {
        return Err(Error::corrupt(format!(
            "the index states {raw_size} decoded bytes, but {dtype} of shape {shape} takes {len}"
        )));
    }

    let form = StoredForm { flags: flags & FORM, raw_len: *raw_size, len: stored };
    check_form(form).map_err(Error::corrupt)
}

/// Checks that `len` stored bytes can decode to `raw_len`. Every block of a codec takes at least
/// its length field and one byte.
pub(super) fn check_form(form: StoredForm) -> core::result::Result<(), String> {
    let StoredForm { flags, raw_len, len } = form;
    let enough = if flags & flag::CODEC == 0 {
        len == raw_len
    } else {
        let blocks = raw_len.div_ceil(block_len(flags));
        blocks.checked_mul(u64::from(BLOCK_HEADER_LEN) + 1).is_some_and(|least| len >= least)
    };
    if enough { Ok(()) } else { Err(format!("{len} stored bytes can't decode to {raw_len}")) }
}

/// Length of a codec's framing before each block, in bytes.
pub(super) const BLOCK_HEADER_LEN: u32 = 4;

/// Decoded length of the blocks that a codec cuts tensors into, in bytes.
pub(super) const fn block_len(flags: u32) -> u64 {
    if flags & flag::CODEC == 1 { 64 << 10 } else { 1 << 20 }
}

/// Reads fields one after the other; running out is E002.
struct Cursor<'a> {
    bytes: &'a [u8],
    position: usize,
    base: u64,
}

impl<'a> Cursor<'a> {
    fn offset(&self) -> u64 {
        self.base + self.position as u64
    }

    fn remaining(&self) -> usize {
        self.bytes.len() - self.position
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let taken = self.bytes[self.position..].get(..len).ok_or_else(|| {
            Error::corrupt(format!("the index ends inside an entry: {len} bytes wanted"))
                .at(self.offset())
        })?;
        self.position += len;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    fn u16(&mut self) -> Result<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }
}
