//! Where the directory of a ZIP archive is, as its end records say.

use apr_core::{ByteSource, Error, Result, read_vec};

/// First bytes of an entry of the directory.
pub(crate) const CENTRAL: [u8; 4] = *b"PK\x01\x02";
const END: [u8; 4] = *b"PK\x05\x06";
const END64: [u8; 4] = *b"PK\x06\x06";
const LOCATOR64: [u8; 4] = *b"PK\x06\x07";
const END_LEN: u64 = 22;
const END64_LEN: u64 = 56;
const LOCATOR_LEN: u64 = 20;

/// Position of the central directory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Directory {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// Number of entries.
    pub(crate) count: u64,
}

impl Directory {
    /// Reads the position from the record at the end of the file.
    fn narrow(record: &[u8]) -> Self {
        let (len, offset) = (u64::from(u32_at(record, 12)), u64::from(u32_at(record, 16)));
        Self { offset, len, count: u64::from(u16_at(record, 10)) }
    }

    /// Reads the position from the ZIP64 record, if there is one before `end`. Also returns the
    /// offset of that record.
    fn wide(source: &dyn ByteSource, end: u64) -> Result<Option<(Self, u64)>> {
        let Some(locator_at) = end.checked_sub(LOCATOR_LEN) else { return Ok(None) };
        let locator = read_vec(source, locator_at, LOCATOR_LEN)?;
        if locator[..4] != LOCATOR64 {
            return Ok(None);
        }

        let at = u64_at(&locator, 8);
        if at.checked_add(END64_LEN).is_none_or(|after| after > locator_at) {
            return Err(Error::corrupt("the ZIP64 record is not at the offset in its locator")
                .at(locator_at));
        }

        let record = read_vec(source, at, END64_LEN)?;
        if record[..4] != END64 {
            return Err(Error::corrupt("the ZIP64 record lacks its signature").at(at));
        }

        Ok(Some((Self::wide_record(&record), at)))
    }

    /// Reads the position from a ZIP64 record.
    fn wide_record(record: &[u8]) -> Self {
        Self { offset: u64_at(record, 48), len: u64_at(record, 40), count: u64_at(record, 32) }
    }

    /// Returns `true` if a reader that ignores ZIP64 finds the same directory as this one, or none.
    fn is_same_or_none(self, narrow: Self) -> bool {
        let same = |narrow: u64, wide: u64, absent: u64| narrow == wide || narrow == absent;
        let max = u64::from(u32::MAX);
        same(narrow.offset, self.offset, max)
            && same(narrow.len, self.len, max)
            && same(narrow.count, self.count, u16::MAX.into())
    }
}

/// Returns the directory, which must end at the start of the end records.
pub(crate) fn locate(source: &dyn ByteSource) -> Result<Directory> {
    let end = find_end(source, source.len())?;
    let record = read_vec(source, end, END_LEN)?;

    // Some loaders take the last signature for the end record, whatever its comment is.
    if last_end(source)?.is_some_and(|last| last != end) {
        return Err(Error::corrupt("the archive has two end records").at(end));
    }

    // All ones send to the ZIP64 record (APPNOTE 4.4.1.4).
    if u16_at(&record, 4) != 0 && u16_at(&record, 4) != u16::MAX {
        return Err(Error::format("the archive spans several disks").at(end));
    }

    let narrow = Directory::narrow(&record);
    let (directory, directory_end) = match Directory::wide(source, end)? {
        Some((wide, at)) if !wide.is_same_or_none(narrow) => {
            return Err(Error::corrupt("the archive's two end records disagree").at(at));
        }
        Some(found) => found,
        None => (narrow, end),
    };

    if directory.offset.checked_add(directory.len) != Some(directory_end) {
        return Err(Error::corrupt(
            "the archive's directory does not end where its end record begins",
        )
        .at(end));
    }
    Ok(directory)
}

/// Finds the directory as Python does: directly before its end record, regardless of the bytes
/// before and after.
///
/// Also returns the amount by which the offsets in it are too small. Returns several directories if
/// loaders differ in which one they read.
pub(crate) fn locate_loosely(source: &dyn ByteSource) -> Result<Vec<(Directory, u64)>> {
    let strict = match locate(source) {
        Ok(place) => return Ok(vec![(place, 0)]),
        Err(error) => error,
    };

    let ends = [last_end(source)?, find_end(source, source.len()).ok()];
    let mut found: Vec<(Directory, u64)> = Vec::new();
    for end in ends.into_iter().flatten() {
        for place in directories(source, end)? {
            if !found.iter().any(|(other, _)| other.offset == place.0.offset) {
                found.push(place);
            }
        }
    }
    if found.is_empty() { Err(strict) } else { Ok(found) }
}

/// Returns the directories that belong to an end record: the one before it, and the one of the
/// ZIP64 record if that differs.
fn directories(source: &dyn ByteSource, end: u64) -> Result<Vec<(Directory, u64)>> {
    let narrow = Directory::narrow(&read_vec(source, end, END_LEN)?);
    let before = |said: Directory, end: u64| {
        let offset = end.checked_sub(said.len)?;
        Some((Directory { offset, ..said }, offset.saturating_sub(said.offset)))
    };

    // The wide record is looked for where it must be, not where its locator says.
    let wide_at = end.checked_sub(LOCATOR_LEN + END64_LEN);
    let wide = wide_at
        .map(|at| Ok((at, read_vec(source, at, END64_LEN + LOCATOR_LEN)?)))
        .transpose()?
        .filter(|(_, wide)| wide[..4] == END64 && wide[56..60] == LOCATOR64);
    let Some((at, record)) = wide else { return Ok(before(narrow, end).into_iter().collect()) };

    let wide = Directory::wide_record(&record);
    let mut found: Vec<(Directory, u64)> = before(wide, at).into_iter().collect();
    if !wide.is_same_or_none(narrow) {
        found.extend([(wide, 0), (narrow, 0)].into_iter().filter(|(place, _)| {
            let is_there = place.offset.checked_add(place.len).is_some_and(|end| end <= at);
            is_there && read_vec(source, place.offset, 4).is_ok_and(|head| head == CENTRAL)
        }));
    }
    Ok(found)
}

/// Returns the offset of the last signature of an end record.
fn last_end(source: &dyn ByteSource) -> Result<Option<u64>> {
    let tail_len = source.len().min(END_LEN + u64::from(u16::MAX));
    let start = source.len() - tail_len;
    let tail = read_vec(source, start, tail_len)?;
    let last = tail.len().checked_sub(22);
    let last = last.and_then(|last| (0..=last).rev().find(|&at| tail[at..at + 4] == END));
    Ok(last.map(|at| start + at as u64))
}

/// Returns the offset of the end record: the last one whose comment reaches exactly to the end of
/// the file.
fn find_end(source: &dyn ByteSource, file_len: u64) -> Result<u64> {
    // A comment's length has 16 bits, so the record begins within these bytes.
    let tail_len = file_len.min(END_LEN + u64::from(u16::MAX));
    let start = file_len - tail_len;
    let tail = read_vec(source, start, tail_len)?;
    let fits = |&at: &usize| {
        let record = &tail[at..];
        record[..4] == END && END_LEN + u64::from(u16_at(record, 20)) == record.len() as u64
    };
    let last = tail.len().checked_sub(22).and_then(|last| (0..=last).rev().find(fits));
    let at = last.ok_or_else(|| {
        Error::corrupt("the ZIP archive is truncated: it has no end record, or bytes follow it")
            .at(file_len)
    })?;
    Ok(start + at as u64)
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
