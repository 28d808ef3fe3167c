//! Protocol Buffers, walked over and not decoded.
//!
//! The weights of a model in ONNX, TensorFlow or Core ML lie inside one message of up to 2 GB. A
//! decoder that fills structs would hold the model in memory. A [`Walker`] reads field keys through
//! a small window and skips what is delimited by a length: a tensor costs the reading of its key,
//! and its bytes are a [`Span`] to be read later.
//!
//! ```text
//! message  := field*
//! field    := key value            key: varint, number << 3 | wire type
//! value    := varint               type 0
//!           | 8 bytes              type 1, little-endian
//!           | length bytes         type 2: text, bytes, a message, or packed scalars
//!           | 4 bytes              type 5, little-endian
//! ```
//!
//! Every length is checked against the message that encloses it, messages nest [`MAX_DEPTH`] deep,
//! and what a walk keeps in memory counts against [`Limits::max_index`](crate::Limits::max_index).
//! Groups (types 3 and 4) are refused: no model format has them.
//!
//! ```
//! use apr_core::Limits;
//! use apr_core::protobuf::Walker;
//!
//! // Field 1: the number 150. Field 2: the text "apr".
//! let bytes: &[u8] = b"\x08\x96\x01\x12\x03apr";
//! let mut walker = Walker::new(&bytes, &Limits::default());
//! let mut message = walker.message();
//! let number = message.next(&mut walker)?.expect("a field");
//! assert_eq!((number.number, number.integer()?), (1, 150));
//! let text = message.next(&mut walker)?.expect("a field");
//! assert_eq!(text.text(&mut walker)?, "apr");
//! assert!(message.next(&mut walker)?.is_none());
//! # Ok::<(), apr_core::Error>(())
//! ```

mod field;
mod runs;
mod walker;

pub use field::{Field, MAX_DEPTH, Message, Value};
pub use runs::{Element, Run, Runs};
pub use walker::{Span, Walker, decode_varint};

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::{Code, Limits, Result};

    fn walk(bytes: &[u8]) -> Result<Vec<Field>> {
        let mut walker = Walker::new(&bytes, &Limits::default());
        let mut message = walker.message();
        let mut fields = Vec::new();
        while let Some(field) = message.next(&mut walker)? {
            fields.push(field);
        }
        Ok(fields)
    }

    #[test]
    fn a_length_may_not_exceed_the_message_around() {
        // Field 1 is a message of two bytes, whose field 2 claims four.
        let bytes: &[u8] = b"\x0a\x02\x12\x04\x08\x01\x08\x01";
        let outer = walk(bytes).expect("the outer message is sound")[0];
        let mut walker = Walker::new(&bytes, &Limits::default());
        let error =
            outer.message().and_then(|mut inner| inner.next(&mut walker)).expect_err("too long");
        assert_eq!((error.code(), error.offset()), (Code::Corrupt, Some(2)));
        for cut in [
            &b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f"[..],
            b"\x08",
            b"\x08\x80",
            b"\x0d\0\0\0",
            b"\x09\0",
        ] {
            assert_eq!(walk(cut).expect_err("cut off").code(), Code::Corrupt, "{cut:?}");
        }
        for wrong in [
            &b"\x00\x00"[..],
            b"\x0b",
            b"\x0f",
            b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        ] {
            assert_eq!(walk(wrong).expect_err("no field").code(), Code::Format, "{wrong:?}");
        }
    }

    #[test]
    fn repeated_numbers_are_read_packed_and_one_by_one() {
        let bytes: &[u8] = b"\x08\x01\x0a\x02\x02\x03\x08\x04";
        let mut walker = Walker::new(&bytes, &Limits::default());
        let (mut numbers, mut runs) = (Vec::new(), Runs::default());
        for field in walk(bytes).expect("three fields") {
            field.integers(&mut walker, &mut numbers).expect("numbers");
            runs.add(&mut walker, &field, Element::Varint).expect("numbers");
        }
        assert_eq!(numbers, [1, 2, 3, 4]);
        let found: Vec<_> =
            runs.runs().iter().map(|run| (run.span.offset, run.span.len, run.key_len)).collect();
        assert_eq!(found, [(0, 2, 1), (4, 2, 0), (6, 2, 1)]);
    }

    #[test]
    fn kept_bytes_count_against_the_limit() {
        let limits = Limits { max_index: 10, ..Limits::default() };
        let bytes: &[u8] = b"\x0a\x06abcdef";
        let mut walker = Walker::new(&bytes, &limits);
        let field = walk(bytes).expect("a field")[0];
        assert_eq!(field.text(&mut walker).expect("it fits"), "abcdef");
        assert_eq!(field.text(&mut walker).expect_err("twice does not").code(), Code::Memory);
    }
}
