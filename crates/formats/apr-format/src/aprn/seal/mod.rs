//! Encryption of the payload and the signature over the file (`docs/format/older.md`, B).
//!
//! Both layouts of encryption look alike; only who opens a file knows which one it is.

#[cfg(feature = "encryption")]
mod encryption;
#[cfg(not(feature = "encryption"))]
#[path = "encryption_off.rs"]
mod encryption;
#[cfg(feature = "signing")]
mod signing;
#[cfg(not(feature = "signing"))]
#[path = "signing_off.rs"]
mod signing;

#[cfg(any(feature = "encryption", feature = "signing"))]
use apr_core::Error;
use apr_core::Result;

use super::Secret;
pub(super) use encryption::{open_for_identity, open_with_password, seal};
pub(super) use signing::{sign, verify};

/// Function that fills its argument with unpredictable random bytes, from the operating system or a
/// browser.
pub type FillRandom<'a> = dyn FnMut(&mut [u8]) -> Result<()> + 'a;

/// Recipients of an encrypted payload.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Protection {
    /// Everyone who has the password: Argon2id with 19 MiB, 2 passes, 1 lane.
    Password(Secret),
    /// The owner of the secret key of this X25519 public key.
    Recipient([u8; 32]),
}

/// Returns the bytes of a key.
///
/// # Errors
/// E001 when it is not 32 bytes long.
#[cfg(any(feature = "encryption", feature = "signing"))]
fn secret_key(secret: &Secret, what: &str) -> Result<[u8; 32]> {
    let key = secret.bytes().try_into();
    key.map_err(|_| {
        Error::format(alloc::format!("the {what} has {} bytes instead of 32", secret.bytes().len()))
    })
}
