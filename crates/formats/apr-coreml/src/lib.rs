//! Core ML models (`.mlmodel`) and packages (`.mlpackage`), read as their weights.
//!
//! ```text
//! NAME.mlmodel                         protobuf: version, description, and one of
//!   neuralNetwork                      layers with their weights: floats, or quantized integers
//!   mlProgram                          operations in MIL; constants in it, or in files beside it
//!   pipeline                           models, one after the other
//!   others                             trees, support vectors, generalized linear models, ...
//!
//! NAME.mlpackage/
//!   Manifest.json                      where the model is in Data/
//!   Data/com.apple.CoreML/model.mlmodel
//!   Data/com.apple.CoreML/weights/weight.bin
//!
//! weight.bin (little-endian)
//!   0   u32 number of blobs, u32 version (2), zeros to 64
//!   at the place that a constant names:
//!     u32 0xDEADBEEF, u32 type, u64 size in bytes, u64 place of the data, u64 padding in bits
//!   data, each at a multiple of 64
//! ```
//!
//! A weight of a network is called by its layer and its field in the specification
//! (`conv1/weight`, `lstm/forward/inputGateWeightMatrix`), a constant of a program by its variable,
//! behind the function unless that is the default one. Models of a pipeline put their names in
//! front.
//!
//! # Compressed weights
//!
//! They are read as the floats that they stand for, with the values that coremltools computes:
//! linear quantization and lookup tables of networks, and the `constexpr_` operations of programs
//! (affine and blockwise quantization, palettes also of vectors, sparse weights, casts, and what is
//! combined of these). The metadata say how each is stored (`compressed`). Elements are decoded as
//! they are read; scales, offsets and tables stay in memory once they were.
//!
//! # What is left out, by name
//!
//! Numbers, texts and shapes of a program; models that are no tensors, such as trees. The graph
//! travels as a skeleton of the file ([`graphs_of`]), where that is not larger than a companion may
//! be.
//!
//! # Limits
//!
//! | what | most | |
//! |---|---|---|
//! | what is kept of the model, its scales and tables | [`Limits::max_index`] | E008 |
//! | `Manifest.json` | [`Limits::max_metadata`] | E008 |
//! | `constexpr_` operations on each other | 8 | left out |
//! | pipelines in each other | 8 | E001 |
//!
//! The format is described by `Model.proto`, `NeuralNetwork.proto` and `MIL.proto` of coremltools,
//! the blobs by its `mlmodel/src/MILBlob`.
//!
//! [`Limits::max_index`]: apr_core::Limits
//! [`Limits::max_metadata`]: apr_core::Limits
//!
//! ```
//! use apr_core::{CheckpointReader, Limits};
//!
//! // A network with one layer, "s", of type "scale", whose one weight is 1.
//! let weight = b"\x08\x01\x12\x06\x0a\x04\0\0\x80\x3f";
//! let layer = [&b"\x0a\x01s\xaa\x0f\x0a"[..], weight].concat();
//! let network = [&[0x0a, layer.len() as u8][..], &layer].concat();
//! let model = [&b"\x08\x01\xa2\x1f"[..], &[network.len() as u8], &network].concat();
//! let reader = apr_coreml::open(model, "tiny.mlmodel", &Limits::default())?;
//! assert_eq!(reader.tensors()[0].name, "s/scale");
//! # Ok::<(), apr_core::Error>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod blob;
mod constexpr;
mod decode;
mod description;
mod graph;
mod grid;
mod hazard;
mod layers;
pub mod lower;
mod model;
mod network;
mod open;
mod program;
mod tensor;
mod value;

use apr_core::Format;
use apr_core::protobuf::decode_varint;

pub use graph::{DOMAIN, graphs_of};
pub use hazard::{Hazard, HazardKind, hazards};
pub use open::{is_package, open, open_in, open_package};

/// The key of the metadata: type, description, author, licence, inputs and outputs, operators.
pub const METADATA: &str = "coreml";

/// Format of a Core ML model file.
pub static MODEL: Format = Format {
    id: "coreml",
    name: "Core ML model",
    recognises: |head| starts_as_model(head),
    extensions: &["mlmodel"],
    ..Format::READ_ONLY
};

/// A folder with a model and its weights.
pub static PACKAGE: Format =
    Format { id: "coreml-package", name: "Core ML package", ..Format::READ_ONLY };

/// Lowest number of the fields that contain the model itself and determine its type.
const FIRST_TYPE: u64 = 200;

/// Returns `true` if the first fields are those of a Core ML model.
///
/// They are a version and a description that starts with a named feature, or a version and a model
/// without a description. ONNX has a text in place of the description.
fn starts_as_model(head: &[u8]) -> bool {
    let &[0x08, 1..=99, ref rest @ ..] = head else { return false };
    let is_type = |bytes: &[u8]| {
        decode_varint(bytes).is_some_and(|(key, _)| key >> 3 >= FIRST_TYPE && key & 7 == 2)
    };
    let Some((0x12, description)) = rest.split_first() else { return is_type(rest) };
    let Some((len, used)) = decode_varint(description) else { return false };
    let description = usize::try_from(used).ok().and_then(|used| description.get(used..));
    match description.unwrap_or_default() {
        rest if len == 0 => is_type(rest),
        [0x0a, _, 0x0a, name, first, ..] if *name > 0 => first.is_ascii_graphic(),
        // An output, a function, the default function, metadata.
        [0x52, _, 0x0a, ..] | [0xa2 | 0xaa, 0x01, ..] | [0xa2, 0x06, ..] => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_fields_distinguish_models_from_onnx_and_saved_models() {
        for model in [
            &b"\x08\x01\x12\x55\x0a\x0e\x0a\x01x\x1a\x09"[..],
            b"\x08\x04\x12\x05\x52\x03\x0a\x01y",
            b"\x08\x09\x12\x05\xa2\x06\x02\x0a\0",
            b"\x08\x01\xa2\x1f\x01",
            b"\x08\x01\x12\x00\xa2\x1f\x01",
        ] {
            assert!(starts_as_model(model), "{model:?}");
        }
        for other in [
            &b"\x08\x07\x12\x07pytorch"[..],
            b"\x08\x01\x12\x30\x0a\x07\x22\x05serve\x12\x20",
            b"\x08\x07\xa2\x01\x02",
            b"\x08\x00\xa2\x1f",
            b"\x08\x01\x12\x80",
            b"\x08",
            b"",
        ] {
            assert!(!starts_as_model(other), "{other:?}");
        }
    }
}
