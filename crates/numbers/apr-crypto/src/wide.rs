//! AES-256-GCM of 32 blocks at a time, for processors with AVX-512, VAES and VPCLMULQDQ.
//!
//! The `aes-gcm` crate enciphers first and authenticates later, four blocks at a time and through
//! generic code that is not inlined; both together cost three times what this does. Sixty-four
//! bytes are one register here, and what was enciphered is authenticated while it is in registers.
//! Nothing depends on secrets but the operands of instructions that take the same time for all of
//! them. The crate serves all other processors, and tests compare with it.
//!
//! GHASH is computed as POLYVAL (RFC 8452, appendix A): of blocks with their bytes reversed, under
//! the key times x. Blocks are multiplied by descending powers of that key and added up before one
//! reduction modulo
//! x^128 + x^127 + x^126 + x^121 + 1.
#![allow(
    unsafe_code,
    reason = "vectors are loaded and stored, and kernels called, after a look at the processor"
)]

use alloc::vec::Vec;
use core::arch::x86_64::{
    __m128i, __m512i, _mm_aeskeygenassist_si128, _mm_clmulepi64_si128, _mm_set_epi8, _mm_set_epi32,
    _mm_set_epi64x, _mm_setzero_si128, _mm_shuffle_epi8, _mm_shuffle_epi32, _mm_slli_si128,
    _mm_srli_si128, _mm_xor_si128, _mm256_castsi256_si128, _mm256_extracti128_si256,
    _mm256_xor_si256, _mm512_add_epi32, _mm512_aesenc_epi128, _mm512_aesenclast_epi128,
    _mm512_broadcast_i32x4, _mm512_castsi512_si128, _mm512_castsi512_si256,
    _mm512_clmulepi64_epi128, _mm512_extracti64x4_epi64, _mm512_setzero_si512, _mm512_shuffle_epi8,
    _mm512_xor_si512, _mm512_zextsi128_si512,
};

use zeroize::Zeroize;

use crate::sealed::{NONCE_LEN, TAG_LEN};

/// Bytes of a block, and of the blocks that are worked on side by side.
const BLOCK: usize = 16;
const STEP_LEN: usize = 512;

/// Registers of a step, and blocks of one.
const REGISTERS: usize = STEP_LEN / REGISTER;
const REGISTER: usize = 64;
const LANES: usize = REGISTER / BLOCK;

/// Round keys of AES-256.
const ROUND_KEYS: usize = 15;

/// The number of the text's first block.
const TEXT: u32 = 2;

/// A key made ready. It is wiped when it is dropped.
pub(crate) struct Cipher {
    round_keys: [[u8; BLOCK]; ROUND_KEYS],
    /// Powers 32 to 1 of the authentication key.
    powers: [[u8; REGISTER]; REGISTERS],
}

impl Drop for Cipher {
    fn drop(&mut self) {
        self.round_keys.zeroize();
        self.powers.zeroize();
    }
}

impl Cipher {
    /// Prepares a cipher, or returns `None` if the processor lacks the instructions.
    pub(crate) fn new(key: &[u8; 32]) -> Option<Self> {
        use std::arch::is_x86_feature_detected;
        let available = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("vaes")
            && is_x86_feature_detected!("vpclmulqdq")
            && is_x86_feature_detected!("aes")
            && is_x86_feature_detected!("pclmulqdq");
        // SAFETY: the processor has the features.
        available.then(|| unsafe { prepare(key) })
    }

    /// Appends the ciphertext of `plain` to `out` and returns the tag. There is no associated data.
    pub(crate) fn seal(
        &self,
        nonce: &[u8; NONCE_LEN],
        plain: &[u8],
        out: &mut Vec<u8>,
    ) -> [u8; TAG_LEN] {
        out.reserve(plain.len() + TAG_LEN);
        // SAFETY: a cipher is made only where the processor has the features.
        unsafe { self.seal_here(nonce, plain, out) }
    }

    /// Deciphers `text` into `out`, which is as long; `false`, and `out` as it was, if the tag is
    /// not that of `text`.
    pub(crate) fn open(
        &self,
        nonce: &[u8; NONCE_LEN],
        text: &[u8],
        tag: &[u8; TAG_LEN],
        out: &mut [u8],
    ) -> bool {
        // SAFETY: a cipher is made only where the processor has the features.
        let expected = unsafe { self.tag_here(nonce, text) };
        // One comparison of all bytes, which takes the same time whichever of them differ.
        let intact = u128::from_ne_bytes(expected) == u128::from_ne_bytes(*tag);
        if intact {
            // SAFETY: as above.
            unsafe { self.decipher_here(nonce, text, out) };
        }
        intact
    }

    #[target_feature(enable = "avx512f,avx512bw,vaes,vpclmulqdq,aes,pclmulqdq")]
    fn seal_here(&self, nonce: &[u8; NONCE_LEN], plain: &[u8], out: &mut Vec<u8>) -> [u8; TAG_LEN] {
        let keys = self.keys();
        let powers = self.powers();
        let mut counters = Counters::new(nonce, TEXT);
        let mut hash = _mm_setzero_si128();
        let (steps, rest) = plain.as_chunks::<STEP_LEN>();
        for step in steps {
            let text = counters.apply(&keys, load(step));
            hash = add(hash, text, &powers);
            out.extend_from_slice(&store(text));
        }

        if !rest.is_empty() {
            let mut last = [0; STEP_LEN];
            last[..rest.len()].copy_from_slice(rest);
            last = store(counters.apply(&keys, load(&last)));
            let last = &last[..rest.len()];
            hash = add_few(hash, last, &powers);
            out.extend_from_slice(last);
        }

        finish(hash, plain.len(), mask(nonce, &keys), &powers)
    }

    /// The tag of a ciphertext.
    #[target_feature(enable = "avx512f,avx512bw,vaes,vpclmulqdq,aes,pclmulqdq")]
    fn tag_here(&self, nonce: &[u8; NONCE_LEN], text: &[u8]) -> [u8; TAG_LEN] {
        let powers = self.powers();
        let mut hash = _mm_setzero_si128();
        let (steps, rest) = text.as_chunks::<STEP_LEN>();
        for step in steps {
            hash = add(hash, load(step), &powers);
        }
        if !rest.is_empty() {
            hash = add_few(hash, rest, &powers);
        }
        finish(hash, text.len(), mask(nonce, &self.keys()), &powers)
    }

    #[target_feature(enable = "avx512f,avx512bw,vaes,vpclmulqdq,aes,pclmulqdq")]
    fn decipher_here(&self, nonce: &[u8; NONCE_LEN], text: &[u8], out: &mut [u8]) {
        let keys = self.keys();
        let mut counters = Counters::new(nonce, TEXT);
        let (steps, rest) = text.as_chunks::<STEP_LEN>();
        let (out_steps, out_rest) = out.as_chunks_mut::<STEP_LEN>();
        for (step, out) in steps.iter().zip(out_steps) {
            *out = store(counters.apply(&keys, load(step)));
        }
        if !rest.is_empty() {
            let mut last = [0; STEP_LEN];
            last[..rest.len()].copy_from_slice(rest);
            out_rest.copy_from_slice(&store(counters.apply(&keys, load(&last)))[..rest.len()]);
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn keys(&self) -> [__m512i; ROUND_KEYS] {
        self.round_keys.map(|key| _mm512_broadcast_i32x4(load_block(&key)))
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn powers(&self) -> [__m512i; REGISTERS] {
        load(
            self.powers
                .as_flattened()
                .first_chunk()
                .unwrap_or_else(|| unreachable!("a step's powers")),
        )
    }
}

/// Counters of the next blocks: their numbers, in the last word of each lane, in native byte order.
struct Counters(__m512i);

impl Counters {
    /// Returns the counters of four blocks, starting at a number.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn new(nonce: &[u8; NONCE_LEN], first: u32) -> Self {
        let mut blocks = [[0; BLOCK]; LANES];
        for (block, number) in blocks.iter_mut().zip(first..) {
            block[..NONCE_LEN].copy_from_slice(nonce);
            block[NONCE_LEN..].copy_from_slice(&number.to_le_bytes());
        }
        // SAFETY: both are 64 bytes, and every value of either is valid.
        Self(unsafe { core::mem::transmute::<[[u8; BLOCK]; LANES], __m512i>(blocks) })
    }

    /// The four blocks that are enciphered to make the key stream.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn blocks(&self) -> __m512i {
        let big_endian = _mm512_broadcast_i32x4(_mm_set_epi8(
            12, 13, 14, 15, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0,
        ));
        _mm512_shuffle_epi8(self.0, big_endian)
    }

    /// Enciphers or deciphers a step; the counters move on.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,vaes")]
    fn apply(
        &mut self,
        keys: &[__m512i; ROUND_KEYS],
        text: [__m512i; REGISTERS],
    ) -> [__m512i; REGISTERS] {
        // The numbers are the last words of the lanes.
        let [lanes, ..] = LANES.to_le_bytes();
        let next = _mm512_broadcast_i32x4(_mm_set_epi32(lanes.into(), 0, 0, 0));
        let mut stream = [_mm512_setzero_si512(); REGISTERS];
        for blocks in &mut stream {
            *blocks = self.blocks();
            self.0 = _mm512_add_epi32(self.0, next);
        }
        stream = encipher(keys, stream);
        for (blocks, text) in stream.iter_mut().zip(text) {
            *blocks = _mm512_xor_si512(*blocks, text);
        }
        stream
    }
}

/// Returns the mask of the tag: the key stream of the block before the text.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,vaes")]
fn mask(nonce: &[u8; NONCE_LEN], keys: &[__m512i; ROUND_KEYS]) -> __m128i {
    let [mask] = encipher(keys, [Counters::new(nonce, TEXT - 1).blocks()]);
    _mm512_castsi512_si128(mask)
}

/// AES-256 (FIPS 197) of all blocks.
#[inline]
#[target_feature(enable = "avx512f,vaes")]
fn encipher<const N: usize>(
    keys: &[__m512i; ROUND_KEYS],
    mut blocks: [__m512i; N],
) -> [__m512i; N] {
    let [first, middle @ .., last] = keys;
    for block in &mut blocks {
        *block = _mm512_xor_si512(*block, *first);
    }
    for key in middle {
        for block in &mut blocks {
            *block = _mm512_aesenc_epi128(*block, *key);
        }
    }
    for block in &mut blocks {
        *block = _mm512_aesenclast_epi128(*block, *last);
    }
    blocks
}

/// Adds a step of ciphertext to a hash.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,vpclmulqdq,pclmulqdq")]
fn add(hash: __m128i, text: [__m512i; REGISTERS], powers: &[__m512i; REGISTERS]) -> __m128i {
    let [mut low, mut middle, mut high] = [_mm512_setzero_si512(); 3];
    for (at, (&blocks, &powers)) in text.iter().zip(powers).enumerate() {
        let mut blocks = _mm512_shuffle_epi8(blocks, _mm512_broadcast_i32x4(reversal()));
        if at == 0 {
            blocks = _mm512_xor_si512(blocks, _mm512_zextsi128_si512(hash));
        }
        low = _mm512_xor_si512(low, _mm512_clmulepi64_epi128::<0x00>(blocks, powers));
        middle = _mm512_xor_si512(middle, _mm512_clmulepi64_epi128::<0x01>(blocks, powers));
        middle = _mm512_xor_si512(middle, _mm512_clmulepi64_epi128::<0x10>(blocks, powers));
        high = _mm512_xor_si512(high, _mm512_clmulepi64_epi128::<0x11>(blocks, powers));
    }
    reduce(sum(low), sum(middle), sum(high))
}

/// Adds the last bytes of a text to a hash, at most a step of them and at least one.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,vpclmulqdq,pclmulqdq")]
fn add_few(hash: __m128i, bytes: &[u8], powers: &[__m512i; REGISTERS]) -> __m128i {
    // At the end of a step, where the powers are those that belong to them; zeros before them add
    // nothing.
    let mut step = [0; STEP_LEN];
    let start = STEP_LEN - bytes.len().next_multiple_of(BLOCK);
    step[start..start + bytes.len()].copy_from_slice(bytes);
    let hash = store_block(_mm_shuffle_epi8(hash, reversal()));
    step[start..start + BLOCK].iter_mut().zip(hash).for_each(|(byte, hash)| *byte ^= hash);
    add(_mm_setzero_si128(), load(&step), powers)
}

/// The tag of a text of `len` bytes from its hash.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,vpclmulqdq,pclmulqdq")]
fn finish(
    hash: __m128i,
    len: usize,
    mask: __m128i,
    powers: &[__m512i; REGISTERS],
) -> [u8; TAG_LEN] {
    let mut lengths = [0; BLOCK];
    lengths[BLOCK / 2..].copy_from_slice(&(8 * len as u64).to_be_bytes());
    let hash = add_few(hash, &lengths, powers);
    store_block(_mm_xor_si128(_mm_shuffle_epi8(hash, reversal()), mask))
}

/// The sum of a register's lanes.
#[inline]
#[target_feature(enable = "avx512f")]
fn sum(lanes: __m512i) -> __m128i {
    let two =
        _mm256_xor_si256(_mm512_castsi512_si256(lanes), _mm512_extracti64x4_epi64::<1>(lanes));
    _mm_xor_si128(_mm256_castsi256_si128(two), _mm256_extracti128_si256::<1>(two))
}

/// A product of 256 bits, from its parts at 0, 64 and 128, times x^-128 modulo the polynomial.
#[inline]
#[target_feature(enable = "avx512f,pclmulqdq")]
fn reduce(low: __m128i, middle: __m128i, high: __m128i) -> __m128i {
    let polynomial = _mm_set_epi64x(0, 0xc200_0000_0000_0000_u64.cast_signed());
    let halves_swapped = |of| _mm_shuffle_epi32::<0b01_00_11_10>(of);
    let mut low = _mm_xor_si128(low, _mm_slli_si128::<8>(middle));
    let high = _mm_xor_si128(high, _mm_srli_si128::<8>(middle));
    // The lower 64 bits become zero by adding a multiple of the polynomial, twice.
    for _ in 0..2 {
        low = _mm_xor_si128(halves_swapped(low), _mm_clmulepi64_si128::<0x00>(low, polynomial));
    }
    _mm_xor_si128(low, high)
}

/// Returns the product of two elements times x^-128.
///
/// This keeps powers in the form that [`reduce`] expects.
#[inline]
#[target_feature(enable = "avx512f,pclmulqdq")]
fn multiply(a: __m128i, b: __m128i) -> __m128i {
    let middle =
        _mm_xor_si128(_mm_clmulepi64_si128::<0x01>(a, b), _mm_clmulepi64_si128::<0x10>(a, b));
    reduce(_mm_clmulepi64_si128::<0x00>(a, b), middle, _mm_clmulepi64_si128::<0x11>(a, b))
}

#[target_feature(enable = "avx512f,avx512bw,vaes,vpclmulqdq,aes,pclmulqdq")]
fn prepare(key: &[u8; 32]) -> Cipher {
    let mut cipher = Cipher { round_keys: expand(key), powers: [[0; REGISTER]; REGISTERS] };
    let [zeros] = encipher(&cipher.keys(), [_mm512_setzero_si512()]);
    let reversed = u128::from_be_bytes(store_block(_mm512_castsi512_si128(zeros)));
    let times_x = (reversed << 1) ^ ((reversed >> 127) * 0xc200_0000_0000_0000_0000_0000_0000_0001);
    let first = load_block(&times_x.to_le_bytes());
    let mut power = first;
    for place in cipher.powers.as_flattened_mut().as_chunks_mut().0.iter_mut().rev() {
        *place = store_block(power);
        power = multiply(power, first);
    }
    cipher
}

/// The words of the round key before the one at `at`, substituted, with the constant of its round
/// where it has one.
#[inline]
#[target_feature(enable = "avx512f,aes")]
fn substituted(before: __m128i, at: usize) -> __m128i {
    // The instruction takes its constant as a part of itself.
    match at {
        2 => _mm_aeskeygenassist_si128::<0x01>(before),
        4 => _mm_aeskeygenassist_si128::<0x02>(before),
        6 => _mm_aeskeygenassist_si128::<0x04>(before),
        8 => _mm_aeskeygenassist_si128::<0x08>(before),
        10 => _mm_aeskeygenassist_si128::<0x10>(before),
        12 => _mm_aeskeygenassist_si128::<0x20>(before),
        14 => _mm_aeskeygenassist_si128::<0x40>(before),
        _ => _mm_aeskeygenassist_si128::<0>(before),
    }
}

/// The key schedule (FIPS 197, section 5.2).
#[inline]
#[target_feature(enable = "avx512f,aes")]
fn expand(key: &[u8; 32]) -> [[u8; BLOCK]; ROUND_KEYS] {
    let mut keys = [_mm_setzero_si128(); ROUND_KEYS];
    for (round, half) in keys.iter_mut().zip(key.as_chunks().0) {
        *round = load_block(half);
    }

    for at in 2..ROUND_KEYS {
        let word = substituted(keys[at - 1], at);
        // Its last word is rotated and has the constant, the one before the last neither.
        let word = if at % 2 == 0 {
            _mm_shuffle_epi32::<0xff>(word)
        } else {
            _mm_shuffle_epi32::<0xaa>(word)
        };
        let mut next = keys[at - 2];
        for _ in 0..3 {
            next = _mm_xor_si128(keys[at - 2], _mm_slli_si128::<4>(next));
        }
        keys[at] = _mm_xor_si128(next, word);
    }

    keys.map(|key| store_block(key))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn reversal() -> __m128i {
    _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(step: &[u8; STEP_LEN]) -> [__m512i; REGISTERS] {
    // SAFETY: both are 512 bytes, and every value of either is valid.
    unsafe { core::mem::transmute::<[u8; STEP_LEN], [__m512i; REGISTERS]>(*step) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store(step: [__m512i; REGISTERS]) -> [u8; STEP_LEN] {
    // SAFETY: both are 512 bytes, and every value of either is valid.
    unsafe { core::mem::transmute::<[__m512i; REGISTERS], [u8; STEP_LEN]>(step) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_block(block: &[u8; BLOCK]) -> __m128i {
    // SAFETY: both are 16 bytes, and every value of either is valid.
    unsafe { core::mem::transmute::<[u8; BLOCK], __m128i>(*block) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store_block(block: __m128i) -> [u8; BLOCK] {
    // SAFETY: both are 16 bytes, and every value of either is valid.
    unsafe { core::mem::transmute::<__m128i, [u8; BLOCK]>(block) }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use aes_gcm::aead::inout::InOutBuf;
    use aes_gcm::{AeadInOut, Aes256Gcm, KeyInit};

    use super::*;

    fn noise(len: usize, seed: u32) -> Vec<u8> {
        (0..u32::try_from(len).expect("short"))
            .map(|i| (i.wrapping_add(seed).wrapping_mul(0x9e37_79b1) >> 13).to_le_bytes()[0])
            .collect()
    }

    #[test]
    fn ciphertexts_and_tags_match_the_aes_gcm_crate() {
        let around_blocks_and_steps =
            [0, 1, 15, 16, 17, 31, 32, 240, 255, 256, 496, 511, 512, 513, 528, 1023, 1024, 1025];
        for (seed, len) in
            (1..).zip(around_blocks_and_steps.into_iter().chain([4095, 65_535, 65_536, 100_000]))
        {
            let key: [u8; 32] = noise(32, seed * 77).try_into().expect("32 bytes");
            let nonce: [u8; NONCE_LEN] =
                noise(NONCE_LEN, seed * 1000).try_into().expect("twelve bytes");
            let plain = noise(len, seed);
            let theirs = Aes256Gcm::new(&key.into());
            let mut text = vec![0; len];
            let buffer = InOutBuf::new(&plain, &mut text).expect("equally long");
            let tag: [u8; TAG_LEN] =
                theirs.encrypt_inout_detached(&nonce.into(), &[], buffer).expect("short").into();

            let Some(ours) = Cipher::new(&key) else { return };
            let mut out = b"before".to_vec();
            assert_eq!(ours.seal(&nonce, &plain, &mut out), tag, "{len}");
            assert!(out.strip_prefix(b"before").is_some_and(|found| found == text), "{len}");

            let mut opened = vec![0xaa; len];
            assert!(ours.open(&nonce, &text, &tag, &mut opened) && opened == plain, "{len}");
            for at in [0, 7, 15] {
                let (mut other, mut untouched) = (tag, vec![0xaa; len]);
                other[at] ^= 1;
                assert!(!ours.open(&nonce, &text, &other, &mut untouched));
                assert!(untouched.iter().all(|&byte| byte == 0xaa));
            }
            for at in [0, len / 2, len.saturating_sub(1)].into_iter().filter(|&at| at < len) {
                text[at] ^= 0x40;
                assert!(!ours.open(&nonce, &text, &tag, &mut opened), "{len} at {at}");
                text[at] ^= 0x40;
            }
        }
    }
}
