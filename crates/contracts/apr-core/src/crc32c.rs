//! CRC-32C (Castagnoli), by which TensorFlow checks blocks and tensors, and TensorStore its trees.

/// The polynomial, bits reversed.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// Constant that TensorFlow adds to a stored checksum, so that checksums of checksums differ.
const MASK: u32 = 0xa282_ead8;

/// For each byte, and each number of zero bytes after it, what it contributes.
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let (mut byte, mut value) = (0, 0_u32);
    while byte < 256 {
        let mut sum = value;
        let mut bit = 0;
        while bit < 8 {
            sum = if sum & 1 == 0 { sum >> 1 } else { sum >> 1 ^ POLYNOMIAL };
            bit += 1;
        }
        tables[0][byte] = sum;
        byte += 1;
        value += 1;
    }
    let mut zeros = 1;
    while zeros < 8 {
        let mut byte = 0;
        while byte < 256 {
            let sum: u32 = tables[zeros - 1][byte];
            tables[zeros][byte] = sum >> 8 ^ tables[0][(sum & 0xff) as usize];
            byte += 1;
        }
        zeros += 1;
    }
    tables
}

/// A checksum that is being computed.
#[derive(Debug, Clone, Copy)]
pub struct Crc32c(u32);

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

impl Crc32c {
    /// Returns the checksum of no bytes.
    #[must_use]
    pub const fn new() -> Self {
        Self(u32::MAX)
    }

    /// Adds bytes to it.
    pub fn update(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            let word = u64::from_le_bytes(*word) ^ u64::from(self.0);
            let bytes = word.to_le_bytes();
            self.0 = (0..8).fold(0, |sum, at| sum ^ TABLES[7 - at][usize::from(bytes[at])]);
        }
        for byte in rest {
            self.0 = self.0 >> 8 ^ TABLES[0][usize::from(self.0.to_le_bytes()[0] ^ byte)];
        }
    }

    /// Returns the checksum of the bytes so far.
    #[must_use]
    pub const fn value(self) -> u32 {
        !self.0
    }

    /// The checksum as TensorFlow stores it.
    #[must_use]
    pub const fn masked(self) -> u32 {
        self.value().rotate_right(15).wrapping_add(MASK)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn checksums_match_rfc_3720() {
        // Appendix B.4: 32 bytes of zeros, of ones, ascending.
        for (bytes, expected) in [
            (vec![0; 32], 0x8a91_36aa_u32),
            (vec![0xff; 32], 0x62a8_ab43),
            ((0..32).collect(), 0x46dd_794e),
        ] {
            for cut in [0, 3, 8, 32] {
                let mut sum = Crc32c::new();
                sum.update(&bytes[..cut]);
                sum.update(&bytes[cut..]);
                assert_eq!(sum.value(), expected, "{bytes:?} cut at {cut}");
            }
        }
    }
}
