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

/// What is to be done to bytes of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Work {
    /// They are a piece to compress.
    Compress,
    /// They are to be encrypted, from this chunk on.
    Seal {
        /// The first chunk's number.
        first: u64,
        /// Whether the last of them is the tensor's last.
        to_end: bool,
    },
}

/// Bytes, what is to be done to them, and what came of it.
#[derive(Debug)]
pub(super) struct Parcel {
    /// The tensor's place among the writer's entries.
    pub(super) entry: usize,
    pub(super) work: Work,
    pub(super) input: Vec<u8>,
    pub(super) output: Vec<u8>,
    /// Blocks that did not decode to what they were made of.
    pub(super) mismatches: u64,
}
