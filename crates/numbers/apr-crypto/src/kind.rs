//! The two kinds of keys.

/// Purpose of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyKind {
    /// Ed25519 key for signatures.
    Signing,
    /// X25519 key for encryption.
    Encryption,
}
