//! Blocks as ggml laid them out before its quantization version 2, and what becomes of them.

use apr_core::DType;
use apr_tensor::half_float::f16_to_f32;

/// Elements that are halved into nibbles one after another, or the first half low and the second
/// half high.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Nibbles {
    /// Byte `j` holds elements `2j` and `2j + 1`.
    Pairs,
    /// Byte `j` holds elements `j` and `j + n / 2`, as today.
    Halves,
}

/// A block type that today's dtypes do not have, or have with another order of nibbles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OldBlock {
    /// 32 elements: f32 scale, nibbles less 8.
    Q4_0(Nibbles),
    /// 32 elements: f32 scale, f32 minimum, nibbles.
    Q4_1(Nibbles),
    /// 16 elements: f16 scale, nibbles less 8, in pairs.
    Q4_2,
    /// 16 elements: f16 scale, f16 minimum, nibbles in pairs.
    Q4_3,
    /// 32 elements: f16 scale, fifth bits, nibbles in pairs.
    Q5_0,
    /// 32 elements: f16 scale, f16 minimum, fifth bits, nibbles in pairs.
    Q5_1,
    /// 32 elements: f32 scale, i8.
    Q8_0,
}

/// Maximum number of bytes that a block is decoded to.
pub(super) const MAX_DECODED: usize = 128;

impl OldBlock {
    /// ggml's name.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Q4_0(_) => "q4_0",
            Self::Q4_1(_) => "q4_1",
            Self::Q4_2 => "q4_2",
            Self::Q4_3 => "q4_3",
            Self::Q5_0 => "q5_0",
            Self::Q5_1 => "q5_1",
            Self::Q8_0 => "q8_0",
        }
    }

    /// Returns the dtype that the elements are read as.
    pub(super) const fn dtype(self) -> DType {
        match self {
            Self::Q5_0 => DType::Q5_0,
            Self::Q5_1 => DType::Q5_1,
            _ => DType::F32,
        }
    }

    /// Elements in a block.
    pub(super) const fn elements(self) -> usize {
        match self {
            Self::Q4_2 | Self::Q4_3 => 16,
            _ => 32,
        }
    }

    /// Bytes of a block in the file.
    pub(super) const fn stored_bytes(self) -> usize {
        match self {
            Self::Q4_0(_) => 4 + 16,
            Self::Q4_1(_) => 4 + 4 + 16,
            Self::Q4_2 => 2 + 8,
            Self::Q4_3 => 2 + 2 + 8,
            Self::Q5_0 => 2 + 4 + 16,
            Self::Q5_1 => 2 + 2 + 4 + 16,
            Self::Q8_0 => 4 + 32,
        }
    }

    /// Bytes of a block after decoding, at most [`MAX_DECODED`].
    pub(super) const fn decoded_bytes(self) -> usize {
        match self {
            Self::Q5_0 | Self::Q5_1 => self.stored_bytes(),
            _ => self.elements() * 4,
        }
    }

    /// Decodes a block of [`stored_bytes`](Self::stored_bytes) to
    /// [`decoded_bytes`](Self::decoded_bytes).
    pub(super) fn decode(self, stored: &[u8], decoded: &mut [u8]) {
        match self {
            Self::Q4_0(order) => {
                let (scale, codes) = (f32_at(stored, 0), &stored[4..]);
                write(decoded, nibbles(codes, order).map(|code| (code - 8.0) * scale));
            }
            Self::Q4_1(order) => {
                let (scale, minimum, codes) = (f32_at(stored, 0), f32_at(stored, 4), &stored[8..]);
                write(decoded, nibbles(codes, order).map(|code| code * scale + minimum));
            }
            Self::Q4_2 => {
                let (scale, codes) = (f16_at(stored, 0), &stored[2..]);
                write(decoded, nibbles(codes, Nibbles::Pairs).map(|code| (code - 8.0) * scale));
            }
            Self::Q4_3 => {
                let (scale, minimum, codes) = (f16_at(stored, 0), f16_at(stored, 2), &stored[4..]);
                write(decoded, nibbles(codes, Nibbles::Pairs).map(|code| code * scale + minimum));
            }
            // The fifth bits always were in the order of the elements.
            Self::Q5_0 | Self::Q5_1 => {
                let (front, codes) = stored.split_at(stored.len() - 16);
                let (kept, turned) = decoded.split_at_mut(front.len());
                kept.copy_from_slice(front);
                let code = |element: usize| (codes[element / 2] >> (4 * (element % 2))) & 15;
                for (at, byte) in turned.iter_mut().enumerate() {
                    *byte = code(at) | (code(at + 16) << 4);
                }
            }
            Self::Q8_0 => {
                let (scale, codes) = (f32_at(stored, 0), &stored[4..]);
                write(decoded, codes.iter().map(|&code| f32::from(code.cast_signed()) * scale));
            }
        }
    }
}

fn nibbles(codes: &[u8], order: Nibbles) -> impl Iterator<Item = f32> + '_ {
    let half = codes.len();
    (0..2 * half).map(move |element| {
        let (byte, high) = match order {
            Nibbles::Pairs => (element / 2, element % 2 == 1),
            Nibbles::Halves => (element % half, element >= half),
        };
        f32::from(if high { codes[byte] >> 4 } else { codes[byte] & 15 })
    })
}

fn write(decoded: &mut [u8], values: impl Iterator<Item = f32>) {
    for (bytes, value) in decoded.chunks_exact_mut(4).zip(values) {
        bytes.copy_from_slice(&value.to_le_bytes());
    }
}

fn f32_at(stored: &[u8], at: usize) -> f32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&stored[at..at + 4]);
    f32::from_le_bytes(bytes)
}

fn f16_at(stored: &[u8], at: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([stored[at], stored[at + 1]]))
}
