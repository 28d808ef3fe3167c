//! A small cache of a file's blocks: readers ask for a few bytes at a time, and each question to
//! the browser costs as much as a thousand of them.

use std::collections::VecDeque;

use apr_core::Result;

/// Number of bytes in the first request for a position in a file.
const SHORTEST: u64 = 32 << 10;
/// Number of bytes in a request if a file is read from one end to the other.
const LONGEST: u64 = 1 << 20;
/// Blocks that are kept.
const KEPT: usize = 16;

/// Blocks of one file. One that follows on the last one is twice as long, so that a header of
/// megabytes takes few questions and one of a hundred bytes does not cost megabytes.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    /// The last one that was used is the last.
    kept: VecDeque<Block>,
    /// End and length of the block that was fetched last.
    last: (u64, u64),
}

#[derive(Debug)]
struct Block {
    offset: u64,
    bytes: Vec<u8>,
}

impl Block {
    /// The part of `buf`'s range, which begins at `offset`, that the block has from there on.
    fn copy_to(&self, offset: u64, buf: &mut [u8]) -> usize {
        let Some(start) = offset.checked_sub(self.offset).and_then(|at| usize::try_from(at).ok())
        else {
            return 0;
        };
        let have = self.bytes.get(start..).unwrap_or_default();
        let len = have.len().min(buf.len());
        buf[..len].copy_from_slice(&have[..len]);
        len
    }
}

impl Blocks {
    /// Fills `buf` from `offset` on; `fetch` fills a buffer from the file of `len` bytes. The
    /// caller has checked the range.
    pub(crate) fn read(
        &mut self,
        mut offset: u64,
        mut buf: &mut [u8],
        len: u64,
        fetch: impl Fn(u64, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        while !buf.is_empty() {
            let copied = self.copy(offset, buf);
            offset += copied as u64;
            buf = &mut buf[copied..];
            if buf.is_empty() {
                break;
            }
            if buf.len() as u64 >= LONGEST {
                return fetch(offset, buf);
            }
            let wanted = self.wanted(offset, buf.len() as u64).min(len - offset);
            let mut bytes = vec![0; usize::try_from(wanted).unwrap_or(buf.len())];
            fetch(offset, &mut bytes)?;
            self.last = (offset + wanted, wanted);
            if self.kept.len() == KEPT {
                self.kept.pop_front();
            }
            self.kept.push_back(Block { offset, bytes });
        }
        Ok(())
    }

    /// Copies cached bytes to `buf`, and returns their number.
    fn copy(&mut self, offset: u64, buf: &mut [u8]) -> usize {
        let copies = |block: &Block| block.copy_to(offset, buf);
        let mut copied = 0;
        let found = self.kept.iter().map(copies).position(|len| {
            copied = len;
            len > 0
        });
        if let Some(block) = found.and_then(|found| self.kept.remove(found)) {
            self.kept.push_back(block);
        }
        copied
    }

    /// Length of the next block.
    fn wanted(&self, offset: u64, needed: u64) -> u64 {
        let (end, len) = self.last;
        let follows = len > 0 && end == offset;
        let usual = if follows { (len * 2).clamp(SHORTEST, LONGEST) } else { SHORTEST };
        usual.max(needed)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn file(len: usize) -> Vec<u8> {
        (0..len).map(|at| u8::try_from(at % 251).unwrap_or_default()).collect()
    }

    /// Reads ranges of a file of `len` bytes, and returns the requests.
    fn questions(len: usize, ranges: &[(usize, usize)]) -> Vec<(u64, usize)> {
        let bytes = file(len);
        let asked = RefCell::new(Vec::new());
        let mut blocks = Blocks::default();
        for &(offset, wanted) in ranges {
            let mut buf = vec![0; wanted];
            let fetch = |at: u64, buf: &mut [u8]| {
                asked.borrow_mut().push((at, buf.len()));
                let at = usize::try_from(at).expect("a small file");
                buf.copy_from_slice(&bytes[at..at + buf.len()]);
                Ok(())
            };
            blocks.read(offset as u64, &mut buf, len as u64, fetch).expect("in range");
            assert_eq!(buf, bytes[offset..offset + wanted], "{offset} {wanted}");
        }
        asked.into_inner()
    }

    #[test]
    fn nearby_bytes_are_requested_once() {
        let short = usize::try_from(SHORTEST).expect("small");
        assert_eq!(questions(1 << 20, &[(0, 8), (8, 100), (0, 4), (108, 1)]), [(0, short)]);
        assert_eq!(questions(100, &[(0, 8), (90, 10)]), [(0, 100)]);
    }

    #[test]
    fn a_file_read_in_order_takes_few_questions() {
        let ranges: Vec<_> = (0..1 << 12).map(|at| (at << 10, 1 << 10)).collect();
        let asked = questions(4 << 20, &ranges);
        assert!(asked.len() < 12, "{asked:?}");
        assert_eq!(asked.iter().map(|(_, len)| len).sum::<usize>(), 4 << 20);
    }

    #[test]
    fn long_ranges_pass_by_the_cache_and_blocks_are_forgotten() {
        assert_eq!(questions(8 << 20, &[(5, 2 << 20)]), [(5, 2 << 20)]);
        let far: Vec<_> = (0..40).map(|at| (at << 17, 8)).collect();
        let mut twice = far.clone();
        twice.extend(&far);
        assert_eq!(questions(8 << 20, &twice).len(), 80);
    }
}
