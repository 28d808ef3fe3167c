//! Symbols to streams.

use alloc::vec::Vec;

use super::super::kernel;
use super::code::{Lengths, assign_codes, coded_bits, shortest};
use super::{CONSTANT, HUFFMAN, MAX_LEN, STREAMS};

/// Longest code that a decoder with a table of 1024 entries finds more than one of in a lookup.
const SHORT_LEN: usize = 10;

/// Bits of codes that fit the 64 of the buffer, with the seven left from those before.
const FIT: u32 = 56;

/// Symbols that come in pairs: as many different ones, in a row, as a table of pairs has room for.
const PAIRED: u8 = 64;

/// Pairs of those symbols.
const PAIRS: usize = PAIRED as usize * PAIRED as usize;

/// Symbols whose pairs are made at a time, few enough for the first-level cache.
const PAIRED_SYMBOLS: usize = 4096;

/// From this length on, a part of the symbols is looked at before all are.
pub(in super::super) const SAMPLED_LEN: usize = 1 << 16;

/// Appends the coded symbols to `out`. `false`, and `out` as it was, when that saves less than a 64th: it would cost
/// more time than it saves bytes. At most `u32::MAX / 2` symbols.
pub(in super::super) fn encode(symbols: &[u8], out: &mut Vec<u8>) -> bool {
    if symbols.len() <= 2 {
        return false;
    }
    if is_noise(symbols) {
        return false;
    }
    let (first, last) = kernel::span(symbols);
    let counts = if last - first < PAIRED { counts_by_pairs(symbols, first) } else { histogram([symbols]) };
    let Some(short) = shortest(&counts, SHORT_LEN) else {
        out.extend([CONSTANT, symbols[0]]);
        return true;
    };
    let lengths = best_limit(&counts, short);
    if !worth_it(coded_bits(&counts, &lengths) + 8 * MAX_HEADER, symbols.len() as u64) {
        return false;
    }
    write(symbols, &lengths, coded_bits(&counts, &lengths), out);
    true
}

/// Whether a part of the symbols shows that coding would not save enough; `false` of few.
pub(in super::super) fn is_noise(symbols: &[u8]) -> bool {
    if symbols.len() < SAMPLED_LEN {
        return false;
    }
    let sample = histogram(symbols.chunks(4096).map(|part| &part[..part.len().min(256)]));
    let sampled = sample.iter().map(|&count| u64::from(count)).sum();
    are_even(&sample, sampled)
        || shortest(&sample, SHORT_LEN).is_some_and(|lengths| !worth_it(coded_bits(&sample, &lengths), sampled))
}

/// Whether `total` symbols are so evenly spread that no code is worth it: their collision entropy, `-log2(sum of p^2)`, is
/// at least the 7.875 bits of [`worth_it`], and Shannon's, which bounds every code, is never less (Rényi, 1961).
fn are_even(counts: &[u32; 256], total: u64) -> bool {
    let squares: u64 = counts.iter().map(|&count| u64::from(count).pow(2)).sum();
    // 2^7.875 is 234.75.
    total.pow(2) >= 235 * squares
}

/// Kind, range, lengths, sizes and the unused bits of the streams' last bytes.
const MAX_HEADER: u64 = 3 + 128 + 28 + 8;

fn worth_it(bits: u64, symbols: u64) -> bool {
    bits < symbols * 8 - symbols / 8
}

/// Longer codes, if they save enough to make up for slower decoding.
fn best_limit(counts: &[u32; 256], short: Lengths) -> Lengths {
    let short_bits = coded_bits(counts, &short);
    match shortest(counts, MAX_LEN) {
        Some(long) if coded_bits(counts, &long) + short_bits / 256 <= short_bits => long,
        _ => short,
    }
}

/// How often each byte occurs. Eight tables, because equal bytes in a row would wait for each other's count.
fn histogram<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> [u32; 256] {
    let mut tables = [[0_u32; 256]; 8];
    for part in parts {
        let (groups, rest) = part.as_chunks::<8>();
        for group in groups {
            let [a, b, c, d, e, f, g, h] = *group;
            tables[0][usize::from(a)] += 1;
            tables[1][usize::from(b)] += 1;
            tables[2][usize::from(c)] += 1;
            tables[3][usize::from(d)] += 1;
            tables[4][usize::from(e)] += 1;
            tables[5][usize::from(f)] += 1;
            tables[6][usize::from(g)] += 1;
            tables[7][usize::from(h)] += 1;
        }
        for &symbol in rest {
            tables[0][usize::from(symbol)] += 1;
        }
    }
    core::array::from_fn(|symbol| tables.iter().map(|table| table[symbol]).sum())
}

/// The least and the greatest symbol.
#[inline(always)]
pub(in super::super) fn span_anywhere(symbols: &[u8]) -> (u8, u8) {
    symbols.iter().fold((u8::MAX, 0), |(least, most), &symbol| (least.min(symbol), most.max(symbol)))
}

/// As [`histogram`], of symbols that [`PAIRED`] of them from `first` on take in: one count for two symbols.
fn counts_by_pairs(symbols: &[u8], first: u8) -> [u32; 256] {
    let mut counts = [0; 256];
    kernel::count_pairs(symbols, first, &mut counts);
    counts
}

#[inline(always)]
pub(in super::super) fn count_pairs_anywhere(symbols: &[u8], first: u8, counts: &mut [u32; 256]) {
    let mut tables = [[0_u32; PAIRS]; 2];
    let mut pairs = [0; PAIRED_SYMBOLS / 2];
    let (two, odd) = symbols.as_chunks();
    for step in two.chunks(PAIRED_SYMBOLS / 2) {
        let (groups, rest) = pair_up(step, first, &mut pairs).as_chunks::<2>();
        for &[a, b] in groups {
            tables[0][usize::from(a) % PAIRS] += 1;
            tables[1][usize::from(b) % PAIRS] += 1;
        }
        for &pair in rest {
            tables[0][usize::from(pair) % PAIRS] += 1;
        }
    }
    for (pair, (a, b)) in tables[0].iter().zip(&tables[1]).enumerate() {
        for symbol in [pair % usize::from(PAIRED), pair / usize::from(PAIRED)] {
            // Those that stand for no byte were never counted.
            if let Some(count) = counts.get_mut(usize::from(first) + symbol) {
                *count += a + b;
            }
        }
    }
    for &symbol in odd {
        counts[usize::from(symbol)] += 1;
    }
}

/// Numbers of pairs: the first symbol's distance from `first` in the lower six bits, the second's above. Returns as much
/// of `pairs` as there are.
#[inline(always)]
fn pair_up<'a>(symbols: &[[u8; 2]], first: u8, pairs: &'a mut [u16; PAIRED_SYMBOLS / 2]) -> &'a [u16] {
    const LOW: u16 = PAIRED as u16 - 1;
    let base = u16::from_le_bytes([first; 2]);
    for (pair, &two) in pairs.iter_mut().zip(symbols) {
        let distances = u16::from_le_bytes(two).wrapping_sub(base);
        *pair = distances & LOW | distances >> 2 & !LOW;
    }
    &pairs[..symbols.len()]
}

fn write(symbols: &[u8], lengths: &Lengths, bits: u64, out: &mut Vec<u8>) {
    let has_code = |&symbol: &u8| lengths[usize::from(symbol)] > 0;
    let first = (0..=255).find(has_code).unwrap_or(0);
    let last = (0..=255).rfind(has_code).unwrap_or(0);
    out.extend([HUFFMAN, first, last]);
    let range = &lengths[usize::from(first)..=usize::from(last)];
    out.extend(range.chunks(2).map(|pair| pair[0] | pair.get(1).unwrap_or(&0) << 4));

    let codes = Codes::new(lengths, (last - first < PAIRED).then_some(first));
    let sizes = out.len();
    let mut at = sizes + 4 * (STREAMS - 1);
    out.resize(at + usize::try_from(bits / 8).unwrap_or(0) + STREAMS + 8, 0);
    let part = symbols.len() / STREAMS;
    for stream in 0..STREAMS {
        let end = if stream + 1 < STREAMS { (stream + 1) * part } else { symbols.len() };
        let symbols = &symbols[stream * part..end];
        let written = match codes.pairs {
            Some(_) => kernel::write_pairs(symbols, first, &codes, &mut out[at..]),
            None => kernel::write_singles(symbols, &codes.singles, &mut out[at..]),
        };
        at += written;
        if stream + 1 < STREAMS {
            let size = u32::try_from(written).unwrap_or(0);
            out[sizes + 4 * stream..][..4].copy_from_slice(&size.to_le_bytes());
        }
    }
    out.truncate(at);
}

/// The codes that symbols get, which lie in [`PAIRED`] from `first` on.
#[cfg(test)]
pub(in super::super) fn codes_of(symbols: &[u8], first: u8) -> Option<Codes> {
    shortest(&histogram([symbols]), MAX_LEN).map(|lengths| Codes::new(&lengths, Some(first)))
}

/// Codes of symbols and of pairs of them: the length in the lowest byte, the bits above.
pub(in super::super) struct Codes {
    singles: [u32; 256],
    /// By their number, if all symbols are in range of the first.
    pairs: Option<[u32; PAIRS]>,
}

impl Codes {
    /// By symbol: the length in the lowest byte, the bits above.
    #[cfg(all(feature = "std", target_arch = "x86_64"))]
    pub(in super::super) fn singles(&self) -> &[u32; 256] {
        &self.singles
    }

    fn new(lengths: &Lengths, first: Option<u8>) -> Self {
        let mut singles = [0_u32; 256];
        assign_codes(lengths, |symbol, length, code| {
            singles[usize::from(symbol)] = u32::from(code) << 8 | u32::from(length);
        });
        let pairs = first.map(|first| {
            let single = |distance: usize| singles.get(usize::from(first) + distance).map_or(0, |&code| code);
            core::array::from_fn(|pair| {
                let (low, high) = (single(pair % usize::from(PAIRED)), single(pair / usize::from(PAIRED)));
                (low & !0xff | (high & !0xff) << (low & 0xff)) + (low & 0xff) + (high & 0xff)
            })
        });
        Self { singles, pairs }
    }
}

/// Writes one stream by pairs of symbols and returns its length. `out` has eight bytes more than that.
#[inline(always)]
pub(in super::super) fn write_pairs_anywhere(symbols: &[u8], first: u8, codes: &Codes, out: &mut [u8]) -> usize {
    let Codes { singles, pairs: Some(codes) } = codes else {
        return write_singles_anywhere(symbols, &codes.singles, out);
    };
    let room = out.len();
    let mut buffer = Buffer { held: Code::default(), out };
    let mut pairs = [0; PAIRED_SYMBOLS / 2];
    let code = |pair: u16| Code::of(codes[usize::from(pair) % PAIRS]);
    let (two, odd) = symbols.as_chunks();
    for step in two.chunks(PAIRED_SYMBOLS / 2) {
        let (groups, rest) = pair_up(step, first, &mut pairs).as_chunks::<4>();
        for &[a, b, c, d] in groups {
            buffer.put_both(code(a).then(code(b)), code(c).then(code(d)));
        }
        for &pair in rest {
            buffer.put(code(pair));
        }
    }
    for &symbol in odd {
        buffer.put(Code::of(singles[usize::from(symbol)]));
    }
    room - buffer.finish()
}

/// Writes what is left of a stream whose beginning ends at a position in bits, the last of which are held back; returns the
/// length of the whole. `out` has eight bytes more than that.
#[cfg(all(feature = "std", target_arch = "x86_64"))]
pub(in super::super) fn write_rest(
    symbols: &[u8],
    codes: &[u32; 256],
    (position, held): (usize, u64),
    out: &mut [u8],
) -> usize {
    let room = out.len();
    let [len, ..] = (position % 8).to_le_bytes();
    let held = Code { bits: held, len: len.into() };
    let mut buffer = Buffer { held, out: &mut out[position / 8..] };
    symbols.iter().for_each(|&symbol| buffer.put(Code::of(codes[usize::from(symbol)])));
    room - buffer.finish()
}

/// Writes one stream symbol by symbol and returns its length. `out` has eight bytes more than that.
#[inline(always)]
pub(in super::super) fn write_singles_anywhere(symbols: &[u8], codes: &[u32; 256], out: &mut [u8]) -> usize {
    let room = out.len();
    let mut buffer = Buffer { held: Code::default(), out };
    let code = |symbol: u8| Code::of(codes[usize::from(symbol)]);
    let (groups, rest) = symbols.as_chunks::<8>();
    for &[a, b, c, d, e, f, g, h] in groups {
        // In pairs, so that they need not wait for each other.
        let front = code(a).then(code(b)).then(code(c).then(code(d)));
        let back = code(e).then(code(f)).then(code(g).then(code(h)));
        buffer.put_both(front, back);
    }
    for &symbol in rest {
        buffer.put(code(symbol));
    }
    room - buffer.finish()
}

/// One or several codes, the first lowest. The lower six bits of `len` are how many bits they take; the bits above are of
/// no meaning, and shifts leave them out.
#[derive(Clone, Copy, Default)]
struct Code {
    bits: u64,
    len: u32,
}

/// The bit after the last code of a stream.
const END: Code = Code { bits: 1, len: 1 };

impl Code {
    #[inline(always)]
    fn of(entry: u32) -> Self {
        Self { bits: u64::from(entry >> 8), len: entry }
    }

    #[inline(always)]
    fn then(self, next: Self) -> Self {
        Self { bits: self.bits | next.bits << (self.len & 63), len: self.len.wrapping_add(next.len) }
    }
}

/// Bits that do not make a byte yet, and where they go.
struct Buffer<'a> {
    held: Code,
    out: &'a mut [u8],
}

impl Buffer<'_> {
    /// Writes two times four codes, at once where they fit, as they mostly do.
    #[inline(always)]
    fn put_both(&mut self, front: Code, back: Code) {
        let both = front.then(back);
        // Eight codes have at most 88 bits together, so this is their whole length.
        if both.len & 0xff <= FIT {
            self.put(both);
        } else {
            self.put(front);
            self.put(back);
        }
    }

    /// Writes at most [`FIT`] bits.
    #[inline(always)]
    fn put(&mut self, code: Code) {
        let held = self.held.then(code);
        let out = core::mem::take(&mut self.out);
        out[..8].copy_from_slice(&held.bits.to_le_bytes());
        self.out = &mut out[(held.len & 63) as usize / 8..];
        self.held = Code { bits: held.bits >> (held.len & 56), len: held.len & 7 };
    }

    /// Ends the stream, and returns how much of the room is left.
    #[inline(always)]
    fn finish(mut self) -> usize {
        self.put(END);
        self.out.len() - usize::from(self.held.len > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Symbols of a range of 64 or fewer, the lower ones the likelier.
    fn narrow(first: u8, span: u8, len: usize) -> Vec<u8> {
        let mut state = 0x9e37_79b9_u32;
        let next = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            let [distance, ..] = (state.trailing_zeros() * 3 + (state >> 30)).to_le_bytes();
            first + distance.min(span - 1)
        };
        core::iter::repeat_with(next).take(len).collect()
    }

    const CASES: [(u8, u8); 5] = [(0, 64), (100, 2), (100, 40), (192, 64), (250, 6)];

    #[test]
    fn symbols_that_are_spread_evenly_are_not_worth_coding() {
        let mut found = [0; 2];
        for used in 200..=256 {
            for heaviest in [0, 1, 2, 3, 5, 8] {
                let mut counts = [0; 256];
                (0..used).for_each(|symbol: u32| counts[symbol as usize] = 1000 + symbol % 7 * heaviest * 20);
                let total = counts.iter().map(|&count| u64::from(count)).sum();
                let lengths = shortest(&counts, SHORT_LEN).expect("two symbols and more");
                let is_even = are_even(&counts, total);
                assert!(!is_even || !worth_it(coded_bits(&counts, &lengths), total), "{used} {heaviest}");
                found[usize::from(is_even)] += 1;
            }
        }
        assert!(found.iter().all(|&count| count > 30), "{found:?}");
    }

    #[test]
    fn pairs_are_counted_as_single_symbols_are() {
        for (first, span) in CASES {
            for len in [0, 1, 2, 3, 4095, 4096, 4097, 20_001] {
                let symbols = narrow(first, span, len);
                assert_eq!(counts_by_pairs(&symbols, first), histogram([&symbols[..]]), "{first} {span} {len}");
                let (least, most) = kernel::span(&symbols);
                assert!(symbols.iter().all(|symbol| (least..=most).contains(symbol)));
                assert!(len == 0 || symbols.contains(&least) && symbols.contains(&most));
            }
        }
    }

    #[test]
    fn pairs_are_written_as_single_symbols_are() {
        for (first, span) in CASES {
            for limit in [SHORT_LEN, MAX_LEN] {
                let symbols = narrow(first, span, 30_003);
                let lengths = shortest(&histogram([&symbols[..]]), limit).expect("two symbols and more");
                let codes = Codes::new(&lengths, Some(first));
                for len in [0, 1, 2, 7, 8, 9, 4096, 4105, 30_003] {
                    let symbols = &symbols[..len];
                    let (mut pairs, mut singles) = (alloc::vec![0; 2 * len + 16], alloc::vec![0; 2 * len + 16]);
                    let paired = kernel::write_pairs(symbols, first, &codes, &mut pairs);
                    let single = kernel::write_singles(symbols, &codes.singles, &mut singles);
                    assert!(pairs[..paired] == singles[..single], "{first} {span} {limit} {len}");
                }
            }
        }
    }
}
