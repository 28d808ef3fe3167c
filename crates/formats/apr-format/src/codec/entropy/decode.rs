//! Streams to symbols.

use apr_core::{Error, Result};

use super::super::kernel;
use super::code::{Lengths, assign_codes};
use super::rounds::{LOOKUPS, Stream, Table};
use super::{CONSTANT, HUFFMAN, MAX_LEN, STREAMS};

/// Streams whose lookups take turns: as many as the registers hold.
const GROUP: usize = 4;

/// Decodes exactly `out.len()` symbols. Input that the encoder can't produce is E002.
pub(in super::super) fn decode(body: &[u8], out: &mut [u8]) -> Result<()> {
    match *body {
        [CONSTANT, symbol] => {
            out.fill(symbol);
            Ok(())
        }
        [HUFFMAN, first, last, ref rest @ ..] if first < last => {
            let count = usize::from(last - first) + 1;
            let (packed, rest) = rest.split_at_checked(count.div_ceil(2)).ok_or_else(cut)?;
            let mut lengths = [0; 256];
            for (i, length) in lengths[usize::from(first)..].iter_mut().take(count).enumerate() {
                *length = packed[i / 2] >> (4 * (i % 2)) & 0xf;
            }
            let unused = if count % 2 == 1 { packed[count / 2] >> 4 } else { 0 };
            if unused != 0 || lengths[usize::from(first)] == 0 || lengths[usize::from(last)] == 0 {
                return Err(Error::corrupt("a plane's code lengths do not fit their range"));
            }
            decode_streams(&lengths, rest, out)
        }
        _ => Err(Error::corrupt("a plane has an unknown kind")),
    }
}

fn cut() -> Error {
    Error::corrupt("a plane's streams are cut off")
}

fn decode_streams(lengths: &Lengths, rest: &[u8], out: &mut [u8]) -> Result<()> {
    let (mut streams, input) = place_streams(rest, out)?;
    if lengths.iter().any(|&length| usize::from(length) > MAX_LEN) {
        return Err(Error::corrupt("a plane has a code longer than 11 bits"));
    }
    let single =
        Single::new(lengths).ok_or_else(|| Error::corrupt("a plane's codes are not complete"))?;
    match Several::new(&single) {
        Some(several) => decode_with(&several, lengths, input, &mut streams),
        None => decode_with(&single, lengths, input, &mut streams),
    }
}

/// Returns the streams, each with its part of the symbols, and the bytes that they are read from.
fn place_streams<'a>(
    rest: &'a [u8],
    out: &'a mut [u8],
) -> Result<([Stream<'a>; STREAMS], &'a [u8])> {
    let (sizes, input) = rest.split_first_chunk::<{ 4 * (STREAMS - 1) }>().ok_or_else(cut)?;
    let (sizes, _) = sizes.as_chunks::<4>();
    let part = out.len() / STREAMS;
    let mut streams: [Stream<'_>; STREAMS] = Default::default();
    let (mut at, mut left) = (0_usize, out);
    for (i, stream) in streams.iter_mut().enumerate() {
        let (stop, len) = match sizes.get(i) {
            Some(size) => (at.saturating_add(u32::from_le_bytes(*size) as usize), part),
            None => (input.len(), left.len()),
        };
        if stop > input.len() || stop < at {
            return Err(cut());
        }
        let (out, after) = core::mem::take(&mut left).split_at_mut(len);
        *stream = Stream { at: 8 * at, stop, out, pos: 0 };
        (at, left) = (stop, after);
    }

    Ok((streams, input))
}

fn decode_with<T: Table>(
    table: &T,
    lengths: &Lengths,
    input: &[u8],
    streams: &mut [Stream<'_>; STREAMS],
) -> Result<()> {
    kernel::run::<_, GROUP>(table, input, streams);
    for stream in streams {
        kernel::run::<_, 1>(table, input, core::slice::from_mut(stream));
        finish(table, lengths, input, stream)?;
    }
    Ok(())
}

/// Returns eight bytes from `at` on, with zeros past the end.
fn load(input: &[u8], at: usize) -> u64 {
    let rest = input.get(at..).unwrap_or_default();
    match rest.first_chunk() {
        Some(bytes) => u64::from_le_bytes(*bytes),
        None => rest.iter().rev().fold(0, |bits, &byte| bits << 8 | u64::from(byte)),
    }
}

/// Decodes the last symbols of a stream one by one, and checks that they end at the end of the
/// stream.
fn finish(
    table: &impl Table,
    lengths: &Lengths,
    input: &[u8],
    stream: &mut Stream<'_>,
) -> Result<()> {
    for symbol in &mut stream.out[stream.pos..] {
        *symbol = table.first(load(input, stream.at / 8) >> (stream.at % 8));
        stream.at += usize::from(lengths[usize::from(*symbol)]);
    }
    let last = stream.at / 8;
    if last + 1 != stream.stop || input[last] >> (stream.at % 8) != 1 {
        return Err(Error::corrupt("a plane's stream does not end with its symbols"));
    }
    Ok(())
}

/// Returns the first `W` bytes, with a single check against the slice's length.
#[inline(always)]
fn window<const W: usize>(out: &mut [u8]) -> &mut [u8; W] {
    out.first_chunk_mut().unwrap_or_else(|| unreachable!("a round is begun where it has room"))
}

/// Returns the lowest 16 bits, more than any table is indexed with.
#[inline(always)]
fn low_bits(bits: u64) -> usize {
    let [low, high, ..] = bits.to_le_bytes();
    usize::from(u16::from_le_bytes([low, high]))
}

/// One symbol a lookup: in the upper byte the symbol, in the lower its code's length.
struct Single([u16; 1 << MAX_LEN]);

impl Single {
    /// Creates the table, or returns `None` if the code is not complete.
    fn new(lengths: &Lengths) -> Option<Self> {
        let mut entries = [0; 1 << MAX_LEN];
        let complete = assign_codes(lengths, |symbol, length, code| {
            let entry = u16::from(symbol) << 8 | u16::from(length);
            for slot in entries[usize::from(code)..].iter_mut().step_by(1 << length) {
                *slot = entry;
            }
        });
        complete.then_some(Self(entries))
    }
}

impl Table for Single {
    const MOST: usize = LOOKUPS;
    const OVERHANG: usize = 0;

    #[inline(always)]
    fn lookups<const N: usize>(&self, bits: &mut [u64; N], out: [&mut [u8]; N]) -> [usize; N] {
        let out = out.map(window::<LOOKUPS>);
        #[expect(
            clippy::needless_range_loop,
            reason = "the streams take turns, so theirs is the inner loop"
        )]
        for k in 0..LOOKUPS {
            for i in 0..N {
                let entry = self.0[low_bits(bits[i]) % (1 << MAX_LEN)];
                out[i][k] = (entry >> 8) as u8;
                bits[i] >>= entry & 63;
            }
        }
        [LOOKUPS; N]
    }

    fn first(&self, bits: u64) -> u8 {
        (self.0[low_bits(bits) % (1 << MAX_LEN)] >> 8) as u8
    }
}

/// Symbols of an entry of a [`Several`] at the most.
const MANY: usize = 6;

/// Power of two above the position at which the last symbols of a round can begin, `MANY * (LOOKUPS
/// - 1)`.
const WINDOW: usize = 32;

/// One to six symbols a lookup: bits 0-5 the length of their codes together, bits 6-8 their number,
/// from bit 16 on the symbols.
struct Several([u64; 1 << MAX_LEN]);

impl Several {
    /// Creates the table, or returns `None` if codes are so long that a lookup rarely finds a
    /// second one.
    fn new(single: &Single) -> Option<Self> {
        let mut entries = [0; 1 << MAX_LEN];
        let mut found = 0;
        for (index, entry) in entries.iter_mut().enumerate() {
            let (mut taken, mut count, mut symbols) = (0, 0, 0);
            while count < MANY {
                let next = single.0[index >> taken];
                let len = usize::from(next & 0xff);
                if taken + len > MAX_LEN {
                    break;
                }
                taken += len;
                symbols |= u64::from(next >> 8) << (16 + 8 * count);
                count += 1;
            }
            *entry = symbols | (count << 6 | taken) as u64;
            found += count;
        }

        (found > (3 << MAX_LEN) / 2).then_some(Self(entries))
    }
}

impl Table for Several {
    const MOST: usize = MANY * LOOKUPS;
    const OVERHANG: usize = WINDOW + 8 - Self::MOST;

    #[inline(always)]
    fn lookups<const N: usize>(&self, bits: &mut [u64; N], out: [&mut [u8]; N]) -> [usize; N] {
        let out = out.map(window::<{ WINDOW + 8 }>);
        let mut pos = [0; N];
        for _ in 0..LOOKUPS {
            for i in 0..N {
                let entry = self.0[low_bits(bits[i]) % (1 << MAX_LEN)];
                // The remainder is the place itself, and spares a check.
                let at = pos[i] % WINDOW;
                out[i][at..at + 8].copy_from_slice(&(entry >> 16).to_le_bytes());
                bits[i] >>= entry & 63;
                pos[i] += (entry >> 6 & 7) as usize;
            }
        }
        pos
    }

    fn first(&self, bits: u64) -> u8 {
        self.0[low_bits(bits) % (1 << MAX_LEN)].to_le_bytes()[2]
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::super::encode::encode;
    use super::*;

    /// Returns the lengths and the rest of a plane that is Huffman-coded.
    fn parts(body: &[u8]) -> (Lengths, &[u8]) {
        let (first, last) = (usize::from(body[1]), usize::from(body[2]));
        let mut lengths = [0; 256];
        for (i, length) in lengths[first..=last].iter_mut().enumerate() {
            *length = body[3 + i / 2] >> (4 * (i % 2)) & 0xf;
        }
        (lengths, &body[3 + (last - first + 1).div_ceil(2)..])
    }

    fn decode_by<T: Table>(
        table: &T,
        lengths: &Lengths,
        rest: &[u8],
        len: usize,
    ) -> Option<Vec<u8>> {
        let mut out = vec![0; len];
        let (mut streams, input) = place_streams(rest, &mut out).ok()?;
        decode_with(table, lengths, input, &mut streams).ok().map(|()| out)
    }

    #[test]
    fn decoding_several_symbols_per_lookup_equals_one_per_lookup() {
        for kind in 0..4 {
            let symbol = |i: u32| {
                u8::try_from((i.wrapping_mul(0x9e37_79b9) >> 7).leading_zeros()).unwrap_or(0)
                    * (kind + 1)
            };
            let symbols: Vec<u8> = (0..10_007).map(symbol).collect();
            let mut body = Vec::new();
            assert!(encode(&symbols, &mut body));
            let (lengths, rest) = parts(&body);
            let single = Single::new(&lengths).expect("a complete code");
            let several = Several::new(&single).expect("short codes");
            assert!(
                decode_by(&several, &lengths, rest, symbols.len())
                    .is_some_and(|out| out == symbols)
            );
            assert!(
                decode_by(&single, &lengths, rest, symbols.len()).is_some_and(|out| out == symbols)
            );
            for at in (0..rest.len()).step_by(5) {
                let mut broken = rest.to_vec();
                broken[at] ^= 1 << (at % 8);
                let both = [
                    decode_by(&single, &lengths, &broken, symbols.len()),
                    decode_by(&several, &lengths, &broken, symbols.len()),
                ];
                assert!(both[0] == both[1], "{kind} {at}");
            }
        }
    }
}
