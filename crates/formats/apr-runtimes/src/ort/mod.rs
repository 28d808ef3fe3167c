//! Models in onnxruntime's own format (`.ort`), read as their weights.
//!
//! ```text
//! u32 place of InferenceSession, "ORTM"
//! InferenceSession   0: version  1: Model
//! Model              0: IR version  1: operator sets  2: producer  6: text  7: Graph
//!                    9: properties
//! Graph              0: initializers  1: values  2: nodes  5: inputs  6: outputs
//!                    7: sparse initializers
//! initializer        0: name  2: dims  3: type  4: bytes  5: texts  6: place in another file
//! node               0: name  2: domain  5: operator
//!                    10: attributes (0: name  6: Tensor  7: Graph)
//! ```
//!
//! The file holds the graph of an ONNX model after onnxruntime's optimizations, as a flatbuffer.
//! Its initializers are the weights, with the names that they have there; those of a graph within a
//! node are behind its name and that of the attribute (`choice/then_branch/weight`).
//!
//! # What is left out, by name
//!
//! Sparse initializers, texts, and initializers whose bytes are in another file. The graph travels
//! as a skeleton of the file ([`graphs_of`]), where that is not larger than a companion may be.
//!
//! # Limits
//!
//! | what | most | |
//! |---|---|---|
//! | tables, names and lists that are looked at | [`Limits::max_index`](apr_core::Limits) | E008 |
//! | graphs in each other | 16 | E001 |
//!
//! The format is described by `onnxruntime/core/flatbuffers/schema/ort.fbs`.
//!
//! ```
//! use apr_core::{CheckpointReader, Limits};
//!
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/ort/model.ort");
//! # let file = std::fs::read(path).expect("the fixture");
//! let reader = apr_runtimes::ort::open(file, "model.ort", &Limits::default())?;
//! let bias = reader.tensors().iter().find(|info| info.name == "bias").expect("a weight");
//! assert_eq!(bias.shape.dims(), [3]);
//! # Ok::<(), apr_core::Error>(())
//! ```

mod graph;
mod model;
mod reader;

use apr_core::{ByteSource, Format, Limits, Result};
use apr_tflite::flatbuffer::Flatbuffer;

pub use graph::graphs_of;
pub use reader::open;

/// The key of the metadata: version, producer, operator sets, inputs and outputs, operators.
pub const METADATA: &str = "ort";

/// A model that onnxruntime has prepared for itself.
pub static FORMAT: Format = Format {
    id: "ort",
    name: "onnxruntime's own format (.ort)",
    recognises: |head| head.get(4..8) == Some(b"ORTM"),
    extensions: &["ort"],
    ..Format::READ_ONLY
};

/// Returns the operators of a model's nodes, with their domains: `Relu`, `com.microsoft::Gelu`.
///
/// # Errors
/// E001 and E002 for a damaged file, E007 when reading fails, E008 over the limits.
pub fn operators(source: &dyn ByteSource, limits: &Limits) -> Result<Vec<String>> {
    let flatbuffer = Flatbuffer::new(source, limits);
    Ok(model::Model::read(&flatbuffer.root()?)?.operators.into_keys().collect())
}
