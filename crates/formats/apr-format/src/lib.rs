//! The native containers of `apr`.
//!
//! [`apr2`] is the one this project writes: aligned, checksummed, readable tensor by tensor.
//! [`apr1`], [`aprn`] and [`dialect`] are what older programs wrote.
//!
//! # How tensors are compressed and sealed
//!
//! `CheckpointWriter::encoder` gives the pass a `ChunkEncoder`. It decides for each tensor whether
//! it takes pieces of 1 MiB. If so, `produce` encodes them on any thread. The codec of a tensor is
//! chosen once, from samples of its beginning, middle and end. A piece is cut into blocks, and
//! each block is decoded and compared. A block that differs is stored raw and counted in the
//! report.
//!
//! The writer receives each piece raw and compressed, and decides the form of the tensor. It
//! chooses the compressed form once it has saved more than the length fields of all remaining
//! blocks can cost. It chooses raw after 8 MiB without savings, or at the end. So no tensor grows,
//! and the bytes do not depend on the number of threads. Encryption comes last, in chunks of 64
//! KiB; without compression, threads encrypt too. Digests and CRC cover the stored bytes, so
//! `validate` and signatures require no key. Sizes are known at the end and the front is patched,
//! so compressed output cannot go to a pipe.
//!
//! Compressed bytes are kept: `convert`, `encrypt`, `decrypt`, `shard`, `join` and `edit` plan
//! such tensors as `Recipe::Stored`, and copy the stored form, opened or sealed but not coded
//! again. A conversion reads the pieces of such a tensor once, for their decoded bytes and for the
//! digest (`Encoded::read_both`).
//!
//! Reading runs in reverse, for any range (`apr2/stored.rs`): the chunks that hold it are
//! decrypted, the blocks are decoded, and a sparse layout is made dense. The starts of a tensor's
//! blocks are found at its first read. Index, metadata and digests stay readable without a key, so
//! an encrypted file opens; commands that need weights end with E005.
//!
//! A sharded model is a JSON manifest and one file per shard. The manifest repeats metadata,
//! companions and tensors, so it alone describes the model, and a shard is opened only for its
//! bytes. For manifests without those keys, the fronts of the shards are read. Signing the model
//! writes the manifest alone, which then states what a signature of each shard would cover.
#![no_std]
#![warn(clippy::alloc_instead_of_core, clippy::std_instead_of_alloc, clippy::std_instead_of_core)]
#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

pub mod apr1;
pub mod apr2;
#[cfg(feature = "typed")]
pub mod aprn;
#[cfg(feature = "compression")]
pub mod codec;
pub mod dialect;
mod older;

pub use apr_crypto as crypto;
