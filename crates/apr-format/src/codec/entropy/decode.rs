//! Streams to symbols.

use core::cell::Cell;

use apr_core::{Error, Result};

use super::super::kernel;
use super::code::{Lengths, assign_codes};
use super::{CONSTANT, HUFFMAN, MAX_LEN, STREAMS};

/// Lookups between two loads: their codes fit the 57 bits that a load of eight bytes provides at the least.
const LOOKUPS: usize = 5;

/// Streams whose lookups take turns: as many as the registers hold.
const GROUP: usize = 4;

/// Bytes that a round of lookups moves on by at the most.
const ROUND_BYTES: usize = 7;

/// Decodes exactly `out.len()` symbols. Anything but what the encoder makes of some symbols: E002.
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
        _ => Err(Error::corrupt("a plane is of no known kind")),
    }
}

fn cut() -> Error {
    Error::corrupt("a plane's streams are cut off")
}

/// Where a stream is being read from and written to.
#[derive(Clone, Copy, Default)]
pub(in super::super) struct Stream {
    /// Byte of the input, and bit of it, that come next.
    at: usize,
    bit: u32,
    /// Place of the next symbol.
    pos: usize,
    /// Where the stream ends in the input.
    stop: usize,
    /// Where its symbols end.
    end: usize,
}

fn decode_streams(lengths: &Lengths, rest: &[u8], out: &mut [u8]) -> Result<()> {
    let (sizes, input) = rest.split_first_chunk::<{ 4 * (STREAMS - 1) }>().ok_or_else(cut)?;
    let (sizes, _) = sizes.as_chunks::<4>();
    let part = out.len() / STREAMS;
    let mut streams = [Stream::default(); STREAMS];
    let mut at = 0_usize;
    for (i, stream) in streams.iter_mut().enumerate() {
        let (stop, end) = match sizes.get(i) {
            Some(size) => (at.saturating_add(u32::from_le_bytes(*size) as usize), (i + 1) * part),
            None => (input.len(), out.len()),
        };
        if stop > input.len() || stop < at {
            return Err(cut());
        }
        *stream = Stream { at, bit: 0, pos: i * part, stop, end };
        at = stop;
    }

    if lengths.iter().any(|&length| usize::from(length) > MAX_LEN) {
        return Err(Error::corrupt("a plane has a code longer than 11 bits"));
    }
    let single = Single::new(lengths).ok_or_else(|| Error::corrupt("a plane's codes are not complete"))?;
    match Triple::new(&single, lengths) {
        Some(triple) => decode_with(&triple, lengths, input, &mut streams, out)?,
        None => decode_with(&single, lengths, input, &mut streams, out)?,
    }
    Ok(())
}

fn decode_with<T: Table>(
    table: &T,
    lengths: &Lengths,
    input: &[u8],
    streams: &mut [Stream; STREAMS],
    out: &mut [u8],
) -> Result<()> {
    kernel::run::<_, GROUP>(table, input, streams, out);
    for stream in streams {
        kernel::run::<_, 1>(table, input, core::slice::from_mut(stream), out);
        finish(table, lengths, input, stream, out)?;
    }
    Ok(())
}

/// Decodes in rounds as long as every stream has room for a round's most symbols and bytes for its most bits. `N` lookups,
/// one a stream, are under way at a time.
#[inline(always)]
pub(in super::super) fn run_anywhere<T: Table, const N: usize>(
    table: &T,
    input: &[u8],
    streams: &mut [Stream],
    out: &mut [u8],
) {
    let out = Cell::from_mut(out).as_slice_of_cells();
    let (groups, _) = streams.as_chunks_mut::<N>();
    loop {
        let left = groups.as_flattened().iter().map(|stream| rounds_left::<T>(stream, input.len()));
        let rounds = left.min().unwrap_or(0);
        if rounds == 0 {
            return;
        }
        for _ in 0..rounds {
            // Groups take turns too: while one waits for its last lookups, the other's first are under way.
            for group in &mut *groups {
                round(table, input, group, out);
            }
        }
    }
}

#[inline(always)]
fn round<T: Table, const N: usize>(table: &T, input: &[u8], streams: &mut [Stream; N], out: &[Cell<u8>]) {
    let mut bits = [0; N];
    for i in 0..N {
        // A mark above the bits: how far it has moved in the end is how many bits were taken.
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&input[streams[i].at..][..8]);
        bits[i] = u64::from_le_bytes(bytes) >> streams[i].bit | 1 << 63;
    }
    let moved = table.lookups(&mut bits, core::array::from_fn(|i| &out[streams[i].pos..]));
    for i in 0..N {
        let taken = streams[i].bit + bits[i].leading_zeros();
        streams[i].pos += moved[i];
        streams[i].at += (taken / 8) as usize;
        streams[i].bit = taken % 8;
    }
}

#[inline(always)]
fn rounds_left<T: Table>(stream: &Stream, input_len: usize) -> usize {
    let room = (stream.end - stream.pos).saturating_sub(T::OVERHANG) / T::MOST;
    let bytes = input_len.saturating_sub(stream.at + 1) / ROUND_BYTES;
    room.min(bytes)
}

/// Eight bytes from `at` on, zeros past the end.
fn load(input: &[u8], at: usize) -> u64 {
    let rest = input.get(at..).unwrap_or_default();
    match rest.first_chunk() {
        Some(bytes) => u64::from_le_bytes(*bytes),
        None => rest.iter().rev().fold(0, |bits, &byte| bits << 8 | u64::from(byte)),
    }
}

/// Decodes the last symbols of a stream one by one and checks that they end where the stream does.
fn finish(table: &impl Table, lengths: &Lengths, input: &[u8], stream: &mut Stream, out: &mut [u8]) -> Result<()> {
    for symbol in &mut out[stream.pos..stream.end] {
        *symbol = table.first(load(input, stream.at) >> stream.bit);
        let taken = stream.bit + u32::from(lengths[usize::from(*symbol)]);
        stream.at += (taken / 8) as usize;
        stream.bit = taken % 8;
    }
    if stream.at + 1 != stream.stop || input[stream.at] >> stream.bit != 1 {
        return Err(Error::corrupt("a plane's stream does not end with its symbols"));
    }
    Ok(())
}

/// The first `W` places: their one check against the slice's length.
#[inline(always)]
fn window<const W: usize>(out: &[Cell<u8>]) -> &[Cell<u8>; W] {
    out.first_chunk().unwrap_or_else(|| unreachable!("a round is begun where it has room"))
}

/// More of the lowest bits than any table is looked up with.
#[inline(always)]
fn low_bits(bits: u64) -> usize {
    let [low, high, ..] = bits.to_le_bytes();
    usize::from(u16::from_le_bytes([low, high]))
}

/// A table that is looked up with the next bits of a stream.
pub(in super::super) trait Table {
    /// Symbols of a round at the most.
    const MOST: usize;
    /// Bytes past a round's symbols that it may write.
    const OVERHANG: usize;

    /// Looks up [`LOOKUPS`] entries for each stream: takes their codes off `bits`, writes their symbols to `out` and
    /// returns how many there are.
    fn lookups<const N: usize>(&self, bits: &mut [u64; N], out: [&[Cell<u8>]; N]) -> [usize; N];

    /// The symbol that `bits` begin with.
    fn first(&self, bits: u64) -> u8;
}

/// One symbol a lookup: in the upper byte the symbol, in the lower its code's length.
struct Single([u16; 1 << MAX_LEN]);

impl Single {
    /// `None` unless the code is complete.
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
    fn lookups<const N: usize>(&self, bits: &mut [u64; N], out: [&[Cell<u8>]; N]) -> [usize; N] {
        let out = out.map(window::<LOOKUPS>);
        for k in 0..LOOKUPS {
            for i in 0..N {
                let entry = self.0[low_bits(bits[i]) % (1 << MAX_LEN)];
                out[i][k].set((entry >> 8) as u8);
                bits[i] >>= entry & 63;
            }
        }
        [LOOKUPS; N]
    }

    fn first(&self, bits: u64) -> u8 {
        (self.0[low_bits(bits) % (1 << MAX_LEN)] >> 8) as u8
    }
}

/// Bits of the index of a [`Triple`].
const TRIPLE_BITS: u32 = 10;

/// One to three symbols a lookup: bits 0-5 the length of their codes together, bits 6-7 their number, then the symbols.
struct Triple([u32; 1 << TRIPLE_BITS]);

impl Triple {
    /// `None` when a code is too long, or codes are so long that a lookup rarely finds a second.
    fn new(single: &Single, lengths: &Lengths) -> Option<Self> {
        if lengths.iter().any(|&length| u32::from(length) > TRIPLE_BITS) {
            return None;
        }
        let mut entries = [0; 1 << TRIPLE_BITS];
        let mut found = 0;
        for (index, entry) in entries.iter_mut().enumerate() {
            let (mut taken, mut count, mut symbols) = (0, 0, 0);
            while count < 3 {
                let next = u32::from(single.0[index >> taken]);
                if taken + (next & 0xff) > TRIPLE_BITS {
                    break;
                }
                taken += next & 0xff;
                symbols |= (next >> 8) << (8 + 8 * count);
                count += 1;
            }
            *entry = symbols | count << 6 | taken;
            found += count;
        }
        (found > (3 << TRIPLE_BITS) / 2).then_some(Self(entries))
    }
}

impl Table for Triple {
    const MOST: usize = 3 * LOOKUPS;
    const OVERHANG: usize = 4;

    #[inline(always)]
    fn lookups<const N: usize>(&self, bits: &mut [u64; N], out: [&[Cell<u8>]; N]) -> [usize; N] {
        let out = out.map(window::<{ Self::MOST + Self::OVERHANG }>);
        let mut pos = [0; N];
        for _ in 0..LOOKUPS {
            for i in 0..N {
                let entry = self.0[low_bits(bits[i]) % (1 << TRIPLE_BITS)];
                // At most 12 before the last lookup: the remainder is itself, and needs no check against the window.
                let pos = &mut pos[i];
                for (k, byte) in (entry >> 8).to_le_bytes().into_iter().enumerate() {
                    out[i][*pos % 16 + k].set(byte);
                }
                bits[i] >>= entry & 63;
                *pos += (entry >> 6 & 3) as usize;
            }
        }
        pos
    }

    fn first(&self, bits: u64) -> u8 {
        self.0[low_bits(bits) % (1 << TRIPLE_BITS)].to_le_bytes()[1]
    }
}
