//! Passwords and keys, as they are handed in.

use alloc::vec::Vec;
use core::fmt;

/// Bytes that are never shown, and wiped when they are dropped in builds with encryption or
/// signatures.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Returns the bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl From<&str> for Secret {
    fn from(password: &str) -> Self {
        Self(password.as_bytes().to_vec())
    }
}

impl From<&[u8]> for Secret {
    fn from(password: &[u8]) -> Self {
        Self(password.to_vec())
    }
}

impl From<[u8; 32]> for Secret {
    fn from(key: [u8; 32]) -> Self {
        Self(key.to_vec())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(any(feature = "encryption", feature = "signing"))]
impl Drop for Secret {
    fn drop(&mut self) {
        zeroize::Zeroize::zeroize(&mut self.0);
    }
}
