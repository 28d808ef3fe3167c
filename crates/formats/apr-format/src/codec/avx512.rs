//! The entropy coder's writer for processors with AVX-512.
//!
//! Codes of 32 symbols are looked up in two registers instead of a table in memory, and joined side
//! by side, two, four and eight at a time. What is left to do one after the other is to put the
//! bits of eight symbols behind those before.
#![allow(
    unsafe_code,
    reason = "vectors are loaded and stored, and the kernel called, after a look at the processor"
)]

use core::arch::x86_64::{
    __m256i, __m512i, _mm512_add_epi32, _mm512_add_epi64, _mm512_and_si512, _mm512_cvtepu8_epi16,
    _mm512_mask_cmpgt_epu64_mask, _mm512_or_si512, _mm512_permutex2var_epi16, _mm512_set1_epi16,
    _mm512_set1_epi32, _mm512_set1_epi64, _mm512_sllv_epi32, _mm512_sllv_epi64, _mm512_srli_epi16,
    _mm512_srli_epi32, _mm512_srli_epi64, _mm512_sub_epi16, _mm512_unpackhi_epi64,
};

/// Symbols that are coded side by side.
const GROUP: usize = 32;

/// Different symbols that two registers hold the codes of.
const CODES: usize = 64;

/// Number of code bits that fit the 64 bits of the buffer, besides the seven left from previous
/// codes.
const FIT: i64 = 56;

/// Writes one stream of symbols without its end, as `write_pairs_anywhere` does.
///
/// The symbols must be among the [`CODES`] values from `first` on. `codes` have the length in their
/// lowest byte, at most eleven. Returns the number of symbols written, the position in bits after
/// them, and the bits that do not make a byte yet. Returns `None` if the processor lacks the
/// instructions.
pub(super) fn write(
    symbols: &[u8],
    first: u8,
    codes: &[u32; 256],
    out: &mut [u8],
) -> Option<(usize, usize, u64)> {
    use std::arch::is_x86_feature_detected;
    let available = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2");
    // SAFETY: the processor has the features.
    available.then(|| unsafe { write_here(symbols, first, codes, out) })
}

#[target_feature(enable = "avx512f,avx512bw,bmi1,bmi2")]
#[expect(clippy::cast_possible_truncation, reason = "a length is below 64")]
fn write_here(
    symbols: &[u8],
    first: u8,
    codes: &[u32; 256],
    out: &mut [u8],
) -> (usize, usize, u64) {
    let entries: [u16; CODES] = core::array::from_fn(|distance| {
        let code = codes.get(usize::from(first) + distance).map_or(0, |&code| code);
        let [len, low, high, _] = code.to_le_bytes();
        u16::from_le_bytes([low, high]) << 4 | u16::from(len)
    });

    // SAFETY: both are 128 bytes, and every value of either is valid.
    let tables = unsafe { core::mem::transmute::<[u16; CODES], [__m512i; 2]>(entries) };
    let first = _mm512_set1_epi16(i16::from(first));
    let (mut position, mut held) = (0, 0_u64);
    let mut put = |bits: u64, len: u64| {
        held |= bits << (position % 8);
        out[position / 8..][..8].copy_from_slice(&held.to_le_bytes());
        let end = position + len as usize;
        held >>= 8 * (end / 8 - position / 8);
        position = end;
    };

    let (groups, _) = symbols.as_chunks::<GROUP>();
    for group in groups {
        let distances = _mm512_sub_epi16(_mm512_cvtepu8_epi16(load(group)), first);
        let entries = _mm512_permutex2var_epi16(tables[0], distances, tables[1]);
        let (bits, lens) =
            (_mm512_srli_epi16::<4>(entries), _mm512_and_si512(entries, _mm512_set1_epi16(0xf)));

        let low = _mm512_set1_epi32(0xffff);
        let (front, front_len) = (_mm512_and_si512(bits, low), _mm512_and_si512(lens, low));
        let back = _mm512_sllv_epi32(_mm512_srli_epi32::<16>(bits), front_len);
        let (bits, lens) = (
            _mm512_or_si512(front, back),
            _mm512_add_epi32(front_len, _mm512_srli_epi32::<16>(lens)),
        );

        let low = _mm512_set1_epi64(0xffff_ffff);
        let (front, front_len) = (_mm512_and_si512(bits, low), _mm512_and_si512(lens, low));
        let back = _mm512_sllv_epi64(_mm512_srli_epi64::<32>(bits), front_len);
        let (bits, lens) = (
            _mm512_or_si512(front, back),
            _mm512_add_epi64(front_len, _mm512_srli_epi64::<32>(lens)),
        );

        // Of every two lanes, the first has eight codes now. They have at most 88 bits, and mostly
        // a third of that.
        let eight =
            _mm512_or_si512(bits, _mm512_sllv_epi64(_mm512_unpackhi_epi64(bits, bits), lens));
        let eight_len = _mm512_add_epi64(lens, _mm512_unpackhi_epi64(lens, lens));
        if _mm512_mask_cmpgt_epu64_mask(0b0101_0101, eight_len, _mm512_set1_epi64(FIT)) == 0 {
            let (bits, lens) = (store(eight), store(eight_len));
            for lane in [0, 2, 4, 6] {
                put(bits[lane], lens[lane]);
            }
        } else {
            store(bits).into_iter().zip(store(lens)).for_each(|(bits, len)| put(bits, len));
        }
    }

    (groups.len() * GROUP, position, held)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(group: &[u8; GROUP]) -> __m256i {
    // SAFETY: both are 32 bytes, and every value of either is valid.
    unsafe { core::mem::transmute::<[u8; GROUP], __m256i>(*group) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store(lanes: __m512i) -> [u64; 8] {
    // SAFETY: both are 64 bytes, and every value of either is valid.
    unsafe { core::mem::transmute::<__m512i, [u64; 8]>(lanes) }
}
