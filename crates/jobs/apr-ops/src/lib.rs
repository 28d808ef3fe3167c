//! What the commands do, without files, threads or a terminal.
//!
//! A pass takes readers, writers and a [`Pipeline`](apr_registry::Pipeline) as values and returns a
//! report that serializes; front ends parse, call and render.
//!
//! # How a pass runs
//!
//! A pass cuts tensors into chunks of 1 MiB (`apr_view::chunks`) and runs two functions over them.
//! `produce` runs on any thread: it reads a chunk and does all work that needs no order (cast,
//! CRC, digest, statistics). `consume` runs on one thread: it receives the results in order, and
//! writes or accumulates. `Pipeline` is this contract. `Serial` implements it for the browser and
//! tests, `apr_io::Threads` for native programs. There, a ring of a few slots bounds the memory.
//! The consuming thread also produces when nothing is due, so that two cores are fully used.
//!
//! A tensor can be larger than memory and still use all cores. This requires checksums that split:
//! CRC-32 values are combined, and BLAKE3 is a tree whose subtrees are the chunks
//! (`apr-core/src/digest.rs`; `digest/wide.rs` for AVX-512). Statistics merge by Chan's formula.
//! Histogram bins have edges at multiples of a power of two, so merging is exact and the result
//! does not depend on the chunks.
//!
//! Every weight is verified before it is computed with. `with_runner` reads weights through
//! `apr_view::Verified`. When the first byte of a tensor is read, it compares the tensor, and the
//! parts of the file that it is made of, with the checksums in `Stored`. A checksum of a whole
//! file counts as a part of each tensor (`FileChecksum::part`), and so does the checksum of an
//! archive entry (`apr_archive::EntrySum`). Passes that read everything compare while they read
//! (`apr-ops/src/integrity.rs`), with the same `apr_view::integrity`.
//!
//! Only `apr_ops::session::Session` assembles the parts of a report (graphs, shards, companions,
//! defaults). It represents a model that is opened once and queried many times. The command, the
//! library, Python, the page and the terminal screens call it and render the results. Tests
//! compare their JSON (`apr-cli/tests/cli/front_ends.rs` and the tests that it names).
//!
//! A wrapping reader (folder, `View`, watermark) delegates to the reader below it. `Stored`
//! describes how a tensor is stored: its range, the stored bytes if they differ from the tensor's,
//! their digest or CRC, and the file parts of a computed tensor. A reader passes `Stored` on
//! unchanged, or replaces it as a whole by `Stored::derived_from`. `Container` has the facts of
//! one format (checksum, signatures, shards). It is `altered` if the tensors are not the file's.
//! `CheckpointReader` has no default methods, so that nothing is inherited by mistake.
//!
//! Three types describe the conversion of a tensor. `TensorTarget` states the dtype and the
//! reason, as data that a plan in parts and the report keep. `Recipe` states the way: keep, keep
//! the stored form, cast or recode. `Recode` is the last of these with the geometry of rows and
//! blocks; it knows nothing about files. A `View` is a `Mapping` (names, shapes, the source of the
//! bytes) over a `Base` that it borrows or owns. A plan maps views over views while it is built,
//! and owns the last one, so that `Planned` borrows the source alone.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod analyze;
pub mod arrays;
mod coded;
pub mod command;
mod constants;
pub mod convert;
pub mod debug;
pub mod diff;
pub mod document;
pub mod elements;
pub mod explain;
pub mod extraction;
pub mod graph;
pub mod halves;
pub mod import;
pub mod inline;
pub mod inspect;
mod integrity;
pub mod job;
pub mod left_out;
pub mod lint;
pub mod manifest;
mod own_graph;
pub mod parts;
pub mod physics;
pub mod products;
mod renames;
pub mod sarif;
pub mod sbom;
pub mod session;
mod sha256;
mod shards;
pub mod simplify;
pub mod tensors;
pub mod tied;
pub mod validate;

pub use sha256::sha256;
