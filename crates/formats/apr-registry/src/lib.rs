//! The registry of formats: one way in and one way out for every model file.
//!
//! [`open`] looks at the bytes and picks the reader, [`open_folder`] does so for a Hugging Face
//! folder with all that travels with the weights, and [`plan`] makes the writer for a target
//! format. Everything in between is a [`CheckpointReader`] and a [`CheckpointWriter`].
//! [`StreamingLoader`] loads tensor by tensor with as few reads as can be.
//!
//! ```
//! use apr_registry::{CheckpointReader, Limits};
//!
//! let header = br#"{"bias":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
//! let mut file = (header.len() as u64).to_le_bytes().to_vec();
//! file.extend_from_slice(header);
//! file.extend_from_slice(&[0; 8]);
//!
//! let model = apr_registry::open(file, "model.safetensors", &Limits::default())?;
//! assert_eq!(model.tensors()[0].name, "bias");
//! # Ok::<(), apr_registry::Error>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod companions;
mod few_reads;
mod first_module;
mod folder;
mod formats;
mod in_folder;
mod incomplete;
mod model_files;
mod open;
mod options;
mod plan;
mod streaming;
mod tensor_reader;
mod unread;
mod weights;
#[cfg(any(feature = "gguf", feature = "pytorch"))]
mod wrapped;

#[cfg(feature = "bin")]
pub use apr_bin::{ctranslate2, vectors};
pub use apr_core::{
    Alignments, ByteSource, CheckpointReader, CheckpointWriter, Code, Computes, Convention, DType,
    DTypeKind, Error, Escaped, FileInfo, Format, HEAD_LEN, IoCause, Layout, Limits, Loss,
    MemoryFolder, Metadata, Notes, Pipeline, QuantizedTypes, Result, Serial, Shape, Sharding, Sink,
    SourceSet, Target, TensorInfo, digest, keys, read_vec,
};
#[cfg(feature = "coreml")]
pub use apr_coreml as coreml;
#[cfg(feature = "flax")]
pub use apr_flax as flax;
#[cfg(feature = "typed")]
pub use apr_format::aprn;
#[cfg(feature = "compression")]
pub use apr_format::codec;
#[cfg(any(feature = "encryption", feature = "signing"))]
pub use apr_format::crypto;
pub use apr_format::{apr1, apr2, dialect};
#[cfg(feature = "gguf")]
pub use apr_gguf as gguf;
#[cfg(feature = "keras")]
pub use apr_keras as keras;
#[cfg(feature = "numpy")]
pub use apr_numpy as numpy;
#[cfg(feature = "onnx")]
pub use apr_onnx as onnx;
#[cfg(feature = "orbax")]
pub use apr_orbax as orbax;
#[cfg(feature = "pytorch")]
pub use apr_pytorch as pytorch;
#[cfg(feature = "openvino")]
pub use apr_runtimes::openvino;
#[cfg(feature = "ort")]
pub use apr_runtimes::ort;
#[cfg(feature = "trees")]
pub use apr_runtimes::trees::{self, lightgbm, xgboost};
pub use apr_safetensors as safetensors;
#[cfg(feature = "tensorflow")]
pub use apr_tensorflow as tensorflow;
#[cfg(feature = "tflite")]
pub use apr_tflite as tflite;
#[cfg(feature = "torchscript")]
pub use apr_torchscript as torchscript;
pub use folder::{
    FolderCheckpoint, alone, open_folder, with_companions, with_config, with_neighbours,
};
#[cfg(feature = "graphs")]
pub use formats::{NamedGraphs, graphs_of, is_rest_of_file};
pub use formats::{is_part_name, may_hold_code, may_span_files};
pub use in_folder::{is_shard_name, shard_number, shard_stem};
pub use model_files::{ModelFile, model_file};
pub use open::{UNKNOWN_FORMAT, is_manifest, open, open_in, recognise, recognise_file};
pub use options::{OpenOptions, PlanOptions};
pub use plan::{formats, plan, target_by_extension, targets};
pub use streaming::{StreamingLoader, Tensor, TensorLoader};
pub use tensor_reader::TensorReader;
