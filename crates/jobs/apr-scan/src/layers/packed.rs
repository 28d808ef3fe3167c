//! Streams around pickles: compressed ones, and archives that are known by name only.

use std::sync::Arc;

use apr_archive::{Cache, Inflated, Wrapper, inflated_len};
use apr_core::{ByteSource, Code, Error, Result, read_vec};
use apr_registry::orbax::zstd;

use super::joined::Joined;
use super::{Expected, HEAD_LEN, Scan, ScannedBytes, lz4, npy};

/// Formats that are detected by their first bytes but not examined.
const NAMED: &[(&[u8], &str)] = &[
    (b"7z\xbc\xaf\x27\x1c", "7z archive"),
    (b"Rar!\x1a\x07", "RAR archive"),
    (b"BZh", "bzip2 stream"),
    (b"\xfd7zXZ\0", "XZ stream"),
    (b"ZF0x", "compressed file of joblib before 0.10"),
];

impl Scan<'_> {
    /// Looks into what is compressed; returns what it is.
    pub(super) fn packed(&mut self, place: &ScannedBytes<'_>, head: &[u8]) -> Option<&'static str> {
        if let Some((_, kind)) = NAMED.iter().find(|(magic, _)| head.starts_with(magic)) {
            self.problem(place, &format!("this is a {kind}; it is not looked into"));
            return Some(kind);
        }

        let (kind, result) = match head {
            [0x1f, 0x8b, 8, ..] => ("gzip stream", self.gzip(place, head)),
            // The two bytes of a zlib header are a multiple of 31 (RFC 1950).
            [0x78, flags, ..] if (0x7800 + u16::from(*flags)).is_multiple_of(31) => {
                ("zlib stream", self.zlib(place))
            }
            [0x28, 0xb5, 0x2f, 0xfd, ..] => ("Zstandard stream", self.zstd(place)),
            [4, 0x22, 0x4d, 0x18, ..] => ("LZ4 stream", self.lz4(place)),
            // Both formats have frames without data, with the same mark.
            [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => {
                ("LZ4 or Zstandard stream", self.lz4(place).and_then(|()| self.zstd(place)))
            }
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

    /// Members one after the other, which are one content (RFC 1952, section 2.2).
    fn gzip(&mut self, place: &ScannedBytes<'_>, head: &[u8]) -> Result<()> {
        let mut joined = Joined::default();
        let (mut start, mut head) = (place.start, head.to_vec());
        loop {
            let from = start + gzip_header(&head)?;
            let (member, end) = match self.inflated(place, from, Wrapper::Raw) {
                Ok(member) => member,
                // What was read so far is read by loaders, too.
                Err(error) if start > place.start => {
                    self.problem(place, &error.to_string());
                    break;
                }
                Err(error) => return Err(error),
            };
            joined.push(Box::new(member));

            // The checksum and the length of the content, and then perhaps zeros.
            start = end.saturating_add(8);
            head = read_vec(
                place.source,
                start.min(place.end),
                place.end.saturating_sub(start).min(HEAD_LEN),
            )?;
            if !head.starts_with(&[0x1f, 0x8b, 8]) || !self.may_look(place) {
                break;
            }
        }
        self.look(&place.decoded(&joined, "gzip"));
        Ok(())
    }

    fn zlib(&mut self, place: &ScannedBytes<'_>) -> Result<()> {
        let (decoded, _) = self.inflated(place, place.start, Wrapper::Zlib)?;
        self.look(&place.decoded(&decoded, "zlib"));
        Ok(())
    }

    /// Returns the decoded content of a stream, and the end offset of the stream.
    fn inflated<'a>(
        &mut self,
        place: &ScannedBytes<'a>,
        start: u64,
        wrapper: Wrapper,
    ) -> Result<(Inflated<&'a dyn ByteSource>, u64)> {
        // No header says the length in a way that can be trusted, so all is decoded once to learn
        // it.
        let inflated = inflated_len(place.source, (start, place.end), wrapper, self.budget);
        if inflated.as_ref().is_err_and(|error| error.code() == Code::Memory) {
            self.budget = 0;
        }
        let (len, end) = inflated?;
        self.pay(len)?;
        let cache = Arc::new(Cache::default());
        Ok((Inflated::new(place.source, (start, end - start), len, wrapper, &cache)?, end))
    }

    fn lz4(&mut self, place: &ScannedBytes<'_>) -> Result<()> {
        let most = self.limits.max_metadata.min(self.budget);
        let limit = (most, self.limits.metadata_setting());
        let decoded = lz4::decode(place.source, (place.start, place.end), limit);

        // What is too long was decoded up to there all the same.
        self.pay(decoded.as_ref().map_or(most, |decoded| decoded.len() as u64))?;
        let decoded = decoded?;
        self.look(&place.decoded(&decoded as &dyn ByteSource, "lz4"));
        Ok(())
    }

    fn zstd(&mut self, place: &ScannedBytes<'_>) -> Result<()> {
        let most = self.limits.max_metadata.min(self.budget);
        let decoded = zstd::decode_frames(place.source, (place.start, place.end), most);
        self.pay(decoded.as_ref().map_or(most, |decoded| decoded.len() as u64))?;
        let decoded = decoded?;
        self.look(&place.decoded(&decoded as &dyn ByteSource, "zstd"));
        Ok(())
    }

    /// An array of NumPy's: its values are a pickle if they are objects.
    pub(super) fn npy(&mut self, place: &ScannedBytes<'_>, head: &[u8]) {
        let array = match npy::read(place, head) {
            Ok(array) => array,
            Err(error) => return self.problem(place, &error.to_string()),
        };
        if let Some(what) = array.odd {
            self.warn(place, what);
        }

        let start = array.values;
        let expected = match array.holds {
            npy::Holds::Objects => Expected::Pickle,
            npy::Holds::Unknown => Expected::Anything,
            npy::Holds::Numbers(len) => {
                // Another array may follow: `numpy.save` writes into open files.
                let rest = start.saturating_add(len);
                let mut magic = [0; 6];
                let follows = rest < place.end && place.source.read_at(rest, &mut magic).is_ok();
                if follows && magic == *b"\x93NUMPY" {
                    let within = place.within("next array");
                    self.look(&ScannedBytes { start: rest, ..within });
                }
                return;
            }
        };
        let within = place.within("array of objects");
        self.stream(&ScannedBytes { start, expected, ..within });
    }
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
