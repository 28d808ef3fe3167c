//! Messages of protocol buffers, packed by hand.
#![expect(clippy::cast_possible_truncation, reason = "what is packed here is small")]

/// A number in as many bytes as it needs.
pub(super) fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value > 127 {
        bytes.push((value & 127) as u8 | 128);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// A field that is delimited by a length.
pub(super) fn field(number: u64, content: impl AsRef<[u8]>) -> Vec<u8> {
    let content = content.as_ref();
    [varint(number << 3 | 2), varint(content.len() as u64), content.to_vec()].concat()
}

/// A field that is a number.
pub(super) fn number(field: u64, value: u64) -> Vec<u8> {
    [varint(field << 3), varint(value)].concat()
}

/// Returns `count` messages, each made from its number.
pub(super) fn each(count: usize, message: impl Fn(usize) -> Vec<u8>) -> Vec<u8> {
    (0..count).flat_map(message).collect()
}
