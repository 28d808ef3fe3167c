//! TensorFlow Lite models (`.tflite`), read as their weights.
//!
//! A model is a flatbuffer: a tree of tables, each with a table of where its fields are, so that
//! any field is found without reading the others.
//!
//! ```text
//! u32 place of Model, "TFL3"
//! Model
//! ├─ operator_codes   what the operators are: a number, or the name of a custom one
//! ├─ subgraphs        tensors (shape, type, buffer, name, scales), inputs, outputs, operators
//! ├─ buffers          bytes of constants: within the flatbuffer, or behind it (over 2 GB)
//! ├─ metadata         names of buffers for programs
//! └─ signature_defs   names of inputs and outputs
//! (a ZIP archive of associated files, such as labels, may follow)
//! ```
//!
//! A tensor with a buffer is a weight. It has the name that the file gives it; those of further
//! subgraphs begin with the subgraph's name, tensors without a name are `tensor3`, and of several
//! with one name the later ones end in `#2`, `#3`.
//!
//! # Quantized weights
//!
//! They are integers as the file has them, and `value = scale * (quant - zero_point)`.
//! `NAME.scales` (f32) and `NAME.zero_points` (i64) have one number for the tensor, or one for each
//! index of the dimension that the metadata names ([`keys::AFFINE`](apr_core::keys::AFFINE)). 4-bit
//! integers are widened to `i8` as they are read. Scales for blocks of a row are in tensors of the
//! file's own, which the metadata names too.
//!
//! # What is left out, by name
//!
//! Tensors of strings and complex128, sparse tensors, and buffers of metadata. The graph travels as
//! a skeleton of the file ([`graphs_of`]), where that is not larger than a companion may be.
//!
//! # Limits
//!
//! | what | most | |
//! |---|---|---|
//! | tables, names and lists that are looked at | [`Limits::max_index`](apr_core::Limits) | E008 |
//! | an associated file | [`Limits::max_companion`](apr_core::Limits) | left out |
//!
//! The format is described by `tensorflow/lite/schema/schema.fbs` (version 3), flatbuffers in
//! <https://flatbuffers.dev/internals/>.
//!
//! ```
//! use apr_core::{CheckpointReader, DType, Limits};
//!
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tflite/kinds.tflite");
//! # let file = std::fs::read(path).expect("the fixture");
//! let reader = apr_tflite::open(file, "kinds.tflite", &Limits::default())?;
//! let bias = reader.tensors().iter().find(|info| info.name == "bias").expect("a weight");
//! assert_eq!((bias.dtype, bias.shape.dims()), (DType::F32, &[2][..]));
//! # Ok::<(), apr_core::Error>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod associated;
mod description;
pub mod flatbuffer;
mod graph;
pub mod lower;
mod model;
mod reader;

use apr_core::Format;

pub use description::custom_operators;
pub use graph::{DOMAIN, graphs_of};
pub use reader::open;

/// The key of the metadata: description, inputs and outputs, signatures, operators.
pub const METADATA: &str = "tflite";

/// Format of a TensorFlow Lite model.
pub static FORMAT: Format = Format {
    id: "tflite",
    name: "TensorFlow Lite",
    recognises: |head| head.get(4..8) == Some(b"TFL3"),
    extensions: &["tflite", "lite"],
    ..Format::READ_ONLY
};
