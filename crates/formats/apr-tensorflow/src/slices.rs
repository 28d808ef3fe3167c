//! Parts of a partitioned variable, whose keys say where they are in it.
//!
//! A key is the number 0, the variable's name, the number of dimensions, and for each of them start
//! and length, in an order-preserving code (`tensorflow/core/lib/strings/ordered_code.cc`).

use apr_core::{Error, Result};

/// A range of one dimension; without a length it is all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) start: u64,
    pub(crate) len: Option<u64>,
}

/// The variable and the place of the part with this key.
///
/// # Errors
/// E002 for a key that is none.
pub(crate) fn slice_of(key: &[u8]) -> Result<(String, Vec<Extent>)> {
    let parsed = parse(key).filter(|(_, extents, rest)| rest.is_empty() && !extents.is_empty());
    let (name, extents, _) =
        parsed.ok_or_else(|| Error::corrupt("the key of a part of a variable is damaged"))?;
    Ok((name, extents))
}

fn parse(key: &[u8]) -> Option<(String, Vec<Extent>, &[u8])> {
    let mut rest = key.strip_prefix(&[0])?;
    let mut name = Vec::new();
    // A zero within is 0 255, one of all bits 255 0, and 0 1 is the end.
    loop {
        let (&byte, after) = rest.split_first()?;
        rest = after;
        if ![0, 255].contains(&byte) {
            name.push(byte);
            continue;
        }
        let (&next, after) = rest.split_first()?;
        rest = after;
        match (byte, next) {
            (0, 1) => break,
            (0, 255) | (255, 0) => name.push(byte),
            _ => return None,
        }
    }
    let rank = unsigned(&mut rest)?;
    let mut extents = Vec::new();
    for _ in 0..rank {
        let (start, len) = (signed(&mut rest)?, signed(&mut rest)?);
        extents.push(Extent { start: u64::try_from(start).ok()?, len: u64::try_from(len).ok() });
    }
    Some((String::from_utf8(name).ok()?, extents, rest))
}

/// A number with the count of its bytes in front.
fn unsigned(bytes: &mut &[u8]) -> Option<u64> {
    let (&len, rest) = bytes.split_first()?;
    let number = rest.get(..usize::from(len)).filter(|_| len <= 8)?;
    *bytes = &rest[number.len()..];
    Some(number.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}

/// Reads a number whose leading bits encode its length in bytes.
///
/// There are as many ones as bytes, or as many zeros for a negative number.
fn signed(bytes: &mut &[u8]) -> Option<i64> {
    let first = *bytes.first()?;
    let is_negative = first & 0x80 == 0;
    let pattern = if is_negative { !first } else { first };
    let len = pattern.leading_ones() as usize;
    // Nine or ten bytes are for numbers that no dimension has.
    if len == 0 || len > 7 {
        return None;
    }
    let number = bytes.get(..len)?;
    *bytes = &bytes[len..];
    let value = number.iter().fold(0_i64, |value, byte| value << 8 | i64::from(*byte));
    // The bits of the length, and the sign in front of them.
    let bits = u32::try_from(7 * len).ok()?;
    let low = value & ((1 << (bits - 1)) - 1);
    Some(if is_negative { low - (1 << (bits - 1)) } else { low })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_match_the_ordered_code_encoding() {
        for (bytes, expected) in [
            (&[0x80][..], 0),
            (&[0xbf], 63),
            (&[0xc0, 0x40], 64),
            (&[0x7f], -1),
            (&[0x40], -64),
            (&[0xe0, 0x20, 0x00], 8192),
        ] {
            assert_eq!(signed(&mut &bytes[..]), Some(expected), "{bytes:x?}");
        }
    }

    #[test]
    fn a_key_is_a_name_and_a_range_of_each_dimension() {
        let key = b"\0w\0\x01\x01\x02\x83\x82\x80\x7f";
        let extents = [Extent { start: 3, len: Some(2) }, Extent { start: 0, len: None }];
        assert_eq!(slice_of(key).expect("a key"), ("w".to_owned(), extents.to_vec()));
        for broken in
            [&key[..4], b"\0w\0\x02\x01\x02", b"\0w", b"\0", b"\0w\0\x01\x01\x01\x83\x82 "]
        {
            assert!(slice_of(broken).is_err(), "{broken:x?}");
        }
    }
}
