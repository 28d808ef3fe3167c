//! The directory of a ZIP archive, checked so that no two readers see two archives in one file.
//!
//! The `zip` crate reads from a `Read + Seek` and hands out streams; here entries must be known by
//! their place in a [`ByteSource`], and the two headers that each entry has must be compared.

use std::collections::HashMap;
use std::sync::Arc;

use apr_core::{
    ByteSource, Error, Escaped, Limits, Result, StoredPart, StoredRange, Sum, read_vec,
};

use crate::decoded::Decoded;
use crate::directory::{CENTRAL, Directory, locate, locate_loosely, u16_at, u32_at, u64_at};
use crate::inflate::{Cache, Inflated, Wrapper};
use crate::section::Section;

const LOCAL: [u8; 4] = *b"PK\x03\x04";
const LOCAL_LEN: u64 = 30;
const CENTRAL_LEN: usize = 46;

/// Flags: bit 0 and 6 encryption, 13 masked headers, 3 sizes after the data.
const ENCRYPTED: u16 = 1 | 1 << 6 | 1 << 13;
const SIZES_FOLLOW: u16 = 1 << 3;

/// Compression methods of an entry.
const STORED: u16 = 0;
const DEFLATE: u16 = 8;

/// The value of a 32-bit field whose true value is in the ZIP64 extra field.
const IN_ZIP64: u32 = u32::MAX;

/// An entry, with the place of its bytes.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Name of the entry, with `/` between folders.
    pub name: String,
    flags: u16,
    method: u16,
    /// CRC-32 of the content.
    pub crc32: u32,
    /// Bytes in the file.
    pub compressed: u64,
    /// Bytes of the content.
    pub len: u64,
    header: u64,
    /// Offset of the entry's bytes in the file.
    pub place: u64,
    /// Offset of the content: in the file or, for a compressed entry, in the result of
    /// [`Archive::decoded`].
    pub offset: u64,
}

/// The CRC-32 of an entry, and the range of its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntrySum {
    /// Range of the content in the result of [`Archive::decoded`].
    content: StoredRange,
    /// Range of the entry's bytes in the file.
    pub place: StoredRange,
    crc32: u32,
}

impl EntrySum {
    /// Returns the entry as a part that tensors are made of; `source` is the result of
    /// [`Archive::decoded`].
    #[must_use]
    pub fn part<'a>(&self, source: &'a dyn ByteSource) -> StoredPart<'a> {
        StoredPart::of_file(source, self.content, Sum::Crc32(self.crc32)).lying_at(self.place)
    }
}

/// An archive's entries in the order of its directory.
#[derive(Debug, Default)]
pub struct Archive {
    /// The entries.
    pub entries: Vec<Entry>,
    by_name: HashMap<String, usize>,
}

impl Archive {
    /// Reads the directory and each entry's own header.
    ///
    /// # Errors
    /// E001 for encrypted entries, two of one name, and names that lead out; E002 for a damaged or
    /// contradictory archive, E007 when reading fails, E008 over a limit.
    pub fn read(source: &dyn ByteSource, limits: &Limits) -> Result<Self> {
        let place = locate(source)?;
        let mut archive = Self::directory(source, place, limits)?;
        let directory = place.offset;

        // Loaders differ in which of the two they read, so what was checked might not be what is
        // loaded.
        if let Some((at, name)) = archive.twice() {
            let message = format!("the archive has two entries named '{}'", Escaped::short(name));
            return Err(Error::format(message).at(at));
        }

        for entry in &mut archive.entries {
            check_name(&entry.name).map_err(|error| error.at(entry.header))?;
            if entry.is_marked_encrypted() {
                let message = format!(
                    "'{}' is encrypted, which PyTorch never does",
                    Escaped::short(&entry.name)
                );
                return Err(Error::format(message).at(entry.header));
            }
            entry.place = entry.agree(source, directory).map_err(|error| error.at(entry.header))?;
            entry.offset = entry.place;
        }

        archive.check_overlaps(directory)?;
        Ok(archive)
    }

    /// Returns the entries that a lenient loader would find, the number of bytes before the
    /// archive, and warnings about it, for a scan.
    ///
    /// # Errors
    /// E002 when there is no usable directory, E007 when reading fails, E008 over a limit.
    pub fn survey(source: &dyn ByteSource, limits: &Limits) -> Result<(Self, u64, Vec<String>)> {
        let mut odd = Vec::new();
        let places = locate_loosely(source)?;
        if places.len() > 1 {
            odd.push(
                "it has two directories, and loaders differ in which one they read".to_owned(),
            );
        }

        let (mut archive, mut failed) = (Self::default(), None);
        for &(place, shift) in &places {
            match Self::directory(source, place, limits) {
                Ok(found) => archive.add(source, found, (place, shift), &mut odd)?,
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) if archive.entries.is_empty() => return Err(error),
            Some(error) => odd.push(error.message().to_owned()),
            None => {}
        }

        let (place, shift) = places[0];
        if places.len() == 1 {
            odd.extend(
                archive.check_overlaps(place.offset).err().map(|error| error.message().to_owned()),
            );
            odd.extend(archive.unlisted(source, place.offset));
        }
        Ok((archive, shift, odd))
    }

    /// Adds the entries of a directory whose offsets are too small by `shift`. Adds warnings about
    /// them to `odd`.
    fn add(
        &mut self,
        source: &dyn ByteSource,
        found: Self,
        (place, shift): (Directory, u64),
        odd: &mut Vec<String>,
    ) -> Result<()> {
        if let Some((_, name)) = found.twice() {
            odd.push(format!(
                "two entries have the name '{}', and loaders differ in which one they read",
                Escaped::short(name)
            ));
        }

        for mut entry in found.entries {
            entry.header = entry.header.saturating_add(shift);
            // Programs of Windows write its separators.
            let name = entry.name.replace('\\', "/");
            odd.extend(check_name(&name).err().map(|error| error.message().to_owned()));
            let agreed = entry.agree(source, place.offset);
            entry.place = match &agreed {
                Ok(place) => *place,
                Err(_) => entry.content_by_local_header(source)?,
            };
            odd.extend(agreed.err().map(|error| error.message().to_owned()));
            entry.offset = entry.place;
            self.entries.push(entry);
        }
        Ok(())
    }

    /// Reads the entries from the directory alone.
    fn directory(source: &dyn ByteSource, place: Directory, limits: &Limits) -> Result<Self> {
        let Directory { offset, len, count } = place;
        limits.check_index(len)?;
        if count > len / CENTRAL_LEN as u64 {
            return Err(Error::corrupt(format!(
                "{count} entries do not fit a directory of {len} bytes"
            ))
            .at(offset));
        }

        let bytes = read_vec(source, offset, len)?;
        let mut rest = &bytes[..];
        let mut archive = Self::default();
        for number in 0..count {
            let at = offset + (bytes.len() - rest.len()) as u64;
            let (entry, tail) = Entry::parse(rest).map_err(|error| error.at(at))?;
            archive
                // The first of a name stays, which is how `twice` notices the second.
                .by_name
                .entry(entry.name.clone())
                .or_insert(usize::try_from(number).unwrap_or(usize::MAX));
            archive.entries.push(entry);
            rest = tail;
        }

        // Python goes by the directory's length and others by its count: both must list the same.
        if !rest.is_empty() {
            let at = offset + (bytes.len() - rest.len()) as u64;
            return Err(
                Error::corrupt("the archive's directory continues after its last entry").at(at)
            );
        }

        Ok(archive)
    }

    /// Returns the offset of the first entry, as the directory states it, or `None` for an empty
    /// archive.
    #[must_use]
    pub fn start(&self) -> Option<u64> {
        self.entries.iter().map(|entry| entry.header).min()
    }

    /// Returns the first name that two entries share, and the offset of the second one.
    fn twice(&self) -> Option<(u64, &str)> {
        let mut entries = self.entries.iter().enumerate();
        let (_, entry) = entries.find(|(at, entry)| self.by_name.get(&entry.name) != Some(at))?;
        Some((entry.header, &entry.name))
    }

    /// Returns the entry of this name, or the first of several.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Entry> {
        self.by_name.get(name).map(|&at| &self.entries[at])
    }

    /// Returns the file with its compressed entries decoded after its end, and sets their
    /// [`Entry::offset`] to that position.
    ///
    /// # Errors
    /// E002 for an entry that claims more bytes than its compressed ones can hold.
    pub fn decoded<S: ByteSource + Clone>(&mut self, source: S) -> Result<Decoded<S>> {
        let cache = Arc::new(Cache::default());
        let mut decoded = Decoded::new(source.clone());
        for entry in self.entries.iter_mut().filter(|entry| entry.method == DEFLATE) {
            let place = (entry.place, entry.compressed);
            let inflated = Inflated::new(source.clone(), place, entry.len, Wrapper::Raw, &cache);
            let inflated = inflated.map_err(|error| {
                let message = format!("'{}': {}", Escaped::short(&entry.name), error.message());
                Error::corrupt(message).at(entry.header)
            });
            entry.offset = decoded.push(inflated?)?;
        }
        Ok(decoded)
    }

    /// Returns warnings about gaps that contain the header of an entry which the directory does not
    /// list.
    fn unlisted(&self, source: &dyn ByteSource, directory: u64) -> Vec<String> {
        let mut places: Vec<(u64, u64)> = self
            .entries
            .iter()
            .map(|entry| (entry.header, entry.place.saturating_add(entry.compressed)))
            .collect();
        places.sort_unstable();
        let starts = places.iter().skip(1).map(|place| place.0).chain([directory]);
        let gaps = places.iter().zip(starts).filter_map(|(&(_, end), next)| {
            // A descriptor of up to 24 bytes may follow the content.
            let head = read_vec(source, end, next.checked_sub(end)?.min(28)).ok()?;
            let at = head.windows(4).position(|bytes| bytes == LOCAL)? as u64;
            Some(format!("at byte {} is an entry that the directory does not list", end + at))
        });

        gaps.collect()
    }

    fn check_overlaps(&self, directory: u64) -> Result<()> {
        let mut sorted: Vec<&Entry> = self.entries.iter().collect();
        sorted.sort_by_key(|entry| entry.header);
        let ends = sorted.iter().skip(1).map(|next| next.header).chain([directory]);
        for (entry, end) in sorted.iter().zip(ends) {
            // Entries that share bytes make a small archive unpack to terabytes (Fifield 2019).
            if entry.place.checked_add(entry.compressed).is_none_or(|own_end| own_end > end) {
                let message =
                    format!("'{}' reaches into what follows it", Escaped::short(&entry.name));
                return Err(Error::corrupt(message).at(entry.header));
            }
        }
        Ok(())
    }
}

impl Entry {
    /// Parses an entry of the directory, and returns the bytes after it.
    fn parse(bytes: &[u8]) -> Result<(Self, &[u8])> {
        let cut_off = || Error::corrupt("the archive's directory is cut off");
        let fixed = bytes.get(..CENTRAL_LEN).ok_or_else(cut_off)?;
        if fixed[..4] != CENTRAL {
            return Err(Error::corrupt("an entry of the archive's directory lacks its signature"));
        }

        let (name_len, extra_len) =
            (usize::from(u16_at(fixed, 28)), usize::from(u16_at(fixed, 30)));
        let comment_len = usize::from(u16_at(fixed, 32));
        let variable = &bytes[CENTRAL_LEN..];
        let name = variable.get(..name_len).ok_or_else(cut_off)?;
        let extra = variable.get(name_len..name_len + extra_len).ok_or_else(cut_off)?;
        let rest = variable.get(name_len + extra_len + comment_len..).ok_or_else(cut_off)?;
        let name = String::from_utf8(name.to_vec());
        let name = name
            .map_err(|_| Error::format("an entry of the archive has a name that is not UTF-8"))?;
        let mut wide = Zip64::find(extra);

        // The ZIP64 field has its own order (APPNOTE 4.5.3): the content's length comes first.
        let len = wide.value(u32_at(fixed, 24))?;
        let compressed = wide.value(u32_at(fixed, 20))?;
        let header = wide.value(u32_at(fixed, 42))?;
        let (flags, method) = (u16_at(fixed, 8), u16_at(fixed, 10));
        let crc32 = u32_at(fixed, 16);
        Ok((
            Self { name, flags, method, crc32, compressed, len, header, place: 0, offset: 0 },
            rest,
        ))
    }

    /// Compares the entry's own header with the directory; gives the offset of the content.
    fn agree(&self, source: &dyn ByteSource, directory: u64) -> Result<u64> {
        let disagree = |what: &str| {
            let name = Escaped::short(&self.name);
            Error::corrupt(format!(
                "the archive's directory and the entry '{name}' disagree on its {what}"
            ))
        };

        // Some loaders go by the directory and others by this header, so the two must say the same.
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
        if !self.has_sizes_of(&fixed, &extra)? {
            return Err(disagree("size"));
        }

        let crc32 = u32_at(&fixed, 14);
        if crc32 != self.crc32 && !self.is_left_open(crc32.into()) {
            return Err(disagree("checksum"));
        }

        Ok(self.header + LOCAL_LEN + name_len + extra_len)
    }

    /// Returns `true` if the entry's own header has the directory's sizes, or none.
    fn has_sizes_of(&self, fixed: &[u8], extra: &[u8]) -> Result<bool> {
        let mut wide = Zip64::find(extra);
        let len = wide.value(u32_at(fixed, 22))?;
        let compressed = wide.value(u32_at(fixed, 18))?;
        let agrees = |own: u64, listed: u64| own == listed || self.is_left_open(own);
        Ok(agrees(len, self.len) && agrees(compressed, self.compressed))
    }

    /// Returns `true` if a value of the entry's own header is left open. A writer that streams
    /// knows sizes and CRC only after the data, and writes zeros here.
    fn is_left_open(&self, value: u64) -> bool {
        value == 0 && self.flags & SIZES_FOLLOW != 0
    }

    /// Returns the offset of the content by the entry's own header, regardless of its other fields.
    fn content_by_local_header(&self, source: &dyn ByteSource) -> Result<u64> {
        let local = read_vec(source, self.header, LOCAL_LEN)?;
        let variable = u64::from(u16_at(&local, 26)) + u64::from(u16_at(&local, 28));
        Ok(self.header.saturating_add(LOCAL_LEN + variable))
    }

    /// Returns `true` if the directory marks the entry as encrypted.
    #[must_use]
    pub fn is_marked_encrypted(&self) -> bool {
        self.flags & ENCRYPTED != 0
    }

    /// Returns `true` if the entry is stored in as many bytes as its content has, which an
    /// encrypted one never is.
    #[must_use]
    pub fn is_as_long_as_its_content(&self) -> bool {
        self.is_stored() && self.compressed == self.len
    }

    /// Returns `true` if the content is stored uncompressed.
    #[must_use]
    pub fn is_stored(&self) -> bool {
        self.method == STORED
    }

    /// Rejects an entry whose content can't be read, encrypted or not.
    ///
    /// # Errors
    /// E002 for a stored entry of two sizes, E003 for one that is compressed by anything but
    /// DEFLATE.
    pub fn check_packing(&self) -> Result<()> {
        let name = Escaped::short(&self.name);
        if self.method == STORED && self.compressed != self.len {
            return Err(Error::corrupt(format!("'{name}' is stored, but in a different size"))
                .at(self.header));
        }

        let how = match self.method {
            STORED | DEFLATE => return Ok(()),
            9 => "DEFLATE64",
            12 => "bzip2",
            14 => "LZMA",
            93 => "Zstandard",
            95 => "XZ",
            _ => "an unknown method",
        };

        let message =
            format!("'{name}' is compressed ({how}, {}); only DEFLATE is read", self.method);
        Err(Error::version(message).at(self.header))
    }

    /// Returns the content of the entry as a separate source.
    ///
    /// # Errors
    /// The errors of [`check_packing`](Self::check_packing); E002 when it claims what its bytes
    /// can't hold.
    pub fn open<'a>(
        &self,
        source: &'a dyn ByteSource,
        cache: &Arc<Cache>,
    ) -> Result<Box<dyn ByteSource + 'a>> {
        self.check_packing()?;
        if self.is_stored() {
            return Ok(Box::new(Section::new(source, self.place, self.len)?));
        }
        Ok(Box::new(Inflated::new(
            source,
            (self.place, self.compressed),
            self.len,
            Wrapper::Raw,
            cache,
        )?))
    }

    /// Returns the content of a small entry, with its checksum verified. `source` is the result of
    /// [`Archive::decoded`].
    ///
    /// # Errors
    /// The errors of [`check_packing`](Self::check_packing); E002 for damaged bytes, E004 when the
    /// checksum is wrong, E007 when reading fails, E008 over the limit of metadata.
    pub fn content(&self, source: &dyn ByteSource, limits: &Limits) -> Result<Vec<u8>> {
        self.check_packing()?;
        // Before memory is taken: a few bytes of DEFLATE may claim a thousand times as many.
        limits.check_metadata(self.len)?;
        let bytes = read_vec(source, self.offset, self.len)?;
        self.compare(crc32fast::hash(&bytes))?;
        Ok(bytes)
    }

    /// Reads the content once, a piece at a time, and compares it with its CRC-32. `source` is the
    /// result of [`Archive::decoded`].
    ///
    /// # Errors
    /// E002 for bytes that don't decode, E004 when the checksum is wrong, E007 when reading fails.
    pub fn check_crc(&self, source: &dyn ByteSource) -> Result<()> {
        /// Bytes read at a time.
        const PIECE: u64 = 1 << 16;

        let (mut crc, mut done) = (crc32fast::Hasher::new(), 0);
        while done < self.len {
            let piece = read_vec(source, self.offset + done, PIECE.min(self.len - done))?;
            crc.update(&piece);
            done += piece.len() as u64;
        }
        self.compare(crc.finalize())
    }

    fn compare(&self, crc32: u32) -> Result<()> {
        if crc32 == self.crc32 {
            return Ok(());
        }
        let message =
            format!("the checksum of '{}' does not match its bytes", Escaped::short(&self.name));
        Err(Error::checksum(message).at(self.place))
    }

    /// Returns the archive's checksum of the entry's content, for tensors made from it. `file` is
    /// the archive's position among the files of a checkpoint.
    #[must_use]
    pub fn sum(&self, file: usize) -> EntrySum {
        EntrySum {
            content: StoredRange { file, offset: self.offset, len: self.len },
            place: StoredRange { file, offset: self.place, len: self.compressed },
            crc32: self.crc32,
        }
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
        let (value, rest) =
            self.0.split_at_checked(8).ok_or_else(|| Error::corrupt("a ZIP64 value is missing"))?;
        self.0 = rest;
        Ok(u64_at(value, 0))
    }
}

/// Accepts relative names that stay inside the folder, as a tool that unpacks the archive requires.
fn check_name(name: &str) -> Result<()> {
    let parts = || name.split('/');
    let plain = !name.is_empty()
        && !name.starts_with('/')
        && !name.contains(['\\', '\0'])
        // `C:` is a drive of Windows.
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
