//! Elements of fewer bits than a byte has, as OpenVINO packs them.
//!
//! ```text
//! u1           the first element in the highest bit
//! u2           the first element in the lowest bits
//! u4 i4        the first element in the low half; so are nf4 and f4e2m1
//! u3           8 elements in 3 bytes: the lower two bits of each, then the upper bits
//! u6           4 elements in 3 bytes: the lower four bits of each, then the upper two
//! ```

use apr_core::{ByteSource, Result, SharedSource, StoredRange, TensorDecoder};

use crate::openvino::element::Packed;

/// The values of the codes of `nf4`.
const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// The values of the first eight codes of `f4e2m1`; the others are negative.
const F4E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// A constant whose elements have fewer bits than a byte.
pub(crate) struct PackedDecoder {
    pub(crate) packed: Packed,
    pub(crate) range: StoredRange,
}

impl TensorDecoder for PackedDecoder {
    fn range(&self) -> StoredRange {
        self.range
    }

    fn read(&self, sources: &[SharedSource], offset: u64, buf: &mut [u8]) -> Result<()> {
        let StoredRange { file, offset: start, .. } = self.range;
        read(self.packed, (&*sources[file], start), offset, buf)
    }
}

/// Reads decoded bytes from `offset` on. The range is within the tensor.
///
/// # Errors
/// E007 when reading fails.
fn read(
    packed: Packed,
    (source, start): (&dyn ByteSource, u64),
    offset: u64,
    buf: &mut [u8],
) -> Result<()> {
    let width = packed.dtype().block_bytes();
    let first = offset / width;
    let end = (offset + buf.len() as u64).div_ceil(width);
    // Elements that lie in bytes of their own.
    let (group, group_bytes) = group_of(packed);
    let from = first / group * group_bytes;
    let to = end.div_ceil(group) * group_bytes;
    let mut bytes = vec![0; usize::try_from(to.saturating_sub(from)).unwrap_or_default()];
    source.read_at(start + from, &mut bytes)?;
    let base = first / group * group;
    let mut at = 0;
    for position in first..end {
        let code = code(packed, &bytes, usize::try_from(position - base).unwrap_or_default());
        let value = value(packed, code);
        let value = &value[..usize::try_from(width).unwrap_or(1)];
        // The first and the last element may be cut off.
        let skip = if at == 0 { usize::try_from(offset % width).unwrap_or_default() } else { 0 };
        let take = (value.len() - skip).min(buf.len() - at);
        buf[at..at + take].copy_from_slice(&value[skip..skip + take]);
        at += take;
    }
    Ok(())
}

/// Elements and bytes of a group of elements that share bytes.
pub(crate) fn group_of(packed: Packed) -> (u64, u64) {
    match packed {
        Packed::U1 => (8, 1),
        Packed::U2 => (4, 1),
        Packed::U3 => (8, 3),
        Packed::U6 => (4, 3),
        Packed::U4 | Packed::I4 | Packed::Nf4 | Packed::F4E2m1 => (2, 1),
    }
}

fn code(packed: Packed, bytes: &[u8], at: usize) -> u8 {
    match packed {
        Packed::U1 => bytes[at / 8] >> (7 - at % 8) & 1,
        Packed::U2 => bytes[at / 4] >> (2 * (at % 4)) & 3,
        Packed::U3 => {
            let (group, at) = (&bytes[at / 8 * 3..], at % 8);
            let low = group[at / 4] >> (2 * (3 - at % 4)) & 3;
            low | (group[2] >> (7 - at) & 1) << 2
        }
        Packed::U6 => {
            let (group, at) = (&bytes[at / 4 * 3..], at % 4);
            let low = group[at / 2] >> (4 * (1 - at % 2)) & 15;
            low | (group[2] >> (2 * (3 - at)) & 3) << 4
        }
        Packed::U4 | Packed::I4 | Packed::Nf4 | Packed::F4E2m1 => {
            bytes[at / 2] >> (4 * (at % 2)) & 15
        }
    }
}

/// The bytes of a value; those beyond the dtype's are 0.
fn value(packed: Packed, code: u8) -> [u8; 4] {
    match packed {
        Packed::I4 => [((code << 4).cast_signed() >> 4).cast_unsigned(), 0, 0, 0],
        Packed::Nf4 => NF4[usize::from(code)].to_le_bytes(),
        Packed::F4E2m1 => {
            let size = F4E2M1[usize::from(code & 7)];
            if code > 7 { -size } else { size }.to_le_bytes()
        }
        Packed::U1 | Packed::U2 | Packed::U3 | Packed::U4 | Packed::U6 => [code, 0, 0, 0],
    }
}
