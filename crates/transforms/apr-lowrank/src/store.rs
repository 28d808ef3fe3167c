//! Where factors are kept until they are written.

use std::sync::{Mutex, PoisonError};

use apr_core::{Error, Result};

/// Bytes that are put somewhere and read again. Factors of a large model are more than its memory
/// limit, so a program keeps them in a file.
pub trait FactorStore: Send + Sync {
    /// Appends bytes, and returns their offset.
    ///
    /// # Errors
    /// E007 when they can't be written, E008 if there is no space left.
    fn append(&self, bytes: &[u8]) -> Result<u64>;

    /// Fills `buf` with bytes from `offset` on.
    ///
    /// # Errors
    /// E002 past the end, E007 when they can't be read.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()>;
}

/// A store in memory.
#[derive(Debug, Default)]
pub struct InMemory {
    bytes: Mutex<Vec<u8>>,
}

impl FactorStore for InMemory {
    fn append(&self, bytes: &[u8]) -> Result<u64> {
        let mut stored = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let start = stored.len() as u64;
        stored.extend_from_slice(bytes);
        Ok(start)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let stored = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let start = usize::try_from(offset).ok();
        let bytes = start.and_then(|start| stored.get(start..)?.get(..buf.len()));
        buf.copy_from_slice(bytes.ok_or_else(|| Error::corrupt("the read ends past the factors"))?);
        Ok(())
    }
}
