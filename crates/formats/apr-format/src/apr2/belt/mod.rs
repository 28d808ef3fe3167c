//! Work that the writer puts off until a thread has time for it.
//!
//! Pieces of a tensor that is quantized on its way do not end where a codec's blocks do, and what
//! is compressed is cut into encrypted chunks anew: who does such work must know all that came
//! before, which only the writer does. It lays the work on a belt. A thread that is about to make a
//! piece of its own first does what lies there
//! ([`ChunkEncoder::help`](apr_core::ChunkEncoder::help)), and the writer takes the results off in
//! the order in which it laid them on. What nobody has begun by the time it is due, the writer does
//! itself. So the bytes of a file do not depend on threads.

#[cfg(feature = "std")]
mod places;
#[cfg(not(feature = "std"))]
#[path = "places_off.rs"]
mod places;

use alloc::vec::Vec;

pub(super) use places::Belt;

/// Operation on bytes of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Work {
    /// Compression of a piece.
    Compress,
    /// Encryption of chunks.
    Seal {
        /// The first chunk's number.
        first: u64,
        /// `true` if the last of the chunks is the tensor's last.
        to_end: bool,
    },
}

/// Bytes of a tensor, the operation on them, and its result.
#[derive(Debug)]
pub(super) struct Parcel {
    /// The tensor's place among the writer's entries.
    pub(super) entry: usize,
    pub(super) work: Work,
    pub(super) input: Vec<u8>,
    pub(super) output: Vec<u8>,
    /// Number of blocks that did not decode to their input.
    pub(super) mismatches: u64,
}
