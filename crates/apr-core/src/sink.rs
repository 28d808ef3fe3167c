//! Where bytes go.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::{Error, IoCause, Result};

/// An append-only target of one or several files, which may allow a patch of what was written.
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

    /// Whether [`patch`](Self::patch) works; a pipe can't go back.
    fn can_patch(&self) -> bool;

    /// Overwrites bytes already written to the current file.
    ///
    /// # Errors
    /// E007 when the range was not written yet, or the target can't go back.
    fn patch(&mut self, offset: u64, bytes: &[u8]) -> Result<()>;
}

impl Sink for Vec<u8> {
    fn next_file(&mut self, name: &str) -> Result<()> {
        Err(Error::io(IoCause::Other, format!("'{name}' is a second file, and the target holds one")))
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
        let target = target.ok_or_else(|| Error::io(IoCause::Other, "a patch past what was written").at(offset))?;
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
