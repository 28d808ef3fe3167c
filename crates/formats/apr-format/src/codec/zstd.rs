//! Zstandard's encoder.

use alloc::vec::Vec;

use structured_zstd::encoding::{CompressionLevel, compress_slice_to_vec};

/// A frame of these bytes; `None` in a build that does not write Zstandard.
#[allow(clippy::unnecessary_wraps, reason = "not every build has the encoder")]
pub(crate) fn encode(bytes: &[u8], level: i32) -> Option<Vec<u8>> {
    // A compressor could be used again, but not moved to another thread. It is generic too, and
    // would be compiled once more here, which takes longer than all else in this crate.
    Some(compress_slice_to_vec(bytes, CompressionLevel::from_level(level)))
}
