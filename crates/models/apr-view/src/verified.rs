//! A checkpoint whose bytes are compared with what its file states of them, before anybody computes
//! with them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use apr_core::{CheckpointReader, Result, StoredPart, StoredRange, pass_on};

use crate::integrity::{about_part, mismatch_of};

/// The parts of a model's files that were compared with their checksums, for all readers of these
/// files. Whoever needs a part waits for who reads it already, and for nobody else.
#[derive(Debug, Default)]
pub struct Checked(Mutex<BTreeMap<Place, Arc<Mutex<bool>>>>);

/// File, offset and length.
type Place = (usize, u64, u64);

impl Checked {
    /// Returns whether a part was compared; the lock is held during the comparison.
    fn part(&self, range: StoredRange) -> Arc<Mutex<bool>> {
        let place = (range.file, range.offset, range.len);
        Arc::clone(lock(&self.0).entry(place).or_default())
    }
}

/// Locks a mutex. A poisoned mutex is still valid, because its value only records completed work.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Checkpoint that compares each tensor with its checksum before its first byte is read.
///
/// Each tensor, and each part of which it is made, is compared with its digest or CRC-32 in one
/// pass over the bytes in the file, a chunk at a time. A tensor that is read again, or by rows, is
/// not compared again.
///
/// Passes that read whole tensors in order (a conversion, a validation) compare them during the
/// pass and do not need this reader.
pub struct Verified<'a> {
    base: &'a dyn CheckpointReader,
    checked: &'a Checked,
    /// One flag for each tensor, set once the tensor was compared.
    done: Vec<AtomicBool>,
}

impl<'a> Verified<'a> {
    /// Creates a verifying reader over the reader of files; the parts in `checked` are not compared
    /// again.
    #[must_use]
    pub fn new(base: &'a dyn CheckpointReader, checked: &'a Checked) -> Self {
        let done = base.tensors().iter().map(|_| AtomicBool::new(false)).collect();
        Self { base, checked, done }
    }

    /// Compares a tensor with its stored checksums, unless that was already done.
    ///
    /// # Errors
    /// E004 with file and tensor where they differ, E007 when reading fails.
    pub fn check(&self, tensor: usize) -> Result<()> {
        let Some(done) = self.done.get(tensor).filter(|done| !done.load(Ordering::Acquire)) else {
            return Ok(());
        };

        for part in self.parts(tensor) {
            let state = self.checked.part(part.range);
            let mut is_compared = lock(&state);
            if *is_compared {
                continue;
            }
            let mismatch = mismatch_of(&part)
                .map_err(|error| about_part(error, self.base, tensor, part.place))?;
            if let Some(mismatch) = mismatch {
                return Err(mismatch.into_error(self.base, tensor, part.place));
            }
            *is_compared = true;
        }
        done.store(true, Ordering::Release);
        Ok(())
    }

    /// Returns the stored parts of a tensor that have a checksum.
    fn parts(&self, tensor: usize) -> Vec<StoredPart<'a>> {
        let stored = self.base.stored(tensor);
        let mut parts: Vec<StoredPart<'a>> = stored.parts().to_vec();
        let owner = if stored.range.len == 0 { self.owner(tensor) } else { Some(tensor) };
        parts.extend(owner.and_then(|at| self.base.stored(at).own_part(self.base, at)));
        parts
    }

    /// The tensor whose bytes a tied one has.
    fn owner(&self, tied: usize) -> Option<usize> {
        let place = |tensor: usize| {
            let range = self.base.stored(tensor).range;
            (range.file, range.offset, range.len > 0)
        };
        let (file, offset, _) = place(tied);
        (0..self.base.tensors().len()).find(|&tensor| place(tensor) == (file, offset, true))
    }
}

impl CheckpointReader for Verified<'_> {
    pass_on!(base: format, metadata, tensors, stored, container, files, companions);
    pass_on!(base: read_companion, left_out, warnings);

    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.check(tensor)?;
        self.base.read_tensor(tensor, offset, buf)
    }

    fn tensor_slice(&self, tensor: usize) -> Option<&[u8]> {
        // Whoever gets none reads the tensor, and learns why.
        self.check(tensor).ok()?;
        self.base.tensor_slice(tensor)
    }
}

#[cfg(test)]
mod tests {
    use apr_core::{Code, Limits, Metadata, has_no};

    use super::*;

    /// Tensors of four bytes, with digests of other bytes or the same; counts reads.
    struct Counted {
        base: Box<dyn CheckpointReader>,
        digest: apr_core::digest::Digest,
        reads: std::sync::atomic::AtomicUsize,
    }

    impl CheckpointReader for Counted {
        pass_on!(base: format, tensors, container, files, left_out, warnings);
        has_no!(companions, slices);

        fn metadata(&self) -> &Metadata {
            self.base.metadata()
        }

        fn stored(&self, tensor: usize) -> apr_core::Stored<'_> {
            self.base.stored(tensor).with_digest(Some(self.digest))
        }

        fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
            self.reads.fetch_add(1, Ordering::Relaxed);
            self.base.read_tensor(tensor, offset, buf)
        }
    }

    fn counted(of: &[u8]) -> Counted {
        let header = br#"{"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#;
        with_digest(header, b"abcd", of)
    }

    fn with_digest(header: &[u8], data: &[u8], of: &[u8]) -> Counted {
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend_from_slice(header);
        file.extend_from_slice(data);
        let base = apr_registry::open(file, "m.safetensors", &Limits::default()).expect("sound");
        let mut digest = apr_core::digest::TensorDigest::new();
        digest.update(of);
        Counted { base, digest: digest.value(), reads: 0.into() }
    }

    #[test]
    fn a_tensor_is_compared_once_for_any_number_of_reads_and_readers() {
        let (model, checked) = (counted(b"abcd"), Checked::default());
        for _ in 0..2 {
            let verified = Verified::new(&model, &checked);
            let mut byte = [0];
            for offset in [2, 0] {
                verified.read_tensor(0, offset, &mut byte).expect("its digest");
                assert_eq!(byte[0], b"abcd"[usize::try_from(offset).unwrap()]);
            }
        }
        assert_eq!(model.reads.load(Ordering::Relaxed), 1 + 4, "once for the digest");
    }

    /// Two tensors, whose bytes are read to be compared only when both are.
    struct Meeting {
        base: Counted,
        both: std::sync::Barrier,
    }

    impl CheckpointReader for Meeting {
        pass_on!(base: format, metadata, tensors, stored, container, files, left_out, warnings);
        has_no!(companions, slices);

        fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
            if buf.len() > 1 {
                self.both.wait();
            }
            self.base.read_tensor(tensor, offset, buf)
        }
    }

    #[test]
    fn threads_that_need_different_tensors_do_not_wait_for_each_other() {
        let header = br#"{"v":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},
            "w":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}"#;
        let base = with_digest(header, b"abcdabcd", b"abcd");
        let model = Meeting { base, both: std::sync::Barrier::new(2) };
        let checked = Checked::default();
        let verified = Verified::new(&model, &checked);
        std::thread::scope(|scope| {
            for tensor in [0, 1] {
                let verified = &verified;
                scope.spawn(move || verified.read_tensor(tensor, 0, &mut [0]).expect("its digest"));
            }
        });
        assert_eq!(model.base.reads.load(Ordering::Relaxed), 4, "one to compare, one to read");
    }

    #[test]
    fn no_byte_of_a_changed_tensor_is_given() {
        let (model, checked) = (counted(b"abce"), Checked::default());
        let verified = Verified::new(&model, &checked);
        let mut byte = [7];
        for _ in 0..2 {
            let error = verified.read_tensor(0, 1, &mut byte).expect_err("another digest");
            assert_eq!((error.code(), error.tensor()), (Code::Checksum, Some("w")));
            assert_eq!((error.file(), byte[0]), (Some("m.safetensors"), 7));
        }
    }
}
