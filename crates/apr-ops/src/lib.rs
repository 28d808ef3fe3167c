//! What the commands do, without files, threads or a terminal.
//!
//! A pass takes readers, writers and a [`Pipeline`](apr_registry::Pipeline) as values and returns a
//! report that serializes; front ends parse, call and render.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod analyze;
mod coded;
pub mod command;
mod constants;
pub mod convert;
pub mod debug;
pub mod diff;
pub mod document;
pub mod elements;
pub mod explain;
pub mod graph;
pub mod import;
pub mod inline;
pub mod inspect;
mod integrity;
pub mod job;
pub mod left_out;
pub mod lint;
mod own_graph;
pub mod parts;
pub mod physics;
pub mod sarif;
pub mod session;
mod sha256;
mod shards;
pub mod tensors;
pub mod tied;
pub mod validate;

pub use sha256::sha256;
