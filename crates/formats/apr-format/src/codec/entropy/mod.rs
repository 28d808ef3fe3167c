//! Codec 3: an order-0 entropy coder for planes. Canonical Huffman codes of at most 11 bits, eight
//! interleaved streams.
//!
//! The encoding of `n` bytes ("symbols"), `n` being known to the decoder. All integers are
//! little-endian.
//!
//! ```text
//!  0   u8 0             all symbols are equal
//!  1   u8 symbol
//!
//!  0   u8 1             Huffman
//!  1   u8 first         the least symbol that has a code
//!  2   u8 last          the greatest, > first
//!  3   code lengths     of the symbols first..=last, 4 bits each, the lower half of a byte first;
//!                       0: has no code.
//!                       An unused last half byte is 0
//!      u32 x 7          bytes of streams 0 to 6
//!      streams 0 to 7   one after the other; stream 7 takes the rest
//! ```
//!
//! - Stream `i` of the first seven carries the symbols `i * (n / 8) .. (i + 1) * (n / 8)`, rounded
//!   down; stream 7 the rest.
//! - Lengths are at most 11, and the code is complete: `2^-length`, summed over the symbols that
//!   have a code, is 1. So there are at least two.
//! - Codes are assigned as in RFC 1951, 3.2.2: the shorter before the longer, those of a length in
//!   the order of their symbols, each code the one before plus one, shifted to its length; the
//!   first is 0.
//! - A stream is filled from the least significant bit of its first byte up. A code goes in with
//!   its most significant bit first, as in RFC 1951, 3.1.1. After the last code comes a bit that is
//!   1, and zeros fill its byte, which is the last: a stream that holds a symbol more or less than
//!   expected is found out.
//!
//! Whatever else the bytes are is an error, so that there is one decoding and hardly any damage
//! goes unseen.
//!
//! Why so: exponents of trained weights have an entropy near 2.55 bits; these codes take 2.60,
//! within half a percent of BF16's size. A table of 2048 entries, 16 KiB, then decodes three to
//! four symbols by one lookup, six at the most, and eight streams keep a processor busy while
//! lookups are under way. Planes with longer codes take a table of 2048 entries of one symbol. The
//! encoder counts and codes symbols in pairs where at most 64 different ones are in a row.
//!
//! F16 has five bits of exponent, so its top byte carries three bits of mantissa, and codes of some
//! 5.5 bits. Its exponents alone, the other eleven bits as they are, would decode as fast as
//! BF16's, but mantissas are not quite noise: the top byte makes Gaussian F16 84.3 % of its size,
//! the exponent alone 84.9 %, and MiniLM's weights 85.1 % and 85.6 %.

mod code;
mod decode;
mod encode;
mod pairs;
mod rounds;

pub(super) use decode::decode;
#[cfg(test)]
pub(super) use encode::codes_of;
pub(super) use encode::{SAMPLED_LEN, encode, is_noise};
#[cfg(all(feature = "simd", target_arch = "x86_64"))]
pub(super) use pairs::write_rest;
pub(super) use pairs::{
    Codes, count_pairs_anywhere, span_anywhere, write_pairs_anywhere, write_singles_anywhere,
};
pub(super) use rounds::{Stream, Table, run_anywhere};

/// Bits of the longest code.
const MAX_LEN: usize = 11;

/// Streams of a plane.
const STREAMS: usize = 8;

/// First byte of a plane of equal symbols.
const CONSTANT: u8 = 0;

/// First byte of a Huffman-coded plane.
const HUFFMAN: u8 = 1;
