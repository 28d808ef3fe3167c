//! What a pass tells whoever waits for it.

use core::fmt;

/// Current activity of a pass.
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

/// Receives progress updates from a pass.
pub trait Progress {
    /// Starts a phase that processes about `total` bytes, and ends the one before.
    fn begin(&self, phase: Phase, total: u64) {
        let _ = (phase, total);
    }

    /// `bytes` more are done.
    fn advance(&self, bytes: u64);
}

/// Ignores all updates.
impl Progress for () {
    fn advance(&self, _bytes: u64) {}
}
