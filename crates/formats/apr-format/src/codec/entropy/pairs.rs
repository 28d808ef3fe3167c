//! The loops over symbols: counted and coded two at a time where few different ones are in a row.

use super::code::{Lengths, assign_codes};

/// Number of code bits that fit the 64 bits of the buffer, besides the seven left from previous
/// codes.
const FIT: u32 = 56;

/// Number of consecutive symbol values that a table of pairs can hold.
pub(super) const PAIRED: u8 = 64;

/// Number of pairs of those symbols.
const PAIRS: usize = PAIRED as usize * PAIRED as usize;

/// Symbols whose pairs are made at a time, few enough for the first-level cache.
const PAIRED_SYMBOLS: usize = 4096;

/// The least and the greatest symbol.
#[inline(always)]
pub(in super::super) fn span_anywhere(symbols: &[u8]) -> (u8, u8) {
    symbols
        .iter()
        .fold((u8::MAX, 0), |(least, most), &symbol| (least.min(symbol), most.max(symbol)))
}

/// Adds the number of occurrences of each symbol to `counts`. All symbols must be among the
/// [`PAIRED`] values from `first` on.
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

/// Fills `pairs` with the numbers of pairs, and returns the filled part.
///
/// The lower six bits are the first symbol's distance from `first`, the bits above the second's.
#[inline(always)]
fn pair_up<'a>(
    symbols: &[[u8; 2]],
    first: u8,
    pairs: &'a mut [u16; PAIRED_SYMBOLS / 2],
) -> &'a [u16] {
    const LOW: u16 = PAIRED as u16 - 1;
    let base = u16::from_le_bytes([first; 2]);
    for (pair, &two) in pairs.iter_mut().zip(symbols) {
        let distances = u16::from_le_bytes(two).wrapping_sub(base);
        *pair = distances & LOW | distances >> 2 & !LOW;
    }
    &pairs[..symbols.len()]
}

/// Codes of symbols and of pairs of them: the length in the lowest byte, the bits above.
pub(in super::super) struct Codes {
    pub(super) singles: [u32; 256],
    /// Codes of pairs by their number, if all symbols are in range of the first.
    pub(super) pairs: Option<[u32; PAIRS]>,
}

impl Codes {
    /// Returns the codes by symbol: the length in the lowest byte, the bits above.
    #[cfg(all(feature = "simd", target_arch = "x86_64"))]
    pub(in super::super) fn singles(&self) -> &[u32; 256] {
        &self.singles
    }

    pub(super) fn new(lengths: &Lengths, first: Option<u8>) -> Self {
        let mut singles = [0_u32; 256];
        assign_codes(lengths, |symbol, length, code| {
            singles[usize::from(symbol)] = u32::from(code) << 8 | u32::from(length);
        });
        let pairs = first.map(|first| {
            let single = |distance: usize| {
                singles.get(usize::from(first) + distance).map_or(0, |&code| code)
            };
            core::array::from_fn(|pair| {
                let (low, high) =
                    (single(pair % usize::from(PAIRED)), single(pair / usize::from(PAIRED)));
                (low & !0xff | (high & !0xff) << (low & 0xff)) + (low & 0xff) + (high & 0xff)
            })
        });

        Self { singles, pairs }
    }
}

/// Writes one stream by pairs of symbols and returns its length. `out` has eight bytes more than
/// that.
#[inline(always)]
pub(in super::super) fn write_pairs_anywhere(
    symbols: &[u8],
    first: u8,
    codes: &Codes,
    out: &mut [u8],
) -> usize {
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

/// Writes the rest of a stream, and returns the length of the whole.
///
/// The part before ends at a position in bits, the last of which are held back. `out` must have
/// eight more bytes than the stream.
#[cfg(all(feature = "simd", target_arch = "x86_64"))]
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
pub(in super::super) fn write_singles_anywhere(
    symbols: &[u8],
    codes: &[u32; 256],
    out: &mut [u8],
) -> usize {
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

/// One or several codes, the first in the lowest bits. The lower six bits of `len` are the number
/// of code bits. Its higher bits have no meaning, and shifts ignore them.
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
        Self {
            bits: self.bits | next.bits << (self.len & 63),
            len: self.len.wrapping_add(next.len),
        }
    }
}

/// Bits that do not make a byte yet, and the output that they are written to.
struct Buffer<'a> {
    held: Code,
    out: &'a mut [u8],
}

impl Buffer<'_> {
    /// Writes two groups of four codes: together if they fit, which is usual, or one after the
    /// other.
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

    /// Ends the stream, and returns the number of unused bytes of the output.
    #[inline(always)]
    fn finish(mut self) -> usize {
        self.put(END);
        self.out.len() - usize::from(self.held.len > 0)
    }
}
