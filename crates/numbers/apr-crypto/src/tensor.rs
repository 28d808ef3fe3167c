//! A tensor's bytes, enciphered chunk by chunk so that any chunk opens alone.

use alloc::vec::Vec;
use core::fmt;

use apr_core::Result;

use crate::aead::{self, decryption_failed};
use crate::sealed::{NONCE_LEN, SEALED_CHUNK, TAG_LEN, plain_len};

/// Enciphers and deciphers the chunks of one tensor of one file.
pub struct TensorCipher(aead::Cipher);

impl fmt::Debug for TensorCipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TensorCipher(..)")
    }
}

impl TensorCipher {
    pub(crate) fn new(key: &[u8; 32]) -> Self {
        Self(aead::cipher(key))
    }

    /// Appends chunk `number` to `out`, 16 bytes longer than `plain`.
    ///
    /// The caller seals each number once: all chunks of [`SEALED_CHUNK`] bytes, except for the one
    /// marked `last`, which has 1 to [`SEALED_CHUNK`].
    pub fn seal(&self, number: u64, last: bool, plain: &[u8], out: &mut Vec<u8>) {
        aead::seal(&self.0, &nonce(number, last), &[], plain, out);
    }

    /// Deciphers chunk `number` into `out`, which is 16 bytes shorter than `sealed`; on failure
    /// `out` is left alone.
    ///
    /// # Errors
    /// E005 for another key, number or mark, for changed bytes, and when the lengths do not go
    /// together.
    pub fn open(&self, number: u64, last: bool, sealed: &[u8], out: &mut [u8]) -> Result<()> {
        aead::open(&self.0, &nonce(number, last), &[], sealed, out)
    }

    /// A whole tensor's stored bytes, appended to `out`.
    pub fn seal_all(&self, plain: &[u8], out: &mut Vec<u8>) {
        let chunks = plain.len().div_ceil(SEALED_CHUNK);
        out.reserve(plain.len() + chunks * TAG_LEN);
        for (number, chunk) in plain.chunks(SEALED_CHUNK).enumerate() {
            self.seal(number as u64, number + 1 == chunks, chunk, out);
        }
    }

    /// Deciphers chunks `first..` of a tensor; `sealed` holds whole chunks, and the tensor's last
    /// one if `to_end`. `out` is as long as they are without their tags.
    ///
    /// # Errors
    /// E005, with bytes of intact chunks before the bad one in `out`: drop them.
    pub fn open_chunks(
        &self,
        first: u64,
        to_end: bool,
        sealed: &[u8],
        out: &mut [u8],
    ) -> Result<()> {
        if plain_len(sealed.len() as u64) != Some(out.len() as u64) {
            return Err(decryption_failed());
        }
        let chunks = out.len().div_ceil(SEALED_CHUNK);
        let pairs = sealed.chunks(SEALED_CHUNK + TAG_LEN).zip(out.chunks_mut(SEALED_CHUNK));
        for (index, (sealed, out)) in pairs.enumerate() {
            let number = first.checked_add(index as u64).ok_or_else(decryption_failed)?;
            self.open(number, to_end && index + 1 == chunks, sealed, out)?;
        }
        Ok(())
    }
}

fn nonce(number: u64, last: bool) -> [u8; NONCE_LEN] {
    let mut nonce = [0; NONCE_LEN];
    nonce[..8].copy_from_slice(&number.to_le_bytes());
    nonce[NONCE_LEN - 1] = u8::from(last);
    nonce
}
