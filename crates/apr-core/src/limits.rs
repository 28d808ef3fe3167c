//! Bounds that a number read from a file meets before it sizes an allocation.

use alloc::format;

use crate::{Error, Result};

/// What a reader accepts from a file it does not trust.
///
/// ```
/// use apr_core::{Code, Limits};
///
/// let limits = Limits::default();
/// let error = limits.check_metadata(200 << 20).unwrap_err();
/// assert_eq!(error.code(), Code::Memory);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Bytes of JSON metadata or header; 100 MiB (`docs/format/apr2.md`, "Metadata").
    pub max_metadata: u64,
    /// Bytes of a binary tensor index; 256 MiB, some five million tensors.
    pub max_index: u64,
    /// Bytes of the companion files (tokenizer, model card) of a folder, or of one inside a
    /// container; 64 MiB.
    pub max_companion: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_metadata: 100 << 20, max_index: 256 << 20, max_companion: 64 << 20 }
    }
}

impl Limits {
    /// Refuses metadata over [`max_metadata`](Self::max_metadata) with E008.
    pub fn check_metadata(&self, len: u64) -> Result<()> {
        check("metadata", len, self.max_metadata, "; raise the limit with `max_metadata`")
    }

    /// Refuses a tensor index over [`max_index`](Self::max_index) with E008.
    pub fn check_index(&self, len: u64) -> Result<()> {
        check("the tensor index", len, self.max_index, "")
    }

    /// Refuses a companion over [`max_companion`](Self::max_companion) with E008.
    pub fn check_companion(&self, len: u64) -> Result<()> {
        check("the companion file", len, self.max_companion, "")
    }
}

fn check(what: &str, len: u64, limit: u64, advice: &str) -> Result<()> {
    if len > limit {
        return Err(Error::memory(format!(
            "{what} takes {len} bytes, more than the limit of {limit}{advice}"
        )));
    }
    Ok(())
}
