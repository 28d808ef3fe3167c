//! BLAKE3 of sixteen chunks at a time, for processors with AVX-512.
//!
//! The `blake3` crate has such kernels in assembly alone, which needs a C compiler to build; its
//! Rust kernels end at AVX2, which does half as much a second. This is the same tree (BLAKE3 paper,
//! section 2) over a whole subtree of 1024-byte chunks: the state's word `i` of sixteen chunks is
//! one register, so that the compression function reads like the scalar one. Everything else, roots
//! and odd lengths among it, is left to the crate, which tests compare with.
#![allow(
    unsafe_code,
    reason = "vectors are loaded and stored, and the kernel called, after a look at the processor"
)]

use alloc::vec::Vec;
use core::arch::x86_64::{
    __m512i, _mm512_add_epi32, _mm512_ror_epi32, _mm512_set1_epi32, _mm512_shuffle_i32x4,
    _mm512_unpackhi_epi32, _mm512_unpackhi_epi64, _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
    _mm512_xor_si512,
};

/// Digest of a chunk or a subtree.
type ChainingValue = [u8; 32];

/// Chunks side by side.
const LANES: usize = 16;
const CHUNK_LEN: usize = 1024;
const BLOCK: usize = 64;
/// The length of a block as the compression function takes it.
const BLOCK_WORD: u32 = 64;

const INITIAL: [u32; 8] = [
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f372,
    0xa54f_f53a,
    0x510e_527f,
    0x9b05_688c,
    0x1f83_d9ab,
    0x5be0_cd19,
];
const CHUNK_START: u32 = 1;
const CHUNK_END: u32 = 2;
const PARENT: u32 = 4;

/// The order in which a round takes the message's words.
const SCHEDULE: [[usize; 16]; 7] = {
    const PERMUTATION: [usize; 16] = [2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8];
    let mut schedule = [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]; 7];
    let mut round = 1;
    while round < 7 {
        let mut word = 0;
        while word < 16 {
            schedule[round][word] = schedule[round - 1][PERMUTATION[word]];
            word += 1;
        }
        round += 1;
    }
    schedule
};

/// The chaining value of a subtree that is not the root and starts `offset` bytes into the input,
/// as `finalize_non_root` returns it; `None` if the processor or the length is not one that this is
/// for.
pub(super) fn subtree(bytes: &[u8], offset: u64) -> Option<ChainingValue> {
    let len = bytes.len();
    let suits = len.is_power_of_two()
        && len >= 2 * LANES * CHUNK_LEN
        && std::arch::is_x86_feature_detected!("avx512f");
    // SAFETY: the processor has AVX-512F.
    suits.then(|| unsafe { subtree_avx512(bytes, offset) })
}

#[target_feature(enable = "avx512f")]
fn subtree_avx512(bytes: &[u8], offset: u64) -> ChainingValue {
    let blocks = bytes.as_chunks::<BLOCK>().0;
    let groups = blocks.as_chunks::<{ CHUNK_LEN / BLOCK }>().0.as_chunks::<LANES>().0;
    let mut values: Vec<[ChainingValue; LANES]> = Vec::with_capacity(groups.len());
    for (group, counter) in groups.iter().zip((offset / CHUNK_LEN as u64..).step_by(LANES)) {
        values.push(chunks(group, counter));
    }

    // Each level has half as many, written over the one before.
    let values = values.as_flattened_mut();
    let mut left = values.len();
    while left > 1 {
        left /= 2;
        for group in (0..left).step_by(LANES) {
            let count = LANES.min(left - group);
            let mut pairs = [[0; BLOCK]; LANES];
            pairs.as_flattened_mut()[..count * BLOCK]
                .copy_from_slice(values[2 * group..][..2 * count].as_flattened());
            values[group..group + count].copy_from_slice(&parents(&pairs)[..count]);
        }
    }

    values[0]
}

/// The chaining values of chunks that are not the root; the first has the number `counter`.
#[target_feature(enable = "avx512f")]
#[expect(clippy::cast_possible_truncation, reason = "the counter's halves")]
fn chunks(
    input: &[[[u8; BLOCK]; CHUNK_LEN / BLOCK]; LANES],
    counter: u64,
) -> [ChainingValue; LANES] {
    let half = |shift: u32| {
        let counters: [u32; LANES] =
            core::array::from_fn(|lane| (counter.wrapping_add(lane as u64) >> shift) as u32);
        vector(counters)
    };
    let counter = [half(0), half(32)];
    let mut state = INITIAL.map(|word| all(word));
    #[expect(clippy::needless_range_loop, reason = "the block of every lane")]
    for block in 0..CHUNK_LEN / BLOCK {
        let words = transposed(core::array::from_fn(|lane| load(&input[lane][block])));
        let start = if block == 0 { CHUNK_START } else { 0 };
        let end = if block == CHUNK_LEN / BLOCK - 1 { CHUNK_END } else { 0 };
        compress(&mut state, &words, counter, start | end);
    }

    digests(&state)
}

/// The chaining values above pairs of them.
#[target_feature(enable = "avx512f")]
fn parents(pairs: &[[u8; BLOCK]; LANES]) -> [ChainingValue; LANES] {
    let words = transposed(core::array::from_fn(|lane| load(&pairs[lane])));
    let mut state = INITIAL.map(|word| all(word));
    compress(&mut state, &words, [all(0); 2], PARENT);
    digests(&state)
}

/// The compression function (section 2.2) of full blocks, truncated to the chaining value.
#[inline]
#[target_feature(enable = "avx512f")]
fn compress(state: &mut [__m512i; 8], words: &[__m512i; 16], counter: [__m512i; 2], flags: u32) {
    let [a, b, c, d, e, f, g, h] = *state;
    let [i, j, k, l, ..] = INITIAL.map(|word| all(word));
    let mut v =
        [a, b, c, d, e, f, g, h, i, j, k, l, counter[0], counter[1], all(BLOCK_WORD), all(flags)];

    // Written out, since the words of a round must be known when the registers are chosen.
    round::<0>(&mut v, words);
    round::<1>(&mut v, words);
    round::<2>(&mut v, words);
    round::<3>(&mut v, words);
    round::<4>(&mut v, words);
    round::<5>(&mut v, words);
    round::<6>(&mut v, words);
    for (word, at) in state.iter_mut().zip(0..) {
        *word = _mm512_xor_si512(v[at], v[at + 8]);
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn round<const ROUND: usize>(v: &mut [__m512i; 16], words: &[__m512i; 16]) {
    let order = const { SCHEDULE[ROUND] };
    quarter::<0, 4, 8, 12>(v, words[order[0]], words[order[1]]);
    quarter::<1, 5, 9, 13>(v, words[order[2]], words[order[3]]);
    quarter::<2, 6, 10, 14>(v, words[order[4]], words[order[5]]);
    quarter::<3, 7, 11, 15>(v, words[order[6]], words[order[7]]);
    quarter::<0, 5, 10, 15>(v, words[order[8]], words[order[9]]);
    quarter::<1, 6, 11, 12>(v, words[order[10]], words[order[11]]);
    quarter::<2, 7, 8, 13>(v, words[order[12]], words[order[13]]);
    quarter::<3, 4, 9, 14>(v, words[order[14]], words[order[15]]);
}

#[inline]
#[target_feature(enable = "avx512f")]
fn quarter<const A: usize, const B: usize, const C: usize, const D: usize>(
    v: &mut [__m512i; 16],
    x: __m512i,
    y: __m512i,
) {
    v[A] = _mm512_add_epi32(_mm512_add_epi32(v[A], v[B]), x);
    v[D] = _mm512_ror_epi32::<16>(_mm512_xor_si512(v[D], v[A]));
    v[C] = _mm512_add_epi32(v[C], v[D]);
    v[B] = _mm512_ror_epi32::<12>(_mm512_xor_si512(v[B], v[C]));
    v[A] = _mm512_add_epi32(_mm512_add_epi32(v[A], v[B]), y);
    v[D] = _mm512_ror_epi32::<8>(_mm512_xor_si512(v[D], v[A]));
    v[C] = _mm512_add_epi32(v[C], v[D]);
    v[B] = _mm512_ror_epi32::<7>(_mm512_xor_si512(v[B], v[C]));
}

/// Word `j` of register `i` becomes word `i` of register `j`.
#[inline]
#[target_feature(enable = "avx512f")]
fn transposed(mut rows: [__m512i; 16]) -> [__m512i; 16] {
    let mut pairs = rows;
    for i in (0..16).step_by(2) {
        pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }

    // Quarter `q` of register `i + k` becomes word `4 q + k` of rows `i` to `i + 3`.
    for i in (0..16).step_by(4) {
        rows[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
        rows[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
        rows[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
        rows[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
    }

    for k in 0..4 {
        let even = |a, b| _mm512_shuffle_i32x4::<0b10_00_10_00>(a, b);
        let odd = |a, b| _mm512_shuffle_i32x4::<0b11_01_11_01>(a, b);
        let (first, last) = ([rows[k], rows[k + 4]], [rows[k + 8], rows[k + 12]]);
        let (evens, odds) = (
            [even(first[0], first[1]), even(last[0], last[1])],
            [odd(first[0], first[1]), odd(last[0], last[1])],
        );
        pairs[k] = even(evens[0], evens[1]);
        pairs[k + 4] = even(odds[0], odds[1]);
        pairs[k + 8] = odd(evens[0], evens[1]);
        pairs[k + 12] = odd(odds[0], odds[1]);
    }

    pairs
}

/// The chaining value of each lane.
#[inline]
#[target_feature(enable = "avx512f")]
fn digests(state: &[__m512i; 8]) -> [ChainingValue; LANES] {
    let mut words = [all(0); 16];
    words[..8].copy_from_slice(state);
    transposed(words).map(|lane| {
        // SAFETY: both are 64 bytes, and every value of either is valid.
        let bytes = unsafe { core::mem::transmute::<__m512i, [u8; BLOCK]>(lane) };
        *bytes.first_chunk().unwrap_or_else(|| unreachable!("64 bytes have 32"))
    })
}

#[inline]
#[target_feature(enable = "avx512f")]
fn all(word: u32) -> __m512i {
    _mm512_set1_epi32(word.cast_signed())
}

/// A block as little-endian words, which is what x86 has.
#[inline]
#[target_feature(enable = "avx512f")]
fn load(block: &[u8; BLOCK]) -> __m512i {
    // SAFETY: both are 64 bytes, and every value of either is valid.
    unsafe { core::mem::transmute::<[u8; BLOCK], __m512i>(*block) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn vector(words: [u32; LANES]) -> __m512i {
    // SAFETY: both are 64 bytes, and every value of either is valid.
    unsafe { core::mem::transmute::<[u32; LANES], __m512i>(words) }
}

#[cfg(test)]
mod tests {
    use blake3::hazmat::HasherExt;

    use super::*;

    #[test]
    fn subtrees_have_the_chaining_values_of_the_blake3_crate() {
        let bytes: Vec<u8> = (0..1_u32 << 20)
            .map(|i| (i.wrapping_mul(0x9e37_79b1) >> 11).to_le_bytes()[0])
            .collect();
        // Where the counter's lower half overflows, too.
        for offset in [0, 1 << 20, 3 << 20, (1 << 42) - (1 << 20), 1 << 42, 5 << 50] {
            for len in [1 << 15, 1 << 16, 1 << 17, 1 << 20] {
                let theirs = blake3::Hasher::new()
                    .set_input_offset(offset)
                    .update(&bytes[..len])
                    .finalize_non_root();
                let ours = subtree(&bytes[..len], offset);
                assert!(ours.is_none_or(|ours| ours == theirs), "{len} bytes at {offset}");
                assert_eq!(ours.is_some(), std::arch::is_x86_feature_detected!("avx512f"));
            }
        }
    }

    #[test]
    fn other_lengths_are_left_to_the_crate() {
        let bytes = [7; 1 << 16];
        for len in [0, 1, 1024, 1 << 14, (1 << 15) + 1, 3 << 14, (1 << 16) - 1] {
            assert_eq!(subtree(&bytes[..len], 0), None);
        }
    }
}
