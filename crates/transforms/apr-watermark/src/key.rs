//! The secret that makes a mark findable.

use apr_core::{Error, Result};
use zeroize::Zeroize;

/// Bytes that a secret has at least.
const SHORTEST: usize = 16;

/// Keeps this use of a secret apart from every other one (BLAKE3 paper, section 6.2).
const CONTEXT: &str = "apr 2026-01 watermark v1";

/// A key for marks, made of a secret; wiped from memory when dropped.
pub struct MarkKey([u8; 32]);

impl MarkKey {
    /// Creates a key from a secret: random bytes, or the unmodified file of a private key.
    ///
    /// The last newline of the file is part of the secret.
    ///
    /// # Errors
    /// E001 for fewer than 16 bytes, and for a public key, which is not a secret.
    pub fn from_secret(secret: &[u8]) -> Result<Self> {
        if secret.len() < SHORTEST {
            return Err(Error::format(format!(
                "a key for watermarks has {SHORTEST} secret bytes or more; these are {}",
                secret.len()
            )));
        }

        // The labels of public keys in PEM end so: `RSA PUBLIC KEY`, too.
        let public = b"PUBLIC KEY-----";
        if secret.windows(public.len()).any(|window| window == public) {
            return Err(Error::format("this is a public key; a watermark needs a secret"));
        }
        Ok(Self(blake3::derive_key(CONTEXT, secret)))
    }

    /// A hash that only this key's owner can make; `purpose` keeps its uses apart.
    pub(super) fn hasher(&self, purpose: &str) -> blake3::Hasher {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        // The zero ends the purpose, so that no purpose with a text reads as another one.
        hasher.update(purpose.as_bytes()).update(&[0]);
        hasher
    }
}

impl Drop for MarkKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl std::fmt::Debug for MarkKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MarkKey(..)")
    }
}
