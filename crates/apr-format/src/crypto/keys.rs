//! Pairs of keys: Ed25519 for signatures, X25519 for encryption.

use alloc::format;
use alloc::string::String;
use core::fmt;

use apr_core::{Error, Result};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use super::kind::KeyKind;
use super::pem;

/// A private key of either kind.
///
/// ```
/// use apr_format::crypto::{KeyKind, PrivateKey, PublicKey};
///
/// // Never like this: the 32 bytes come from the operating system.
/// let key = PrivateKey::generate(KeyKind::Signing, &[7; 32])?;
/// let read = PrivateKey::from_pem(&key.to_pem())?;
/// assert_eq!(read.public(), PublicKey::from_pem(&key.public().to_pem())?);
/// # Ok::<(), apr_core::Error>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum PrivateKey {
    /// Signs files and licences.
    #[cfg(feature = "signing")]
    Signing(SigningKey),
    /// Opens files encrypted for its public key.
    #[cfg(feature = "encryption")]
    Decryption(DecryptionKey),
}

/// A public key of either kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PublicKey {
    /// Ed25519: verifies signatures.
    Verifying([u8; 32]),
    /// X25519: files are encrypted for it.
    Recipient([u8; 32]),
}

impl PrivateKey {
    /// A new key from 32 random bytes that nobody else has.
    ///
    /// # Errors
    /// E003 when this build lacks that kind.
    pub fn generate(kind: KeyKind, random: &[u8; 32]) -> Result<Self> {
        match kind {
            #[cfg(feature = "signing")]
            KeyKind::Signing => Ok(Self::Signing(SigningKey::from_bytes(random))),
            #[cfg(feature = "encryption")]
            KeyKind::Encryption => Ok(Self::Decryption(DecryptionKey::from_bytes(random))),
            #[cfg(not(all(feature = "signing", feature = "encryption")))]
            missing => {
                let _ = random;
                Err(Error::version(format!("this build has no keys for {missing:?}")))
            }
        }
    }

    /// Reads PKCS#8, version 1 or 2, in PEM ("PRIVATE KEY"), without a passphrase.
    ///
    /// # Errors
    /// E001 when the text is something else, E003 for a key of another algorithm or of a kind that
    /// this build lacks.
    pub fn from_pem(text: &str) -> Result<Self> {
        let bytes = pem::read_private(text)?;
        let key = Self::generate(bytes.kind, &bytes.secret)?;
        if bytes.public.is_some_and(|public| public != *key.public().bytes()) {
            return Err(Error::format(
                "the private key and the public key stored with it are not a pair",
            ));
        }
        Ok(key)
    }

    /// Writes PKCS#8, version 1, in PEM.
    #[must_use]
    pub fn to_pem(&self) -> Zeroizing<String> {
        match self {
            #[cfg(feature = "signing")]
            Self::Signing(key) => pem::write_private(KeyKind::Signing, key.0.as_bytes()),
            #[cfg(feature = "encryption")]
            Self::Decryption(key) => pem::write_private(KeyKind::Encryption, key.0.as_bytes()),
        }
    }

    /// The public key of the pair.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        match self {
            #[cfg(feature = "signing")]
            Self::Signing(key) => PublicKey::Verifying(key.public_bytes()),
            #[cfg(feature = "encryption")]
            Self::Decryption(key) => PublicKey::Recipient(key.public_bytes()),
        }
    }
}

impl PublicKey {
    /// Reads SPKI in PEM ("PUBLIC KEY").
    ///
    /// # Errors
    /// E001 when the text is something else, E003 for a key of another algorithm.
    pub fn from_pem(text: &str) -> Result<Self> {
        let (kind, bytes) = pem::read_public(text)?;
        Ok(match kind {
            KeyKind::Signing => Self::Verifying(bytes),
            KeyKind::Encryption => Self::Recipient(bytes),
        })
    }

    /// Writes SPKI in PEM.
    #[must_use]
    pub fn to_pem(&self) -> String {
        pem::write_public(self.kind(), self.bytes())
    }

    /// What it is for.
    #[must_use]
    pub fn kind(&self) -> KeyKind {
        match self {
            Self::Verifying(_) => KeyKind::Signing,
            Self::Recipient(_) => KeyKind::Encryption,
        }
    }

    /// The key itself.
    #[must_use]
    pub fn bytes(&self) -> &[u8; 32] {
        match self {
            Self::Verifying(bytes) | Self::Recipient(bytes) => bytes,
        }
    }

    /// Short name for people: `ed25519:` or `x25519:` and the first 8 bytes of the SHA-256 of the
    /// key in hex.
    ///
    /// Enough to tell keys apart, not to trust one by: 2^64 tries find another key of the same
    /// fingerprint.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let hash = Sha256::digest(self.bytes());
        let algorithm = match self {
            Self::Verifying(_) => "ed25519",
            Self::Recipient(_) => "x25519",
        };
        format!("{algorithm}:{}", base16ct::lower::encode_string(&hash[..8]))
    }
}

/// An Ed25519 private key.
#[cfg(feature = "signing")]
#[derive(Clone)]
pub struct SigningKey(ed25519_dalek::SigningKey);

#[cfg(feature = "signing")]
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
        use ed25519_dalek::Signer;
        self.0.sign(message).to_bytes()
    }
}

#[cfg(feature = "signing")]
impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey(..)")
    }
}

/// An X25519 private key.
#[cfg(feature = "encryption")]
#[derive(Clone)]
pub struct DecryptionKey(x25519_dalek::StaticSecret);

#[cfg(feature = "encryption")]
impl DecryptionKey {
    /// The key of these bytes; they are clamped as RFC 7748 §5 says whenever they are used.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; 32]) -> Self {
        Self(x25519_dalek::StaticSecret::from(*bytes))
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
            return Err(super::aead::decryption_failed());
        }
        Ok(Zeroizing::new(shared.to_bytes()))
    }
}

#[cfg(feature = "encryption")]
impl fmt::Debug for DecryptionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DecryptionKey(..)")
    }
}
