//! A file with holes, and files of which only the length is known.

use std::collections::BTreeMap;

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

/// Other files, of which the lengths are known.
#[derive(Debug)]
pub(super) struct Absent(BTreeMap<String, u64>);

impl Absent {
    pub(super) fn new(files: impl Iterator<Item = (String, u64)>) -> Self {
        Self(files.collect())
    }
}

impl SourceSet for Absent {
    fn open(&self, name: &str) -> Result<Box<dyn ByteSource>> {
        match self.0.get(name) {
            Some(len) => Ok(Box::new(Zeros(*len))),
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

/// A file of zeros.
struct Zeros(u64);

impl ByteSource for Zeros {
    fn len(&self) -> u64 {
        self.0
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > self.0) {
            return Err(Error::corrupt("the file of the tensors ends before this").at(offset));
        }
        buf.fill(0);
        Ok(())
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
    fn other_files_are_as_long_as_they_were_and_no_others_are_there() {
        let absent = Absent::new([("weights.bin".to_owned(), 8)].into_iter());
        assert_eq!(absent.list(), Ok(vec!["weights.bin".to_owned()]));
        assert_eq!(absent.open("other.bin").map(|_| ()).unwrap_err().code(), apr_core::Code::Io);
        let zeros = absent.open("weights.bin").expect("it is there");
        let mut buf = [7; 4];
        assert_eq!((zeros.len(), zeros.read_at(4, &mut buf), buf), (8, Ok(()), [0; 4]));
        for offset in [5, u64::MAX] {
            assert_eq!(
                zeros.read_at(offset, &mut buf).unwrap_err().code(),
                apr_core::Code::Corrupt
            );
        }
    }
}
