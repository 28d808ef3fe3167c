//! The signature over the file.

use alloc::vec::Vec;

use apr_core::{Code, Error, Result};
use zeroize::Zeroizing;

use super::secret_key;
use crate::aprn::Secret;
use crate::aprn::container::SIGNATURE_LEN;
use crate::crypto::{SigningKey, verify_ed25519};

/// Signs `content`; signature, then public key.
///
/// # Errors
/// E001 for a key that is not 32 bytes long, E003 in a build without signatures.
pub(in crate::aprn) fn sign(content: &[u8], key: &Secret) -> Result<Vec<u8>> {
    let key = SigningKey::from_bytes(&Zeroizing::new(secret_key(key, "signing key")?));
    Ok([&key.sign(content)[..], &key.public_bytes()].concat())
}

/// Checks a signature by `key`.
///
/// # Errors
/// E006 when it is not one, E003 in a build without signatures.
pub(in crate::aprn) fn verify(
    content: &[u8],
    signature: &[u8; SIGNATURE_LEN],
    key: &[u8; 32],
) -> Result<()> {
    if verify_ed25519(key, content, signature) {
        return Ok(());
    }
    Err(Error::new(Code::Signature, "the signature is not one of these bytes by this key"))
}
