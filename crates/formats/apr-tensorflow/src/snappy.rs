//! Snappy's raw format, in which some programs write the blocks of a table.

use apr_core::protobuf::decode_varint;
use apr_core::{Error, Result};

/// Maximum ratio of decoded bytes to stream bytes: a copy of 64 bytes takes three.
const MAX_RATIO: usize = 22;

/// Decodes a stream: its length, then literals and copies of earlier output.
///
/// The format is described in Snappy's `format_description.txt`.
///
/// # Errors
/// E002 for a damaged stream.
pub(crate) fn decode(stream: &[u8]) -> Result<Vec<u8>> {
    let damaged = || Error::corrupt("a block compressed with Snappy is damaged");
    let (len, used) = decode_varint(stream).ok_or_else(damaged)?;
    let len = usize::try_from(len).ok().filter(|len| *len <= stream.len() * MAX_RATIO);
    let len = len.ok_or_else(damaged)?;
    let mut rest = stream.get(usize::try_from(used).unwrap_or(usize::MAX)..).ok_or_else(damaged)?;
    let mut out = Vec::with_capacity(len);
    while let Some((&tag, after)) = rest.split_first() {
        let integer = |bytes: usize| {
            let bytes = after.get(..bytes)?;
            Some(bytes.iter().rev().fold(0_usize, |value, byte| value << 8 | usize::from(*byte)))
        };
        let high = usize::from(tag >> 2);
        if tag & 3 == 0 {
            // A length of up to 60 is in the tag, others in one to four bytes behind it.
            let extra = high.saturating_sub(59);
            let count = if extra == 0 { high } else { integer(extra).ok_or_else(damaged)? };
            let end = extra.checked_add(count).and_then(|end| end.checked_add(1));
            let literal = end.and_then(|end| after.get(extra..end)).ok_or_else(damaged)?;
            out.extend_from_slice(literal);
            rest = &after[extra + literal.len()..];
        } else {
            let (count, distance, extra) = match tag & 3 {
                1 => {
                    let low = integer(1).ok_or_else(damaged)?;
                    (4 + (high & 7), (high >> 3) << 8 | low, 1)
                }
                2 => (1 + high, integer(2).ok_or_else(damaged)?, 2),
                _ => (1 + high, integer(4).ok_or_else(damaged)?, 4),
            };
            let from = out.len().checked_sub(distance).filter(|_| distance > 0);
            let from = from.ok_or_else(damaged)?;
            if count > len.saturating_sub(out.len()) {
                return Err(damaged());
            }
            // A copy may reach into what it makes.
            for at in from..from + count {
                out.push(out[at]);
            }
            rest = &after[extra..];
        }
        if out.len() > len {
            return Err(damaged());
        }
    }
    if out.len() == len { Ok(out) } else { Err(damaged()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_and_copies_are_put_together() {
        // "abcd", a copy of it by each kind of tag, and one that reaches into itself.
        let stream = [
            &[22][..],
            &[3 << 2, b'a', b'b', b'c', b'd'],
            &[1, 4],
            &[3 << 2 | 2, 4, 0],
            &[3 << 2 | 3, 4, 0, 0, 0],
            &[5 << 2 | 2, 1, 0],
        ];
        let stream = stream.concat();
        assert_eq!(decode(&stream).as_deref(), Ok(&b"abcdabcdabcdabcddddddd"[..]));
        for broken in [&stream[..stream.len() - 1], &[4, 1, 4], &[200, 200, 200, 1, 0, 0], &[1]] {
            assert!(decode(broken).is_err(), "{broken:?}");
        }
    }
}
