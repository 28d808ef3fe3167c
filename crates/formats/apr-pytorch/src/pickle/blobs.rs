//! Values of a pickle that may be pickles, archives or compressed streams themselves: as they are,
//! or as base64.

/// Values of one pickle that are kept to be looked into.
const MOST: usize = 1024;

/// Bytes that are copied for that, of all of them together.
const MOST_BYTES: usize = 64 << 20;

/// Shortest base64 text that is decoded.
const SHORTEST: usize = 16;

/// Decodes bytes that are encoded as text. Returns `None` if the text is not in this encoding.
type Decode = fn(&[u8]) -> Option<Vec<u8>>;

/// Text encodings of bytes, each with its decoder.
const ENCODINGS: [(&str, Decode); 2] = [("base64", base64), ("hexadecimal digits", hexadecimal)];

/// Bytes that a pickle carries as a value.
#[derive(Debug)]
pub struct Blob {
    /// Offset of the opcode with the value.
    pub offset: u64,
    /// Location or content of the bytes.
    pub bytes: BlobBytes,
}

/// Location or content of a value's bytes.
#[derive(Debug)]
pub enum BlobBytes {
    /// The range of the source from the first offset to the second.
    Lying(u64, u64),
    /// Unescaped bytes in memory, because they are escaped in the file.
    Unescaped(Vec<u8>),
    /// Decoded bytes in memory, because they are written as text in this encoding.
    Encoded(&'static str, Vec<u8>),
}

/// The values kept so far.
#[derive(Debug, Default)]
pub(crate) struct Blobs {
    pub(crate) list: Vec<Blob>,
    copied: usize,
    /// Number of blobs that were dropped, because of their count or their total length.
    pub(crate) dropped: usize,
}

impl Blobs {
    /// Keeps the value of the opcode at `offset` if it may hold a pickle.
    ///
    /// `start` is the offset of its unescaped bytes in the source, if they are stored that way.
    pub(crate) fn offer(&mut self, bytes: &[u8], offset: u64, start: Option<u64>) {
        if is_worth_a_look(bytes) {
            let bytes = match start {
                Some(start) => BlobBytes::Lying(start, start + bytes.len() as u64),
                None => BlobBytes::Unescaped(bytes.to_vec()),
            };
            return self.keep(offset, bytes);
        }

        // Source code may have its payload in the middle of a line.
        let is_text = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/-_=".contains(byte);
        for token in bytes.split(|byte| !is_text(byte)).filter(|token| token.len() >= SHORTEST) {
            // Most texts are words: all of one is decoded only where its start looks like a
            // payload.
            for (by, decode) in ENCODINGS {
                let start = decode(&token[..SHORTEST]).filter(|start| is_worth_a_look(start));
                if let Some(decoded) = start.and_then(|_| decode(token)) {
                    self.keep(offset, BlobBytes::Encoded(by, decoded));
                }
            }
        }
    }

    fn keep(&mut self, offset: u64, bytes: BlobBytes) {
        let copied = match &bytes {
            BlobBytes::Lying(..) => 0,
            BlobBytes::Unescaped(bytes) | BlobBytes::Encoded(_, bytes) => bytes.len(),
        };
        if self.list.len() < MOST && self.copied + copied <= MOST_BYTES {
            self.copied += copied;
            self.list.push(Blob { offset, bytes });
        } else {
            self.dropped += 1;
        }
    }
}

/// Returns `true` if the bytes start like a pickle, an archive, an array or a compressed stream.
fn is_worth_a_look(bytes: &[u8]) -> bool {
    match bytes {
        [0x80, 0..=5, _, ..]
        | [b'P', b'K', 3, 4, ..]
        | [0x1f, 0x8b, ..]
        | [0x78, 0x01 | 0x5e | 0x9c | 0xda, ..] => true,
        [b'B', b'Z', b'h', ..] | [0xfd, b'7', b'z', ..] | [0x93, b'N', b'U', b'M', ..] => true,
        // Protocols 0 and 1 have no mark; a payload in them imports a name, which ends in a line
        // feed.
        [b'c' | b'(' | b'i' | b'}' | b']', rest @ ..] => {
            rest.iter().take(512).any(|&byte| byte == b'\n')
        }
        _ => false,
    }
}

/// Decodes base64 in either alphabet. Ignores leftover bits at the end.
fn base64(text: &[u8]) -> Option<Vec<u8>> {
    let digits = text.iter().take_while(|&&byte| byte != b'=');
    let mut decoded = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count) = (0_u32, 0);
    for &digit in digits {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => return None,
        };

        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            decoded.push((bits >> count & 0xff) as u8);
        }
    }

    Some(decoded)
}

/// Decodes hexadecimal digits of either case; one that is left over at the end is not looked at.
fn hexadecimal(text: &[u8]) -> Option<Vec<u8>> {
    let digits = &text[..text.len() / 2 * 2];
    base16ct::mixed::decode_vec(digits).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_of_both_alphabets_is_decoded() {
        // RFC 4648, section 10.
        for (text, expected) in
            [("Zg==", "f"), ("Zm8=", "fo"), ("Zm9vYmFy", "foobar"), ("Zm9vYg", "foob")]
        {
            assert_eq!(base64(text.as_bytes()).as_deref(), Some(expected.as_bytes()));
        }
        assert_eq!(base64(b"-_-_"), base64(b"+/+/"));
        assert_eq!(base64(b"a b"), None);
        assert_eq!(hexadecimal(b"666f6F62"), Some(b"foob".to_vec()));
        assert_eq!(hexadecimal(b"66 f"), None);
    }
}
