//! Model files: open, check, compare, convert, quantize, compress, encrypt, sign. Any size, in
//! bounded memory, without running anything that a file holds.
//!
//! A model is opened, and a tensor of it read:
//!
//! ```
//! # #[cfg(feature = "native")] {
//! # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");
//! # let path = format!("{folder}/model.safetensors");
//! let model = apr::Model::open(path)?;
//! let norm: Vec<f32> = model.tensor("model.norm.weight")?.to_vec()?;
//! # assert!(!norm.is_empty());
//! # }
//! # Ok::<(), apr::Error>(())
//! ```
//!
//! Arrays become a model:
//!
//! ```
//! # #[cfg(feature = "native")] {
//! # let folder = tempfile::tempdir().expect("a folder");
//! # let path = folder.path().join("model.safetensors");
//! apr::write(&path).tensor("bias", [2], &[0.5_f32, -0.5]).metadata("license", "mit").finish()?;
//! # }
//! # Ok::<(), apr::Error>(())
//! ```
//!
//! A file becomes another one, checked tensor by tensor on the way:
//!
//! ```
//! # #[cfg(all(feature = "native", feature = "quantize", feature = "compression"))] {
//! # let folder = tempfile::tempdir()?;
//! # let output = folder.path().join("model.apr");
//! # let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");
//! let report = apr::convert(model)
//!     .quantize(apr::Scheme::Q4_K_M)
//!     .compress(apr::Compression::Auto)
//!     .write(&output)?;
//! println!("{} bytes became {}", report.conversion.bytes_in, report.conversion.bytes_out);
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A model runs:
//!
//! ```no_run
//! # #[cfg(feature = "infer")] {
//! let model = apr::Model::open("hf://sentence-transformers/all-MiniLM-L6-v2")?;
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
//! | ONNX | files of any version, external data | of models with a graph | | `graph`; opset 11 to 28 |
//! | onnxruntime's `.ort` | initializers | no | | `graph` |
//! | TorchScript | weights, as PyTorch | of models with a graph | | a `forward` that torch runs |
//! | NumPy | `.npy`, `.npz` | no | | no objects |
//! | Keras | `.keras`, HDF5 | no | | `graph`: layers |
//! | TensorFlow | checkpoints, SavedModels, frozen graphs | no | | `graph` of the latter two |
//! | Flax, Orbax, TensorFlow.js, Paddle, word2vec, fastText, CTranslate2, NeMo, llamafile | yes | no | | NeMo and llamafile as what is inside |
//! | TensorFlow Lite | weights, scales, associated files | no | | `graph`, which runs and becomes ONNX |
//! | Core ML | models, packages | no | | `graph`; compressed weights as floats |
//! | OpenVINO | constants by the names of their layers | no | | `graph`, which runs and becomes ONNX |
//! | XGBoost, LightGBM | lists of all trees | no | | `graph`, which runs and becomes ONNX |
//! | GGML, GGMF, GGJT | yes | no | | eleven families |
//! | APR1, APRN, dialects of APR v2 | yes | APR1, APRN | yes | `typed` |
//!
//! # Features
//!
//! | feature | what it adds | crates | build, CPU s |
//! |---|---|---:|---:|
//! | none | [`open`] and [`plan`] for `.apr` and safetensors, for browsers too | 34 | 49 |
//! | `std` | the standard library: tables are kept, checksums use the processor's instructions | 34 | 49 |
//! | `simd` | loops for AVX2 and AVX-512, chosen by the processor's features at run time | 37 | 63 |
//! | `native` | files and threads: [`Model`], [`Tensor`], [`write()`] | 48 | 72 |
//! | `formats` | GGUF, PyTorch, ONNX, TorchScript, NumPy, Keras, TensorFlow, Core ML, OpenVINO, XGBoost, LightGBM, Flax, Orbax, word vectors, NeMo, llamafile | 69 | 143 |
//! | `ops` | families, graphs, [`convert`], [`apr_import`] and the reports of [`Model`] | 102 | 283 |
//! | `quantize` | tensors get ggml's types; they are read without it | 102 | 290 |
//! | `prune` | pruning and sparse tensors: the module `prune` | 103 | 277 |
//! | `lora` | adapters merged into a model: the module `lora` | 104 | 289 |
//! | `lowrank` | low-rank factors and LoRA adapters: the module `lowrank` | 138 | 381 |
//! | `compression` | the codecs of `.apr` files | 51 | 140 |
//! | `zstd-encoder` | Zstandard written as well as read; half of all code | 51 | 143 |
//! | `encryption` | AES-256-GCM for passwords and recipients | 85 | 91 |
//! | `signing` | Ed25519 signatures, licences | 72 | 95 |
//! | `typed` | APRN, one model of a serde type in one file | 52 | 75 |
//! | `ndarray` | tensors as arrays of that crate | 55 | 78 |
//! | `hub` | models on hubs and servers: `hf://`, `https://`, `s3://` | 94 | 157 |
//! | `infer` | models run: the modules `run`, `trace`, `quality` and `importance` | 114 | 400 |
//! | `inputs` | tokenizers of every kind, chat templates, audio and image files | 202 | 585 |
//! | `grammar` | generated text that keeps to a JSON schema, a regular expression or a grammar | 124 | 430 |
//!
//! Crates are those that are compiled, our own included, and seconds the processor time of an
//! optimized build; from `native` on with `simd`, from `formats` on with `native`. `cargo xtask
//! features --times` counts and builds.
//!
//! # Modules
//!
//! | module | what it has |
//! |---|---|
//! | the root | models, tensors, conversions, and the contracts that readers and writers fulfil |
//! | [`format`](mod@format) | the formats, by name |
//! | [`report`] | what conversions and passes report, and their options |
//! | [`graph`] | what a model computes |
//! | [`quantize`] | schemes, importance, quality gates, quantizers that you add |
//! | [`merge`] | merging models by mergekit's methods and configurations |
//! | `lora` | adapters merged into a model, with the feature `lora` |
//! | `prune` | weights that become zero, layers that go, sparse tensors, with the feature `prune` |
//! | `lowrank` | weights as low-rank factors, adapters of what a model learnt, with the feature `lowrank` |
//! | [`scan`] | code that loading a file would execute |
//! | [`seal`] | keys, encryption, signatures, licences |
//! | [`typed`] | models of serde types |
//! | `run` | running models on text, audio, images and arrays, with the feature `infer` |
//! | `trace` | what every step of a run takes and makes, with `infer` |
//! | `quality` | perplexity, divergence, distances of outputs, canaries, with `infer` |
//! | `importance` | importance matrices, measured while a model runs, with `infer` |
//! | [`watermark`] | a keyed mark in the weights |
//! | [`job`] | conversions step by step, as front ends run them |
//!
//! What is not here is in the crates below (`apr-core`, `apr-ops` and so on), which promise less.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(all(feature = "native", feature = "ops"))]
mod convert;
pub mod format;
#[cfg(feature = "ops")]
pub mod graph;
#[cfg(all(feature = "native", feature = "ops"))]
mod import;
#[cfg(feature = "infer")]
pub mod importance;
#[cfg(feature = "ops")]
pub mod job;
#[cfg(feature = "lora")]
pub mod lora;
#[cfg(feature = "lowrank")]
pub mod lowrank;
#[cfg(feature = "ops")]
pub mod merge;
#[cfg(feature = "native")]
mod model;
#[cfg(all(feature = "native", feature = "ops"))]
mod output;
#[cfg(feature = "native")]
mod progress;
#[cfg(feature = "prune")]
pub mod prune;
#[cfg(feature = "infer")]
pub mod quality;
#[cfg(feature = "ops")]
pub mod quantize;
#[cfg(feature = "ops")]
pub mod report;
#[cfg(all(feature = "native", feature = "ops"))]
mod reports;
#[cfg(feature = "infer")]
pub mod run;
#[cfg(feature = "infer")]
mod running;
#[cfg(all(feature = "native", feature = "ops"))]
pub mod scan;
#[cfg(any(feature = "encryption", feature = "signing"))]
pub mod seal;
#[cfg(feature = "native")]
mod tensor;
#[cfg(feature = "infer")]
pub mod trace;
#[cfg(all(feature = "native", feature = "typed"))]
pub mod typed;
#[cfg(feature = "ops")]
pub mod watermark;
#[cfg(feature = "native")]
mod write;

#[cfg(feature = "ops")]
pub use apr_arch::Families;
pub use apr_core::{
    ByteSource, CheckpointReader, CheckpointWriter, Code, Companion, DType, DTypeKind, Error,
    FileInfo, Format, IoCause, Layout, Limits, Loss, MemoryFolder, Metadata, Notes, Phase,
    Pipeline, Progress, Result, Serial, Shape, Sink, SourceSet, TensorInfo,
};
pub use apr_format::apr2::{CompanionFile, Keys};
#[cfg(feature = "native")]
pub use apr_io::{Interrupt, Sources};
#[cfg(feature = "ops")]
pub use apr_quantize::{Quantization, Scheme};
#[cfg(feature = "compression")]
pub use apr_registry::codec::Choice as Compression;
pub use apr_registry::{
    FolderCheckpoint, OpenOptions, PlanOptions, StreamingLoader, TensorLoader, TensorReader, open,
    open_folder, open_in, plan,
};
#[cfg(feature = "ops")]
pub use apr_source::Architecture;
#[cfg(all(feature = "native", feature = "ops"))]
pub use convert::{Convert, ConvertSource, convert};
#[cfg(all(feature = "native", feature = "ops"))]
pub use import::{AprConverter, ImportOptions, apr_import};
#[cfg(feature = "native")]
pub use model::Model;
#[cfg(feature = "native")]
pub use progress::{ProgressFn, Step};
#[cfg(feature = "native")]
pub use tensor::{Element, Tensor};
#[cfg(feature = "native")]
pub use write::{ModelWriter, WriteElement, WriteReport, write};
