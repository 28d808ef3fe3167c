//! APRN: one model of a known type in one file (`docs/format/older.md`, B). All integers are
//! little-endian.
//!
//! ```text
//!  0  header (32)     magic, version, model type, sizes, compression, flags, quality score
//! 32  metadata        MessagePack map: name, model card, licence, hyperparameters, metrics
//!     payload         bincode 1, then packed, then encrypted
//!     signature (96)  Ed25519 over all before it, and the public key; where the flag says so
//!     CRC-32 (4)      of all before it
//! ```
//!
//! | payload | bytes |
//! |---|---|
//! | LZ4 | length as `u32`, block |
//! | Zstandard | frame |
//! | for a password | salt 16, nonce 12, AES-256-GCM ciphertext, tag 16; key by Argon2id (19 MiB, 2, 1) |
//! | for a recipient | ephemeral X25519 key 32, first 8 bytes of the recipient's, nonce 12, ciphertext, tag 16; key by HKDF-SHA256 with the info `apr-v1-encrypt` |
//!
//! Why so: one file that fits into a program by `include_bytes!` and loads with one call. The
//! payload means nothing without its Rust type; [`open`] shows it as bytes, except for linear
//! regression and k-means, whose layout is written down.
//!
//! Limits: metadata and payload of 4 GiB; a packed payload may grow to 64 MiB, and beyond that to
//! 1,024 times its size.
//!
//! ```
//! use apr_format::aprn::{self, ModelType, SaveOptions};
//!
//! #[derive(serde::Serialize, serde::Deserialize)]
//! struct Line {
//!     slope: f32,
//!     intercept: f32,
//! }
//!
//! let options = SaveOptions::default().with_name("a line");
//! let file = aprn::to_bytes(&Line { slope: 2.0, intercept: 1.0 }, ModelType::Custom, &options)?;
//! let line: Line = aprn::load_from_bytes(&file, ModelType::Custom)?;
//! assert_eq!(line.slope, 2.0);
//!
//! let info = aprn::inspect(&file)?;
//! assert_eq!(info.metadata.model_name.as_deref(), Some("a line"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod andon;
pub mod bincode;
mod container;
mod format;
mod header;
mod layouts;
mod load_options;
mod metadata;
mod model_type;
mod pack;
mod reader;
mod seal;
mod secret;
mod typed;
mod writer;

pub use andon::{Andon, Signal};
pub use format::FORMAT;
pub use header::{Compression, Flags, Header, MAGIC};
pub use load_options::LoadOptions;
pub use metadata::{License, LicenseTier, ModelCard, ModelMetadata};
pub use model_type::ModelType;
pub use reader::{AprnReader, open};
pub use seal::{FillRandom, Protection};
pub use secret::Secret;
pub use typed::{
    ModelInfo, SaveOptions, inspect, load_from_bytes, load_from_bytes_with, save_to, to_bytes,
    to_bytes_with,
};
pub use writer::{AprnWriter, plan};
