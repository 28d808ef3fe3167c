//! Files and threads: what layers 0-2 leave out.
//!
//! - [`FileSource`] reads positioned ranges; its memory does not grow with the file.
//! - [`MappedFile`] lends tensors where they lie in the page cache.
//! - [`ModelFolder`] opens a model's other files and refuses names that lead out of its folder.
//! - [`Sources`] remembers what it opened, and finds what another program changed since.
//! - [`LockedFile`] is changed in place, by one process at a time.
//! - [`AtomicOutput`] writes beside the target and replaces it when everything is on disk.
//! - [`StreamSink`] writes to standard output, a pipe or a device.
//! - [`Spool`] is what a pipe is copied to.
//! - [`open_model`] opens what a path names, with its neighbours where they belong to it.
//! - With the feature `hub`, `open_model` opens `hf://`, `https://` and `s3://` too.
//! - [`typed`] saves and loads models of serde types.
//! - [`Threads`] runs a pass on several threads, in order and within a memory budget.
//!
//! # How a file is written
//!
//! A writer is planned from names, dtypes and shapes. Sizes and offsets are therefore known before
//! anything is read (`--dry-run` stops there). Bytes are then streamed once, from front to back.
//! The APR2 writer learns a few facts during the pass (values that a cast made infinite). It
//! patches the front, which has slack, and combines its CRC with the data's CRC.
//!
//! `AtomicOutput` writes to a file without a name in the target's folder (or a hidden, locked
//! one), syncs, and gives it the name. After an error, Ctrl-C, a full disk, `kill -9` or a crash,
//! the old file is whole and no other file is left. A model folder is treated like a file
//! (`apr-io/whole.rs`): its files are collected in a hidden folder, which then changes places with
//! the old one. Before that, `Sources` checks that no source was rewritten meanwhile.

mod atomic;
#[cfg(feature = "infer")]
mod crew;
mod earlier;
mod error;
mod file;
mod folder;
#[cfg(feature = "infer")]
mod host;
mod in_place;
mod lock;
mod mapped;
mod model;
mod names;
#[cfg(feature = "hub")]
mod network;
mod partial;
mod pending;
mod regular;
#[cfg(feature = "hub")]
mod remote;
#[cfg(not(feature = "hub"))]
#[path = "remote_off.rs"]
mod remote;
mod sources;
mod stream;
mod threads;
#[cfg(feature = "typed")]
pub mod typed;
mod undo;
mod whole;

#[cfg(feature = "hub")]
pub use apr_hub as hub;
pub use atomic::{AtomicOutput, Committed, Target};
#[cfg(feature = "infer")]
pub use crew::Crew;
pub use error::{check_folders, create_folders, io_error};
pub use file::FileSource;
pub use folder::ModelFolder;
#[cfg(feature = "infer")]
pub use host::NativeHost;
pub use lock::LockedFile;
pub use mapped::MappedFile;
pub use model::{is_manifest, open_model, open_model_with_companions};
pub use names::is_index;
pub use partial::Spool;
pub use pending::PendingFiles;
#[cfg(feature = "hub")]
pub use remote::RemoteFolder;
pub use remote::is_remote;
pub use sources::Sources;
pub use stream::StreamSink;
pub use threads::{Interrupt, Threads};
