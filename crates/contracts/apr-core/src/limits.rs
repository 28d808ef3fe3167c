//! Bounds that a number read from a file meets before it sizes an allocation.

use alloc::format;

use crate::{Error, Result};

/// Limits for reading a file that is not trusted.
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
    /// Memory in bytes for all of these after they are read, with everything derived from them.
    ///
    /// The default is unlimited. [`within`](Self::within) sets it.
    pub max_memory: u64,
}

/// Memory that a byte of a header takes while it is read: 5 for the header of 100,000 tensors, more
/// for lists of numbers. What is made of tensors afterwards is [`OF_TENSOR`].
const OF_METADATA: u64 = 8;

/// Memory for a byte of an index, which encodes values more compactly than a header.
const OF_INDEX: u64 = 4;

/// Memory that a byte of a program takes: 5 for a graph of ONNX with 100,000 nodes.
const OF_PROGRAM: u64 = 6;

/// Memory for a byte of a companion file: the file, and the data read from it.
const OF_COMPANION: u64 = 4;

/// Memory that a tensor takes, whatever its size: 1.2 KB in a report and 1.9 KB in a conversion.
const OF_TENSOR: u64 = 2 << 10;

/// The least memory that headers are held against.
const LEAST: u64 = 8 << 20;

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_metadata: 100 << 20,
            max_index: 256 << 20,
            max_companion: 64 << 20,
            max_memory: u64::MAX,
        }
    }
}

impl Limits {
    /// Lowers the limits to what fits into `max_memory` bytes.
    ///
    /// A program needs some megabytes for itself, so less than 8 MiB counts as 8 MiB.
    ///
    /// ```
    /// use apr_core::{Code, Limits};
    ///
    /// let limits = Limits::default().within(64 << 20);
    /// assert!(limits.check_tensors(10_000).is_ok());
    /// assert_eq!(limits.check_tensors(1_000_000).unwrap_err().code(), Code::Memory);
    /// ```
    #[must_use]
    pub const fn within(self, max_memory: u64) -> Self {
        const fn lower(one: u64, other: u64) -> u64 {
            if one < other { one } else { other }
        }
        let max_memory = if max_memory < LEAST { LEAST } else { max_memory };
        Self {
            max_metadata: lower(self.max_metadata, max_memory / OF_METADATA),
            max_index: lower(self.max_index, max_memory / OF_INDEX),
            max_companion: lower(self.max_companion, max_memory / OF_COMPANION),
            max_memory,
        }
    }

    /// Refuses more tensors than [`max_memory`](Self::max_memory) has room for with E008.
    pub fn check_tensors(&self, count: u64) -> Result<()> {
        let needed = count.saturating_mul(OF_TENSOR);
        if needed > self.max_memory {
            return Err(self.beyond_memory(&format!("{count} tensors"), needed));
        }
        Ok(())
    }

    /// Refuses metadata over [`max_metadata`](Self::max_metadata) with E008.
    pub fn check_metadata(&self, len: u64) -> Result<()> {
        let advice = "; raise the limit with `max_metadata`";
        self.check("metadata", len, (self.max_metadata, OF_METADATA), advice)
    }

    /// Refuses a tensor index over [`max_index`](Self::max_index) with E008.
    pub fn check_index(&self, len: u64) -> Result<()> {
        self.check("the tensor index", len, (self.max_index, OF_INDEX), "")
    }

    /// Refuses a companion over [`max_companion`](Self::max_companion) with E008.
    pub fn check_companion(&self, len: u64) -> Result<()> {
        self.check("the companion file", len, (self.max_companion, OF_COMPANION), "")
    }

    /// Returns the maximum size in bytes of a program's description, such as an ONNX graph.
    ///
    /// It is the limit for an index, or less if memory is limited.
    #[must_use]
    pub fn max_program(&self) -> u64 {
        self.max_index.min(self.max_memory / OF_PROGRAM)
    }

    /// E008 for a description beyond [`max_program`](Self::max_program).
    #[must_use]
    pub fn beyond_program(&self) -> Error {
        let most = self.max_program();
        let advice = match most < self.max_index {
            true => "; raise the limit with `max_memory`",
            false => "",
        };
        Error::memory(format!("the model's description exceeds the limit of {most} bytes{advice}"))
    }

    /// The setting that raises the limit on metadata.
    #[must_use]
    pub const fn metadata_setting(&self) -> &'static str {
        if self.max_metadata < self.max_memory / OF_METADATA {
            "`max_metadata`"
        } else {
            "`max_memory`"
        }
    }

    fn check(&self, what: &str, len: u64, (most, cost): (u64, u64), advice: &str) -> Result<()> {
        if len <= most {
            return Ok(());
        }
        let what = format!("{what} takes {len} bytes");
        Err(match most < self.max_memory / cost {
            true => Error::memory(format!("{what}, more than the limit of {most}{advice}")),
            false => self.beyond_memory(&what, len.saturating_mul(cost)),
        })
    }

    fn beyond_memory(&self, what: &str, needed: u64) -> Error {
        Error::memory(format!(
            "{what}: needs about {needed} bytes of memory, more than the limit of {}; raise the \
             limit with `max_memory`",
            self.max_memory
        ))
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn a_memory_limit_lowers_only_larger_limits() {
        let limits = Limits { max_companion: 100, ..Limits::default() }.within(16 << 20);
        assert_eq!((limits.max_metadata, limits.max_index), (2 << 20, 4 << 20));
        assert_eq!((limits.max_companion, limits.max_memory), (100, 16 << 20));
        assert_eq!(limits.max_program(), (16 << 20) / OF_PROGRAM);
        assert_eq!(Limits::default().within(u64::MAX), Limits::default());
        assert_eq!(Limits::default().within(0), Limits::default().within(LEAST));
    }

    #[test]
    fn an_error_names_what_is_needed_and_the_setting_that_allows_it() {
        let limits = Limits { max_metadata: 100, ..Limits::default() }.within(10_000_000);
        let says = |checked: Result<()>| checked.unwrap_err().to_string();
        let narrow = says(limits.check_metadata(101));
        assert!(
            narrow.ends_with("more than the limit of 100; raise the limit with `max_metadata`")
        );
        let large = says(Limits::default().within(10_000_000).check_metadata(2_000_000));
        assert!(large.contains("needs about 16000000 bytes of memory"), "{large}");
        assert!(large.ends_with("limit of 10000000; raise the limit with `max_memory`"), "{large}");
        let many = says(limits.check_tensors(5_000));
        assert!(many.contains("5000 tensors: needs about 10240000 bytes of memory"), "{many}");
        assert!(limits.check_tensors(4_000).is_ok());
        assert_eq!(limits.metadata_setting(), "`max_metadata`");
        assert_eq!(Limits::default().within(LEAST).metadata_setting(), "`max_memory`");
    }
}
