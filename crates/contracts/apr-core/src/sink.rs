//! Where bytes go.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::{Error, IoCause, Result};

/// An append-only output of one or several files, which may allow patching written bytes.
pub trait Sink {
    /// Starts the next file of a target that has several: a shard, an index, a companion.
    ///
    /// # Errors
    /// E007 where the target is a single file.
    fn next_file(&mut self, name: &str) -> Result<()>;

    /// Appends to the current file.
    ///
    /// # Errors
    /// E007 when writing fails.
    fn write_all(&mut self, bytes: &[u8]) -> Result<()>;

    /// Bytes in the current file so far.
    fn position(&self) -> u64;

    /// Returns `true` if [`patch`](Self::patch) works. A pipe can't seek back.
    fn can_patch(&self) -> bool;

    /// Overwrites bytes already written to the current file.
    ///
    /// # Errors
    /// E007 when the range was not written yet, or the target can't go back.
    fn patch(&mut self, offset: u64, bytes: &[u8]) -> Result<()>;
}

impl Sink for Vec<u8> {
    fn next_file(&mut self, name: &str) -> Result<()> {
        Err(Error::io(
            IoCause::Other,
            format!("'{name}' is a second file, and the target holds one"),
        ))
    }

    fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        self.extend_from_slice(bytes);
        Ok(())
    }

    fn position(&self) -> u64 {
        self.len() as u64
    }

    fn can_patch(&self) -> bool {
        true
    }

    fn patch(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let start = usize::try_from(offset).ok();
        let range = start.and_then(|start| Some(start..start.checked_add(bytes.len())?));
        let target = range.and_then(|range| self.get_mut(range));
        let target = target
            .ok_or_else(|| Error::io(IoCause::Other, "a patch past what was written").at(offset))?;
        target.copy_from_slice(bytes);
        Ok(())
    }
}

/// A folder in memory, for tests and the browser.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryFolder {
    files: BTreeMap<String, Vec<u8>>,
    current: String,
}

impl MemoryFolder {
    /// The files by name; one that was written without a name has the empty name.
    #[must_use]
    pub fn files(&self) -> &BTreeMap<String, Vec<u8>> {
        &self.files
    }

    fn file(&mut self) -> &mut Vec<u8> {
        self.files.entry(self.current.clone()).or_default()
    }
}

impl Sink for MemoryFolder {
    fn next_file(&mut self, name: &str) -> Result<()> {
        self.current = name.into();
        self.file().clear();
        Ok(())
    }

    fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        self.file().write_all(bytes)
    }

    fn position(&self) -> u64 {
        self.files.get(&self.current).map_or(0, |file| file.len() as u64)
    }

    fn can_patch(&self) -> bool {
        true
    }

    fn patch(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.file().patch(offset, bytes)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn a_patch_past_the_written_bytes_is_rejected_and_changes_nothing() {
        let mut file = vec![1, 2, 3];
        file.patch(1, &[9, 9]).expect("written before");
        for (offset, bytes) in [(2, &[7, 7][..]), (4, &[]), (u64::MAX, &[7])] {
            assert!(file.patch(offset, bytes).is_err(), "{offset}");
        }
        assert_eq!(file, [1, 9, 9]);
        assert!(file.next_file("b").is_err(), "a vector is one file");
    }

    #[test]
    fn a_folder_in_memory_has_what_was_written_to_each_file() {
        let mut folder = MemoryFolder::default();
        folder.write_all(b"nameless").expect("memory");
        folder.next_file("a").expect("another file");
        assert_eq!(folder.position(), 0);
        folder.write_all(b"abc").expect("memory");
        folder.patch(0, b"x").expect("written before");
        assert!(folder.patch(3, b"d").is_err(), "not the other file's bytes");
        // A file that is begun again loses what it held.
        folder.next_file("b").expect("another file");
        folder.write_all(b"old").expect("memory");
        folder.next_file("b").expect("the same file");
        assert_eq!((folder.position(), folder.can_patch()), (0, true));
        let files: Vec<_> =
            folder.files().iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
        assert_eq!(files, [("", &b"nameless"[..]), ("a", b"xbc"), ("b", b"")]);
    }
}
