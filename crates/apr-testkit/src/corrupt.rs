//! Broken copies of a good file.

use std::ops::Range;

/// The file cut at every offset before its end.
pub fn truncations(bytes: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    (0..bytes.len()).map(|len| bytes[..len].to_vec())
}

/// The file with each bit of `range` flipped, one at a time.
pub fn bit_flips(bytes: &[u8], range: Range<usize>) -> impl Iterator<Item = Vec<u8>> {
    range.flat_map(move |at| {
        (0..8).map(move |bit| {
            let mut flipped = bytes.to_vec();
            flipped[at] ^= 1 << bit;
            flipped
        })
    })
}

/// The file with `new` in place of the bytes at `offset`.
#[must_use]
pub fn overwrite(bytes: &[u8], offset: usize, new: &[u8]) -> Vec<u8> {
    let mut changed = bytes.to_vec();
    changed[offset..offset + new.len()].copy_from_slice(new);
    changed
}

/// The file with `new` put in at `offset`.
#[must_use]
pub fn insert(bytes: &[u8], offset: usize, new: &[u8]) -> Vec<u8> {
    [&bytes[..offset], new, &bytes[offset..]].concat()
}
