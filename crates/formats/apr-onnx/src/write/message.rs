//! Protobuf messages with holes where the weights come.

use crate::reader::Narrow;

/// A message under construction: its bytes, and holes of known lengths that tensors fill while the
/// file is written.
///
/// Protobuf puts the length of a message in front of it. So a message is complete, holes included,
/// before it becomes a field of another.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Message {
    pieces: Vec<Piece>,
    len: u64,
}

/// A part of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Bytes that are already known.
    Bytes(Vec<u8>),
    /// The bytes of a tensor: its number among the weights, and its length.
    Hole(usize, u64),
    /// The elements of a tensor, of which several fill a byte: its number among the weights, how
    /// they are packed, and how many they are. They come as bytes of their own.
    Packed(usize, Narrow, u64),
    /// Bytes between two tensors.
    Zeros(u64),
}

impl Piece {
    /// Returns the length of the piece in bytes.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Hole(_, len) | Self::Zeros(len) => *len,
            Self::Packed(_, narrow, count) => narrow.packed_len(*count),
        }
    }
}

/// Bytes up to which pieces are put together.
const SMALL: usize = 64 << 10;

/// Encoding of a field's value: the low three bits of its key.
#[derive(Clone, Copy)]
enum Wire {
    Varint = 0,
    Delimited = 2,
    Fixed32 = 5,
}

impl Message {
    /// Bytes, holes included.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Returns the pieces of the message in order.
    pub(crate) fn into_pieces(self) -> Vec<Piece> {
        self.pieces
    }

    /// Adds an integer field.
    pub(crate) fn int(&mut self, field: u32, value: i64) {
        self.key(field, Wire::Varint);
        self.varint(value.cast_unsigned());
    }

    /// Adds a float of single precision.
    pub(crate) fn float(&mut self, field: u32, value: f32) {
        self.key(field, Wire::Fixed32);
        self.raw(&value.to_le_bytes());
    }

    /// Adds a field of bytes.
    pub(crate) fn bytes(&mut self, field: u32, value: &[u8]) {
        self.delimited(field, value.len() as u64);
        self.raw(value);
    }

    /// Adds a text field.
    pub(crate) fn text(&mut self, field: u32, value: &str) {
        self.bytes(field, value.as_bytes());
    }

    /// Adds a text, unless it is empty.
    pub(crate) fn some_text(&mut self, field: u32, value: &str) {
        if !value.is_empty() {
            self.text(field, value);
        }
    }

    /// Adds a message.
    pub(crate) fn message(&mut self, field: u32, value: Self) {
        self.delimited(field, value.len);
        self.len += value.len;
        for piece in value.pieces {
            // Short bytes are put together, for fewer pieces; long ones are not copied.
            match (self.pieces.last_mut(), piece) {
                (Some(Piece::Bytes(before)), Piece::Bytes(bytes)) if bytes.len() <= SMALL => {
                    before.extend(bytes);
                }
                (_, piece) => self.pieces.push(piece),
            }
        }
    }

    /// Adds a placeholder for the bytes of a weight, which are written later.
    pub(crate) fn hole(&mut self, field: u32, hole: Piece) {
        let len = hole.len();
        self.delimited(field, len);
        self.pieces.push(hole);
        self.len += len;
    }

    /// Adds the encoded bytes of a message unchanged.
    pub(crate) fn encoded(&mut self, bytes: &[u8]) {
        self.raw(bytes);
    }

    fn delimited(&mut self, field: u32, len: u64) {
        self.key(field, Wire::Delimited);
        self.varint(len);
    }

    fn key(&mut self, field: u32, wire: Wire) {
        self.varint(u64::from(field) << 3 | wire as u64);
    }

    fn varint(&mut self, mut value: u64) {
        let mut bytes = [0; 10];
        let mut len = 0;
        loop {
            let more = value > 0x7f;
            bytes[len] = (value & 0x7f) as u8 | if more { 0x80 } else { 0 };
            len += 1;
            value >>= 7;
            if !more {
                break;
            }
        }
        self.raw(&bytes[..len]);
    }

    fn raw(&mut self, bytes: &[u8]) {
        self.len += bytes.len() as u64;
        match self.pieces.last_mut() {
            Some(Piece::Bytes(before)) => before.extend_from_slice(bytes),
            _ => self.pieces.push(Piece::Bytes(bytes.to_vec())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_protobufs_encoding() {
        // The examples of protobuf's own documentation.
        let mut inner = Message::default();
        inner.int(1, 150);
        let mut message = Message::default();
        message.text(2, "testing");
        message.message(3, inner);
        let expected = b"\x12\x07testing\x1a\x03\x08\x96\x01".to_vec();
        assert_eq!(message.len(), expected.len() as u64);
        assert_eq!(message.into_pieces(), [Piece::Bytes(expected)]);
        let mut negative = Message::default();
        negative.int(1, -2);
        assert_eq!(
            negative.into_pieces(),
            [Piece::Bytes(b"\x08\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01".to_vec())]
        );
    }

    #[test]
    fn the_length_counts_the_holes() {
        let mut tensor = Message::default();
        tensor.hole(9, Piece::Hole(0, 300));
        let mut message = Message::default();
        message.message(5, tensor);
        message.int(1, 1);
        assert_eq!(message.len(), 3 + 3 + 300 + 2);
        let expected = [
            Piece::Bytes(b"\x2a\xaf\x02\x4a\xac\x02".to_vec()),
            Piece::Hole(0, 300),
            Piece::Bytes(b"\x08\x01".to_vec()),
        ];
        assert_eq!(message.into_pieces(), expected);
    }
}
