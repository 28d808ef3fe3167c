//! One dependency for model files: open, check, convert, quantize, seal.
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
//! | module | what it has |
//! |---|---|
//! | the root | the contracts, formats, readers and writers: [`open`], [`open_folder`], [`plan`] |
//! | [`ops`] | passes and their reports: import, convert, inspect, validate, diff, lint, explain |
//! | [`view`] | other looks at a checkpoint: names, order, rows, numbers |
//! | [`arch`] | model families |
//! | [`source`] | what a model is before its weights are read: family, names, companions |
//! | [`tokenizer`] | vocabularies, and GGUF's tokenizer keys |
//! | [`quantize`] | schemes, mixes, importance, quantizers of one's own |
//! | [`llama`] | Hugging Face's layout and llama.cpp's, both ways |
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

pub use apr_arch as arch;
pub use apr_core::Progress;
#[cfg(feature = "native")]
pub use apr_io as io;
pub use apr_llama as llama;
pub use apr_ops as ops;
pub use apr_ops::job::{Job, JobError, JobReport, Planned, Quantize, Weights};
pub use apr_quantize as quantize;
pub use apr_quantize::Scheme;
#[cfg(feature = "compression")]
pub use apr_registry::codec::Choice as Compression;
pub use apr_registry::*;
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
