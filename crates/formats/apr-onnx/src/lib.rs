//! ONNX models: their tensors, their graph, and the file around them.
//!
//! ```text
//! ModelProto                      a protobuf message, up to 2 GB
//! ├─ ir_version, producer, opset_import, metadata_props
//! ├─ graph
//! │  ├─ node*                     operator, inputs, outputs, attributes: numbers, texts, tensors,
//! │  │                            graphs
//! │  ├─ initializer*              name, dims, data_type, and the data: raw_data, typed fields, or
//! │  │                            another file
//! │  ├─ sparse_initializer*
//! │  └─ input*, output*, value_info*
//! ├─ functions*                   bodies that nodes call
//! └─ training_info*               kept, not read
//! ```
//!
//! The file is walked over with a window of 16 KiB ([`apr_core::protobuf`]): names, types and
//! attributes are read, and of data only where they lie. A model of 2 GB opens in the time and
//! memory that its graph takes.
//!
//! # Tensors
//!
//! Every tensor of the file is one of the checkpoint: initializers by their names; what `Constant`
//! nodes hold by the name of their output; in other attributes, subgraphs and functions by the path
//! to it, such as `if_1/then_branch/weight`. Data that lie flat are a range of the file. Those
//! written as numbers of the schema are turned into bytes as they are read, and sparse tensors are
//! read as dense ones. Integers of 4 and 2 bits are read as 8 bits each, with a warning. Texts and
//! complex numbers of 128 bits are left out, with a warning.
//!
//! Data in other files are found through the model's folder. A location that is absolute or leads
//! out of the folder is refused (E001), as is one past the end of its file (E002).
//!
//! # Limits
//!
//! | what | most | |
//! |---|---|---|
//! | messages inside each other | 100 | E001 |
//! | all that is kept in memory of the graph | [`Limits::max_index`](apr_core::Limits) | E008 |
//! | path of a graph inside others | 4 KiB | E008 |
//! | bytes of all tensors | 16 times the files' length and 1 GiB | E008 |
//!
//! The messages are those of `onnx.proto`
//! (<https://github.com/onnx/onnx/blob/main/onnx/onnx.proto>).
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod describe;
mod edit;
mod graph;
mod names;
pub mod proto;
mod reader;
pub mod scan;
pub mod skeleton;
pub mod write;

use apr_core::protobuf::decode_varint;
use apr_core::{
    Alignments, Computes, Convention, Entries, Format, QuantizedTypes, Sharding, Target,
};
use apr_graph::ElementType;

pub use describe::{CONSTANTS, METADATA, TENSORS, TRANSPOSED, UNSAID};
pub use edit::{EditedPiece, PropertyEdits, edited};
pub use reader::{OnnxReader, open, open_as_stored, open_in};

/// Format of an ONNX model file.
pub static FORMAT: Format = Format {
    id: "onnx",
    name: "ONNX model",
    option: Some("onnx"),
    about: "A graph of operators with its weights",
    extensions: &["onnx"],
    recognises: starts_as_a_model,
    convention: Convention::Framework,
    target: Some(Target {
        extensions: &["onnx"],
        file_name: "model.onnx",
        folder: true,
        self_contained: false,
        sharding: Sharding::None,
        seals: false,
        computes: Computes::Always,
        streaming: false,
        alignments: Alignments::Fixed,
        quantized: QuantizedTypes::None,
        entries: Entries::Values,
    }),
    successor: None,
};

/// A tensor in a file of its own, as the inputs and outputs of ONNX's tests are.
pub static TENSOR: Format = Format {
    id: "onnx-tensor",
    name: "ONNX tensor (.pb)",
    option: None,
    about: "",
    extensions: &[],
    recognises: starts_as_a_tensor,
    convention: Convention::Framework,
    target: None,
    successor: None,
};

/// Returns `true` if the file starts with the format version and another field of a model.
///
/// ONNX has no magic number.
fn starts_as_a_model(head: &[u8]) -> bool {
    /// Key of the field `ir_version`; `LATEST` is the highest version that is recognized.
    const IR_VERSION: u8 = 0x08;
    const LATEST: u64 = 99;
    /// Fields that follow in files: version, domain, model version, doc, graph, opset, metadata,
    /// functions.
    const FOLLOWING: [u64; 8] = [0x1a, 0x22, 0x28, 0x32, 0x3a, 0x42, 0x72, 0xca];

    let Some((&IR_VERSION, rest)) = head.split_first() else { return false };
    let Some((1..=LATEST, 1)) = decode_varint(rest) else { return false };
    match rest.get(1..) {
        // In a Core ML model a message follows here, not the name of a producer.
        Some([0x12, name @ ..]) => decode_varint(name).is_some_and(|(len, bytes)| {
            let name = name.get(usize::try_from(bytes).unwrap_or(usize::MAX)..).unwrap_or_default();
            len == 0 || name.first().is_some_and(|first| *first >= b' ')
        }),
        Some([key, ..]) => FOLLOWING.contains(&u64::from(*key)),
        _ => false,
    }
}

/// Returns `true` if the first fields are optional dimensions, an element type, and data or a name.
fn starts_as_a_tensor(head: &[u8]) -> bool {
    /// Keys of a dimension and of the element type.
    const DIM: u8 = 0x08;
    const DATA_TYPE: u8 = 0x10;
    /// Fields that follow: data of every kind, name, doc.
    const FOLLOWING: [u8; 9] = [0x22, 0x2a, 0x32, 0x3a, 0x42, 0x4a, 0x52, 0x5a, 0x62];

    let mut rest = head;
    loop {
        let Some((&key, value)) = rest.split_first() else { return false };
        let Some((number, len)) = decode_varint(value) else { return false };
        // The head gets shorter in each round, so this ends.
        rest = value.get(usize::try_from(len).unwrap_or(usize::MAX)..).unwrap_or_default();
        match key {
            DIM => {}
            DATA_TYPE => {
                let is_type = i32::try_from(number)
                    .is_ok_and(|code| ElementType::from_onnx_code(code).is_some());
                return is_type && rest.first().is_some_and(|key| FOLLOWING.contains(key));
            }
            _ => return false,
        }
    }
}
