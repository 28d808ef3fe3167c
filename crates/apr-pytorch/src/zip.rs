//! The directory of a ZIP archive, checked so that no two readers see two archives in one file.
//!
//! The `zip` crate reads from a `Read + Seek` and hands out streams; here entries must be known by their place in a
//! [`ByteSource`], and the two headers that each entry has must be compared.

use std::collections::HashMap;

use apr_core::{ByteSource, Error, Escaped, Limits, Result, read_vec};

const LOCAL: [u8; 4] = *b"PK\x03\x04";
const CENTRAL: [u8; 4] = *b"PK\x01\x02";
const END: [u8; 4] = *b"PK\x05\x06";
const END64: [u8; 4] = *b"PK\x06\x06";
const LOCATOR64: [u8; 4] = *b"PK\x06\x07";
const LOCAL_LEN: u64 = 30;
const CENTRAL_LEN: usize = 46;
const END_LEN: u64 = 22;
const END64_LEN: u64 = 56;
const LOCATOR_LEN: u64 = 20;

/// Flags: bit 0 and 6 encryption, 13 masked headers, 3 sizes after the data.
const ENCRYPTED: u16 = 1 | 1 << 6 | 1 << 13;
const SIZES_FOLLOW: u16 = 1 << 3;

/// The value of a 32-bit field whose true value is in the ZIP64 extra field.
const IN_ZIP64: u32 = u32::MAX;

/// An entry, with the place of its bytes.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) name: String,
    flags: u16,
    method: u16,
    pub(crate) crc32: u32,
    /// Bytes in the file.
    compressed: u64,
    /// Bytes of the content.
    pub(crate) len: u64,
    header: u64,
    /// Where the content starts.
    pub(crate) offset: u64,
}

/// An archive's entries in the order of its directory.
#[derive(Debug)]
pub(crate) struct Archive {
    pub(crate) entries: Vec<Entry>,
    by_name: HashMap<String, usize>,
}

impl Archive {
    /// Reads the directory and each entry's own header.
    pub(crate) fn read(source: &dyn ByteSource, limits: &Limits) -> Result<Self> {
        let (archive, directory) = Self::directory(source, limits)?;
        for entry in &archive.entries {
            check_name(&entry.name).map_err(|error| error.at(entry.header))?;
            if entry.flags & ENCRYPTED != 0 {
                let message = format!("'{}' is encrypted, which PyTorch never does", Escaped::short(&entry.name));
                return Err(Error::format(message).at(entry.header));
            }
        }
        let mut archive = archive;
        for entry in &mut archive.entries {
            entry.offset = entry.agree(source, directory).map_err(|error| error.at(entry.header))?;
        }
        archive.check_overlaps(directory)?;
        Ok(archive)
    }

    /// The same without comparing headers, for a scan of what a careless loader would read.
    pub(crate) fn read_leniently(source: &dyn ByteSource, limits: &Limits) -> Result<Self> {
        let (mut archive, _) = Self::directory(source, limits)?;
        for entry in &mut archive.entries {
            let local = read_vec(source, entry.header, LOCAL_LEN)?;
            entry.offset = entry
                .header
                .saturating_add(LOCAL_LEN + u64::from(u16_at(&local, 26)))
                .saturating_add(u16_at(&local, 28).into());
        }
        Ok(archive)
    }

    /// The entries by the directory alone, and the offset of the directory.
    fn directory(source: &dyn ByteSource, limits: &Limits) -> Result<(Self, u64)> {
        let (offset, len, count) = locate(source)?;
        limits.check_index(len)?;
        if count > len / CENTRAL_LEN as u64 {
            return Err(Error::corrupt(format!("{count} entries do not fit a directory of {len} bytes")).at(offset));
        }
        let bytes = read_vec(source, offset, len)?;
        let mut rest = &bytes[..];
        let mut entries = Vec::new();
        let mut by_name = HashMap::new();
        for _ in 0..count {
            let at = offset + (bytes.len() - rest.len()) as u64;
            let (entry, tail) = Entry::parse(rest).map_err(|error| error.at(at))?;
            if by_name.insert(entry.name.clone(), entries.len()).is_some() {
                let message = format!("the archive has two entries named '{}'", Escaped::short(&entry.name));
                return Err(Error::format(message).at(at));
            }
            entries.push(entry);
            rest = tail;
        }
        if !rest.is_empty() {
            let at = offset + (bytes.len() - rest.len()) as u64;
            return Err(Error::corrupt("the archive's directory goes on after its last entry").at(at));
        }
        Ok((Self { entries, by_name }, offset))
    }

    pub(crate) fn find(&self, name: &str) -> Option<&Entry> {
        self.by_name.get(name).map(|&at| &self.entries[at])
    }

    fn check_overlaps(&self, directory: u64) -> Result<()> {
        let mut sorted: Vec<&Entry> = self.entries.iter().collect();
        sorted.sort_by_key(|entry| entry.header);
        let ends = sorted.iter().skip(1).map(|next| next.header).chain([directory]);
        for (entry, end) in sorted.iter().zip(ends) {
            if entry.offset.checked_add(entry.compressed).is_none_or(|own_end| own_end > end) {
                let message = format!("'{}' reaches into what follows it", Escaped::short(&entry.name));
                return Err(Error::corrupt(message).at(entry.header));
            }
        }
        Ok(())
    }
}

impl Entry {
    /// An entry of the directory, and the bytes after it.
    fn parse(bytes: &[u8]) -> Result<(Self, &[u8])> {
        let cut_off = || Error::corrupt("the archive's directory is cut off");
        let fixed = bytes.get(..CENTRAL_LEN).ok_or_else(cut_off)?;
        if fixed[..4] != CENTRAL {
            return Err(Error::corrupt("an entry of the archive's directory lacks its signature"));
        }
        let (name_len, extra_len) = (usize::from(u16_at(fixed, 28)), usize::from(u16_at(fixed, 30)));
        let comment_len = usize::from(u16_at(fixed, 32));
        let variable = &bytes[CENTRAL_LEN..];
        let name = variable.get(..name_len).ok_or_else(cut_off)?;
        let extra = variable.get(name_len..name_len + extra_len).ok_or_else(cut_off)?;
        let rest = variable.get(name_len + extra_len + comment_len..).ok_or_else(cut_off)?;
        let name = String::from_utf8(name.to_vec());
        let name = name.map_err(|_| Error::format("an entry of the archive has a name that is not UTF-8"))?;
        let mut wide = Zip64::find(extra);
        let len = wide.value(u32_at(fixed, 24))?;
        let compressed = wide.value(u32_at(fixed, 20))?;
        let header = wide.value(u32_at(fixed, 42))?;
        let (flags, method) = (u16_at(fixed, 8), u16_at(fixed, 10));
        Ok((Self { name, flags, method, crc32: u32_at(fixed, 16), compressed, len, header, offset: 0 }, rest))
    }

    /// Compares the entry's own header with the directory; gives the offset of the content.
    fn agree(&self, source: &dyn ByteSource, directory: u64) -> Result<u64> {
        let disagree = |what: &str| {
            let name = Escaped::short(&self.name);
            Error::corrupt(format!("the archive's directory and the entry '{name}' disagree on its {what}"))
        };
        if self.header.checked_add(LOCAL_LEN).is_none_or(|end| end > directory) {
            return Err(disagree("place"));
        }
        let fixed = read_vec(source, self.header, LOCAL_LEN)?;
        if fixed[..4] != LOCAL {
            return Err(disagree("place"));
        }
        let (name_len, extra_len) = (u64::from(u16_at(&fixed, 26)), u64::from(u16_at(&fixed, 28)));
        let name = read_vec(source, self.header + LOCAL_LEN, name_len)?;
        if name != self.name.as_bytes() {
            return Err(disagree("name"));
        }
        if u16_at(&fixed, 6) != self.flags || u16_at(&fixed, 8) != self.method {
            return Err(disagree("flags or method"));
        }
        let extra = read_vec(source, self.header + LOCAL_LEN + name_len, extra_len)?;
        let mut wide = Zip64::find(&extra);
        let len = wide.value(u32_at(&fixed, 22))?;
        let compressed = wide.value(u32_at(&fixed, 18))?;
        // A writer that streams knows the sizes only after the data, and leaves zeros here.
        let unknown = |value: u64| value == 0 && self.flags & SIZES_FOLLOW != 0;
        if !(unknown(len) || len == self.len) || !(unknown(compressed) || compressed == self.compressed) {
            return Err(disagree("size"));
        }
        let crc32 = u32_at(&fixed, 14);
        if !unknown(crc32.into()) && crc32 != self.crc32 {
            return Err(disagree("checksum"));
        }
        Ok(self.header + LOCAL_LEN + name_len + extra_len)
    }

    /// Refuses an entry whose bytes are not its content.
    pub(crate) fn check_stored(&self) -> Result<()> {
        let name = Escaped::short(&self.name);
        if self.flags & ENCRYPTED != 0 {
            return Err(Error::format(format!("'{name}' is encrypted")).at(self.header));
        }
        if self.method != 0 {
            let how = if self.method == 8 { "DEFLATE".to_owned() } else { format!("method {}", self.method) };
            let message = format!("'{name}' is compressed ({how}); PyTorch stores entries, and only that is read");
            return Err(Error::version(message).at(self.header));
        }
        if self.compressed != self.len {
            return Err(Error::corrupt(format!("'{name}' is stored, but in a different size")).at(self.header));
        }
        Ok(())
    }

    /// The content of a small entry, with its checksum checked.
    pub(crate) fn content(&self, source: &dyn ByteSource, limits: &Limits) -> Result<Vec<u8>> {
        self.check_stored()?;
        limits.check_metadata(self.len)?;
        let bytes = read_vec(source, self.offset, self.len)?;
        if crc32fast::hash(&bytes) != self.crc32 {
            let message = format!("the checksum of '{}' does not match its bytes", Escaped::short(&self.name));
            return Err(Error::checksum(message).at(self.offset));
        }
        Ok(bytes)
    }
}

/// The ZIP64 extra field (id 1): 64-bit values in the order of the fields that send here.
struct Zip64<'a>(&'a [u8]);

impl<'a> Zip64<'a> {
    fn find(mut extra: &'a [u8]) -> Self {
        while let [a, b, c, d, rest @ ..] = extra {
            let len = usize::from(u16::from_le_bytes([*c, *d])).min(rest.len());
            if u16::from_le_bytes([*a, *b]) == 1 {
                return Self(&rest[..len]);
            }
            extra = &rest[len..];
        }
        Self(&[])
    }

    fn value(&mut self, short: u32) -> Result<u64> {
        if short != IN_ZIP64 {
            return Ok(short.into());
        }
        let (value, rest) = self.0.split_at_checked(8).ok_or_else(|| Error::corrupt("a ZIP64 value is missing"))?;
        self.0 = rest;
        Ok(u64_at(value, 0))
    }
}

/// Offset, length and entry count of the directory, which must end where the end records begin.
fn locate(source: &dyn ByteSource) -> Result<(u64, u64, u64)> {
    let file_len = source.len();
    let end = find_end(source, file_len)?;
    let record = read_vec(source, end, END_LEN)?;
    if u16_at(&record, 4) != 0 && u16_at(&record, 4) != u16::MAX {
        return Err(Error::format("the archive spans several disks").at(end));
    }
    let (mut offset, mut len) = (u64::from(u32_at(&record, 16)), u64::from(u32_at(&record, 12)));
    let mut count = u64::from(u16_at(&record, 10));
    let mut directory_end = end;
    let locator = end.checked_sub(LOCATOR_LEN).map(|at| read_vec(source, at, LOCATOR_LEN)).transpose()?;
    if let Some(locator) = locator.filter(|locator| locator[..4] == LOCATOR64) {
        let at = u64_at(&locator, 8);
        if at.checked_add(END64_LEN).is_none_or(|after| after > end - LOCATOR_LEN) {
            return Err(Error::corrupt("the ZIP64 record is not where its locator says").at(end - LOCATOR_LEN));
        }
        let wide = read_vec(source, at, END64_LEN)?;
        if wide[..4] != END64 {
            return Err(Error::corrupt("the ZIP64 record lacks its signature").at(at));
        }
        let narrow = (offset, len, count);
        (count, len, offset) = (u64_at(&wide, 32), u64_at(&wide, 40), u64_at(&wide, 48));
        // A reader that ignores ZIP64 must find the same directory, or none.
        let same = |narrow: u64, wide: u64, absent: u64| narrow == wide || narrow == absent;
        let max = u64::from(u32::MAX);
        if !(same(narrow.0, offset, max) && same(narrow.1, len, max) && same(narrow.2, count, u16::MAX.into())) {
            return Err(Error::corrupt("the archive's two end records disagree").at(at));
        }
        directory_end = at;
    }
    if offset.checked_add(len) != Some(directory_end) {
        return Err(Error::corrupt("the archive's directory does not end where its end record begins").at(end));
    }
    Ok((offset, len, count))
}

/// The end record: the last one whose comment reaches exactly to the end of the file.
fn find_end(source: &dyn ByteSource, file_len: u64) -> Result<u64> {
    let tail_len = file_len.min(END_LEN + u64::from(u16::MAX));
    let start = file_len - tail_len;
    let tail = read_vec(source, start, tail_len)?;
    let fits = |&at: &usize| {
        let record = &tail[at..];
        record[..4] == END && END_LEN + u64::from(u16_at(record, 20)) == record.len() as u64
    };
    let last = tail.len().checked_sub(22).and_then(|last| (0..=last).rev().find(fits));
    let at = last.ok_or_else(|| {
        Error::corrupt("the ZIP archive is truncated: it has no end record, or bytes follow it").at(file_len)
    })?;
    Ok(start + at as u64)
}

/// Accepts relative names that stay inside, as a tool that unpacks the archive would need.
fn check_name(name: &str) -> Result<()> {
    let parts = || name.split('/');
    let plain = !name.is_empty()
        && !name.starts_with('/')
        && !name.contains(['\\', '\0'])
        && name.get(1..2).is_none_or(|colon| colon != ":")
        && parts().all(|part| part != ".." && part != ".");
    if !plain {
        return Err(Error::format(format!(
            "the archive's entry '{}' has a name that leads out of it",
            Escaped::short(name)
        )));
    }
    Ok(())
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
