//! Broken copies of a good file.

use std::ops::Range;

/// The file cut at every offset before its end.
pub fn truncations(bytes: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    Copies { places: 0..bytes.len(), copy: |len| bytes[..len].to_vec() }
}

/// The file with each bit of `range` flipped, one at a time.
pub fn bit_flips(bytes: &[u8], range: Range<usize>) -> impl Iterator<Item = Vec<u8>> {
    let flip = |bit: usize| {
        let mut flipped = bytes.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        flipped
    };
    Copies { places: range.start * 8..range.end * 8, copy: flip }
}

/// Iterator over a copy for each position. Skipped copies are not made.
struct Copies<F> {
    places: Range<usize>,
    copy: F,
}

impl<F: FnMut(usize) -> Vec<u8>> Iterator for Copies<F> {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        self.places.next().map(&mut self.copy)
    }

    fn nth(&mut self, n: usize) -> Option<Vec<u8>> {
        self.places.nth(n).map(&mut self.copy)
    }
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
