//! X25519 (RFC 7748).

use core::fmt;

use apr_core::Result;
use x25519_dalek::StaticSecret;
use zeroize::Zeroizing;

/// An X25519 private key.
#[derive(Clone)]
pub struct DecryptionKey(pub(crate) StaticSecret);

impl DecryptionKey {
    /// Creates a key from its bytes. They are clamped on every use (RFC 7748 §5).
    #[must_use]
    pub fn from_bytes(bytes: &[u8; 32]) -> Self {
        Self(StaticSecret::from(*bytes))
    }

    /// The public key.
    #[must_use]
    pub fn public_bytes(&self) -> [u8; 32] {
        x25519_dalek::PublicKey::from(&self.0).to_bytes()
    }

    /// The key's own bytes.
    #[must_use]
    pub fn secret_bytes(&self) -> Zeroizing<[u8; 32]> {
        Zeroizing::new(self.0.to_bytes())
    }

    /// The secret shared with the owner of `public` (RFC 7748 §6.1); a key is derived from it,
    /// never used as one.
    ///
    /// # Errors
    /// E005 for a public key of small order, with which the secret is zero whatever the private
    /// key.
    pub fn shared(&self, public: &[u8; 32]) -> Result<Zeroizing<[u8; 32]>> {
        let shared = self.0.diffie_hellman(&x25519_dalek::PublicKey::from(*public));
        if !shared.was_contributory() {
            return Err(crate::aead::decryption_failed());
        }
        Ok(Zeroizing::new(shared.to_bytes()))
    }
}

impl fmt::Debug for DecryptionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DecryptionKey(..)")
    }
}
