//! Symbols to streams.

use alloc::vec::Vec;

use super::code::{Lengths, assign_codes, coded_bits, shortest};
use super::{CONSTANT, HUFFMAN, MAX_LEN, STREAMS};

/// Longest code that the decoder finds more than one of in a lookup.
const SHORT_LEN: usize = 10;

/// Codes that fit the 64 bits of the buffer, with the seven left from those before.
const CODES_A_FLUSH: usize = 5;

/// From this length on, a part of the symbols is looked at before all are.
const SAMPLED_LEN: usize = 1 << 16;

/// Appends the coded symbols to `out`. `false`, and `out` as it was, when that saves less than a 64th: it would cost
/// more time than it saves bytes. At most `u32::MAX / 2` symbols.
pub(in super::super) fn encode(symbols: &[u8], out: &mut Vec<u8>) -> bool {
    if symbols.len() <= 2 {
        return false;
    }
    if symbols.len() >= SAMPLED_LEN {
        let sample = histogram(symbols.chunks(4096).map(|part| &part[..part.len().min(256)]));
        if let Some(lengths) = shortest(&sample, SHORT_LEN)
            && !worth_it(coded_bits(&sample, &lengths), sample.iter().map(|&count| u64::from(count)).sum())
        {
            return false;
        }
    }
    let counts = histogram([symbols]);
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

fn write(symbols: &[u8], lengths: &Lengths, bits: u64, out: &mut Vec<u8>) {
    let has_code = |&symbol: &u8| lengths[usize::from(symbol)] > 0;
    let first = (0..=255).find(has_code).unwrap_or(0);
    let last = (0..=255).rfind(has_code).unwrap_or(0);
    out.extend([HUFFMAN, first, last]);
    let range = &lengths[usize::from(first)..=usize::from(last)];
    out.extend(range.chunks(2).map(|pair| pair[0] | pair.get(1).unwrap_or(&0) << 4));

    // A code's length in the lowest byte, its bits above.
    let mut codes = [0_u32; 256];
    assign_codes(lengths, |symbol, length, code| {
        codes[usize::from(symbol)] = u32::from(code) << 8 | u32::from(length);
    });
    let sizes = out.len();
    let mut at = sizes + 4 * (STREAMS - 1);
    out.resize(at + usize::try_from(bits / 8).unwrap_or(0) + STREAMS + 8, 0);
    let part = symbols.len() / STREAMS;
    for stream in 0..STREAMS {
        let end = if stream + 1 < STREAMS { (stream + 1) * part } else { symbols.len() };
        let written = write_stream(&symbols[stream * part..end], &codes, &mut out[at..]);
        at += written;
        if stream + 1 < STREAMS {
            let size = u32::try_from(written).unwrap_or(0);
            out[sizes + 4 * stream..][..4].copy_from_slice(&size.to_le_bytes());
        }
    }
    out.truncate(at);
}

/// Writes one stream and returns its length. `out` has eight bytes more than that.
fn write_stream(symbols: &[u8], codes: &[u32; 256], out: &mut [u8]) -> usize {
    let mut at = 0;
    let mut held = Code::default();
    let mut put = |code: Code| {
        held = held.then(code);
        out[at..at + 8].copy_from_slice(&held.bits.to_le_bytes());
        at += (held.len & 63) as usize / 8;
        held = Code { bits: held.bits >> (held.len & 56), len: held.len & 7 };
    };
    let code = |symbol: u8| Code::of(codes[usize::from(symbol)]);
    let (groups, rest) = symbols.as_chunks::<CODES_A_FLUSH>();
    for &[a, b, c, d, e] in groups {
        // In pairs, so that they need not wait for each other.
        put(code(a).then(code(b)).then(code(c).then(code(d)).then(code(e))));
    }
    for &symbol in rest {
        put(code(symbol));
    }
    put(END);
    at + usize::from(held.len > 0)
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
    fn of(entry: u32) -> Self {
        Self { bits: u64::from(entry >> 8), len: entry }
    }

    fn then(self, next: Self) -> Self {
        Self { bits: self.bits | next.bits << (self.len & 63), len: self.len.wrapping_add(next.len) }
    }
}
