//! Where weights, scales and minima lie in ggml's blocks.

use apr_tensor::block::half_of_e4m3;
use apr_tensor::half_float::f16_to_f32;

use super::{GROUP, SUPER, points};

/// Types of blocks, as parameters of functions.
pub(super) mod types {
    pub(in crate::matrix::blocks) const Q4_0: u8 = 0;
    pub(in crate::matrix::blocks) const Q4_1: u8 = 1;
    pub(in crate::matrix::blocks) const Q5_0: u8 = 2;
    pub(in crate::matrix::blocks) const Q5_1: u8 = 3;
    pub(in crate::matrix::blocks) const Q8_0: u8 = 4;
    pub(in crate::matrix::blocks) const IQ4_NL: u8 = 5;
    pub(in crate::matrix::blocks) const Q2_K: u8 = 6;
    pub(in crate::matrix::blocks) const Q3_K: u8 = 7;
    pub(in crate::matrix::blocks) const Q4_K: u8 = 8;
    pub(in crate::matrix::blocks) const Q5_K: u8 = 9;
    pub(in crate::matrix::blocks) const Q6_K: u8 = 10;
    pub(in crate::matrix::blocks) const IQ4_XS: u8 = 11;
    pub(in crate::matrix::blocks) const MXFP4: u8 = 12;
    pub(in crate::matrix::blocks) const IQ1_S: u8 = 13;
    pub(in crate::matrix::blocks) const IQ1_M: u8 = 14;
    pub(in crate::matrix::blocks) const IQ2_XXS: u8 = 15;
    pub(in crate::matrix::blocks) const IQ2_XS: u8 = 16;
    pub(in crate::matrix::blocks) const IQ2_S: u8 = 17;
    pub(in crate::matrix::blocks) const IQ3_XXS: u8 = 18;
    pub(in crate::matrix::blocks) const IQ3_S: u8 = 19;
    pub(in crate::matrix::blocks) const TQ1_0: u8 = 20;
    pub(in crate::matrix::blocks) const TQ2_0: u8 = 21;
    pub(in crate::matrix::blocks) const Q1_0: u8 = 22;
    pub(in crate::matrix::blocks) const Q2_0: u8 = 23;
    pub(in crate::matrix::blocks) const NVFP4: u8 = 24;
}

/// Values of the levels of `IQ4_NL` and `IQ4_XS`.
pub(super) const IQ4_VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Values of the levels of `MXFP4`, doubled so that they are integers.
pub(super) const FP4_VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Returns half of the power of two that a byte represents: 2^(byte - 128).
#[inline(always)]
pub(super) fn half_power(byte: u8) -> f32 {
    f32::from_bits(match byte {
        // Below the smallest normal number.
        0 | 1 => 0x0020_0000 << byte,
        _ => u32::from(byte - 1) << 23,
    })
}

/// The half at an offset.
#[inline(always)]
pub(super) fn half(block: &[u8], at: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([block[at], block[at + 1]]))
}

#[inline(always)]
pub(super) fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Two words as eight bytes.
#[inline(always)]
fn eight(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

const LOW_2: u32 = 0x0303_0303;
const LOW_4: u32 = 0x0f0f_0f0f;
const LOW_6: u32 = 0x3f3f_3f3f;

/// Eight scales and eight minima of 6 bits, of `Q4_K` and `Q5_K`: a byte each, the first lowest.
#[inline(always)]
pub(super) fn scales_and_minima(packed: &[u8]) -> (u64, u64) {
    let [first, second, third] = [word(packed, 0), word(packed, 4), word(packed, 8)];
    let high = |four: u32, two: u32| four & LOW_4 | (two >> 6 & LOW_2) << 4;
    (eight(first & LOW_6, high(third, first)), eight(second & LOW_6, high(third >> 4, second)))
}

/// Sixteen scales of 6 bits, of `Q3_K`: a byte each, 32 too large.
#[inline(always)]
pub(super) fn sixteen_scales(packed: &[u8]) -> (u64, u64) {
    let [first, second, third] = [word(packed, 0), word(packed, 4), word(packed, 8)];
    let part = |four: u32, two: u32| four & LOW_4 | (two & LOW_2) << 4;
    (
        eight(part(first, third), part(second, third >> 2)),
        eight(part(first >> 4, third >> 4), part(second >> 4, third >> 6)),
    )
}

/// Eight scales of 6 bits, of `IQ4_XS`: a byte each, 32 too large.
#[inline(always)]
pub(super) fn eight_scales(high: [u8; 2], low: [u8; 4]) -> u64 {
    let high = u16::from_le_bytes(high);
    let mut scales = [0; 8];
    for (at, scale) in scales.iter_mut().enumerate() {
        *scale = low[at / 2] >> (at % 2 * 4) & 15 | ((high >> (2 * at)) as u8 & 3) << 4;
    }
    u64::from_le_bytes(scales)
}

/// The levels of 16 bytes: low nibbles, then high ones.
#[inline(always)]
fn nibbles(bytes: &[u8], value: impl Fn(u8) -> i8) -> [i8; GROUP] {
    core::array::from_fn(|at| value(if at < 16 { bytes[at] & 15 } else { bytes[at - 16] >> 4 }))
}

/// 32 weights of a block: `quant * scales[at / 16] + least`.
pub(super) struct SmallWeights {
    pub(super) quants: [i8; GROUP],
    pub(super) scales: [f32; 2],
    pub(super) least: f32,
}

impl SmallWeights {
    /// Reads the group of 32 weights with number `group` from a block.
    #[inline(always)]
    pub(super) fn of<const TYPE: u8>(block: &[u8], group: usize) -> Self {
        let fifth = |at: usize, bits: usize| (block[bits + at / 8] >> (at % 8) & 1).cast_signed();
        let mut least = 0.0;
        let quants = match TYPE {
            types::Q4_0 => nibbles(&block[2..18], |level| level.cast_signed() - 8),
            types::Q4_1 => {
                least = half(block, 2);
                nibbles(&block[4..20], u8::cast_signed)
            }
            types::Q5_0 => {
                let low = nibbles(&block[6..22], u8::cast_signed);
                core::array::from_fn(|at| (low[at] | fifth(at, 2) << 4) - 16)
            }
            types::Q5_1 => {
                least = half(block, 2);
                let low = nibbles(&block[8..24], u8::cast_signed);
                core::array::from_fn(|at| low[at] | fifth(at, 4) << 4)
            }
            types::Q8_0 => core::array::from_fn(|at| block[2 + at].cast_signed()),
            types::MXFP4 => nibbles(&block[1..17], |level| FP4_VALUES[usize::from(level)]),
            types::NVFP4 => core::array::from_fn(|at| {
                let byte = block[4 + 16 * group + at / 16 * 8 + at % 8];
                FP4_VALUES[usize::from(byte >> (at / 8 % 2 * 4) & 15)]
            }),
            types::Q1_0 => {
                let bit = |at: usize| block[2 + 4 * group + at / 8] >> (at % 8) & 1;
                core::array::from_fn(|at| if bit(at) == 1 { 1 } else { -1 })
            }
            types::Q2_0 => core::array::from_fn(|at| {
                (block[2 + 8 * group + at / 4] >> (at % 4 * 2) & 3).cast_signed() - 1
            }),
            _ => nibbles(&block[2..18], |level| IQ4_VALUES[usize::from(level)]),
        };
        let scales = match TYPE {
            types::MXFP4 => [half_power(block[0]); 2],
            types::NVFP4 => [0, 1].map(|at| half_of_e4m3(block[2 * group + at])),
            _ => [half(block, 0); 2],
        };
        Self { quants, scales, least }
    }
}

/// A digit to base 3 of `TQ1_0`.
#[inline(always)]
fn third(block: &[u8], at: usize) -> i8 {
    const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
    let (byte, digit) = match at {
        0..160 => (at % 32, at / 32),
        160..240 => (32 + at % 16, (at - 160) / 16),
        _ => (48 + at % 4, (at - 240) / 4),
    };
    ((u16::from(block[byte].wrapping_mul(POWERS[digit])) * 3) >> 8) as i8
}

/// 256 weights of a super-block: `quant * scales[at / 16] * scale - minima[at / 16] * least`.
pub(super) struct LargeWeights {
    pub(super) quants: [i8; SUPER],
    pub(super) scales: [i8; SUPER / 16],
    pub(super) minima: [i8; SUPER / 16],
    pub(super) scale: f32,
    pub(super) least: f32,
}

impl LargeWeights {
    #[inline(always)]
    pub(super) fn of<const TYPE: u8>(block: &[u8]) -> Self {
        let mut weights = Self {
            quants: [0; SUPER],
            scales: [0; SUPER / 16],
            minima: [0; SUPER / 16],
            scale: 0.0,
            least: 0.0,
        };
        let two_bits = |at: usize, first: usize| {
            let byte = block[first + at / 128 * 32 + at % 32];
            (byte >> (at % 128 / 32 * 2) & 3).cast_signed()
        };
        let four_bits = |at: usize, first: usize| {
            (block[first + at / 64 * 32 + at % 32] >> (at % 64 / 32 * 4) & 15).cast_signed()
        };
        let one_bit =
            |at: usize, first: usize| (block[first + at % 32] >> (at / 32) & 1).cast_signed();
        let twice = |eight: u64| {
            let bytes = eight.to_le_bytes();
            core::array::from_fn::<u8, 16, _>(|at| bytes[at / 2])
        };
        let less_32 = |byte: u8| byte.cast_signed() - 32;
        let quants = weights.quants.iter_mut().enumerate();
        match TYPE {
            types::Q2_K => {
                quants.for_each(|(at, quant)| *quant = two_bits(at, 16));
                weights.scales = core::array::from_fn(|at| (block[at] & 15).cast_signed());
                weights.minima = core::array::from_fn(|at| (block[at] >> 4).cast_signed());
                (weights.scale, weights.least) = (half(block, 80), half(block, 82));
            }
            types::Q3_K => {
                quants.for_each(|(at, quant)| {
                    *quant = (two_bits(at, 32) | one_bit(at, 0) << 2) - 4;
                });
                let (low, high) = sixteen_scales(&block[96..108]);
                let both = [low.to_le_bytes(), high.to_le_bytes()];
                weights.scales = core::array::from_fn(|at| less_32(both[at / 8][at % 8]));
                weights.scale = half(block, 108);
            }
            types::Q4_K | types::Q5_K => {
                quants.for_each(|(at, quant)| {
                    *quant = if TYPE == types::Q4_K {
                        four_bits(at, 16)
                    } else {
                        four_bits(at, 48) | one_bit(at, 16) << 4
                    };
                });
                let (scales, minima) = scales_and_minima(&block[4..16]);
                weights.scales = twice(scales).map(u8::cast_signed);
                weights.minima = twice(minima).map(u8::cast_signed);
                (weights.scale, weights.least) = (half(block, 0), half(block, 2));
            }
            types::Q6_K => {
                quants.for_each(|(at, quant)| {
                    let low = block[at / 128 * 64 + at % 64] >> (at % 128 / 64 * 4) & 15;
                    *quant = low.cast_signed() | two_bits(at, 128) << 4;
                });
                weights.scales = core::array::from_fn(|at| block[192 + at].cast_signed());
                weights.minima = weights.scales;
                weights.scale = half(block, 208);
            }
            types::TQ1_0 => {
                quants.for_each(|(at, quant)| *quant = third(block, at));
                (weights.scales, weights.minima) = ([1; 16], [1; 16]);
                weights.scale = half(block, 52);
            }
            types::TQ2_0 => {
                quants.for_each(|(at, quant)| *quant = two_bits(at, 0));
                (weights.scales, weights.minima) = ([1; 16], [1; 16]);
                weights.scale = half(block, 64);
            }
            of if points::has_points(of) => {
                for (at, quants) in weights.quants.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                    let signs = points::signs::<TYPE>(block, at / 4) >> (at % 4 * 8);
                    *quants = points::point::<TYPE>(block, at).to_le_bytes().map(u8::cast_signed);
                    for (at, quant) in quants.iter_mut().enumerate() {
                        *quant = if signs >> at & 1 == 1 { -*quant } else { *quant };
                    }
                }
                let (first, second) = points::scales::<TYPE>(block);
                let both = [first.to_le_bytes(), second.to_le_bytes()];
                weights.scales = core::array::from_fn(|at| both[at % 2][at / 2].cast_signed());
                let (bits, factor) = points::unit::<TYPE>(block);
                weights.scale = f16_to_f32(bits) * factor;
            }
            _ => {
                let high = [block[2], block[3]];
                let scales = eight_scales(high, [block[4], block[5], block[6], block[7]]);
                for (group, quants) in
                    weights.quants.as_chunks_mut::<GROUP>().0.iter_mut().enumerate()
                {
                    let bytes = &block[8 + 16 * group..][..16];
                    *quants = nibbles(bytes, |level| IQ4_VALUES[usize::from(level)]);
                }
                weights.scales = twice(scales).map(less_32);
                weights.scale = half(block, 0);
            }
        }
        weights
    }
}
