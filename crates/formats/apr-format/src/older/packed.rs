//! Elements in layouts that no dtype has, presented as the dtype that holds the same values.

use alloc::vec;
use alloc::vec::Vec;

use apr_core::{ByteSource, DType, Error, Result};
use apr_tensor::block::dequantize;

/// Blocks that are decoded from one read.
const BLOCKS_AT_ONCE: u64 = 1024;
/// Maximum number of decoded bytes of a block: 256 floats.
const MAX_DECODED: usize = 1024;

/// Conversion from stored bytes to the bytes of the dtype that a tensor is presented as.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Encoding {
    /// The stored bytes are the bytes of the dtype.
    Plain,
    /// One scale for all of the tensor: rows of [`DType::I8_ROW`], each with that scale.
    Scaled {
        /// Location of the scale.
        scale: Scale,
        /// Elements in a row.
        row_len: u64,
    },
    /// Blocks.
    Packed(Packed),
    /// The file has them as text: these are the bytes with this position in
    /// [`Parts::made`](super::Parts::made).
    Made(usize),
}

/// Location of the single scale of a tensor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Scale {
    /// The first four stored bytes.
    Stored,
    /// A place outside of the stored bytes; these are the bytes of the scale.
    Given([u8; 4]),
}

/// Rows of blocks. If a row's last block is longer than the rest of the row, its remaining elements
/// are padding.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Packed {
    pub(crate) codec: Codec,
    pub(crate) blocks_per_row: u64,
    /// Decoded bytes of a row, without padding.
    pub(crate) row_bytes: u64,
}

/// Format of a block, and the dtype that it is decoded to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Codec {
    /// AprQ4 to [`DType::Q4_0`]: the same scale and the same quants in another order.
    Q4Turned,
    /// AprQ4 to floats.
    Q4Floats,
    /// Blocks of a k-quant dtype to floats.
    KQuant(DType),
    /// A byte of two quants, the lower four bits first, value = (q - 8) / 7, to floats.
    Nibbles,
}

impl Codec {
    /// Returns the stored and the decoded length of a block, in bytes.
    fn sizes(self) -> (u64, u64) {
        match self {
            Self::Q4Turned => (DType::Q4_0.block_bytes(), DType::Q4_0.block_bytes()),
            Self::Q4Floats => (DType::Q4_0.block_bytes(), 4 * DType::Q4_0.block_len()),
            Self::KQuant(dtype) => (dtype.block_bytes(), 4 * dtype.block_len()),
            Self::Nibbles => (1, 8),
        }
    }

    fn decode(self, stored: &[u8], floats: &mut Vec<f32>, decoded: &mut [u8]) {
        match self {
            Self::Q4Turned => decoded.copy_from_slice(&turned(stored)),
            Self::Q4Floats => {
                dequantize(DType::Q4_0, &turned(stored), 32, floats);
                write(floats, decoded);
            }
            Self::KQuant(dtype) => {
                dequantize(dtype, stored, 256, floats);
                write(floats, decoded);
            }
            Self::Nibbles => {
                let byte = stored.first().copied().unwrap_or_default();
                let value = |nibble: u8| (f32::from(nibble) - 8.0) / 7.0;
                write(&[value(byte & 15), value(byte >> 4)], decoded);
            }
        }
    }
}

/// Converts an AprQ4 block to ggml's order. AprQ4 packs neighbours into a byte; Q4_0 packs elements
/// `i` and `i + 16`.
fn turned(stored: &[u8]) -> [u8; 18] {
    let mut block = [0; 18];
    let (scale, quants) = stored.split_at(stored.len().min(2));
    block[..scale.len()].copy_from_slice(scale);
    let quant = |at: usize| {
        quants
            .get(at / 2)
            .map_or(0, |byte| if at.is_multiple_of(2) { byte & 15 } else { byte >> 4 })
    };
    for (at, byte) in block[2..].iter_mut().enumerate() {
        *byte = quant(at) | quant(at + 16) << 4;
    }
    block
}

fn write(values: &[f32], bytes: &mut [u8]) {
    for (value, bytes) in values.iter().zip(bytes.chunks_exact_mut(4)) {
        bytes.copy_from_slice(&value.to_le_bytes());
    }
}

impl Encoding {
    /// Fills `buf` with decoded bytes from `offset` on; the stored bytes start at `start`. The
    /// range was checked.
    pub(crate) fn read(
        self,
        source: &dyn ByteSource,
        start: u64,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        if buf.is_empty() {
            return Ok(());
        }
        match self {
            Self::Plain => source.read_at(start + offset, buf),
            Self::Scaled { scale, row_len } => {
                read_scaled(source, scale, row_len, start, offset, buf)
            }
            Self::Packed(packed) => packed.read(source, start, offset, buf),
            Self::Made(_) => Err(Error::corrupt("its bytes are not in the file")),
        }
    }
}

/// Reads rows of a scale and quants from quants that are stored without gaps.
fn read_scaled(
    source: &dyn ByteSource,
    scale: Scale,
    row_len: u64,
    start: u64,
    offset: u64,
    buf: &mut [u8],
) -> Result<()> {
    let (scale, quants_start) = match scale {
        Scale::Given(scale) => (scale, start),
        Scale::Stored => {
            let mut scale = [0; 4];
            source.read_at(start, &mut scale)?;
            (scale, start + 4)
        }
    };

    let stride = row_len + 4;

    // Quants before a byte of the rows.
    let before = |byte: u64| byte / stride * row_len + (byte % stride).saturating_sub(4);
    let (first, last) = (before(offset), before(offset + buf.len() as u64));
    let mut quants = vec![0; index(last - first)];
    source.read_at(quants_start + first, &mut quants)?;
    let mut quants = quants.into_iter();
    for (byte, at) in buf.iter_mut().zip(offset..) {
        let within = index((at % stride).min(4));
        *byte = match scale.get(within) {
            Some(&byte) => byte,
            None => quants.next().unwrap_or_default(),
        };
    }

    Ok(())
}

impl Packed {
    fn read(self, source: &dyn ByteSource, start: u64, offset: u64, buf: &mut [u8]) -> Result<()> {
        let Self { codec, blocks_per_row, row_bytes } = self;
        let (stored_len, decoded_len) = codec.sizes();
        let block_of =
            |byte: u64| byte / row_bytes * blocks_per_row + byte % row_bytes / decoded_len;
        let end = offset + buf.len() as u64;
        let (mut block, after) = (block_of(offset), block_of(end - 1) + 1);
        let mut stored = vec![0; index((after - block).min(BLOCKS_AT_ONCE) * stored_len)];
        let (mut floats, mut decoded) = (Vec::new(), [0; MAX_DECODED]);
        while block < after {
            let piece = &mut stored[..index((after - block).min(BLOCKS_AT_ONCE) * stored_len)];
            source.read_at(start + block * stored_len, piece)?;
            for bytes in piece.chunks_exact(index(stored_len)) {
                codec.decode(bytes, &mut floats, &mut decoded[..index(decoded_len)]);
                let within_row = block % blocks_per_row * decoded_len;
                let begins = block / blocks_per_row * row_bytes + within_row;
                let ends = begins + decoded_len.min(row_bytes - within_row);
                let (from, to) = (begins.max(offset), ends.min(end));
                buf[index(from - offset)..index(to - offset)]
                    .copy_from_slice(&decoded[index(from - begins)..index(to - begins)]);
                block += 1;
            }
        }

        Ok(())
    }
}

/// Converts a length or position within a buffer.
fn index(at: u64) -> usize {
    usize::try_from(at).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(encoding: Encoding, stored: &[u8], offset: u64, len: usize) -> Vec<u8> {
        let mut buf = vec![0xee; len];
        encoding.read(&stored, 0, offset, &mut buf).expect("in range");
        buf
    }

    fn floats(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    /// Checks that any range of the decoded bytes equals that part of the whole.
    fn ranges_agree(encoding: Encoding, stored: &[u8], whole: &[u8]) {
        for from in 0..whole.len() {
            for to in from..=whole.len() {
                assert_eq!(
                    read(encoding, stored, from as u64, to - from),
                    &whole[from..to],
                    "{from}..{to}"
                );
            }
        }
    }

    #[test]
    fn neighbours_of_an_aprq4_block_are_sixteen_apart_in_q4_0() {
        // The scale 0.5, then the quants 0 to 15 twice: bytes 0x10, 0x32, ...
        let quants: Vec<u8> =
            (0..16).map(|at| (2 * at % 16) | (((2 * at + 1) % 16) << 4)).collect();
        let stored = [&[0x00, 0x38], &quants[..]].concat();
        let turned: Vec<u8> = (0..16).map(|quant| quant | quant << 4).collect();
        let whole = [&[0x00, 0x38], &turned[..]].concat();
        let packed = Packed { codec: Codec::Q4Turned, blocks_per_row: 1, row_bytes: 18 };
        ranges_agree(Encoding::Packed(packed), &stored, &whole);

        // 20 of the 32 elements: value = (q - 8) * scale.
        let values: Vec<f32> = (0..20_u8).map(|at| (f32::from(at % 16) - 8.0) * 0.5).collect();
        let packed = Packed { codec: Codec::Q4Floats, blocks_per_row: 1, row_bytes: 80 };
        ranges_agree(Encoding::Packed(packed), &stored, &floats(&values));
    }

    #[test]
    fn one_scale_becomes_the_scale_of_every_row() {
        let rows: Vec<u8> = [[9, 9, 9, 9, 1, 2, 3], [9, 9, 9, 9, 4, 5, 6]].concat();
        ranges_agree(
            Encoding::Scaled { scale: Scale::Stored, row_len: 3 },
            &[9, 9, 9, 9, 1, 2, 3, 4, 5, 6],
            &rows,
        );
        ranges_agree(
            Encoding::Scaled { scale: Scale::Given([9; 4]), row_len: 3 },
            &[1, 2, 3, 4, 5, 6],
            &rows,
        );
    }

    #[test]
    fn padding_of_rows_is_left_out() {
        // Two rows of three quants in two bytes each: the fourth is padding.
        let packed = Packed { codec: Codec::Nibbles, blocks_per_row: 2, row_bytes: 12 };
        let values = [-7.0, 0.0, 7.0, 1.0, 2.0, 3.0].map(|quant: f32| quant / 7.0);
        ranges_agree(Encoding::Packed(packed), &[0x81, 0x0f, 0xa9, 0xfb], &floats(&values));
    }
}
