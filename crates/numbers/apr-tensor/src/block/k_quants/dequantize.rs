//! From the bytes of super-blocks to elements.

use super::layout::{SUPER, unpack_scales, unpack_scales_and_mins};
use crate::block::kernel::Dequantize;
use crate::half_float::f16_to_f32;

/// The two bytes of a half-precision scale.
#[inline(always)]
fn half(bytes: &[u8], at: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

/// Levels of 2 bits, scales and minima of 4 bits of each sixteen elements.
pub(crate) struct Q2K;

impl Dequantize<SUPER, 84> for Q2K {
    #[inline(always)]
    fn dequantize(bytes: &[u8; 84], values: &mut [f32; SUPER]) {
        let (d, dmin) = (half(bytes, 80), half(bytes, 82));
        let (scales, levels) = bytes.split_at(16);
        for (group, values) in values.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let pair = [scales[2 * group], scales[2 * group + 1]];
            let scale = pair.map(|packed| d * f32::from(packed & 15));
            let min = pair.map(|packed| dmin * f32::from(packed >> 4));
            let packed = &levels[group / 4 * 32..][..32];
            for at in 0..32 {
                let level = f32::from(packed[at] >> (group % 4 * 2) & 3);
                values[at] = of_half(at, scale) * level - of_half(at, min);
            }
        }
    }
}

/// The first sixteen elements of a loop over 32 have the one, the others the other scale.
///
/// Loops over sixteen would be unrolled first, and then vectorised over sub-blocks, which is slow.
#[inline(always)]
fn of_half(at: usize, scales: [f32; 2]) -> f32 {
    if at < 16 { scales[0] } else { scales[1] }
}

/// Levels of 3 bits and scales of 6 bits of each sixteen elements, both signed.
pub(crate) struct Q3K;

impl Dequantize<SUPER, 110> for Q3K {
    #[inline(always)]
    fn dequantize(bytes: &[u8; 110], values: &mut [f32; SUPER]) {
        let mut packed = [0; 12];
        packed.copy_from_slice(&bytes[96..108]);
        let (scales, d) = (unpack_scales(&packed), half(bytes, 108));
        let (high, low) = bytes.split_at(32);
        for (group, values) in values.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let scale = [scales[2 * group], scales[2 * group + 1]]
                .map(|scale| d * f32::from(scale as i8 - 32));
            let low = &low[group / 4 * 32..][..32];
            for at in 0..32 {
                let level = low[at] >> (group % 4 * 2) & 3 | (high[at] >> group & 1) << 2;
                values[at] = of_half(at, scale) * f32::from(level as i8 - 4);
            }
        }
    }
}

/// The scales and minima of a super-block of eight sub-blocks.
#[inline(always)]
fn scales_and_mins(bytes: &[u8]) -> ([f32; 8], [f32; 8]) {
    let (d, dmin) = (half(bytes, 0), half(bytes, 2));
    let mut packed = [0; 12];
    packed.copy_from_slice(&bytes[4..16]);
    let (scales, mins) = unpack_scales_and_mins(&packed);
    (scales.map(|scale| d * f32::from(scale)), mins.map(|min| dmin * f32::from(min)))
}

/// Levels of 4 bits, scales and minima of 6 bits of each 32 elements.
pub(crate) struct Q4K;

impl Dequantize<SUPER, 144> for Q4K {
    #[inline(always)]
    fn dequantize(bytes: &[u8; 144], values: &mut [f32; SUPER]) {
        let (scales, mins) = scales_and_mins(bytes);
        for sub in 0..8 {
            let packed = 16 + sub / 2 * 32;
            for at in 0..32 {
                let level = bytes[packed + at] >> (sub % 2 * 4) & 15;
                values[32 * sub + at] = scales[sub] * f32::from(level) - mins[sub];
            }
        }
    }
}

/// Levels of 5 bits, scales and minima of 6 bits of each 32 elements.
pub(crate) struct Q5K;

impl Dequantize<SUPER, 176> for Q5K {
    #[inline(always)]
    fn dequantize(bytes: &[u8; 176], values: &mut [f32; SUPER]) {
        let (scales, mins) = scales_and_mins(bytes);
        for sub in 0..8 {
            let low = 48 + sub / 2 * 32;
            for at in 0..32 {
                let level =
                    bytes[low + at] >> (sub % 2 * 4) & 15 | (bytes[16 + at] >> sub & 1) << 4;
                values[32 * sub + at] = scales[sub] * f32::from(level) - mins[sub];
            }
        }
    }
}

/// Levels of 6 bits and scales of 8 bits of each sixteen elements, both signed.
pub(crate) struct Q6K;

impl Dequantize<SUPER, 210> for Q6K {
    #[inline(always)]
    fn dequantize(bytes: &[u8; 210], values: &mut [f32; SUPER]) {
        let d = half(bytes, 208);
        let (low, rest) = bytes.split_at(128);
        let (high, scales) = rest.split_at(64);
        for (group, values) in values.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let scale =
                [scales[2 * group], scales[2 * group + 1]].map(|scale| d * f32::from(scale as i8));
            let (half, group) = (group / 4, group % 4);
            let low = &low[half * 64 + group % 2 * 32..][..32];
            let high = &high[half * 32..][..32];
            for at in 0..32 {
                let level = low[at] >> (group / 2 * 4) & 15 | (high[at] >> (2 * group) & 3) << 4;
                values[at] = of_half(at, scale) * f32::from(level as i8 - 32);
            }
        }
    }
}
