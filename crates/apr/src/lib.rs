//! Model files: open, check, compare, convert, quantize, compress, encrypt, sign. Any size, in
//! bounded memory, without running anything that a file holds.
//!
//! A file becomes another one, checked tensor by tensor on the way:
//!
//! ```
//! # let folder = tempfile::tempdir()?;
//! # let output = folder.path().join("model.apr");
//! # let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny-llama");
//! let report = apr::convert(model)
//!     .quantize(apr::Scheme::Q4_K_M)
//!     .compress(apr::Compression::Auto)
//!     .write(&output)?;
//! println!("{} bytes became {}", report.conversion.bytes_in, report.conversion.bytes_out);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A model is looked at, and checked:
//!
//! ```
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny-llama");
//! let model = apr::Model::open(path)?;
//! let values = model.values("model.norm.weight", 0..4)?;
//! assert_eq!(values.len(), 4);
//! assert!(model.validate(apr::ops::validate::ValidateOptions::default())?.valid);
//! # Ok::<(), apr::Error>(())
//! ```
//!
//! With the feature `infer`, it runs:
//!
//! ```no_run
//! # #[cfg(feature = "infer")] {
//! let model = apr::Model::open("all-MiniLM-L6-v2")?;
//! let vectors = model.embed(["a text", "another one"])?;
//! # assert_eq!(vectors.len(), 2);
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Bytes that are in memory, as in a browser, need no files:
//!
//! ```
//! use apr::{CheckpointReader, Limits};
//!
//! let header = br#"{"bias":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
//! let mut file = (header.len() as u64).to_le_bytes().to_vec();
//! file.extend_from_slice(header);
//! file.extend_from_slice(&[0; 8]);
//!
//! let model = apr::open(file, "model.safetensors", &Limits::default())?;
//! assert_eq!(model.tensors()[0].name, "bias");
//! # Ok::<(), apr::Error>(())
//! ```
//!
//! # Formats
//!
//! | format | read | written | to a stream | also |
//! |---|---|---|---|---|
//! | APR2 (`.apr`), the native container | yes | yes | unless compressed | shards, companions, compression, encryption, signatures |
//! | safetensors | files, shards | files, shards, folders | yes | quantized tensors as integers and scales |
//! | GGUF | v1 to v3, both byte orders, splits | v3, splits | yes | all of ggml's types |
//! | PyTorch | ZIP, pre-ZIP, TAR, TorchScript, shards, `.distcp`, `.pt2` | state dicts | yes | nothing in a file is run |
//! | ONNX | files of any version, external data | of models with a graph | | `graph`; opset 11 to 25 |
//! | TorchScript | weights, as PyTorch | of models with a graph | | a `forward` that torch runs |
//! | NumPy | `.npy`, `.npz` | no | | no objects |
//! | GGML, GGMF, GGJT | yes | no | | eleven families |
//! | APR1, APRN, dialects of APR v2 | yes | APR1, APRN | yes | `typed` |
//!
//! # Features
//!
//! | feature | what it adds |
//! |---|---|
//! | `native` | files, threads, [`convert`], [`Model`], [`apr_import`]; without it the crate builds for browsers |
//! | `std` | what of the layers below `native` needs the standard library |
//! | `compression` | the codecs of `.apr` files |
//! | `zstd-encoder` | Zstandard written as well as read; half of all code |
//! | `encryption`, `signing` | AES-256-GCM for passwords and recipients; Ed25519 signatures |
//! | `quantize` | tensors get ggml's types; they are read without it |
//! | `hub` | models on hubs and servers: `hf://`, `https://`, `s3://` |
//! | `infer` | models run: the module `run` |
//! | `inputs` | tokenizers of every kind, chat templates, audio and image files |
//! | `typed` | APRN, one model of a serde type in one file |
//!
//! # Modules
//!
//! | module | what it has |
//! |---|---|
//! | the root | the contracts, formats, readers and writers: [`open`], [`open_folder`], [`plan`] |
//! | [`ops`] | passes and their reports: import, convert, inspect, validate, diff, lint, explain |
//! | [`view`] | other looks at a checkpoint: names, order, rows, numbers |
//! | [`arch`] | model families |
//! | [`graph`] | what a model computes, and pictures of it; [`blocks`] has the families' |
//! | [`source`] | what a model is before its weights are read: family, names, companions |
//! | [`tokenizer`] | vocabularies, and GGUF's tokenizer keys |
//! | [`quantize`] | schemes, mixes, importance, quantizers that you add |
//! | [`llama`] | Hugging Face's layout and llama.cpp's, both ways |
//! | `run` | running models on text, audio, images and arrays, with the feature `infer` |
//! | [`watermark`] | a keyed mark in the weights |
//! | `io` | files and threads, with the feature `native` |
#![forbid(unsafe_code)]

#[cfg(feature = "native")]
mod convert;
#[cfg(feature = "native")]
mod import;
#[cfg(feature = "native")]
mod model;
#[cfg(feature = "native")]
mod output;
#[cfg(feature = "infer")]
mod running;

pub use apr_arch as arch;
pub use apr_blocks as blocks;
pub use apr_core::Progress;
pub use apr_graph as graph;
#[cfg(feature = "native")]
pub use apr_io as io;
pub use apr_llama as llama;
pub use apr_ops as ops;
pub use apr_ops::job::{GraphWishes, Job, JobError, JobReport, Planned, Weights};
pub use apr_quantize as quantize;
pub use apr_quantize::{Quantization, Scheme};
#[cfg(feature = "compression")]
pub use apr_registry::codec::Choice as Compression;
pub use apr_registry::*;
#[cfg(feature = "infer")]
pub use apr_run as run;
pub use apr_source as source;
pub use apr_source::{Architecture, Source};
pub use apr_tokenizer as tokenizer;
pub use apr_view as view;
pub use apr_watermark as watermark;
#[cfg(feature = "native")]
pub use convert::{Convert, convert, title};
#[cfg(feature = "native")]
pub use import::{AprConverter, ImportOptions, apr_import};
#[cfg(feature = "native")]
pub use model::Model;
#[cfg(feature = "native")]
pub use output::Output;
