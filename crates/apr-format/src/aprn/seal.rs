//! Encryption of the payload (seed 004 §5.2, §5.3; `spec/legacy.md` table B) and the signature over the file (§5.4).
//!
//! Both layouts of encryption look alike; only who opens a file knows which one it is.

use alloc::vec::Vec;

#[cfg(any(feature = "encryption", feature = "signing"))]
use apr_core::Code;
use apr_core::{Error, Result};

use super::Secret;
use super::container::SIGNATURE_LEN;

/// Fills its argument with random bytes that nobody can foretell: the operating system's, a browser's.
pub type FillRandom<'a> = dyn FnMut(&mut [u8]) -> Result<()> + 'a;

/// For whom a payload is encrypted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Protection {
    /// Whoever knows the password: Argon2id with 19 MiB, 2 passes, 1 lane.
    Password(Secret),
    /// Whoever has the secret key of this X25519 public key.
    Recipient([u8; 32]),
}

#[cfg(feature = "encryption")]
fn failed() -> Error {
    Error::new(Code::Decrypt, "the payload does not decrypt: the key or password is wrong, or bytes were changed")
}

#[cfg(any(feature = "encryption", feature = "signing"))]
fn secret_key(secret: &Secret, what: &str) -> Result<[u8; 32]> {
    let key = secret.bytes().try_into();
    key.map_err(|_| Error::format(alloc::format!("the {what} has {} bytes instead of 32", secret.bytes().len())))
}

#[cfg(feature = "encryption")]
pub(super) use encryption::{open_for_identity, open_with_password, seal};

#[cfg(feature = "encryption")]
mod encryption {
    use alloc::vec::Vec;

    use aes_gcm::aead::{AeadInOut, KeyInit, Nonce, Tag};
    use aes_gcm::{Aes256Gcm, Key};
    use apr_core::{Code, Error, Result};
    use argon2::Argon2;
    use hkdf::Hkdf;
    use sha2::Sha256;
    use x25519_dalek::{PublicKey, StaticSecret};
    use zeroize::Zeroizing;

    use super::{FillRandom, Protection, failed, secret_key};
    use crate::aprn::Secret;

    const INFO: &[u8] = b"apr-v1-encrypt";
    const TAG_LEN: usize = 16;
    /// Bytes of the recipient's public key that stand in the file.
    const HINT_LEN: usize = 8;

    type Bytes32 = Zeroizing<[u8; 32]>;

    /// The stored form of a payload: what leads to the key, then nonce, ciphertext and tag.
    pub(in crate::aprn) fn seal(
        payload: &[u8],
        protection: &Protection,
        random: &mut FillRandom<'_>,
    ) -> Result<Vec<u8>> {
        let mut stored = Vec::new();
        let key = match protection {
            Protection::Password(password) => {
                let mut salt = [0; 16];
                random(&mut salt)?;
                stored.extend_from_slice(&salt);
                password_key(password, &salt)?
            }
            Protection::Recipient(public) => {
                let mut ephemeral = Zeroizing::new([0; 32]);
                random(&mut *ephemeral)?;
                let ephemeral = StaticSecret::from(*ephemeral);
                stored.extend_from_slice(PublicKey::from(&ephemeral).as_bytes());
                stored.extend_from_slice(&public[..HINT_LEN]);
                shared_key(&ephemeral, public)?
            }
        };
        let mut nonce = [0; 12];
        random(&mut nonce)?;
        stored.extend_from_slice(&nonce);
        let start = stored.len();
        stored.extend_from_slice(payload);
        let tag = Aes256Gcm::new(&Key::<Aes256Gcm>::from(*key))
            .encrypt_inout_detached(&Nonce::<Aes256Gcm>::from(nonce), &[], (&mut stored[start..]).into())
            .map_err(|_| Error::memory("the payload is too long for AES-GCM"))?;
        stored.extend_from_slice(&tag);
        Ok(stored)
    }

    /// Decrypts `salt || nonce || ciphertext || tag`.
    ///
    /// # Errors
    /// E002 when it is too short, E005 for a wrong password or changed bytes.
    pub(in crate::aprn) fn open_with_password(stored: &[u8], password: &Secret) -> Result<Vec<u8>> {
        let (salt, sealed) = stored.split_at_checked(16).ok_or_else(too_short)?;
        open(&*password_key(password, salt)?, sealed)
    }

    /// Decrypts `ephemeral public key || start of the recipient's public key || nonce || ciphertext || tag`.
    ///
    /// # Errors
    /// E002 when it is too short, E005 for another recipient or changed bytes.
    pub(in crate::aprn) fn open_for_identity(stored: &[u8], identity: &Secret) -> Result<Vec<u8>> {
        let (ephemeral, rest) = stored.split_first_chunk::<32>().ok_or_else(too_short)?;
        let (hint, sealed) = rest.split_at_checked(HINT_LEN).ok_or_else(too_short)?;
        let secret = StaticSecret::from(*Zeroizing::new(secret_key(identity, "secret key")?));
        if hint != &PublicKey::from(&secret).as_bytes()[..HINT_LEN] {
            return Err(Error::new(Code::Decrypt, "the payload is encrypted for another key, or with a password"));
        }
        open(&*shared_key(&secret, ephemeral)?, sealed)
    }

    fn open(key: &[u8; 32], sealed: &[u8]) -> Result<Vec<u8>> {
        let (nonce, sealed) = sealed.split_first_chunk::<12>().ok_or_else(too_short)?;
        let (ciphertext, tag) = sealed.split_last_chunk::<TAG_LEN>().ok_or_else(too_short)?;
        let mut payload = ciphertext.to_vec();
        Aes256Gcm::new(&Key::<Aes256Gcm>::from(*key))
            .decrypt_inout_detached(
                &Nonce::<Aes256Gcm>::from(*nonce),
                &[],
                payload.as_mut_slice().into(),
                &Tag::<Aes256Gcm>::from(*tag),
            )
            .map_err(|_| failed())?;
        Ok(payload)
    }

    fn password_key(password: &Secret, salt: &[u8]) -> Result<Bytes32> {
        let mut key = Zeroizing::new([0; 32]);
        // The defaults are those of seed 004 §5.2: Argon2id, 19 MiB, 2 passes, 1 lane. A file can't ask for more.
        Argon2::default()
            .hash_password_into(password.bytes(), salt, &mut *key)
            .map_err(|error| Error::new(Code::Decrypt, alloc::format!("no key from this password: {error}")))?;
        Ok(key)
    }

    fn shared_key(secret: &StaticSecret, public: &[u8; 32]) -> Result<Bytes32> {
        let shared = secret.diffie_hellman(&PublicKey::from(*public));
        if !shared.was_contributory() {
            return Err(Error::new(Code::Decrypt, "the public key is one that anybody knows the shared secret of"));
        }
        let mut key = Zeroizing::new([0; 32]);
        Hkdf::<Sha256>::new(None, shared.as_bytes()).expand(INFO, &mut *key).map_err(|_| failed())?;
        Ok(key)
    }

    fn too_short() -> Error {
        Error::corrupt("the encrypted payload is too short for salt or key, nonce and tag").at(12)
    }
}

#[cfg(not(feature = "encryption"))]
pub(super) fn seal(_payload: &[u8], _protection: &Protection, _random: &mut FillRandom<'_>) -> Result<Vec<u8>> {
    Err(Error::version("this build can't encrypt"))
}

#[cfg(not(feature = "encryption"))]
pub(super) fn open_with_password(_stored: &[u8], _password: &Secret) -> Result<Vec<u8>> {
    Err(Error::version("this build can't decrypt").at(21))
}

#[cfg(not(feature = "encryption"))]
pub(super) fn open_for_identity(_stored: &[u8], _identity: &Secret) -> Result<Vec<u8>> {
    Err(Error::version("this build can't decrypt").at(21))
}

/// Signs `content`; signature, then public key.
///
/// # Errors
/// E001 for a key that is not 32 bytes long, E003 in a build without signatures.
#[cfg(feature = "signing")]
pub(super) fn sign(content: &[u8], key: &Secret) -> Result<Vec<u8>> {
    use ed25519_dalek::{Signer, SigningKey};

    let key = SigningKey::from_bytes(&zeroize::Zeroizing::new(secret_key(key, "signing key")?));
    let signature = key.sign(content).to_bytes();
    Ok([&signature[..], key.verifying_key().as_bytes()].concat())
}

/// Checks a signature by `key`.
///
/// # Errors
/// E006 when it is none, E003 in a build without signatures.
#[cfg(feature = "signing")]
pub(super) fn verify(content: &[u8], signature: &[u8; SIGNATURE_LEN], key: &[u8; 32]) -> Result<()> {
    use ed25519_dalek::{Signature, VerifyingKey};

    let verified =
        VerifyingKey::from_bytes(key).and_then(|key| key.verify_strict(content, &Signature::from_bytes(signature)));
    verified.map_err(|_| Error::new(Code::Signature, "the signature is not one of these bytes by this key"))
}

#[cfg(not(feature = "signing"))]
pub(super) fn sign(_content: &[u8], _key: &Secret) -> Result<Vec<u8>> {
    Err(Error::version("this build can't sign"))
}

#[cfg(not(feature = "signing"))]
pub(super) fn verify(_content: &[u8], _signature: &[u8; SIGNATURE_LEN], _key: &[u8; 32]) -> Result<()> {
    Err(Error::version("this build can't verify signatures").at(21))
}
