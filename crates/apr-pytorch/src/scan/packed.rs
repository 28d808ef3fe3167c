//! Streams around pickles: compressed ones, and archives that are known by name only.

use std::sync::Arc;

use apr_archive::{Cache, Inflated, Wrapper, inflated_len};
use apr_core::{ByteSource, Code, Error, Result, read_vec};

use super::{Place, Scan, lz4};

/// What is told by its first bytes, and not looked into.
const NAMED: &[(&[u8], &str)] = &[
    (b"7z\xbc\xaf\x27\x1c", "7z archive"),
    (b"Rar!\x1a\x07", "RAR archive"),
    (b"BZh", "bzip2 stream"),
    (b"\xfd7zXZ\0", "XZ stream"),
    (b"\x28\xb5\x2f\xfd", "Zstandard stream"),
    (b"ZF0x", "compressed file of joblib before 0.10"),
];

/// Longest header of an array that is read, in bytes: NumPy reads 10,000 unless it is told to trust
/// the file.
const MAX_NPY_HEADER: u64 = 1 << 16;

impl Scan<'_> {
    /// Looks into what is compressed; returns what it is.
    pub(super) fn packed(&mut self, place: &Place<'_>, head: &[u8]) -> Option<&'static str> {
        if let Some((_, kind)) = NAMED.iter().find(|(magic, _)| head.starts_with(magic)) {
            self.problem(place, &format!("this is a {kind}; it is not looked into"));
            return Some(kind);
        }

        let (kind, result) = match head {
            [0x1f, 0x8b, 8, ..] => ("gzip stream", self.gzip(place, head)),
            // The two bytes of a zlib header are a multiple of 31 (RFC 1950).
            [0x78, flags, ..] if (0x7800 + u16::from(*flags)).is_multiple_of(31) => {
                ("zlib stream", self.inflate(place, place.start, Wrapper::Zlib, "zlib"))
            }
            [4, 0x22, 0x4d, 0x18, ..] => ("LZ4 stream", self.lz4(place)),
            [0x5d, 0, 0, _, _, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, ..] => {
                self.problem(place, "this is a LZMA stream; it is not looked into");
                return Some("LZMA stream");
            }
            _ => return None,
        };

        if let Err(error) = result {
            self.problem(place, &error.to_string());
        }

        Some(kind)
    }

    fn gzip(&mut self, place: &Place<'_>, head: &[u8]) -> Result<()> {
        let start = place.start + gzip_header(head)?;
        self.inflate(place, start, Wrapper::Raw, "gzip")
    }

    fn inflate(
        &mut self,
        place: &Place<'_>,
        start: u64,
        wrapper: Wrapper,
        name: &str,
    ) -> Result<()> {
        // No header says the length in a way that can be trusted, so all is decoded once to learn
        // it.
        let inflated = inflated_len(place.source, (start, place.end), wrapper, self.budget);
        if inflated.as_ref().is_err_and(|error| error.code() == Code::Memory) {
            self.budget = 0;
        }
        let (len, end) = inflated?;
        self.pay(len)?;
        let cache = Arc::new(Cache::default());
        let decoded = Inflated::new(place.source, (start, end - start), len, wrapper, &cache)?;
        self.look(&place.decoded(&decoded, name));
        Ok(())
    }

    fn lz4(&mut self, place: &Place<'_>) -> Result<()> {
        let most = self.limits.max_metadata.min(self.budget);
        let decoded = lz4::decode(place.source, place.start, place.end, most);

        // What is too long was decoded up to there all the same.
        self.pay(decoded.as_ref().map_or(most, |decoded| decoded.len() as u64))?;
        let decoded = decoded?;
        self.look(&place.decoded(&decoded as &dyn ByteSource, "lz4"));
        Ok(())
    }

    /// An array of NumPy's: its values are a pickle if they are objects.
    pub(super) fn npy(&mut self, place: &Place<'_>, head: &[u8]) {
        let result = npy_values(place, head);
        match result {
            Ok(Some(start)) => {
                let within = place.within("array of objects");
                self.stream(&Place { start, expected: super::Expected::Pickle, ..within });
            }
            Ok(None) => {}
            Err(error) => self.problem(place, &error.to_string()),
        }
    }
}

/// Where the values start, if they are a pickle. The header is a Python dictionary of three
/// entries, written as text.
fn npy_values(place: &Place<'_>, head: &[u8]) -> Result<Option<u64>> {
    let damaged = || Error::corrupt("the array's header is damaged").at(place.start);
    let (len, first) = match *head {
        [_, _, _, _, _, _, 1, _, a, b, ..] => (u64::from(u16::from_le_bytes([a, b])), 10),
        [_, _, _, _, _, _, 2..=3, _, a, b, c, d, ..] => {
            (u64::from(u32::from_le_bytes([a, b, c, d])), 12)
        }
        _ => return Err(damaged()),
    };

    // Headers of a hundred bytes are usual; the bytes may be what a small file decodes to.
    if len > MAX_NPY_HEADER {
        return Err(damaged());
    }
    let header =
        read_vec(place.source, place.start + first, len.min(place.len())).map_err(|_| damaged())?;
    let header = String::from_utf8_lossy(&header);
    let descr = header
        .split_once("descr")
        .and_then(|(_, rest)| rest.split_once(':'))
        .ok_or_else(damaged)?
        .1;

    // Up to the next key: a text, or a list of fields, whose names may have any letter.
    let descr = descr.split("fortran_order").next().unwrap_or(descr);
    let dtypes = descr.split(['\'', '"']).map(|text| text.trim_start_matches(['|', '<', '>', '=']));
    let objects = dtypes.into_iter().any(|text| matches!(text, "O" | "O4" | "O8" | "object"));
    Ok(objects.then_some(place.start + first + len))
}

/// Length of the header in front of a gzip member's stream (RFC 1952, section 2.3).
fn gzip_header(head: &[u8]) -> Result<u64> {
    let damaged = || Error::corrupt("the gzip header is damaged, or longer than is looked at");
    let &flags = head.get(3).ok_or_else(damaged)?;
    let mut at = 10;
    if flags & 4 != 0 {
        let len = head.get(at..at + 2).ok_or_else(damaged)?;
        at += 2 + usize::from(u16::from_le_bytes([len[0], len[1]]));
    }

    for flag in [8, 16] {
        if flags & flag != 0 {
            let text = head.get(at..).and_then(|rest| rest.iter().position(|&byte| byte == 0));
            at += text.ok_or_else(damaged)? + 1;
        }
    }

    Ok(at as u64 + if flags & 2 != 0 { 2 } else { 0 })
}
