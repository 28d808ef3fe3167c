//! Encryption, signatures and licences of `.apr` files (`docs/format/sealing.md`): ciphers, keys,
//! key derivation, and the blocks that hold what they give.
//!
//! Algorithms are RustCrypto's and dalek's, but for one kernel of AES-256-GCM on processors with
//! AVX-512 (`wide.rs`), which tests compare with the `aes-gcm` crate. All integers are
//! little-endian; `+` joins bytes; `"..."` is ASCII without a terminator unless `\0` is written.
//!
//! # Keys and what they open
//!
//! ```text
//! file key            32 random bytes, new for every file; salt: 16 random bytes in the ENCR block
//!   tensor key        HKDF-SHA256(ikm = file key, salt = salt,
//!                     info = "apr-v2-tensor\0" + name in UTF-8), 32 bytes
//!   header MAC key    HKDF-SHA256(ikm = file key, salt = salt, info = "apr-v2-header"), 32 bytes
//! wrapped file key    AES-256-GCM(key below, nonce of the stanza, no associated data):
//!                     32 bytes + tag 16
//!   password          Argon2id v1.3(password, salt of the stanza, m KiB, t passes, p lanes),
//!                     32 bytes
//!   recipient         HKDF-SHA256(ikm = X25519(ephemeral, recipient), no salt,
//!                     info = "apr-v2-encrypt"), 32 bytes
//! ```
//!
//! An X25519 result of all zeros is refused (RFC 7748 §6.1): E005.
//!
//! # Tensors
//!
//! The bytes of a tensor, compressed or not, are cut into chunks of 65,536; the last may be shorter
//! and is never empty, so that a tensor of no bytes stores none. Each chunk is stored as its
//! AES-256-GCM ciphertext, as long as the chunk,
//! + tag 16, without associated data, under the tensor key and this nonce:
//!
//! ```text
//! u64 chunk number, from 0    3 zero bytes    u8: 1 for the tensor's last chunk, else 0
//! ```
//!
//! A tensor key is used for one tensor of one file, so that no nonce comes twice. Chunks that were
//! swapped, cut off, appended or taken from another tensor fail with E005.
//!
//! # ENCR block
//!
//! ```text
//! "ENCR"  u32 version = 1  u64 length of what follows, padding excluded
//! u32 stanza_count  u32 chunk = 65536  salt 16
//! stanzas, each:  (92 bytes)   u32 1  salt 16  u32 m  u32 t  u32 p  nonce 12  wrapped 48
//!                 (104 bytes)  u32 2  ephemeral public 32  SHA-256(recipient public)[..8]
//!                              nonce 12  wrapped 48
//! hmac 32         HMAC-SHA256(header MAC key, header 32 + metadata + index)
//! zero bytes to a multiple of 64
//! ```
//!
//! The length of a stanza follows from its type; a type unknown to the reader is E003. The length
//! of the block must be exactly that of its stanzas. The HMAC takes the header with its flag bits
//! SIGNED and LICENSED cleared (`apr_format::apr2::mac_header`), so that a file can be signed and
//! licensed without its key, and the metadata and the index as they are stored, without what pads
//! them.
//!
//! # SIGN and LICN blocks
//!
//! ```text
//! "SIGN"  u32 version = 1  u64 length of what follows, padding excluded
//! u32 count  4 zero bytes
//! each:      u8 algorithm = 1 (Ed25519)  7 zero bytes  public key 32  signature 64
//!
//! "LICN"  u32 version = 1  u64 length of what follows, padding excluded
//! JSON  signature 64 (the last 64 bytes of the body)
//! ```
//!
//! Signatures are pure Ed25519 (RFC 8032):
//!
//! ```text
//! sign digest     BLAKE3-256(header 32 + metadata + index + ENCR block + DGST block)
//! SIGN signs      "apr2-sign-v1\0" + sign digest
//! LICN signs      "apr2-licence-v1\0" + BLAKE3-256(JSON) + sign digest
//! ```
//!
//! Here the header is the one in the file, flags and all: SIGNED and LICENSED have their final
//! values before anything is signed, and a licence cannot be taken out of a signed file unnoticed.
//! The blocks are whole, with their 16-byte heads and the zeros that pad them; the ENCR block is
//! left out of a plain file's digest.
//!
//! Secrets are wiped from memory when dropped and are in no message and no `Debug` output.
//! Randomness and time come from the caller.

#![no_std]
#![warn(clippy::alloc_instead_of_core, clippy::std_instead_of_alloc, clippy::std_instead_of_core)]
#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

#[cfg(any(feature = "encryption", feature = "signing"))]
extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

#[cfg(feature = "encryption")]
mod aead;
#[cfg(any(feature = "encryption", feature = "signing"))]
mod block;
#[cfg(feature = "encryption")]
mod decryption_key;
#[cfg(feature = "encryption")]
mod encryption;
#[cfg(feature = "encryption")]
mod kdf;
#[cfg(any(feature = "encryption", feature = "signing"))]
mod keys;
#[cfg(any(feature = "encryption", feature = "signing"))]
mod kind;
#[cfg(feature = "signing")]
mod licence;
#[cfg(any(feature = "encryption", feature = "signing"))]
mod pem;
mod random;
mod sealed;
#[cfg(feature = "signing")]
mod signature;
#[cfg(feature = "signing")]
mod signing_key;
#[cfg(feature = "encryption")]
mod stanza;
#[cfg(feature = "encryption")]
mod tensor;
#[cfg(all(feature = "encryption", feature = "std", target_arch = "x86_64"))]
mod wide;
#[cfg(all(feature = "encryption", not(all(feature = "std", target_arch = "x86_64"))))]
#[path = "wide_off.rs"]
mod wide;

#[cfg(feature = "encryption")]
pub use aead::{aead_open, aead_seal, aead_seal_into};
#[cfg(feature = "encryption")]
pub use decryption_key::DecryptionKey;
#[cfg(feature = "encryption")]
pub use encryption::{EncrBlock, FileKey, Lock, Unlock};
#[cfg(feature = "signing")]
pub use jiff::Timestamp;
#[cfg(feature = "encryption")]
pub use kdf::{Argon2Costs, password_key, recipient_key};
#[cfg(any(feature = "encryption", feature = "signing"))]
pub use keys::{PrivateKey, PublicKey};
#[cfg(any(feature = "encryption", feature = "signing"))]
pub use kind::KeyKind;
#[cfg(feature = "signing")]
pub use licence::{Licence, LicenceBlock, LicenceViolation, hash_licensee, parse_time};
pub use random::Random;
pub use sealed::{NONCE_LEN, SEALED_CHUNK, TAG_LEN, plain_len, sealed_len};
#[cfg(feature = "signing")]
pub use signature::{
    SignBlock, Signature, Signer, Verification, sign_digest, sign_message, verify_ed25519,
};
#[cfg(feature = "signing")]
pub use signing_key::SigningKey;
#[cfg(feature = "encryption")]
pub use stanza::{Stanza, Wrapped};
#[cfg(feature = "encryption")]
pub use tensor::TensorCipher;
