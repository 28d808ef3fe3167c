//! TAR archives: their members, one after the other.

use apr_core::{ByteSource, Error, Result, read_vec};

/// Bytes of a header, and what members are aligned to.
pub(crate) const BLOCK: u64 = 512;
/// Members looked at; a checkpoint has four.
const MAX_MEMBERS: usize = 1024;

/// Bytes of a long name or of PAX records that are read: paths are shorter in any system.
const MAX_PATHS: u64 = 1 << 16;

/// A file in the archive.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// Whether the first block is a TAR header: its checksum is a strong sign.
pub(crate) fn recognise(head: &[u8]) -> bool {
    head.get(..512).is_some_and(|header| {
        // The field of the checksum itself counts as spaces (POSIX, ustar).
        let sum: u64 = header
            .iter()
            .enumerate()
            .map(|(i, &b)| u64::from(if (148..156).contains(&i) { b' ' } else { b }))
            .sum();
        header[0] != 0 && octal(&header[148..156]) == Some(sum)
    })
}

impl Member {
    /// Its name without the folder that `tar` may put in front.
    pub(crate) fn plain_name(&self) -> &str {
        self.name.trim_start_matches("./")
    }
}

/// The members, up to the empty block that ends the archive.
pub(crate) fn all_members(source: &dyn ByteSource) -> Result<Vec<Member>> {
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

/// Every path that unpacking the archive writes to or links to, however it is spelled: in the
/// header (POSIX's prefix included), in a PAX record, as GNU's long name.
pub(crate) fn paths(source: &dyn ByteSource) -> Result<Vec<String>> {
    let mut paths = Vec::new();
    each_header(source, &mut |header, offset, len| {
        let content = || read_vec(source, offset, len.min(MAX_PATHS));
        match header[156] {
            b'L' | b'K' => paths.push(text(&content()?)),
            b'x' | b'g' => paths.extend(pax_paths(&content()?)),
            kind => {
                let (name, prefix) = (text(&header[..100]), text(&header[345..500]));
                let is_posix = &header[257..263] == b"ustar\0" && !prefix.is_empty();
                paths.push(if is_posix { format!("{prefix}/{name}") } else { name });
                if matches!(kind, b'1' | b'2') {
                    paths.push(text(&header[157..257]));
                }
            }
        }
        Ok(())
    })?;
    Ok(paths)
}

/// The paths in a PAX header: records of `LENGTH KEY=VALUE` and a line feed.
fn pax_paths(mut records: &[u8]) -> Vec<String> {
    let mut paths = Vec::new();
    while let Some(space) = records.iter().position(|&byte| byte == b' ') {
        let len = std::str::from_utf8(&records[..space]).ok().and_then(|len| len.parse().ok());
        let Some(len) = len.filter(|&len: &usize| len > space && len <= records.len()) else {
            break;
        };
        let (record, rest) = records.split_at(len);
        for key in [&b"path="[..], b"linkpath="] {
            paths.extend(
                record[space + 1..]
                    .strip_prefix(key)
                    .map(|path| text(path.strip_suffix(b"\n").unwrap_or(path))),
            );
        }
        records = rest;
    }
    paths
}

fn text(field: &[u8]) -> String {
    let bytes = field.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(bytes).into_owned()
}

/// Gets a header, and where its content lies: offset and length in bytes.
type TakeHeader<'a> = dyn FnMut(&[u8], u64, u64) -> Result<()> + 'a;

/// Hands over each header, and where its content lies, up to the empty block that ends the archive.
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
