//! Points of grids, signs and scales in the blocks of ggml's IQ types of 1 to 3 bits. Where they
//! lie, the decoders of `apr_tensor::block` say.

use apr_tensor::block::iq_grids::{IQ1, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS};

use super::layout::{types, word};

/// Returns `true` if the weights of a type are points of a grid.
pub(super) const fn has_points(of: u8) -> bool {
    matches!(
        of,
        types::IQ1_S
            | types::IQ1_M
            | types::IQ2_XXS
            | types::IQ2_XS
            | types::IQ2_S
            | types::IQ3_XXS
            | types::IQ3_S
    )
}

/// Returns `true` if the values of a type's points have signs of their own.
pub(super) const fn is_ternary(of: u8) -> bool {
    matches!(of, types::IQ1_S | types::IQ1_M)
}

#[inline(always)]
pub(super) fn half_word(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

/// Returns eight magnitudes (values for IQ1_S and IQ1_M) as bytes, the first lowest. They belong to
/// the weights from `8 * at` on.
#[inline(always)]
pub(super) fn point<const TYPE: u8>(block: &[u8], at: usize) -> u64 {
    let index = |low: usize, upper: usize| usize::from(block[low]) | upper << 8;
    let of_two = |first: [u8; 4], second: [u8; 4]| {
        u64::from(u32::from_le_bytes(first)) | u64::from(u32::from_le_bytes(second)) << 32
    };
    let ternary = |index: usize| u64::from_le_bytes(IQ1[index].map(i8::cast_unsigned));
    match TYPE {
        types::IQ1_S => {
            let upper = half_word(block, 34 + at / 4 * 2) >> (at % 4 * 3) & 7;
            ternary(index(2 + at, usize::from(upper)))
        }
        types::IQ1_M => {
            let upper = block[32 + at / 2] >> (at % 2 * 4) & 7;
            ternary(index(at, usize::from(upper)))
        }
        types::IQ2_XXS => {
            let index = usize::from(block[2 + at / 4 * 8 + at % 4]);
            u64::from_le_bytes(IQ2_XXS[index])
        }
        types::IQ2_XS => {
            let index = usize::from(half_word(block, 2 + 2 * at) & 511);
            u64::from_le_bytes(IQ2_XS[index])
        }
        types::IQ2_S => {
            let upper = block[66 + at / 4] >> (at % 4 * 2) & 3;
            u64::from_le_bytes(IQ2_S[index(2 + at, usize::from(upper))])
        }
        types::IQ3_XXS => {
            let [first, second] = [2 + 2 * at, 3 + 2 * at].map(|at| usize::from(block[at]));
            of_two(IQ3_XXS[first], IQ3_XXS[second])
        }
        _ => {
            let ninths = usize::from(block[66 + at / 4] >> (at % 4 * 2));
            let first = index(2 + 2 * at, ninths & 1);
            of_two(IQ3_S[first], IQ3_S[index(3 + 2 * at, ninths >> 1 & 1)])
        }
    }
}

/// A set bit for each negative weight of a group of 32, the first lowest. The types of IQ1 have
/// none.
#[inline(always)]
pub(super) fn signs<const TYPE: u8>(block: &[u8], group: usize) -> u32 {
    match TYPE {
        of if is_ternary(of) => 0,
        types::IQ2_XXS => even_signs(spread(word(block, 6 + 8 * group))),
        types::IQ2_XS => {
            let seven = |at: usize| block[3 + 8 * group + 2 * at] >> 1;
            even_signs(u32::from_le_bytes(core::array::from_fn(seven)))
        }
        types::IQ2_S => word(block, 34 + 4 * group),
        types::IQ3_XXS => even_signs(spread(word(block, 66 + 4 * group))),
        _ => word(block, 74 + 4 * group),
    }
}

/// Returns `true` if a type stores seven of eight signs, because an even number of them is
/// negative.
#[cfg(all(feature = "simd", target_arch = "x86_64"))]
pub(super) const fn has_even_signs(of: u8) -> bool {
    matches!(of, types::IQ2_XXS | types::IQ2_XS | types::IQ3_XXS)
}

/// Returns the signs of the weights from `8 * at` on as bytes of 1 or -1, for types that store
/// seven signs.
#[cfg(all(feature = "simd", target_arch = "x86_64"))]
#[inline(always)]
pub(super) fn even_signs_of<const TYPE: u8>(block: &[u8], at: usize) -> u64 {
    let seven = match TYPE {
        types::IQ2_XXS => word(block, 6 + at / 4 * 8) >> (at % 4 * 7),
        types::IQ2_XS => u32::from(block[3 + 2 * at]) >> 1,
        _ => word(block, 66 + at / 4 * 4) >> (at % 4 * 7),
    };
    EVEN_SIGNS[(seven & 127) as usize]
}

/// Eight signs for each code of seven signs, as bytes of 1 or -1.
#[cfg(all(feature = "simd", target_arch = "x86_64"))]
static EVEN_SIGNS: [u64; 128] = {
    let mut signs = [0x0101_0101_0101_0101; 128];
    let mut seven = 0;
    while seven < 128 {
        let all = seven as u32 | ((seven as u32).count_ones() % 2) << 7;
        let mut at = 0;
        while at < 8 {
            if all >> at & 1 == 1 {
                signs[seven] |= 0xff << (8 * at);
            }
            at += 1;
        }
        seven += 1;
    }
    signs
};

/// The low 28 bits, seven to a byte.
#[inline(always)]
fn spread(bits: u32) -> u32 {
    const SEVEN: u32 = 0x7f;
    bits & SEVEN | (bits & SEVEN << 7) << 1 | (bits & SEVEN << 14) << 2 | (bits & SEVEN << 21) << 3
}

/// Four times eight signs of which seven are stored: an even number of them is negative.
#[inline(always)]
fn even_signs(sevens: u32) -> u32 {
    // The lowest bit of each byte becomes the parity of the byte.
    let mut parity = sevens ^ sevens >> 4;
    parity ^= parity >> 2;
    parity ^= parity >> 1;
    sevens | (parity & 0x0101_0101) << 7
}

/// Returns the scales of 16 weights each, which are odd numbers, as bytes, the first lowest. The
/// first word has the scales of the first half of each group, the second word has the scales of the
/// second half.
#[inline(always)]
pub(super) fn scales<const TYPE: u8>(block: &[u8]) -> (u64, u64) {
    const NIBBLES: u64 = 0x0f0f_0f0f_0f0f_0f0f;
    let eight = |first: usize, step: usize| {
        u64::from_le_bytes(core::array::from_fn(|group| block[first + step * group] >> 4))
    };
    let bytes = |at: usize| u64::from(word(block, at)) | u64::from(word(block, at + 4)) << 32;
    let nibbles = |at: usize| (bytes(at) & NIBBLES, bytes(at) >> 4 & NIBBLES);
    let (first, second) = match TYPE {
        types::IQ1_S => {
            let scales = eight(35, 2) & 0x0707_0707_0707_0707;
            (scales, scales)
        }
        types::IQ1_M => {
            let words = bytes(48);
            let three = |from: u32| words >> from & 0x0007_0007_0007_0007;
            (three(0) | three(6) << 8, three(3) | three(9) << 8)
        }
        types::IQ2_XXS => (eight(9, 8), eight(9, 8)),
        types::IQ2_XS => nibbles(66),
        types::IQ2_S => nibbles(74),
        types::IQ3_XXS => (eight(69, 4), eight(69, 4)),
        _ => {
            // Four bytes become eight, low nibbles first.
            let four = u64::from(word(block, 106));
            let two = (four | four << 16) & 0x0000_ffff_0000_ffff;
            let one = (two | two << 8) & 0x00ff_00ff_00ff_00ff;
            let scales = (one | one << 4) & NIBBLES;
            (scales, scales)
        }
    };
    let odd = |index: u64| index << 1 | 0x0101_0101_0101_0101;
    (odd(first), odd(second))
}

/// Returns the half by which all scales of a block are multiplied, and the unit of a type's scales.
/// GGML multiplies the sum of all blocks by the unit. The products are bit-identical.
#[inline(always)]
pub(super) fn unit<const TYPE: u8>(block: &[u8]) -> (u16, f32) {
    match TYPE {
        types::IQ1_M => {
            let part = |at: usize| half_word(block, 48 + 2 * at) >> 12 << (4 * at);
            (part(0) | part(1) | part(2) | part(3), 1.0)
        }
        types::IQ2_XXS | types::IQ2_XS | types::IQ2_S => (half_word(block, 0), 0.125),
        types::IQ3_XXS => (half_word(block, 0), 0.25),
        _ => (half_word(block, 0), 1.0),
    }
}

/// Shift of the values of IQ1_S and IQ1_M, for both signs.
pub(super) const SHIFT: f32 = 0.125;

/// Returns `true` if the weights of IQ1_S and IQ1_M from `8 * at` on are shifted downwards.
#[inline(always)]
pub(super) fn is_shifted_down<const TYPE: u8>(block: &[u8], at: usize) -> bool {
    match TYPE {
        types::IQ1_S => block[35 + at / 4 * 2] >> 7 == 1,
        _ => block[32 + at / 2] >> (at % 2 * 4 + 3) & 1 == 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_eighth_sign_makes_their_number_even() {
        for bits in [0, 1, 0x7f, 0x0123_4567, 0x0fff_ffff, 0xf765_4321] {
            for (at, byte) in even_signs(spread(bits)).to_le_bytes().into_iter().enumerate() {
                assert_eq!(u32::from(byte & 127), bits >> (7 * at) & 127);
                assert_eq!(byte.count_ones() % 2, 0);
            }
        }
    }
}
