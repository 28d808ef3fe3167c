//! Ed25519 (RFC 8032).

use core::fmt;

use ed25519_dalek::Signer;

/// An Ed25519 private key.
#[derive(Clone)]
pub struct SigningKey(pub(crate) ed25519_dalek::SigningKey);

impl SigningKey {
    /// The key with this seed (RFC 8032 §5.1.5).
    #[must_use]
    pub fn from_bytes(seed: &[u8; 32]) -> Self {
        Self(ed25519_dalek::SigningKey::from_bytes(seed))
    }

    /// The public key.
    #[must_use]
    pub fn public_bytes(&self) -> [u8; 32] {
        self.0.verifying_key().to_bytes()
    }

    /// The signature of `message`.
    #[must_use]
    pub fn sign(&self, message: &[u8]) -> [u8; 64] {
        self.0.sign(message).to_bytes()
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey(..)")
    }
}
