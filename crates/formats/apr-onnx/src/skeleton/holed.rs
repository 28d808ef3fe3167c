//! The other files of a model, with holes.

use std::collections::BTreeMap;
use std::sync::Arc;

use apr_core::{ByteSource, Error, IoCause, Result, SourceSet};
use apr_skeleton::Holed;

/// Further files of a model, with their kept ranges.
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

/// A file that allows reading only its kept ranges.
///
/// Zeros in its holes could be taken for values.
struct Kept(Arc<Holed>);

impl ByteSource for Kept {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let len = buf.len() as u64;
        if offset.checked_add(len).is_none_or(|end| end > self.0.len()) {
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
    fn only_kept_ranges_of_other_files_can_be_read() {
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
}
