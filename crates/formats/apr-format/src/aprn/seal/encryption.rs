//! Encryption of the payload.

use alloc::vec::Vec;

use apr_core::{Code, Error, Result};
use zeroize::Zeroizing;

use super::{FillRandom, Protection, secret_key};
use crate::aprn::Secret;
use crate::crypto::{
    Argon2Costs, DecryptionKey, TAG_LEN, aead_open, aead_seal_into, password_key, recipient_key,
};

const INFO: &[u8] = b"apr-v1-encrypt";
/// Number of bytes of the recipient's public key that the file stores.
const HINT_LEN: usize = 8;
/// Argon2 costs, fixed for every file, so that no file can require more.
const COSTS: Argon2Costs = Argon2Costs { m: 19_456, t: 2, p: 1 };

/// Returns the stored form of a payload: the data that leads to the key, then nonce, ciphertext and
/// tag.
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
            password_key(password.bytes(), &salt, COSTS)?
        }
        Protection::Recipient(public) => {
            let mut ephemeral = Zeroizing::new([0; 32]);
            random(&mut *ephemeral)?;
            let ephemeral = DecryptionKey::from_bytes(&ephemeral);
            stored.extend_from_slice(&ephemeral.public_bytes());
            stored.extend_from_slice(&public[..HINT_LEN]);
            recipient_key(&*ephemeral.shared(public)?, INFO)
        }
    };

    let mut nonce = [0; 12];
    random(&mut nonce)?;
    stored.extend_from_slice(&nonce);
    aead_seal_into(&key, &nonce, &[], payload, &mut stored);
    Ok(stored)
}

/// Decrypts `salt || nonce || ciphertext || tag`.
///
/// # Errors
/// E002 when it is too short, E005 for a wrong password or changed bytes.
pub(in crate::aprn) fn open_with_password(stored: &[u8], password: &Secret) -> Result<Vec<u8>> {
    let (salt, sealed) = stored.split_first_chunk().ok_or_else(too_short)?;
    open(&*password_key(password.bytes(), salt, COSTS)?, sealed)
}

/// Decrypts `ephemeral public key || start of the recipient's public key || nonce ||
/// ciphertext || tag`.
///
/// # Errors
/// E002 when it is too short, E005 for another recipient or changed bytes.
pub(in crate::aprn) fn open_for_identity(stored: &[u8], identity: &Secret) -> Result<Vec<u8>> {
    let (ephemeral, rest) = stored.split_first_chunk::<32>().ok_or_else(too_short)?;
    let (hint, sealed) = rest.split_at_checked(HINT_LEN).ok_or_else(too_short)?;
    let key = DecryptionKey::from_bytes(&Zeroizing::new(secret_key(identity, "secret key")?));
    if hint != &key.public_bytes()[..HINT_LEN] {
        return Err(Error::new(
            Code::Decrypt,
            "the payload is encrypted for another key, or with a password",
        ));
    }
    open(&recipient_key(&*key.shared(ephemeral)?, INFO), sealed)
}

fn open(key: &[u8; 32], sealed: &[u8]) -> Result<Vec<u8>> {
    let (nonce, sealed) = sealed.split_first_chunk().ok_or_else(too_short)?;
    if sealed.len() < TAG_LEN {
        return Err(too_short());
    }
    aead_open(key, nonce, &[], sealed)
}

fn too_short() -> Error {
    Error::corrupt("the encrypted payload is too short for salt or key, nonce and tag").at(12)
}
