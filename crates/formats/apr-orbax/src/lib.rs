//! Folders of Orbax, which JAX's programs save their arrays in: a tree of names, and arrays of
//! zarr 2 in chunks.
//!
//! ```text
//! _METADATA            JSON: "tree_metadata", the path and kind of each leaf
//! array files, one folder for each leaf          or a database (OCDBT)
//! ├─ params.dense.kernel/.zarray   JSON          ├─ manifest.ocdbt   the latest root
//! ├─ params.dense.kernel/0.0       a chunk       ├─ d/0123..ef       nodes of a B+tree, chunks
//! └─ params.dense.kernel/0.1                     └─ ocdbt.process_0/d/..
//! ```
//!
//! The database has the same keys as the folders. Its nodes are checked by their CRC-32C and read
//! whole, chunks stay where they are. A tensor is called by its path, `params/dense/kernel`, as in
//! Flax's files. Chunks are stored plainly, or as one stream of zlib, gzip or Zstandard, which are
//! decoded by pages of 1 MiB, some of which are kept.
//!
//! # What is left out, by name
//!
//! The optimizer's state (`opt_state` beside `params`), texts, arrays of dtypes that no format here
//! holds, those that are compressed otherwise (blosc, bz2), filtered, or laid out by columns.
//! Checkpoints of zarr 3 (`use_zarr3`) are refused (E003), as are databases whose manifest is in
//! several files.
//!
//! # Limits
//!
//! | what | most | |
//! |---|---|---|
//! | `_METADATA` | [`Limits::max_metadata`](apr_core::Limits) | E008 |
//! | nodes of the database, paths, places of chunks | [`Limits::max_index`](apr_core::Limits) | E008 |
//! | the window of a Zstandard stream | 32 MiB | E003 |
//! | all arrays | 1 GiB, and 1,032 times the files' bytes | E008 |
//!
//! Written from the documentation of TensorStore's `ocdbt` and `zarr` drivers, zarr's
//! specification 2, and Orbax' files.
//!
//! ```
//! use apr_core::{ByteSource, CheckpointReader, Error, IoCause, Limits, Result, SourceSet};
//!
//! /// A checkpoint with one number.
//! struct Folder;
//!
//! impl SourceSet for Folder {
//!     fn open(&self, name: &str) -> Result<Box<dyn ByteSource>> {
//!         let zarray = r#"{"shape": [], "chunks": [], "dtype": "<f4", "order": "C",
//!             "compressor": null, "fill_value": null, "filters": null, "zarr_format": 2}"#;
//!         let tree = r#"{"tree_metadata": {"('step',)":
//!             {"key_metadata": [{"key": "step"}], "value_metadata": {}}}}"#;
//!         Ok(Box::new(match name {
//!             apr_orbax::METADATA => tree.as_bytes().to_vec(),
//!             "step/.zarray" => zarray.as_bytes().to_vec(),
//!             "step/0" => 7_f32.to_le_bytes().to_vec(),
//!             _ => return Err(Error::io(IoCause::NotFound, "no such file")),
//!         }))
//!     }
//!
//!     fn list(&self) -> Result<Vec<String>> {
//!         Ok(Vec::new())
//!     }
//! }
//!
//! let reader = apr_orbax::open_in(&Folder, apr_orbax::METADATA, &Limits::default())?;
//! assert_eq!(reader.tensors()[0].name, "step");
//! # Ok::<(), Error>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod array;
mod chunk;
mod ocdbt;
mod reader;
mod store;
mod tree;
pub mod zstd;

use apr_core::Format;

pub use reader::open_in;

/// The file that a checkpoint is opened by.
pub const METADATA: &str = "_METADATA";

/// A checkpoint, by its tree of names.
pub static FORMAT: Format = Format {
    id: "orbax",
    name: "Orbax (JAX)",
    recognises: |head| head.starts_with(b"{\"tree_metadata\""),
    ..Format::READ_ONLY
};
