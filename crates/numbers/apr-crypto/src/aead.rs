//! AES-256-GCM (NIST SP 800-38D) with nonces of 96 bits and tags of 128.

use aes_gcm::aead::inout::InOutBuf;
use aes_gcm::{AeadInOut, Aes256Gcm, KeyInit};
use alloc::vec::Vec;
use apr_core::{Code, Error, Result};
use zeroize::Zeroize;

use crate::sealed::{NONCE_LEN, TAG_LEN};
use crate::wide;

/// Returns E005. The message does not reveal what was tried and how it failed.
pub(crate) fn decryption_failed() -> Error {
    Error::new(
        Code::Decrypt,
        "decryption failed: the key or password is wrong, or the bytes were changed",
    )
}

/// A cipher under one key; it wipes its key schedule when dropped.
pub(crate) struct Cipher {
    portable: Aes256Gcm,
    /// For texts alone, on processors that do them faster.
    wide: Option<wide::Cipher>,
}

/// The cipher under `key`.
pub(crate) fn cipher(key: &[u8; 32]) -> Cipher {
    Cipher { portable: Aes256Gcm::new(key.into()), wide: wide::Cipher::new(key) }
}

/// Appends the ciphertext of `plain`, of the same length, and the tag of 16 bytes to `out`.
pub(crate) fn seal(
    cipher: &Cipher,
    nonce: &[u8; NONCE_LEN],
    aad: &[u8],
    plain: &[u8],
    out: &mut Vec<u8>,
) {
    if let Some(wide) = cipher.wide.as_ref().filter(|_| aad.is_empty()) {
        let tag = wide.seal(nonce, plain, out);
        out.extend_from_slice(&tag);
        return;
    }

    let start = out.len();
    out.resize(start + plain.len(), 0);
    let tag = InOutBuf::new(plain, &mut out[start..])
        .ok()
        .and_then(|buffer| {
            cipher.portable.encrypt_inout_detached(&(*nonce).into(), aad, buffer).ok()
        })
        .unwrap_or_else(|| {
            unreachable!("both sides are equally long, and no Vec has the 64 GiB that GCM refuses")
        });

    out.extend_from_slice(&tag);
}

/// Deciphers `sealed` into `out`, which is 16 bytes shorter; on failure `out` is left as it was.
///
/// # Errors
/// E005.
pub(crate) fn open(
    cipher: &Cipher,
    nonce: &[u8; NONCE_LEN],
    aad: &[u8],
    sealed: &[u8],
    out: &mut [u8],
) -> Result<()> {
    let (text, tag) = sealed.split_last_chunk::<TAG_LEN>().ok_or_else(decryption_failed)?;
    if let Some(wide) = cipher.wide.as_ref().filter(|_| aad.is_empty()) {
        let intact = text.len() == out.len() && wide.open(nonce, text, tag, out);
        return if intact { Ok(()) } else { Err(decryption_failed()) };
    }
    let buffer = InOutBuf::new(text, out).map_err(|_| decryption_failed())?;
    cipher
        .portable
        .decrypt_inout_detached(&(*nonce).into(), aad, buffer, &(*tag).into())
        .map_err(|_| decryption_failed())
}

/// The ciphertext of `plain` under `key`, and its tag: 16 bytes more than `plain`.
///
/// A nonce must never be used twice with one key.
#[must_use]
pub fn aead_seal(key: &[u8; 32], nonce: &[u8; NONCE_LEN], aad: &[u8], plain: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(plain.len() + TAG_LEN);
    aead_seal_into(key, nonce, aad, plain, &mut out);
    out
}

/// Same as [`aead_seal`], but appends the ciphertext and the tag to `out`.
pub fn aead_seal_into(
    key: &[u8; 32],
    nonce: &[u8; NONCE_LEN],
    aad: &[u8],
    plain: &[u8],
    out: &mut Vec<u8>,
) {
    seal(&cipher(key), nonce, aad, plain, out);
}

/// Decrypts the output of [`aead_seal`]. If the plaintext is secret, the caller must wipe it.
///
/// # Errors
/// E005 for another key, nonce or `aad`, and for changed bytes.
pub fn aead_open(
    key: &[u8; 32],
    nonce: &[u8; NONCE_LEN],
    aad: &[u8],
    sealed: &[u8],
) -> Result<Vec<u8>> {
    let mut out = alloc::vec![0; sealed.len().saturating_sub(TAG_LEN)];
    match open(&cipher(key), nonce, aad, sealed, &mut out) {
        Ok(()) => Ok(out),
        Err(error) => {
            out.zeroize();
            Err(error)
        }
    }
}
