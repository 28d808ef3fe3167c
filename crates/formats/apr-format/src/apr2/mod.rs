//! APR2 (`docs/format/apr2.md`). All integers are little-endian.
//!
//! ```text
//!  0  header (32)        magic, version, flags, where the sections are
//!     metadata           JSON, UTF-8
//!     tensor index       names ascending: dtype, shape, offset, size
//!     zero padding       to D, with slack for a longer front
//!  D  ENCR block         of encrypted files: the key, wrapped ([`crypto`](crate::crypto))
//!     tensors            in their source's order, each aligned to 64 (or 32) bytes
//!  T  trailer blocks     64-aligned; DGST: a BLAKE3 digest a tensor; SIGN: signatures;
//!                        LICN: a licence
//!     footer (16)        CRC-32 of all before it, "2RPA", file size
//! ```
//!
//! Why so: the front alone answers "what is in it", alignment lets a mapped tensor be used where it
//! lies, the digests let a reader check just the tensor it loads, and the CRC covers the rest.
//! Tensors keep the order of their source, so that a file converted back is the same file.
//!
//! A model may be cut into shards, each such a file, which a manifest in JSON names
//! ([`plan_shards`], [`open_manifest`]).
//!
//! Limits: 8 dimensions, names of 65,535 bytes, metadata and index within the first 4 GiB; tensor
//! offsets are 64 bits. Tensors may be compressed ([`codec`](crate::codec)), sparse
//! ([`apr_tensor::sparse`]) and encrypted; any range of one is read without the
//! rest.
//!
//! ```
//! use apr_core::{
//!     CheckpointReader, CheckpointWriter, DType, Limits, Metadata, Notes, TensorInfo,
//! };
//! use apr_format::apr2;
//!
//! let tensors = [TensorInfo { name: "bias".into(), dtype: DType::F32, shape: [2].into() }];
//! let mut writer =
//!     apr2::plan(&tensors, &Metadata::new(), Vec::new(), &apr2::WriteOptions::default())?;
//! let mut file = Vec::new();
//! writer.begin(&mut file)?;
//! writer.write_chunk(&mut file, &[0; 8], None)?;
//! writer.finish(&mut file, &Notes::default())?;
//!
//! let reader = apr2::open(file, "model.apr", &Limits::default())?;
//! assert_eq!(reader.tensors(), tensors);
//! assert_eq!(reader.tensor_bytes("bias")?.as_ref(), [0; 8]);
//! # Ok::<(), apr_core::Error>(())
//! ```

mod belt;
mod companion;
#[cfg(feature = "compression")]
mod compression;
#[cfg(not(feature = "compression"))]
#[path = "compression_off.rs"]
mod compression;
#[cfg(feature = "encryption")]
mod decrypt;
#[cfg(not(feature = "encryption"))]
#[path = "decrypt_off.rs"]
mod decrypt;
mod encode;
#[cfg(feature = "encryption")]
mod encrypt;
#[cfg(not(feature = "encryption"))]
#[path = "encrypt_off.rs"]
mod encrypt;
mod format;
mod header;
mod index;
mod layout;
mod layouts;
mod manifest;
mod one_shard;
mod options;
mod plan;
#[cfg(feature = "std")]
mod pool;
#[cfg(not(feature = "std"))]
#[path = "pool_off.rs"]
mod pool;
mod reader;
mod revise;
mod seal;
mod seals;
mod shard_writer;
mod sharded;
#[cfg(feature = "signing")]
mod signing;
#[cfg(not(feature = "signing"))]
#[path = "signing_off.rs"]
mod signing;
mod stored;
mod trailer;
mod writer;

pub use companion::CompanionFile;
pub use encrypt::Encrypt;
pub use format::FORMAT;
#[cfg(feature = "encryption")]
pub use header::mac_header;
pub use header::{Flags, Header, MAGIC};
pub use layout::FOOTER_LEN;
pub use manifest::{Contents, Manifest, ShardEntry, is_manifest};
pub use one_shard::plan_shard;
pub use options::{STREAMING_FRONT, WriteOptions};
pub use reader::{Apr2Reader, open, open_with_keys};
pub use revise::{Changes, Revision};
pub use seal::Keys;
pub use shard_writer::{plan_shards, shard_count};
pub use sharded::{ShardedApr2, open_manifest};
pub use trailer::Footer;
pub use writer::{Apr2Writer, plan};
