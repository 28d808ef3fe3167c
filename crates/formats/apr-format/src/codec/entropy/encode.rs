//! Symbols to streams.

use alloc::vec::Vec;

use super::super::kernel;
use super::code::{Lengths, coded_bits, shortest};
use super::pairs::{Codes, PAIRED};
use super::{CONSTANT, HUFFMAN, MAX_LEN, STREAMS};

/// Longest code that a decoder with a table of 1024 entries finds more than one of in a lookup.
const SHORT_LEN: usize = 10;

/// Minimum number of symbols for examining a sample before all of them.
pub(in super::super) const SAMPLED_LEN: usize = 1 << 16;

/// Appends the coded symbols to `out`. `false`, and `out` as it was, when that saves less than a
/// 64th: it would cost more time than it saves bytes. At most `u32::MAX / 2` symbols.
pub(in super::super) fn encode(symbols: &[u8], out: &mut Vec<u8>) -> bool {
    if symbols.len() <= 2 {
        return false;
    }
    if is_noise(symbols) {
        return false;
    }

    let (first, last) = kernel::span(symbols);
    let counts =
        if last - first < PAIRED { counts_by_pairs(symbols, first) } else { histogram([symbols]) };
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

/// Returns `true` if a sample of the symbols shows that coding would not save enough; `false` for
/// few symbols.
pub(in super::super) fn is_noise(symbols: &[u8]) -> bool {
    if symbols.len() < SAMPLED_LEN {
        return false;
    }
    let sample = histogram(symbols.chunks(4096).map(|part| &part[..part.len().min(256)]));
    let sampled = sample.iter().map(|&count| u64::from(count)).sum();
    are_even(&sample, sampled)
        || shortest(&sample, SHORT_LEN)
            .is_some_and(|lengths| !worth_it(coded_bits(&sample, &lengths), sampled))
}

/// Returns `true` if `total` symbols are spread so evenly that no code is worth it.
///
/// Their collision entropy, `-log2(sum of p^2)`, is then at least the 7.875 bits of [`worth_it`].
/// Shannon's entropy, which bounds every code, is never less (Rényi, 1961).
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

/// Returns the lengths of longer codes if they save enough to make up for slower decoding,
/// otherwise `short`.
fn best_limit(counts: &[u32; 256], short: Lengths) -> Lengths {
    let short_bits = coded_bits(counts, &short);
    match shortest(counts, MAX_LEN) {
        Some(long) if coded_bits(counts, &long) + short_bits / 256 <= short_bits => long,
        _ => short,
    }
}

/// Returns the number of occurrences of each byte. Uses eight tables, because equal bytes in a row
/// would wait for each other's count.
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

/// Counts symbols like [`histogram`], but two at a time. All symbols must be among the [`PAIRED`]
/// values from `first` on.
fn counts_by_pairs(symbols: &[u8], first: u8) -> [u32; 256] {
    let mut counts = [0; 256];
    kernel::count_pairs(symbols, first, &mut counts);
    counts
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

/// Returns the codes of symbols that are all among the [`PAIRED`] values from `first` on.
#[cfg(test)]
pub(in super::super) fn codes_of(symbols: &[u8], first: u8) -> Option<Codes> {
    shortest(&histogram([symbols]), MAX_LEN).map(|lengths| Codes::new(&lengths, Some(first)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns symbols of a range of 64 or fewer; lower ones are more likely.
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
                (0..used).for_each(|symbol: u32| {
                    counts[symbol as usize] = 1000 + symbol % 7 * heaviest * 20;
                });
                let total = counts.iter().map(|&count| u64::from(count)).sum();
                let lengths = shortest(&counts, SHORT_LEN).expect("two symbols and more");
                let is_even = are_even(&counts, total);
                assert!(
                    !is_even || !worth_it(coded_bits(&counts, &lengths), total),
                    "{used} {heaviest}"
                );
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
                assert_eq!(
                    counts_by_pairs(&symbols, first),
                    histogram([&symbols[..]]),
                    "{first} {span} {len}"
                );
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
                let lengths =
                    shortest(&histogram([&symbols[..]]), limit).expect("two symbols and more");
                let codes = Codes::new(&lengths, Some(first));
                for len in [0, 1, 2, 7, 8, 9, 4096, 4105, 30_003] {
                    let symbols = &symbols[..len];
                    let (mut pairs, mut singles) =
                        (alloc::vec![0; 2 * len + 16], alloc::vec![0; 2 * len + 16]);
                    let paired = kernel::write_pairs(symbols, first, &codes, &mut pairs);
                    let single = kernel::write_singles(symbols, &codes.singles, &mut singles);
                    assert!(pairs[..paired] == singles[..single], "{first} {span} {limit} {len}");
                }
            }
        }
    }
}
