//! The bytes themselves: for files that may not open at all.

use apr_registry::{ByteSource, Result};
use serde::Serialize;

/// Bytes a row of a hex dump shows.
pub const HEX_ROW: usize = 16;

/// A run of printable text in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FoundString {
    /// Byte offset of the string.
    pub offset: u64,
    /// The text; longer runs are cut.
    pub text: String,
}

/// A row of a hex dump.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct HexRow {
    /// Byte offset of the row.
    pub offset: u64,
    /// Up to sixteen bytes, in hexadecimal.
    pub hex: Vec<String>,
    /// Bytes as ASCII, with a dot for each byte that is not printable.
    pub ascii: String,
}

/// The bytes from `offset` on, at most `limit`, sixteen a row.
///
/// # Errors
/// E007 when reading fails.
///
/// ```
/// let rows = apr_ops::debug::hex(b"APR2\x02\0".as_slice(), 0, 256)?;
/// assert_eq!(rows[0].hex.join(" "), "41 50 52 32 02 00");
/// assert_eq!(rows[0].ascii, "APR2..");
/// # Ok::<(), apr_registry::Error>(())
/// ```
pub fn hex(source: &(impl ByteSource + ?Sized), offset: u64, limit: usize) -> Result<Vec<HexRow>> {
    let left = source.len().saturating_sub(offset);
    let mut bytes = vec![0; usize::try_from(left).map_or(limit, |left| left.min(limit))];
    source.read_at(offset, &mut bytes)?;
    let row = |(number, row): (usize, &[u8])| HexRow {
        offset: offset + (number * HEX_ROW) as u64,
        hex: row.iter().map(|byte| format!("{byte:02x}")).collect(),
        ascii: row
            .iter()
            .map(|&byte| if byte.is_ascii_graphic() || byte == b' ' { byte.into() } else { '.' })
            .collect(),
    };
    Ok(bytes.chunks(HEX_ROW).enumerate().map(row).collect())
}

/// Runs of at least `shortest` printable ASCII characters, the first `limit` of them.
///
/// # Errors
/// E007 when reading fails.
pub fn strings(
    source: &(impl ByteSource + ?Sized),
    shortest: usize,
    limit: usize,
) -> Result<Vec<FoundString>> {
    /// Bytes read at a time.
    const READ_LEN: usize = 1 << 20;
    /// Characters of a run that are kept.
    const LONGEST: usize = 200;

    let mut found = Vec::new();
    let mut run = String::new();
    let mut run_len = 0;
    let mut piece = vec![0; READ_LEN];
    let mut offset = 0;
    while offset < source.len() && found.len() < limit {
        let len =
            usize::try_from(source.len() - offset).map_or(READ_LEN, |left| left.min(READ_LEN));
        source.read_at(offset, &mut piece[..len])?;
        let at_end = offset + len as u64 == source.len();

        // A run at the very end has no other byte to end it.
        let end_mark = at_end.then_some(0);
        for (position, byte) in (offset..).zip(piece[..len].iter().copied().chain(end_mark)) {
            if byte.is_ascii_graphic() || byte == b' ' {
                run_len += 1;
                if run.len() < LONGEST {
                    run.push(byte.into());
                }
                continue;
            }
            if run_len >= shortest && found.len() < limit {
                found.push(FoundString { offset: position - run_len as u64, text: run.clone() });
            }
            run.clear();
            run_len = 0;
        }

        offset += len as u64;
    }

    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_found_across_pieces_and_at_the_end() {
        let mut bytes = vec![0; (1 << 20) - 3];
        bytes.extend_from_slice(b"across\0no\0at the end");
        let found = strings(bytes.as_slice(), 4, 10).expect("bytes in memory");
        let texts: Vec<_> = found.iter().map(|found| (found.offset, found.text.as_str())).collect();
        assert_eq!(texts, [((1 << 20) - 3, "across"), ((1 << 20) + 7, "at the end")]);
        assert_eq!(strings(bytes.as_slice(), 4, 1).expect("bytes in memory").len(), 1);
    }

    #[test]
    fn a_dump_past_the_end_is_empty() {
        assert_eq!(hex(b"abc".as_slice(), 3, 16).expect("nothing to read"), []);
    }
}
