//! Keys, encryption, signatures and licences of `.apr` files.

#[cfg(feature = "encryption")]
pub use apr_format::apr2::Encrypt;
pub use apr_format::apr2::Keys;
#[cfg(feature = "encryption")]
pub use apr_format::crypto::{Argon2Costs, Lock, Unlock};
pub use apr_format::crypto::{KeyKind, PrivateKey, PublicKey};
#[cfg(feature = "signing")]
pub use apr_format::crypto::{Licence, SigningKey, Timestamp, Verification};
