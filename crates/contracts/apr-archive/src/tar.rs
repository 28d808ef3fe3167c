//! TAR archives: their members, one after the other.

use apr_core::{ByteSource, Error, Result, read_vec};

/// Length of a header and alignment of members, in bytes.
pub const BLOCK: u64 = 512;

/// Members looked at; a checkpoint has four.
const MAX_MEMBERS: usize = 1024;

/// Bytes of a long name or of PAX records that are read: paths are shorter in any system.
const MAX_PATHS: u64 = 1 << 16;

/// A file in the archive.
#[derive(Debug)]
pub struct Member {
    /// Path of the file.
    pub name: String,
    /// Offset of the content in the archive.
    pub offset: u64,
    /// Bytes of it.
    pub len: u64,
}

/// Returns `true` if the first block is a TAR header. Its checksum is strong evidence.
pub fn recognise(head: &[u8]) -> bool {
    head.get(..512).is_some_and(|header| {
        // The field of the checksum itself counts as spaces (POSIX, ustar).
        let counted = |(i, &b): (usize, &u8)| if (148..156).contains(&i) { b' ' } else { b };
        let bytes = || header.iter().enumerate().map(counted);
        // Old programs added signed bytes, and readers take either sum.
        let sum: u64 = bytes().map(u64::from).sum();
        let signed: i64 = bytes().map(|byte| i64::from(byte.cast_signed())).sum();
        let said = octal(&header[148..156]);
        header[0] != 0
            && (said == Some(sum) || said.is_some() && said == u64::try_from(signed).ok())
    })
}

impl Member {
    /// Returns the name without the leading `./` that `tar` may write.
    pub fn plain_name(&self) -> &str {
        self.name.trim_start_matches("./")
    }
}

/// Returns the members, up to the empty block that ends the archive.
pub fn all_members(source: &dyn ByteSource) -> Result<Vec<Member>> {
    let mut members = Vec::new();
    each_header(source, &mut |header, offset, len| {
        // Only plain files have content; PAX headers (`x`, `g`) say nothing a checkpoint needs.
        if matches!(header[156], 0 | b'0') {
            if members.len() == MAX_MEMBERS {
                return Err(Error::corrupt("a TAR archive has too many members").at(offset));
            }
            members.push(Member { name: text(&header[..100]), offset, len });
        }
        Ok(())
    })?;
    Ok(members)
}

/// The files that unpacking an archive writes, as Python and GNU tar read it.
#[derive(Debug, Default)]
pub struct Survey {
    /// Members with content, under the names that they get.
    pub members: Vec<Member>,
    /// Every path that is written to or linked to, however it is spelled: in the header (POSIX's
    /// prefix included), in a PAX record, as GNU's long name.
    pub paths: Vec<String>,
    /// Warnings about the archive.
    pub odd: Vec<String>,
    /// Error that ended the reading early.
    pub problem: Option<Error>,
}

/// Reads an archive for a scan: to the end of the file, including extended headers.
pub fn survey(source: &dyn ByteSource) -> Survey {
    let mut survey = Survey::default();
    survey.problem = survey.read(source).err();
    survey
}

impl Survey {
    fn read(&mut self, source: &dyn ByteSource) -> Result<()> {
        let (mut position, mut has_ended) = (0, false);
        // What the headers in front of a member say of it.
        let (mut long_name, mut long_size) = (None, None);
        while position < source.len() {
            let header = read_vec(source, position, BLOCK.min(source.len() - position))?;
            if header.iter().all(|&byte| byte == 0) {
                has_ended = true;
                position += BLOCK;
                continue;
            }
            if has_ended && self.odd.is_empty() {
                self.odd.push("bytes follow the end of the archive".to_owned());
            }
            if !recognise(&header) {
                return Err(Error::corrupt("a TAR header is damaged").at(position));
            }

            let said = size(&header[124..136])
                .ok_or_else(|| Error::corrupt("a TAR member has no size").at(position))?;
            let kind = header[156];
            let is_extension = matches!(kind, b'L' | b'K' | b'x' | b'g' | b'X');
            // Links, devices and folders have no content, whatever their size says.
            let is_bare = matches!(kind, b'1'..=b'6');
            let len = match long_size.filter(|_| !is_extension) {
                Some(long) if long != said => {
                    self.odd.push(
                        "a member has two sizes, and loaders differ in which they read".into(),
                    );
                    long
                }
                _ if is_bare && said > 0 => {
                    self.odd
                        .push("a link or folder has a size, which loaders read or ignore".into());
                    0
                }
                _ => said,
            };

            let offset = position + BLOCK;
            let end = offset.checked_add(len).filter(|&end| end <= source.len());
            let end = end.ok_or_else(|| {
                Error::corrupt("a TAR member reaches past the end of the file").at(position)
            })?;
            let content = || read_vec(source, offset, len.min(MAX_PATHS));
            match kind {
                b'L' => long_name = Some(text(&content()?)),
                b'K' => self.paths.push(text(&content()?)),
                b'x' | b'g' | b'X' => {
                    let records = content()?;
                    let value = |key| pax(&records, key).pop();
                    long_name = value("path=").or(long_name);
                    long_size = value("size=").and_then(|size| size.parse().ok()).or(long_size);
                    self.paths.extend(pax(&records, "linkpath="));
                }
                _ => {
                    let name = long_name.take().unwrap_or_else(|| name_of(&header));
                    long_size = None;
                    if matches!(kind, b'1' | b'2') {
                        self.paths.push(text(&header[157..257]));
                    }
                    self.paths.push(name.clone());
                    // A type that nobody knows is a plain file.
                    if !is_bare {
                        self.add(Member { name, offset, len })?;
                    }
                }
            }
            position = end.checked_next_multiple_of(BLOCK).unwrap_or(u64::MAX);
        }
        Ok(())
    }

    fn add(&mut self, member: Member) -> Result<()> {
        if self.members.len() == MAX_MEMBERS {
            return Err(Error::corrupt("a TAR archive has too many members").at(member.offset));
        }
        self.members.push(member);
        Ok(())
    }
}

/// Returns the name in a header, with POSIX's prefix.
fn name_of(header: &[u8]) -> String {
    let (name, prefix) = (text(&header[..100]), text(&header[345..500]));
    let is_posix = &header[257..263] == b"ustar\0" && !prefix.is_empty();
    if is_posix { format!("{prefix}/{name}") } else { name }
}

/// Parses a size: octal digits, or a binary number if the first bit is set (GNU).
fn size(field: &[u8]) -> Option<u64> {
    match field {
        [0x80, rest @ ..] => rest
            .iter()
            .try_fold(0_u64, |size, &byte| Some(size.checked_mul(256)? | u64::from(byte))),
        _ if field.iter().all(|byte| matches!(byte, 0 | b' ')) => Some(0),
        _ => octal(field),
    }
}

/// Returns the values of a key, given with its `=`, in a PAX header: records of `LENGTH KEY=VALUE`
/// and a line feed.
fn pax(mut records: &[u8], key: &str) -> Vec<String> {
    let mut values = Vec::new();
    while let Some(space) = records.iter().position(|&byte| byte == b' ') {
        let len = std::str::from_utf8(&records[..space]).ok().and_then(|len| len.parse().ok());
        let Some(len) = len.filter(|&len: &usize| len > space && len <= records.len()) else {
            break;
        };
        let (record, rest) = records.split_at(len);
        let value = record[space + 1..].strip_prefix(key.as_bytes());
        values.extend(value.map(|value| text(value.strip_suffix(b"\n").unwrap_or(value))));
        records = rest;
    }
    values
}

fn text(field: &[u8]) -> String {
    let bytes = field.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(bytes).into_owned()
}

/// Receives a header, and the offset and length of its content in bytes.
type TakeHeader<'a> = dyn FnMut(&[u8], u64, u64) -> Result<()> + 'a;

/// Passes each header and the range of its content to `take`, up to the empty block that ends the
/// archive.
fn each_header(source: &dyn ByteSource, take: &mut TakeHeader<'_>) -> Result<()> {
    let mut position = 0;
    while position < source.len() {
        let header = read_vec(source, position, BLOCK)?;
        if header.iter().all(|&byte| byte == 0) {
            break;
        }
        if !recognise(&header) {
            return Err(Error::corrupt("a TAR header is damaged").at(position));
        }

        let len = octal(&header[124..136])
            .ok_or_else(|| Error::corrupt("a TAR member has no size").at(position))?;
        let offset = position + BLOCK;
        let end = offset.checked_add(len).filter(|&end| end <= source.len());
        let end = end.ok_or_else(|| {
            Error::corrupt("a TAR member reaches past the end of the file").at(position)
        })?;

        take(&header, offset, len)?;
        position = end.checked_next_multiple_of(BLOCK).unwrap_or(u64::MAX);
    }
    Ok(())
}

fn octal(field: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(field).ok()?;
    u64::from_str_radix(text.trim_matches([' ', '\0']), 8).ok()
}
