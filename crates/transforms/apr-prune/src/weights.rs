//! The weights of a tensor as single-precision numbers, by ranges of elements.

use std::ops::Range;

use apr_core::{CheckpointReader, Error, Result};
use apr_view::chunks::take;
use apr_view::values::{decode, read_quantized};

/// Elements of a piece that a pass works on.
pub(crate) const PIECE: u64 = 1 << 18;

/// Buffers that are used again.
#[derive(Default)]
pub(crate) struct Buffers {
    pub(crate) bytes: Vec<u8>,
    row: Vec<f32>,
    pub(crate) values: Vec<f32>,
}

/// Reads elements of a tensor into the buffers: their values and, if not quantized, their bytes.
///
/// # Errors
/// E002 and E007 when they can't be read, E008 when they do not fit in memory.
pub(crate) fn read(
    reader: &dyn CheckpointReader,
    tensor: usize,
    elements: Range<u64>,
    buffers: &mut Buffers,
) -> Result<()> {
    let info = &reader.tensors()[tensor];
    if !info.dtype.is_quantized() {
        let width = info.dtype.block_bytes();
        let bytes = take(&mut buffers.bytes, in_memory((elements.end - elements.start) * width)?);
        reader.read_tensor(tensor, elements.start * width, bytes)?;
        decode(info.dtype, bytes, 1, &mut buffers.values);
        return Ok(());
    }

    // Whole blocks decode, of which the range may want a part.
    let block = info.dtype.block_len();
    let total = info.shape.elements().unwrap_or_default();
    let start = elements.start / block * block;
    let end = elements.end.next_multiple_of(block).min(total);
    let Buffers { bytes, row, values } = buffers;
    read_quantized(reader, tensor, start..end, (bytes, row), values)?;
    values.drain(..in_memory(elements.start - start)?);
    values.truncate(in_memory(elements.end - elements.start)?);
    Ok(())
}

/// Divides `elements` elements into ranges whose bounds are multiples of `unit`.
pub(crate) fn pieces(elements: u64, unit: u64) -> impl Iterator<Item = Range<u64>> {
    let step = PIECE.next_multiple_of(unit.max(1));
    (0..elements.div_ceil(step)).map(move |at| at * step..((at + 1) * step).min(elements))
}

pub(crate) fn in_memory(len: u64) -> Result<usize> {
    usize::try_from(len).map_err(|_| Error::memory("the range does not fit in memory"))
}
