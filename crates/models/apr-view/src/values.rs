//! Elements of a checkpoint's tensors as numbers, quantized ones included.

use std::ops::Range;

use apr_core::{CheckpointReader, DType, Error, NotFinite, Result, TensorInfo};
use apr_tensor::block;
use apr_tensor::cast::cast_float;
use apr_tensor::element::{is_decodable, widen_f32, widen_f64};
use apr_tensor::stats::{Histogram, Moments, Scratch};

use crate::chunks::{Chunk, take};

/// Bytes of the scale in front of a row of [`DType::I8_ROW`].
const ROW_SCALE: u64 = 4;

/// Buffers that are used again.
#[derive(Default)]
pub struct Buffers {
    bytes: Vec<u8>,
    row: Vec<f32>,
    values: Vec<f32>,
    scratch: Scratch,
}

/// Replaces the contents of `out` with the elements of whole rows, or of whole blocks for block
/// dtypes.
///
/// Wider elements are rounded to `f32`.
pub fn decode(dtype: DType, bytes: &[u8], row_len: usize, out: &mut Vec<f32>) {
    match dtype {
        DType::F64 => {
            let mut narrow = Vec::new();
            cast_float(DType::F64, DType::F32, bytes, &mut narrow);
            widen_f32(DType::F32, &narrow, out);
        }
        _ if dtype.is_quantized() => block::dequantize(dtype, bytes, row_len, out),
        _ => widen_f32(dtype, bytes, out),
    }
}

/// Replaces the contents of `out` by elements of a quantized tensor. A range of blocks must start
/// at one.
///
/// # Errors
/// E002 and E007 when the bytes can't be read, E008 when the range does not fit in memory.
pub fn read_quantized(
    reader: &dyn CheckpointReader,
    tensor: usize,
    elements: Range<u64>,
    buffers: (&mut Vec<u8>, &mut Vec<f32>),
    out: &mut Vec<f32>,
) -> Result<()> {
    let info = &reader.tensors()[tensor];
    let (bytes, row) = buffers;
    out.clear();
    if info.dtype == DType::I8_ROW {
        return read_rows(reader, tensor, elements, (bytes, row), out);
    }

    let (block_len, block_bytes) = (info.dtype.block_len(), info.dtype.block_bytes());
    let offset = elements.start / block_len * block_bytes;
    let end = elements.end.div_ceil(block_len) * block_bytes;
    let bytes = take(bytes, in_memory(end - offset)?);
    reader.read_tensor(tensor, offset, bytes)?;

    // Blocks know nothing of rows, and a range may cut one.
    block::dequantize(info.dtype, bytes, in_memory(elements.end - elements.start)?, out);
    Ok(())
}

/// Elements of a tensor as numbers, in the order of its rows.
///
/// ```
/// use apr_view::values::read;
///
/// let header = br#"{"bias":{"dtype":"F16","shape":[3],"data_offsets":[0,6]}}"#;
/// let mut file = (header.len() as u64).to_le_bytes().to_vec();
/// file.extend_from_slice(header);
/// file.extend_from_slice(&[0, 0x3c, 0, 0x40, 0, 0x42]);
/// let model = apr_registry::open(file, "model.safetensors", &apr_core::Limits::default())?;
///
/// assert_eq!(read(&*model, 0, 1..3)?, [2.0, 3.0]);
/// # Ok::<(), apr_core::Error>(())
/// ```
///
/// # Errors
/// E001 for a dtype whose elements are no real numbers, E002 past the tensor's end, E007 when
/// reading fails, E008 when the range does not fit in memory.
pub fn read(
    reader: &dyn CheckpointReader,
    tensor: usize,
    elements: Range<u64>,
) -> Result<Vec<f64>> {
    let info = &reader.tensors()[tensor];
    let total = info.shape.elements().unwrap_or_default();
    if elements.end > total || elements.start > elements.end {
        let Range { start, end } = elements;
        return Err(Error::corrupt(format!(
            "elements {start} to {end} are out of range: it has {total} in all"
        ))
        .for_tensor(&info.name));
    }

    if info.dtype.is_quantized() {
        // Whole blocks decode, of which the range may want a part.
        let start = elements.start / info.dtype.block_len() * info.dtype.block_len();
        let end = elements.end.next_multiple_of(info.dtype.block_len()).min(total);
        let mut values = Vec::new();
        read_quantized(
            reader,
            tensor,
            start..end,
            (&mut Vec::new(), &mut Vec::new()),
            &mut values,
        )?;
        let before = in_memory(elements.start - start)?;
        let count = in_memory(elements.end - elements.start)?;
        return Ok(values.into_iter().skip(before).take(count).map(f64::from).collect());
    }

    if !is_decodable(info.dtype) {
        return Err(Error::format(format!("elements of {} are not real numbers", info.dtype))
            .for_tensor(&info.name));
    }

    // Floats of 4 and 6 bits share bytes: the range may want a part of those at its ends.
    let (unit, width) = (info.dtype.block_len(), info.dtype.block_bytes());
    let (first, last) = (elements.start / unit, elements.end.div_ceil(unit));
    let mut bytes = vec![0; in_memory((last - first) * width)?];
    reader.read_tensor(tensor, first * width, &mut bytes)?;
    let mut values = Vec::new();
    widen_f64(info.dtype, &bytes, &mut values);
    values.drain(..in_memory(elements.start - first * unit)?);
    values.truncate(in_memory(elements.end - elements.start)?);
    Ok(values)
}

/// Rows that start with their scale.
fn read_rows(
    reader: &dyn CheckpointReader,
    tensor: usize,
    elements: Range<u64>,
    (bytes, values): (&mut Vec<u8>, &mut Vec<f32>),
    out: &mut Vec<f32>,
) -> Result<()> {
    let row_len = reader.tensors()[tensor].shape.row_len();
    let mut at = elements.start;
    while at < elements.end {
        let (row, column) = (at / row_len, at % row_len);
        let count = in_memory((row_len - column).min(elements.end - at))?;
        let start = row * (row_len + ROW_SCALE);
        let bytes = take(bytes, count + 4);
        let (scale, quants) = bytes.split_at_mut(4);
        reader.read_tensor(tensor, start, scale)?;
        reader.read_tensor(tensor, start + ROW_SCALE + column, quants)?;
        block::dequantize(DType::I8_ROW, bytes, count, values);
        out.extend_from_slice(values);
        at += count as u64;
    }

    Ok(())
}

fn in_memory(len: u64) -> Result<usize> {
    usize::try_from(len).map_err(|_| Error::memory("the range does not fit in memory"))
}

/// Returns the error about a tensor with values that are not finite, of which `first` is one.
///
/// It reads the tensor from there to count them. If that fails, it returns the error of the reader.
#[must_use]
pub fn not_finite(reader: &dyn CheckpointReader, tensor: usize, first: u64) -> Error {
    const STEP: u64 = 1 << 16;

    let info = &reader.tensors()[tensor];
    let of = info.shape.elements().unwrap_or_default();
    let mut found = NotFinite { nan: 0, infinite: 0, of, first };
    let mut start = first;
    while start < of {
        let end = start.saturating_add(STEP).min(of);
        let values = match read(reader, tensor, start..end) {
            Ok(values) => values,
            Err(error) => return error,
        };
        found.nan += values.iter().filter(|value| value.is_nan()).count() as u64;
        found.infinite += values.iter().filter(|value| value.is_infinite()).count() as u64;
        start = end;
    }
    Error::of_values(found).for_tensor(&info.name)
}

/// The elements of a quantized tensor whose blocks (or whose own bytes) begin in a range of its
/// bytes: over consecutive ranges, each element comes once.
#[must_use]
pub fn elements_in(info: &TensorInfo, bytes: Range<u64>) -> Range<u64> {
    let first_from = |byte: u64| match info.dtype {
        DType::I8_ROW => {
            let row_len = info.shape.row_len();
            let (row, within) = (byte / (row_len + ROW_SCALE), byte % (row_len + ROW_SCALE));
            row * row_len + within.saturating_sub(ROW_SCALE)
        }
        dtype => byte.div_ceil(dtype.block_bytes()) * dtype.block_len(),
    };
    first_from(bytes.start)..first_from(bytes.end)
}

/// Moments of the elements that begin in a chunk, whose `bytes` were read.
///
/// # Errors
/// E002 and E007 when the rest of a block that the chunk cuts can't be read.
pub fn moments(
    reader: &dyn CheckpointReader,
    tensor: usize,
    chunk: Chunk,
    bytes: &[u8],
    buffers: &mut Buffers,
) -> Result<Moments> {
    let info = &reader.tensors()[tensor];
    if is_decodable(info.dtype) {
        return Ok(Moments::of(info.dtype, bytes, &mut buffers.scratch));
    }
    read_chunk(reader, tensor, chunk, buffers)?;
    Ok(Moments::of_values(&buffers.values, &mut buffers.scratch))
}

/// Adds the elements that begin in a chunk, whose `bytes` were read, to a histogram.
///
/// # Errors
/// E002 and E007 when the rest of a block that the chunk cuts can't be read.
pub fn add_to_histogram(
    histogram: &mut Histogram,
    reader: &dyn CheckpointReader,
    (tensor, chunk): (usize, Chunk),
    bytes: &[u8],
    buffers: &mut Buffers,
) -> Result<()> {
    let info = &reader.tensors()[tensor];
    if is_decodable(info.dtype) {
        histogram.add(info.dtype, bytes, &mut buffers.scratch);
        return Ok(());
    }
    read_chunk(reader, tensor, chunk, buffers)?;
    histogram.add_values(&buffers.values, &mut buffers.scratch);
    Ok(())
}

fn read_chunk(
    reader: &dyn CheckpointReader,
    tensor: usize,
    chunk: Chunk,
    buffers: &mut Buffers,
) -> Result<()> {
    let elements =
        elements_in(&reader.tensors()[tensor], chunk.offset..chunk.offset + chunk.len as u64);
    let Buffers { bytes, row, values, .. } = buffers;
    read_quantized(reader, tensor, elements, (bytes, row), values)
}

/// Values that no writer of their dtype makes, in bytes that start `offset` bytes into a tensor:
/// quants of -128 where quants lie in [-127, 127], truth values other than 0 and 1.
#[must_use]
pub fn beyond_range(info: &TensorInfo, offset: u64, bytes: &[u8]) -> u64 {
    const BEYOND: u8 = i8::MIN.to_le_bytes()[0];

    let (unit, scale) = match info.dtype {
        DType::Q8_0 => (info.dtype.block_bytes(), 2),
        DType::I8_ROW => (info.shape.row_len() + ROW_SCALE, ROW_SCALE),
        DType::BOOL => return bytes.iter().filter(|&&byte| byte > 1).count() as u64,
        _ => return 0,
    };

    // Most groups have none, which vector instructions see at once.
    const GROUP: usize = 64;

    let groups = bytes.chunks(GROUP).zip((offset..).step_by(GROUP));
    let suspects =
        groups.filter(|(group, _)| group.iter().fold(false, |any, &byte| any | (byte == BEYOND)));
    let in_group = |(group, start): (&[u8], u64)| {
        group
            .iter()
            .zip(start..)
            .filter(|&(&byte, at)| byte == BEYOND && at % unit >= scale)
            .count() as u64
    };

    suspects.map(in_group).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_that_share_bytes_are_read_from_any_on() {
        let header = br#"{"w":{"dtype":"F4","shape":[2,3],"data_offsets":[0,3]}}"#;
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend_from_slice(header);
        file.extend_from_slice(&[0x21, 0x43, 0x65]);
        let model = apr_registry::open(file, "w.safetensors", &apr_core::Limits::default())
            .expect("the file is whole");
        let all = [0.5, 1.0, 1.5, 2.0, 3.0, 4.0];
        for start in 0..=all.len() {
            for end in start..=all.len() {
                let found = read(&*model, 0, start as u64..end as u64);
                assert_eq!(found.expect("the range is within"), all[start..end], "{start}..{end}");
            }
        }
    }

    #[test]
    fn every_element_begins_in_one_of_consecutive_ranges() {
        for (dtype, dims) in
            [(DType::Q4_K, [3, 512]), (DType::Q8_0, [5, 64]), (DType::I8_ROW, [7, 11])]
        {
            let info = TensorInfo { name: "w".to_owned(), dtype, shape: dims.to_vec().into() };
            let len = info.byte_len().expect("the shape suits the dtype");
            for step in [1, 7, 34, 100, len] {
                let mut next = 0;
                for piece in 0..len.div_ceil(step) {
                    let elements = elements_in(&info, piece * step..((piece + 1) * step).min(len));
                    assert_eq!(elements.start, next, "{dtype} in steps of {step}");
                    next = elements.end;
                }
                assert_eq!(next, dims[0] * dims[1], "{dtype} in steps of {step}");
            }
        }
    }
}
