//! Safetensors: a JSON header, then the tensors' bytes with nothing between them.
//!
//! ```text
//! byte 0          8                                   8 + n                       end of file
//!      ├──────────┼───────────────────────────────────┼──────────┬──────────┬───┬──────────┤
//!      │ n        │ {"__metadata__":{"format":"pt"},  │ tensor 0 │ tensor 1 │ … │ tensor k │
//!      │ u64, LE  │  "a":{"dtype":"F32","shape":[2],  │          │          │   │          │
//!      │          │  "data_offsets":[0,8]}, …}␠␠␠     │          │          │   │          │
//!      └──────────┴───────────────────────────────────┴──────────┴──────────┴───┴──────────┘
//!                                                     0          8 ◀─ data_offsets count from here
//! ```
//!
//! Elements are little-endian and row-major. The header starts with `{` and is padded with spaces
//! to a multiple of 8 bytes, so that tensors sorted by falling element size are aligned in a mapped
//! file.
//! A larger model is cut into shards, each a complete file, and `*.index.json` says which tensor is
//! in which:
//!
//! ```text
//! model-00001-of-00002.safetensors ◀──┐
//! model-00002-of-00002.safetensors ◀──┤
//! model.safetensors.index.json        └── {"metadata": {"total_size": 16},
//!                                          "weight_map": {"a": "model-0000…", …}}
//! ```
//!
//! # Why so strict
//!
//! Two readers must never see two models in one file. Ranges therefore cover the data exactly,
//! without holes (which could carry a second format) and without overlaps, and a name that occurs
//! twice is refused, where a lenient JSON parser would pick either. The reference library has the
//! same rules for ranges; for names this crate is stricter.
//!
//! # Limits
//!
//! | what | most | |
//! |---|---|---|
//! | header | 100,000,000 bytes, or [`Limits::max_metadata`](apr_core::Limits) if that is less | E008 |
//! | tensor name | 65,535 bytes, not empty | E001 |
//! | dimensions | 64, which is what NumPy and PyTorch work with | E001 |
//!
//! The header is held in memory while it is parsed; no tensor ever is.
//!
//! The format is documented in the README of the `huggingface/safetensors` repository, section
//! "Format"; the index in the `transformers` documentation, "Big models", section "Sharded
//! checkpoints".
//!
//! ```
//! use apr_core::{
//!     CheckpointReader, CheckpointWriter, DType, Limits, Metadata, Notes, Shape, TensorInfo,
//! };
//!
//! let tensors = [TensorInfo { name: "bias".into(), dtype: DType::F32, shape: Shape::from([2]) }];
//! let mut writer = apr_safetensors::plan(
//!     &tensors,
//!     &Metadata::new(),
//!     &apr_safetensors::WriteOptions::default(),
//! )?;
//! let mut file = Vec::new();
//! writer.begin(&mut file)?;
//! writer.write_chunk(&mut file, &[0, 0, 128, 63, 0, 0, 0, 64], None)?;
//! writer.finish(&mut file, &Notes::default())?;
//!
//! let reader = apr_safetensors::open(file, "model.safetensors", &Limits::default())?;
//! let mut second = [0; 4];
//! reader.read_tensor(0, 4, &mut second)?;
//! assert_eq!(f32::from_le_bytes(second), 2.0);
//! # Ok::<(), apr_core::Error>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod dtype;
mod edit;
mod format;
mod header;
mod index;
mod names;
mod parse;
mod plan;
mod reader;
mod shards;
mod text;
mod writer;

pub use dtype::{dtype_from_name, dtype_name};
pub use edit::{front_in_place, with_texts};
pub use format::FORMAT;
pub use plan::{Order, WriteOptions, plan};
pub use reader::open;
pub use shards::open_index;
pub use writer::SafetensorsWriter;
