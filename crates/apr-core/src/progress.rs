//! What a pass tells whoever waits for it.

use core::fmt;

/// What a pass does at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// Reads, converts and writes tensors.
    Converting,
    /// Checks checksums and values.
    Checking,
    /// Computes statistics of values.
    Measuring,
    /// Computes digests.
    Hashing,
    /// Compares two models.
    Comparing,
    /// Fetches files of a server.
    Downloading,
    /// Puts a watermark into weights, or looks for one.
    Watermarking,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Converting => "converting",
            Self::Checking => "checking",
            Self::Measuring => "measuring",
            Self::Hashing => "hashing",
            Self::Comparing => "comparing",
            Self::Downloading => "downloading",
            Self::Watermarking => "watermarking",
        })
    }
}

/// Hears how far a pass is.
pub trait Progress {
    /// A phase begins, which goes through about `total` bytes; what was done before it is over.
    fn begin(&self, phase: Phase, total: u64) {
        let _ = (phase, total);
    }

    /// `bytes` more are done.
    fn advance(&self, bytes: u64);
}

/// Nobody listens.
impl Progress for () {
    fn advance(&self, _bytes: u64) {}
}
