//! Where the levels and the quantized scales of a super-block lie in its bytes.
//!
//! A level is what an element becomes: an integer from 0 on. Levels are in the order of the
//! elements; a group is 32 of them. All types spread the bits of a level such that one byte or
//! nibble position serves one group.

/// Elements of a super-block.
pub(super) const SUPER: usize = 256;

/// Elements that share a position in the packed bytes.
const GROUP: usize = 32;

/// Bytes of eight scales and eight minima of 6 bits each, or of 16 scales.
pub(super) const SCALES: usize = 12;

/// The levels at the same place of each group in a half.
#[inline(always)]
fn four(levels: &[u8; SUPER], half: usize, at: usize) -> [u8; 4] {
    let first = 4 * GROUP * half + at;
    [levels[first], levels[first + GROUP], levels[first + 2 * GROUP], levels[first + 3 * GROUP]]
}

/// The low two bits: four groups of each half in one byte.
#[inline(always)]
pub(super) fn pack_2_bits(levels: &[u8; SUPER], packed: &mut [u8; SUPER / 4]) {
    for half in 0..2 {
        for at in 0..GROUP {
            let level = four(levels, half, at).map(|level| level & 3);
            packed[GROUP * half + at] = level[0] | level[1] << 2 | level[2] << 4 | level[3] << 6;
        }
    }
}

/// The low four bits: each pair of groups in one byte.
#[inline(always)]
pub(super) fn pack_4_bits(levels: &[u8; SUPER], packed: &mut [u8; SUPER / 2]) {
    for pair in 0..4 {
        for at in 0..GROUP {
            let first = 2 * GROUP * pair + at;
            packed[GROUP * pair + at] = levels[first] & 15 | levels[first + GROUP] << 4;
        }
    }
}

/// The bit at `POSITION`: all groups in one byte.
#[inline(always)]
pub(super) fn pack_bit<const POSITION: u32>(levels: &[u8; SUPER], packed: &mut [u8; SUPER / 8]) {
    for at in 0..GROUP {
        let mut byte = 0;
        for group in 0..8 {
            byte |= (levels[GROUP * group + at] >> POSITION & 1) << group;
        }
        packed[at] = byte;
    }
}

/// Levels of six bits: the low four in `low`, two groups of each half in one byte; the high two in
/// `high`.
#[inline(always)]
pub(super) fn pack_6_bits(
    levels: &[u8; SUPER],
    low: &mut [u8; SUPER / 2],
    high: &mut [u8; SUPER / 4],
) {
    for half in 0..2 {
        for at in 0..GROUP {
            let level = four(levels, half, at);
            low[2 * GROUP * half + at] = level[0] & 15 | level[2] << 4;
            low[2 * GROUP * half + GROUP + at] = level[1] & 15 | level[3] << 4;
            let bits = level.map(|level| level >> 4 & 3);
            high[GROUP * half + at] = bits[0] | bits[1] << 2 | bits[2] << 4 | bits[3] << 6;
        }
    }
}

/// Eight scales and minima of six bits. The last four of each give their high bits to the bytes of
/// the first four.
///
/// Where a scale has more than six bits, these bytes are still the ones that ggml stores.
#[inline(always)]
pub(super) fn pack_scales_and_mins(scales: &[u8; 8], mins: &[u8; 8]) -> [u8; SCALES] {
    let mut packed = [0; SCALES];
    for at in 0..4 {
        packed[at] = scales[at] | scales[at + 4] >> 4 << 6;
        packed[at + 4] = mins[at] | mins[at + 4] >> 4 << 6;
        packed[at + 8] = scales[at + 4] & 15 | mins[at + 4] << 4;
    }
    packed
}

/// Undoes [`pack_scales_and_mins`].
///
/// Four bytes at a time: scales and minima of a block are then converted and multiplied as vectors.
#[inline(always)]
pub(super) fn unpack_scales_and_mins(packed: &[u8; SCALES]) -> ([u8; 8], [u8; 8]) {
    let word = |at: usize| {
        u32::from_le_bytes([packed[at], packed[at + 1], packed[at + 2], packed[at + 3]])
    };
    let [first, second, third] = [0, 4, 8].map(word);
    let high = |word: u32| word >> 2 & 0x3030_3030;
    let join = |low: u32, high: u32| (u64::from(low) | u64::from(high) << 32).to_le_bytes();
    (
        join(first & 0x3f3f_3f3f, third & 0x0f0f_0f0f | high(first)),
        join(second & 0x3f3f_3f3f, third >> 4 & 0x0f0f_0f0f | high(second)),
    )
}

/// Sixteen scales of six bits: the low four of two scales in one byte, the high two of four scales
/// in one byte.
#[inline(always)]
pub(super) fn pack_scales(scales: &[u8; 16]) -> [u8; SCALES] {
    let mut packed = [0; SCALES];
    for at in 0..8 {
        packed[at] = scales[at] & 15 | scales[at + 8] << 4;
    }
    for at in 0..4 {
        let high = [scales[at], scales[at + 4], scales[at + 8], scales[at + 12]]
            .map(|scale| scale >> 4 & 3);
        packed[8 + at] = high[0] | high[1] << 2 | high[2] << 4 | high[3] << 6;
    }
    packed
}

/// Undoes [`pack_scales`].
#[inline(always)]
pub(super) fn unpack_scales(packed: &[u8; SCALES]) -> [u8; 16] {
    let mut scales = [0; 16];
    for at in 0..4 {
        let high = packed[8 + at];
        scales[at] = packed[at] & 15 | (high & 3) << 4;
        scales[at + 4] = packed[at + 4] & 15 | (high >> 2 & 3) << 4;
        scales[at + 8] = packed[at] >> 4 | (high >> 4 & 3) << 4;
        scales[at + 12] = packed[at + 4] >> 4 | high >> 6 << 4;
    }
    scales
}
