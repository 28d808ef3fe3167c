//! Sources one after the other, as one.

use apr_core::{ByteSource, Error, Result};

/// Sources, each with its start offset.
#[derive(Default)]
pub(super) struct Joined<'a> {
    parts: Vec<(u64, Box<dyn ByteSource + 'a>)>,
    len: u64,
}

impl<'a> Joined<'a> {
    /// Adds a source at the end. Empty ones are left out.
    pub(super) fn push(&mut self, part: Box<dyn ByteSource + 'a>) {
        let start = self.len;
        self.len = self.len.saturating_add(part.len());
        if !part.is_empty() {
            self.parts.push((start, part));
        }
    }
}

impl ByteSource for Joined<'_> {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let end = offset.checked_add(buf.len() as u64);
        if end.is_none_or(|end| end > self.len) {
            return Err(Error::corrupt("this reaches past the end of the stream").at(offset));
        }

        let (mut position, mut rest) = (offset, buf);
        let first = self.parts.partition_point(|(start, part)| start + part.len() <= offset);
        for (start, part) in &self.parts[first..] {
            let left = usize::try_from(start + part.len() - position).unwrap_or(usize::MAX);
            let (now, later) = rest.split_at_mut(left.min(rest.len()));
            part.read_at(position - start, now)?;
            position += now.len() as u64;
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_go_over_the_ends_of_parts() {
        let mut joined = Joined::default();
        for part in [&b"ab"[..], b"", b"c", b"def"] {
            joined.push(Box::new(part.to_vec()));
        }
        assert_eq!(joined.len(), 6);
        for start in 0..6 {
            for end in start..=6 {
                let mut bytes = vec![0; end - start];
                assert_eq!(joined.read_at(start as u64, &mut bytes), Ok(()));
                assert_eq!(bytes, b"abcdef"[start..end]);
            }
        }
        assert!(joined.read_at(5, &mut [0; 2]).is_err());
    }
}
