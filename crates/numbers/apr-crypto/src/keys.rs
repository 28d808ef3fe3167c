//! Pairs of keys: Ed25519 for signatures, X25519 for encryption.

use alloc::format;
use alloc::string::String;

use apr_core::{Error, Result};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

#[cfg(feature = "encryption")]
use crate::decryption_key::DecryptionKey;
use crate::kind::KeyKind;
use crate::pem;
#[cfg(feature = "signing")]
use crate::signing_key::SigningKey;

/// A private key of either kind.
///
/// ```
/// use apr_crypto::{KeyKind, PrivateKey, PublicKey};
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
    /// Creates a key from 32 random bytes, which must be secret.
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

    /// Returns the purpose of the key.
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
