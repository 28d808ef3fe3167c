//! TAR archives: their members, one after the other.

use apr_core::{ByteSource, Error, Result, read_vec};

/// Bytes of a header, and what members are aligned to.
pub(crate) const BLOCK: u64 = 512;
/// Members looked at; a checkpoint has four.
const MAX_MEMBERS: usize = 1024;

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
    let mut position = 0;
    while position < source.len() {
        let header = read_vec(source, position, BLOCK)?;
        if header.iter().all(|&byte| byte == 0) {
            break;
        }
        if !recognise(&header) || members.len() == MAX_MEMBERS {
            return Err(Error::corrupt("a TAR header is damaged").at(position));
        }

        let len = octal(&header[124..136])
            .ok_or_else(|| Error::corrupt("a TAR member has no size").at(position))?;
        let offset = position + BLOCK;
        let end = offset.checked_add(len).filter(|&end| end <= source.len());
        let end = end.ok_or_else(|| {
            Error::corrupt("a TAR member reaches past the end of the file").at(position)
        })?;

        // Only plain files have content; PAX headers (`x`, `g`) say nothing a checkpoint needs.
        if matches!(header[156], 0 | b'0') {
            let name = header[..100].split(|&byte| byte == 0).next().unwrap_or_default();
            let name = String::from_utf8_lossy(name).into_owned();
            members.push(Member { name, offset, len });
        }

        position = end.checked_next_multiple_of(BLOCK).unwrap_or(u64::MAX);
    }

    Ok(members)
}

fn octal(field: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(field).ok()?;
    u64::from_str_radix(text.trim_matches([' ', '\0']), 8).ok()
}
