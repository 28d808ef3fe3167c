//! Cutting tensors into the pieces that a pass works on.

use std::ops::Range;

use apr_core::digest::CHUNK_LEN;
use apr_core::{Error, Result, TensorInfo};
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

/// Fills `buf` with bytes of a computed tensor, from byte `offset` on.
///
/// `compute` puts the bytes of a range of elements, or of blocks if the dtype has blocks, into an
/// empty buffer. It gets at most `most` of them at a time.
///
/// # Errors
/// E002 if the range ends past the tensor, and the errors of `compute`.
///
/// ```
/// use apr_core::{DType, TensorInfo};
/// use apr_view::chunks::fill;
///
/// let info = TensorInfo {
///     name: "counts".to_owned(),
///     dtype: DType::U16,
///     shape: vec![300].into(),
/// };
/// let mut bytes = [0; 3];
/// fill(&info, (3, &mut bytes), 2, |elements, out| {
///     out.extend(elements.flat_map(|element| (element as u16).to_le_bytes()));
///     Ok(())
/// })?;
/// assert_eq!(bytes, [0, 2, 0]);
/// # Ok::<(), apr_core::Error>(())
/// ```
pub fn fill(
    info: &TensorInfo,
    (offset, buf): (u64, &mut [u8]),
    most: u64,
    mut compute: impl FnMut(Range<u64>, &mut Vec<u8>) -> Result<()>,
) -> Result<()> {
    let past = || Error::corrupt("the read ends past the tensor").at(offset);
    let end = offset.checked_add(buf.len() as u64).ok_or_else(past)?;
    if end > info.byte_len()? {
        return Err(past());
    }
    let width = info.dtype.block_bytes();
    let (mut start, last) = (offset / width, end.div_ceil(width));
    let mut skip = usize::try_from(offset % width).map_err(|_| past())?;
    let (mut rest, mut bytes) = (buf, Vec::new());
    while start < last {
        let next = start.saturating_add(most).min(last);
        bytes.clear();
        compute(start..next, &mut bytes)?;
        let computed = bytes.get(skip..).unwrap_or_default();
        let (now, later) = rest.split_at_mut(computed.len().min(rest.len()));
        now.copy_from_slice(&computed[..now.len()]);
        (rest, start, skip) = (later, next, 0);
    }
    match rest.is_empty() {
        true => Ok(()),
        false => Err(Error::corrupt("the tensor ends too early")),
    }
}

/// Returns the first `len` bytes of a buffer, which only grows, so that it can be reused without
/// allocation.
pub fn take(buffer: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
    &mut buffer[..len]
}
