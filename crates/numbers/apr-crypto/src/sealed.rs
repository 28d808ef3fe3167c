//! How the bytes of an encrypted tensor are cut (`docs/format/sealing.md`, "Encryption"). A build
//! without encryption needs the lengths, too: it lists encrypted tensors.

/// Plain bytes of one sealed chunk; the last chunk of a tensor may have fewer.
pub const SEALED_CHUNK: usize = 1 << 16;

/// Length of a nonce in bytes.
pub const NONCE_LEN: usize = 12;

/// Bytes that sealing adds to a chunk.
pub const TAG_LEN: usize = 16;

/// Bytes of a whole chunk once it is sealed.
const STORED_CHUNK: u64 = (SEALED_CHUNK + TAG_LEN) as u64;

/// Bytes stored for `plain_len` bytes: 16 more for each chunk. None past 2^64.
#[must_use]
pub const fn sealed_len(plain_len: u64) -> Option<u64> {
    plain_len.checked_add(plain_len.div_ceil(SEALED_CHUNK as u64) * TAG_LEN as u64)
}

/// The inverse of [`sealed_len`]; none when no tensor has this stored length.
#[must_use]
pub const fn plain_len(sealed_len: u64) -> Option<u64> {
    let (chunks, last) = (sealed_len / STORED_CHUNK, sealed_len % STORED_CHUNK);
    match last {
        0 => Some(chunks * SEALED_CHUNK as u64),
        _ if last > TAG_LEN as u64 => Some(chunks * SEALED_CHUNK as u64 + last - TAG_LEN as u64),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_lead_back_and_no_other_length_is_one() {
        for plain in [0, 1, 65_535, 65_536, 65_537, 131_072, 1 << 40] {
            let sealed = sealed_len(plain).expect("it fits");
            assert_eq!(plain_len(sealed), Some(plain));
        }
        assert_eq!(sealed_len(65_537), Some(65_537 + 32));
        for not_sealed in [1, 16, 65_552 + 1, 65_552 + 16] {
            assert_eq!(plain_len(not_sealed), None, "{not_sealed}");
        }
        assert_eq!(sealed_len(u64::MAX), None);
    }
}
