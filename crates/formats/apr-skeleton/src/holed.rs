//! A file with holes.

use apr_core::{ByteSource, Error, Result};

/// A file of which parts are not there. They read as zeros.
#[derive(Debug)]
pub struct Holed {
    bytes: Vec<u8>,
    /// Parts that are there: offset in the file, in `bytes`, and length.
    parts: Vec<(u64, usize, u64)>,
    len: u64,
}

impl Holed {
    /// Returns the file of `len` bytes whose bytes outside of the holes are in `bytes` from `start`
    /// on.
    ///
    /// Returns `None` if the lengths do not match.
    #[must_use]
    pub fn new(bytes: Vec<u8>, start: usize, holes: &[(u64, u64)], len: u64) -> Option<Self> {
        let (mut parts, mut at, mut from) = (Vec::with_capacity(holes.len() + 1), 0_u64, start);
        for &(offset, hole) in holes.iter().chain([&(len, 0)]) {
            // Holes that overlap or are out of order end here.
            let part = offset.checked_sub(at)?;
            parts.push((at, from, part));
            from = from.checked_add(usize::try_from(part).ok()?)?;
            at = offset.checked_add(hole).filter(|end| *end <= len)?;
        }
        (from == bytes.len()).then_some(Self { bytes, parts, len })
    }

    /// Returns the file of `len` bytes for which `bytes` contains the ranges `kept`, one after the
    /// other.
    ///
    /// Returns `None` if the ranges are out of order or beyond the end of the file.
    #[must_use]
    pub fn of_parts(bytes: Vec<u8>, kept: &[(u64, u64)], len: u64) -> Option<Self> {
        let (mut parts, mut at, mut from) = (Vec::with_capacity(kept.len()), 0_u64, 0_usize);
        for &(offset, part) in kept {
            offset.checked_sub(at)?;
            at = offset.checked_add(part).filter(|end| *end <= len)?;
            parts.push((offset, from, part));
            from = from.checked_add(usize::try_from(part).ok()?)?;
        }
        (from == bytes.len()).then_some(Self { bytes, parts, len })
    }

    /// Bytes of the file that are there.
    #[must_use]
    pub fn kept_len(&self) -> u64 {
        self.parts.iter().map(|(_, _, held)| held).sum()
    }

    /// Splits a range at the borders of the stored parts.
    ///
    /// Returns the stored bytes, and the lengths of the holes between them.
    #[must_use]
    pub fn pieces(&self, offset: u64, len: u64) -> Vec<std::result::Result<&[u8], u64>> {
        let end = offset.saturating_add(len);
        let (mut pieces, mut at) = (Vec::new(), offset);
        let first = self.parts.partition_point(|(start, _, held)| start + held <= offset);
        for &(start, _, held) in self.parts[first..].iter().take_while(|(start, ..)| *start < end) {
            let (low, high) = (start.max(at), (start + held).min(end));
            let Some(kept) = self.kept(low, high - low).filter(|kept| !kept.is_empty()) else {
                continue;
            };
            if low > at {
                pieces.push(Err(low - at));
            }
            pieces.push(Ok(kept));
            at = high;
        }
        if end > at {
            pieces.push(Err(end - at));
        }
        pieces
    }

    /// Returns `true` if a part of the range is missing.
    #[must_use]
    pub fn lacks(&self, offset: u64, len: u64) -> bool {
        let part = self.parts.partition_point(|(start, ..)| *start <= offset).checked_sub(1);
        let held = part.and_then(|part| self.parts.get(part));
        len > 0 && held.is_none_or(|(start, _, held)| offset + len > start + held)
    }

    /// Bytes that are there.
    #[must_use]
    pub fn kept(&self, offset: u64, len: u64) -> Option<&[u8]> {
        let part = self.parts.partition_point(|(start, ..)| *start <= offset).checked_sub(1)?;
        let &(start, from, held) = self.parts.get(part)?;
        let within = offset
            .checked_sub(start)
            .filter(|within| within.checked_add(len).is_some_and(|end| end <= held))?;
        let from = from + usize::try_from(within).ok()?;
        self.bytes.get(from..from + usize::try_from(len).ok()?)
    }
}

impl ByteSource for Holed {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let end = offset.checked_add(buf.len() as u64).filter(|end| *end <= self.len);
        let end =
            end.ok_or_else(|| Error::corrupt("the file of the model ends before this").at(offset))?;
        buf.fill(0);
        let first = self.parts.partition_point(|(start, _, held)| start + held <= offset);
        for &(start, from, held) in
            self.parts[first..].iter().take_while(|(start, ..)| *start < end)
        {
            let (low, high) = (start.max(offset), (start + held).min(end));
            if low >= high {
                continue;
            }
            let index = |value: u64| usize::try_from(value).unwrap_or_default();
            let (to, from, len) =
                (index(low - offset), from + index(low - start), index(high - low));
            buf[to..to + len].copy_from_slice(&self.bytes[from..from + len]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_read_as_zeros() {
        // A file 0..10 with the holes 2..4 and 4..5 and 9..10.
        let holed = Holed::new(vec![99, 0, 1, 5, 6, 7, 8], 1, &[(2, 2), (4, 1), (9, 1)], 10)
            .expect("it fits");
        for start in 0..10_u64 {
            for len in 0..=10 - start {
                let mut buf = vec![7; usize::try_from(len).expect("small")];
                holed.read_at(start, &mut buf).expect("it is in the file");
                let whole = [0, 1, 0, 0, 0, 5, 6, 7, 8, 0];
                let (from, to) = (
                    usize::try_from(start).expect("small"),
                    usize::try_from(start + len).expect("small"),
                );
                assert_eq!(buf, whole[from..to]);
                let is_whole = !(from..to).any(|at| [2, 3, 4, 9].contains(&at));
                if len > 0 {
                    assert_eq!(holed.kept(start, len).is_some(), is_whole, "{start} {len}");
                    assert_eq!(holed.lacks(start, len), !is_whole, "{start} {len}");
                }
            }
        }
        assert!(Holed::new(vec![0; 3], 0, &[(2, 2)], 10).is_none(), "too few bytes");
        assert!(Holed::new(vec![0; 3], 0, &[(u64::MAX, 2)], 10).is_none());
    }

    #[test]
    fn a_range_is_cut_where_parts_begin_and_end() {
        let file = Holed::of_parts(vec![1, 2, 6, 7], &[(1, 2), (6, 2)], 10).expect("it fits");
        assert_eq!(file.pieces(0, 10), [Err(1), Ok(&[1, 2][..]), Err(3), Ok(&[6, 7][..]), Err(2)]);
        assert_eq!(file.pieces(2, 5), [Ok(&[2][..]), Err(3), Ok(&[6][..])]);
        assert_eq!(file.pieces(1, 2), [Ok(&[1, 2][..])]);
        assert_eq!(file.pieces(3, 3), [Err(3)]);
        assert_eq!(file.pieces(3, 0), []);
    }
}
