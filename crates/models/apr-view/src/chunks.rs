//! Cutting tensors into the pieces that a pass works on.

use apr_core::TensorInfo;
use apr_core::digest::CHUNK_LEN;
use apr_tensor::element::chunk_len;

/// A piece of a tensor, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    /// Offset in the tensor.
    pub offset: u64,
    /// Number of bytes.
    pub len: usize,
    /// `true` if this is the tensor's last piece.
    pub last: bool,
    /// `true` if the pieces suit [`ChunkSums`](apr_core::digest::ChunkSums), which require a power
    /// of two.
    pub summable: bool,
}

/// The pieces of a tensor of `len` bytes; an empty tensor has one empty piece, so that every tensor
/// is seen.
pub fn chunks(info: &TensorInfo, len: u64) -> impl Iterator<Item = Chunk> + use<> {
    pieces(len, chunk_len(info.dtype))
}

/// The pieces of `len` bytes, each of `piece` bytes but the last.
pub fn pieces(len: u64, piece: usize) -> impl Iterator<Item = Chunk> {
    let step = piece as u64;
    (0..len.div_ceil(step).max(1)).map(move |i| {
        let offset = i * step;
        let left = len - offset;
        Chunk {
            offset,
            len: usize::try_from(left).map_or(piece, |left| left.min(piece)),
            last: left <= step,
            summable: piece == CHUNK_LEN,
        }
    })
}

/// Returns the first `len` bytes of a buffer, which only grows, so that it can be reused without
/// allocation.
pub fn take(buffer: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
    &mut buffer[..len]
}
