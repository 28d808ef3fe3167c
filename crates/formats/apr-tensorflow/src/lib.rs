//! TensorFlow's checkpoints, SavedModels and frozen graphs, read as their weights.
//!
//! ```text
//! checkpoint    NAME.index               a sorted table: name -> dtype, shape, shard, place, CRC
//!               NAME.data-00000-of-00002 the bytes of tensors, side by side
//! SavedModel    saved_model.pb           protobuf: the graph, its functions, signatures, assets
//!               variables/variables.*    a checkpoint
//! frozen graph  NAME.pb                  protobuf: nodes, of which constants are the weights
//!
//! TensorFlow.js model.json               a list of weights, and shards with their bytes
//!
//! table         blocks: each some pairs, how it is packed (0, or 1 for Snappy), CRC-32C
//!               index block: last key of each block -> its place
//!               footer: places of the index blocks, padding, db4775248b80fb57
//! ```
//!
//! A variable has its key in the checkpoint for a name; for programs of TensorFlow 2 that is the
//! path of the object that it is of, without `/.ATTRIBUTES/VARIABLE_VALUE`. The name that it had in
//! the program is in the metadata (`full_names`). Variables that were saved in parts along their
//! first dimension are joined. A constant has the name of its node, in a function behind the name
//! of the function (`f/weights`); constants with fewer values than their shape repeat the last.
//!
//! Checksums of the index are compared when it is opened, those of a tensor when it is first read.
//!
//! # What is left out, by name
//!
//! The optimizer's variables, texts, assets, and types that no dtype here holds. The graph travels
//! as a skeleton of the file ([`graphs_of`]), where that is not larger than a companion may be. Of
//! a SavedModel with variables, numbers and integers of the graph (shapes, axes) are not listed as
//! tensors. Variables in parts along another dimension are refused.
//!
//! # Limits
//!
//! | what | most | |
//! |---|---|---|
//! | the index, and what is kept of a graph | [`Limits::max_index`] | E008 |
//! | a constant that repeats one value | [`Limits::max_index`] | E008 |
//! | the graph of objects | [`Limits::max_metadata`] | E008 |
//!
//! The formats are described by `tensor_bundle.proto`, `saved_model.proto`, `graph.proto` and
//! `tensor.proto` of TensorFlow, the table by LevelDB's `table_format.md`.
//!
//! [`Limits::max_index`]: apr_core::Limits
//! [`Limits::max_metadata`]: apr_core::Limits
//!
//! ```
//! use apr_core::{CheckpointReader, Limits};
//!
//! // A node named "w", of operator "Const", whose attribute "value" is a float: 1.
//! let tensor = b"\x08\x01\x12\x00\x2a\x04\0\0\x80\x3f";
//! let attribute = [&b"\x2a\x15\x0a\x05value\x12\x0c\x42\x0a"[..], tensor].concat();
//! let node = [&b"\x0a\x01w\x12\x05Const"[..], &attribute].concat();
//! let graph = [&[0x0a, node.len() as u8][..], &node].concat();
//! let reader = apr_tensorflow::open(graph, "frozen.pb", &Limits::default())?;
//! assert_eq!(reader.tensors()[0].name, "w");
//! # Ok::<(), apr_core::Error>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod bundle;
mod bytes;
mod constants;
mod dtype;
mod graph;
mod js;
pub mod lower;
mod objects;
mod open;
mod recognise;
mod saved_model;
mod slices;
mod snappy;
mod table;

use apr_core::Format;

pub use graph::{DOMAIN, graphs_of};
pub use js::{is_js, open_js};
pub use open::{open, open_in};

/// The key of the metadata: version, tags, signatures, assets, operators, names in the program.
pub const METADATA: &str = "tensorflow";

/// The index of a checkpoint; its weights are in files beside it.
pub static CHECKPOINT: Format = Format {
    id: "tensorflow-checkpoint",
    name: "TensorFlow checkpoint",
    recognises: recognise::starts_as_index,
    extensions: &["index"],
    ..Format::READ_ONLY
};

/// A graph with signatures; its variables are in a folder beside it.
pub static SAVED_MODEL: Format = Format {
    id: "saved-model",
    name: "TensorFlow SavedModel",
    recognises: recognise::starts_as_saved_model,
    ..Format::READ_ONLY
};

/// A model of TensorFlow.js.
pub static JS: Format = Format { id: "tensorflow-js", name: "TensorFlow.js", ..Format::READ_ONLY };

/// A graph whose weights are constants.
pub static GRAPH: Format = Format {
    id: "tensorflow-graph",
    name: "TensorFlow graph",
    recognises: recognise::starts_as_graph,
    ..Format::READ_ONLY
};
