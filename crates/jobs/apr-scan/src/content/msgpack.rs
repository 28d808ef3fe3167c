//! MessagePack: arrays of objects as msgpack-numpy writes them, which it unpickles.
//!
//! ```text
//! map  nd: true  type: "O"  kind: "O"  shape: [...]  data: a pickle
//! ```
//!
//! Tokens are read one after the other, at any depth; the bytes of values are gone past.

use apr_registry::{ByteSource, Result, read_vec};

use super::{ContentRemarks, not_examined};
use crate::report::FileVerdict;

/// Tokens of one file that are read.
const MOST: usize = 10_000_000;

/// Bytes that are read at a time.
const WINDOW: u64 = 1 << 16;

/// Longest text that is compared, in bytes.
const LONGEST: u64 = 8;

/// Examines a file. Damage is left to the reader of the file to report.
///
/// # Errors
/// E007 when reading fails.
pub(crate) fn judge(source: &dyn ByteSource) -> Result<ContentRemarks> {
    let mut reader = Reader { source, window: Vec::new(), start: 0 };
    let (mut at, mut is_kind) = (0, false);
    for _ in 0..MOST {
        let Some((header, len)) = reader.token(at)? else { return Ok(ContentRemarks::new()) };
        let text = match len {
            Some(len) if len <= LONGEST => reader.bytes(at + header, len)?,
            _ => Vec::new(),
        };
        if is_kind && text == b"O" {
            let message = format!("msgpack-numpy unpickles an array of objects (byte {at})");
            return Ok(vec![(FileVerdict::Dangerous, message)]);
        }
        is_kind = text == b"kind";
        at = at.saturating_add(header).saturating_add(len.unwrap_or(0));
    }
    Ok(not_examined("MessagePack of too many values"))
}

struct Reader<'a> {
    source: &'a dyn ByteSource,
    window: Vec<u8>,
    start: u64,
}

impl Reader<'_> {
    /// Up to `len` bytes from an offset.
    fn bytes(&mut self, at: u64, len: u64) -> Result<Vec<u8>> {
        let end = at.saturating_add(len).min(self.source.len());
        let window_end = self.start + self.window.len() as u64;
        if at < self.start || end > window_end {
            let len = self.source.len().saturating_sub(at).min(WINDOW);
            self.window = read_vec(self.source, at, len)?;
            self.start = at;
        }
        let from = usize::try_from(at - self.start).unwrap_or(usize::MAX);
        let to = usize::try_from(end.saturating_sub(self.start)).unwrap_or_default();
        Ok(self.window.get(from..to).unwrap_or_default().to_vec())
    }

    /// The length of a token's header, and of the text or bytes behind it; `None` at the end.
    fn token(&mut self, at: u64) -> Result<Option<(u64, Option<u64>)>> {
        if at >= self.source.len() {
            return Ok(None);
        }
        let head = self.bytes(at, 6)?;
        let number = |bytes: usize| {
            let digits = head.get(1..=bytes).unwrap_or_default();
            digits.iter().fold(0_u64, |number, &byte| number << 8 | u64::from(byte))
        };
        Ok(Some(match head.first().copied().unwrap_or_default() {
            byte @ 0xa0..=0xbf => (1, Some(u64::from(byte & 31))),
            0xc4 | 0xd9 => (2, Some(number(1))),
            0xc5 | 0xda => (3, Some(number(2))),
            0xc6 | 0xdb => (5, Some(number(4))),
            // Extensions have a type before their bytes.
            0xc7 => (3 + number(1), None),
            0xc8 => (4 + number(2), None),
            0xc9 => (6 + number(4), None),
            byte @ 0xd4..=0xd8 => (2 + (1 << (byte - 0xd4)), None),
            0xcc | 0xd0 => (2, None),
            0xcd | 0xd1 | 0xdc | 0xde => (3, None),
            0xca | 0xce | 0xd2 | 0xdd | 0xdf => (5, None),
            0xcb | 0xcf | 0xd3 => (9, None),
            _ => (1, None),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An array as msgpack-numpy 0.4.8 writes it, with texts of bytes.
    fn array(kind: &[u8]) -> Vec<u8> {
        let text = |text: &[u8]| [&[0xc4, u8::try_from(text.len()).expect("short")], text].concat();
        [
            &b"\x81\xa1w\x85"[..],
            &text(b"nd"),
            b"\xc3",
            &text(b"type"),
            b"\xa2|O",
            &text(b"kind"),
            &text(kind),
            &text(b"shape"),
            b"\x91\x01",
            &text(b"data"),
            b"\xc4\x04\x80\x04N.",
        ]
        .concat()
    }

    #[test]
    fn arrays_of_objects_are_found_at_any_depth() {
        let worst = |bytes: &[u8]| judge(&bytes.to_vec()).expect("in memory");
        assert_eq!(worst(&array(b"O"))[0].0, FileVerdict::Dangerous);
        assert_eq!(worst(&array(b"V")), []);
        // The words in the bytes of a value are none.
        let inside = [&b"\x81\xa1w\xc4\x08"[..], b"\xa4kind\xa1O", b"\xc0"].concat();
        assert_eq!(worst(&inside), []);
        let far = [&b"\x82\xa1w\xc6\0\x02\0\0"[..], &vec![0; 0x20000], b"\xa1x", &array(b"O")];
        assert_eq!(worst(&far.concat())[0].0, FileVerdict::Dangerous);
        for len in 0..array(b"O").len() {
            worst(&array(b"O")[..len]);
        }
    }
}
