//! Keras models and weights: HDF5 files (`.h5`, `.hdf5`) and the archives of Keras 3 (`.keras`).
//!
//! ```text
//! HDF5                                            .keras, a ZIP archive
//! ├─ superblock    at byte 0, 512, 1024, ...      ├─ metadata.json      version
//! └─ root group    attributes: model_config,      ├─ config.json        the model, layer by layer
//!    │             keras_version, layer_names     └─ model.weights.h5   stored; or several
//!    ├─ dense              Keras 1 and 2
//!    │  └─ dense/kernel:0  dataset: dataspace, datatype, layout, values
//!    └─ layers/dense/vars  Keras 3; attribute: name
//!       └─ 0               dataset
//! ```
//!
//! A group is a header of messages with links to others, in a B-tree and a heap of names or in
//! messages; a dataset is a header that says where its values are. Those side by side are ranges of
//! the file, within an archive too. Chunks with DEFLATE, the shuffle filter and Fletcher's checksum
//! are decoded as they are read, big-endian numbers turned around.
//!
//! Tensors have Keras' names, `LAYER/VARIABLE`, in the order in which they lie in the file. What
//! Keras 3 numbers is named by the class of the layer where the file has the configuration, and
//! keeps the number elsewhere (`dense/0`). Of a file that is none of Keras, names are paths.
//!
//! # What is left out, by name
//!
//! The optimizer's state, texts and records, second names of an object, and what is in other files:
//! external links, external storage, virtual datasets. Datasets with other filters, and chunks
//! indexed by an extensible array or a B-tree of version 2, which h5py does not write unless it is
//! told to.
//!
//! # Limits
//!
//! | what | most | |
//! |---|---|---|
//! | structures that are read, however often | 64 times the file, [`Limits::max_index`] | E008 |
//! | a packed chunk | 64 MiB, or the file's length | E008 |
//! | a dataset in chunks, or never written | 1,032 times the file's length | E008 |
//! | the configuration | [`Limits::max_metadata`] | E008 |
//!
//! HDF5 is described in the HDF5 File Format Specification, version 3.0; the layout within it in
//! Keras' `saving/saving_lib.py` and `legacy/saving/legacy_h5_format.py`.
//!
//! [`Limits::max_index`]: apr_core::Limits
//! [`Limits::max_metadata`]: apr_core::Limits
//!
//! ```
//! use apr_core::{CheckpointReader, Limits};
//!
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/keras/small.keras");
//! # let file = std::fs::read(path).expect("the fixture");
//! let reader = apr_keras::open(file, "small.keras", &Limits::default())?;
//! assert!(reader.tensors().iter().any(|info| info.name == "out/kernel"));
//! # Ok::<(), apr_core::Error>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod graph;
mod hdf5;
pub mod lower;
mod names;
mod reader;
mod scan;
mod walk;

use apr_core::Format;

pub use graph::{DOMAIN, graphs_of};
pub use reader::{open, open_damaged};
pub use scan::{Scan, scan};

/// The key of the metadata: versions and configuration of the model.
pub const METADATA: &str = "keras";

/// An HDF5 file, of Keras or of another program.
pub static HDF5: Format = Format {
    id: "hdf5",
    name: "HDF5 (Keras)",
    recognises: |head| head.starts_with(hdf5::SIGNATURE),
    extensions: &["h5", "hdf5"],
    ..Format::READ_ONLY
};

/// An archive of Keras 3.
pub static ARCHIVE: Format = Format {
    id: "keras",
    name: "Keras",
    recognises: starts_like_keras,
    extensions: &["keras"],
    ..Format::READ_ONLY
};

/// Returns `true` if the first entry of a ZIP archive is one that Keras writes.
fn starts_like_keras(head: &[u8]) -> bool {
    let Some(&[a, b]) = head.get(26..28) else { return false };
    let name = head.get(30..30 + usize::from(u16::from_le_bytes([a, b]))).unwrap_or_default();
    let has = |text: &[u8]| head.windows(text.len()).any(|bytes| bytes == text);
    // The text may be packed, and Keras writes the configuration next.
    let is_first = name == b"metadata.json" && (has(b"\"keras_version\"") || has(b"config.json"));
    head.starts_with(b"PK\x03\x04") && (is_first || name == b"model.weights.h5")
}
