//! The payload's encoding: bincode 1 with its defaults, for any serde type.
//!
//! | value | bytes |
//! |---|---|
//! | integers, floats | their width, little-endian; `usize` as `u64` |
//! | `bool` | one byte, 0 or 1 |
//! | `char` | its UTF-8 |
//! | text, byte strings, sequences, maps | length as `u64`, then the content |
//! | `Option` | one byte, 0 or 1, then the value |
//! | enum variants | position as `u32`, then the fields |
//! | structs, tuples, arrays | the fields, with nothing around them |
//!
//! Our own code because the encoding must never change and the input is hostile: bincode itself is
//! unmaintained (RUSTSEC-2025-0141), and what took its place has a wire format, traits or limits of
//! its own. Here a length never exceeds the bytes that are left, nesting stops at [`MAX_DEPTH`],
//! and nothing may be left over.

mod decode;
mod encode;
mod error;

pub use decode::from_bytes;
pub use encode::to_bytes;
pub use error::PayloadError;

/// Deepest nesting of structs, enums, options and sequences that is written and read. Decoding
/// recurses, and a stack overflow can't be caught.
pub const MAX_DEPTH: usize = 256;

#[cfg(test)]
mod tests;
