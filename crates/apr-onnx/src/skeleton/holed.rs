//! Files with holes.

use std::collections::BTreeMap;
use std::sync::Arc;

use apr_core::{ByteSource, Error, IoCause, Result, SourceSet};

/// A file of which parts are not there. They read as zeros.
#[derive(Debug)]
pub(super) struct Holed {
    bytes: Vec<u8>,
    /// Parts that are there: offset in the file, in `bytes`, and length.
    parts: Vec<(u64, usize, u64)>,
    len: u64,
}

impl Holed {
    /// The file of `len` bytes whose rest is in `bytes` from `start` on; `None` where that does not
    /// fit.
    pub(super) fn new(
        bytes: Vec<u8>,
        start: usize,
        holes: &[(u64, u64)],
        len: u64,
    ) -> Option<Self> {
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

    /// The file of `len` bytes of which `bytes` has these ranges, one after the other; `None` where
    /// they are out of order or past its end.
    pub(super) fn of_parts(bytes: Vec<u8>, kept: &[(u64, u64)], len: u64) -> Option<Self> {
        let (mut parts, mut at, mut from) = (Vec::with_capacity(kept.len()), 0_u64, 0_usize);
        for &(offset, part) in kept {
            offset.checked_sub(at)?;
            at = offset.checked_add(part).filter(|end| *end <= len)?;
            parts.push((offset, from, part));
            from = from.checked_add(usize::try_from(part).ok()?)?;
        }
        (from == bytes.len()).then_some(Self { bytes, parts, len })
    }

    /// A range cut where parts begin and end: the bytes that are there, and the lengths of what is
    /// not.
    pub(super) fn pieces(&self, offset: u64, len: u64) -> Vec<std::result::Result<&[u8], u64>> {
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

    /// Whether a part of the range is not there.
    pub(super) fn lacks(&self, offset: u64, len: u64) -> bool {
        let part = self.parts.partition_point(|(start, ..)| *start <= offset).checked_sub(1);
        let held = part.and_then(|part| self.parts.get(part));
        len > 0 && held.is_none_or(|(start, _, held)| offset + len > start + held)
    }

    /// Bytes that are there.
    pub(super) fn kept(&self, offset: u64, len: u64) -> Option<&[u8]> {
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

/// The other files of a model, with what is kept of them.
#[derive(Debug)]
pub(super) struct Others(BTreeMap<String, Arc<Holed>>);

impl Others {
    pub(super) fn new(files: impl Iterator<Item = (String, Arc<Holed>)>) -> Self {
        Self(files.collect())
    }
}

impl SourceSet for Others {
    fn open(&self, name: &str) -> Result<Box<dyn ByteSource>> {
        match self.0.get(name) {
            Some(file) => Ok(Box::new(Kept(Arc::clone(file)))),
            None => Err(Error::io(
                IoCause::NotFound,
                "the model's file names it, and its length is not known",
            )),
        }
    }

    fn list(&self) -> Result<Vec<String>> {
        Ok(self.0.keys().cloned().collect())
    }
}

/// A file of which nothing is read but what is kept: zeros in its holes would be taken for values.
struct Kept(Arc<Holed>);

impl ByteSource for Kept {
    fn len(&self) -> u64 {
        self.0.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let len = buf.len() as u64;
        if offset.checked_add(len).is_none_or(|end| end > self.0.len) {
            return Err(Error::corrupt("the file of the tensors ends before this").at(offset));
        }
        if self.0.lacks(offset, len) {
            let message = "the skeleton of the ONNX file does not hold this part of the file";
            return Err(Error::corrupt(message).at(offset));
        }
        self.0.read_at(offset, buf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_cut_out_reads_as_zeros() {
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
    fn of_other_files_nothing_is_read_but_what_is_kept() {
        // A file 0..10 of which 1..3 and 6..8 are kept.
        let file = Holed::of_parts(vec![1, 2, 6, 7], &[(1, 2), (6, 2)], 10).expect("it fits");
        let others = Others::new([("weights.bin".to_owned(), Arc::new(file))].into_iter());
        assert_eq!(others.list(), Ok(vec!["weights.bin".to_owned()]));
        assert_eq!(others.open("other.bin").map(|_| ()).unwrap_err().code(), apr_core::Code::Io);
        let kept = others.open("weights.bin").expect("it is there");
        assert_eq!(kept.len(), 10);
        for start in 0..=10_u64 {
            for len in 0..=3 {
                let mut buf = vec![99; usize::try_from(len).expect("small")];
                let is_kept = (start..start + len).all(|at| [1, 2, 6, 7].contains(&at));
                match kept.read_at(start, &mut buf) {
                    Ok(()) => assert!(
                        is_kept && (start..).zip(&buf).all(|(at, byte)| at == u64::from(*byte)),
                        "{start} {len}"
                    ),
                    Err(error) => {
                        let is_outside = !is_kept || start + len > 10;
                        assert!(
                            is_outside && error.code() == apr_core::Code::Corrupt,
                            "{start} {len}"
                        );
                    }
                }
            }
        }
        assert!(kept.read_at(u64::MAX, &mut [0; 4]).is_err());
        assert!(Holed::of_parts(vec![0; 2], &[(1, 3)], 10).is_none(), "too few bytes");
        assert!(Holed::of_parts(vec![0; 2], &[(4, 1), (3, 1)], 10).is_none(), "out of order");
        assert!(Holed::of_parts(vec![0; 2], &[(9, 2)], 10).is_none(), "past the end");
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
