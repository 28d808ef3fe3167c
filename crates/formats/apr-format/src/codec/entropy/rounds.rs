//! Rounds of lookups in several streams at a time.

/// Lookups between two loads: their codes fit the 57 bits that a load of eight bytes provides at
/// the least.
pub(super) const LOOKUPS: usize = 5;

/// Bytes that a round of lookups moves on by at the most.
const ROUND_BYTES: usize = 7;

/// Read and write positions of a stream.
#[derive(Default)]
pub(in super::super) struct Stream<'a> {
    /// Position of the next input bit.
    pub(super) at: usize,
    /// End of the stream in the input.
    pub(super) stop: usize,
    /// Output symbols, and the position of the next one.
    pub(super) out: &'a mut [u8],
    pub(super) pos: usize,
}

/// A table that is looked up with the next bits of a stream.
pub(in super::super) trait Table {
    /// Symbols of a round at the most.
    const MOST: usize;
    /// Bytes past a round's symbols that it may write.
    const OVERHANG: usize;

    /// Looks up [`LOOKUPS`] entries for each stream: takes their codes off `bits`, writes their
    /// symbols to `out` and returns their number.
    fn lookups<const N: usize>(&self, bits: &mut [u64; N], out: [&mut [u8]; N]) -> [usize; N];

    /// Returns the symbol that `bits` begin with.
    fn first(&self, bits: u64) -> u8;
}

/// Decodes in rounds while every stream has space for a round's most symbols and bytes for its most
/// bits. `N` lookups, one per stream, are in progress at a time.
#[inline(always)]
pub(in super::super) fn run_anywhere<T: Table, const N: usize>(
    table: &T,
    input: &[u8],
    streams: &mut [Stream<'_>],
) {
    let (groups, _) = streams.as_chunks_mut::<N>();
    loop {
        let left = groups.as_flattened().iter().map(|stream| rounds_left::<T>(stream, input.len()));
        let rounds = left.min().unwrap_or(0);
        if rounds == 0 {
            return;
        }
        for _ in 0..rounds {
            // Groups take turns too: while one waits for its last lookups, the other's first are
            // under way.
            for group in &mut *groups {
                round(table, input, group);
            }
        }
    }
}

#[inline(always)]
fn round<T: Table, const N: usize>(table: &T, input: &[u8], streams: &mut [Stream<'_>; N]) {
    let mut bits = [0; N];
    for i in 0..N {
        // A mark above the bits: how far it has moved in the end is how many bits were taken.
        let byte = streams[i].at / 8;
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&input[byte..byte + 8]);
        bits[i] = u64::from_le_bytes(bytes) >> (streams[i].at % 8) | 1 << 63;
    }

    let moved =
        table.lookups(&mut bits, streams.each_mut().map(|stream| &mut stream.out[stream.pos..]));
    for i in 0..N {
        streams[i].at += bits[i].leading_zeros() as usize;
        streams[i].pos += moved[i];
    }
}

#[inline(always)]
fn rounds_left<T: Table>(stream: &Stream<'_>, input_len: usize) -> usize {
    let room = (stream.out.len() - stream.pos).saturating_sub(T::OVERHANG) / T::MOST;
    let bytes = input_len.saturating_sub(stream.at / 8 + 1) / ROUND_BYTES;
    room.min(bytes)
}
