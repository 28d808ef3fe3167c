//! How files are told apart that have no magic number: by their first fields.

use apr_core::protobuf::decode_varint;

/// Returns the bytes after a key and a length, and that length, if both are present.
fn delimited(bytes: &[u8], key: u8) -> Option<(&[u8], u64)> {
    let (&first, rest) = bytes.split_first()?;
    let (len, used) = decode_varint(rest)?;
    let rest = rest.get(usize::try_from(used).ok()?..)?;
    (first == key).then_some((rest, len))
}

/// Returns `true` if the first pair is the header of an index.
///
/// It has an empty key, and a message with the number of shards and format version 1.
pub(crate) fn starts_as_index(head: &[u8]) -> bool {
    let Some(&[0, 0, len, 0x08, ..]) = head.get(..4) else { return false };
    let header = head.get(3..3 + usize::from(len)).unwrap_or_default();
    header.windows(4).any(|bytes| bytes == [0x1a, 2, 8, 1])
}

/// Returns `true` if the first fields are version 1 and a graph.
///
/// The graph must start with its description or with a part of it.
///
/// Programs write the fields of a graph in any order. Core ML models have a name there, and ONNX
/// has a text.
pub(crate) fn starts_as_saved_model(head: &[u8]) -> bool {
    let graph = head.strip_prefix(&[0x08, 0x01]).and_then(|rest| delimited(rest, 0x12));
    let Some((graph, len)) = graph else { return false };
    if let Some((info, info_len)) = delimited(graph, 0x0a) {
        return info_len < len
            && matches!(info.first(), Some(0x12 | 0x1a | 0x22 | 0x2a | 0x32 | 0x38));
    }
    // The graph, a collection, a signature, an asset, the graph of objects; all are messages.
    let parts = [0x12, 0x22, 0x2a, 0x32, 0x3a];
    let part = parts.iter().find_map(|key| delimited(graph, *key));
    part.is_some_and(|(part, part_len)| part_len < len && part.first() == Some(&0x0a))
}

/// Returns `true` if the first field is a node, with its name and the name of an operator.
pub(crate) fn starts_as_graph(head: &[u8]) -> bool {
    let is_name = |name: &[u8], first: fn(&u8) -> bool| {
        name.first().is_some_and(first) && name.iter().all(u8::is_ascii_graphic)
    };
    let Some((node, node_len)) = delimited(head, 0x0a) else { return false };
    let Some((name, name_len)) = delimited(node, 0x0a).filter(|(_, len)| *len < node_len) else {
        return false;
    };
    let Some((name, rest)) =
        usize::try_from(name_len).ok().and_then(|len| name.split_at_checked(len))
    else {
        return false;
    };
    let Some((operator, len)) = delimited(rest, 0x12).filter(|(_, len)| (2..=64).contains(len))
    else {
        return false;
    };
    let operator = operator.get(..usize::try_from(len).unwrap_or(usize::MAX)).unwrap_or_default();
    let is_letter = |byte: &u8| byte.is_ascii_alphanumeric() || [b'.', b'_'].contains(byte);
    is_name(name, is_letter) && is_name(operator, |byte| byte.is_ascii_uppercase() || *byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_fields_distinguish_the_kinds_of_files() {
        let graph = b"\x0a\x0c\x0a\x01x\x12\x07MatMul2";
        assert!(starts_as_graph(graph) && !starts_as_saved_model(graph));
        let saved_model = b"\x08\x01\x12\x30\x0a\x07\x22\x05serve\x12\x20";
        assert!(starts_as_saved_model(saved_model) && !starts_as_graph(saved_model));
        // A Core ML model of version 1, with an input named `image`.
        assert!(!starts_as_saved_model(b"\x08\x01\x12\x30\x0a\x17\x0a\x05image\x1a\x0e"));
        let index = b"\0\0\x06\x08\x01\x1a\x02\x08\x01\0";
        assert!(starts_as_index(index) && !starts_as_index(&index[1..]));
        for other in [&b""[..], b"\x0a", b"\x0a\x02\x0a\x01", b"GGUF\x03\0\0\0", b"{\"a\": 1}"] {
            assert!(
                !starts_as_graph(other) && !starts_as_saved_model(other) && !starts_as_index(other)
            );
        }
    }
}
