//! Between Hugging Face's checkpoints and llama.cpp's: names, layouts, hyperparameters and
//! tokenizers, both ways.
//!
//! What differs from family to family stands in the families' tables (`[gguf]`); here is what they
//! have in common. One format keeps in files beside the weights what the other keeps in key-value
//! pairs.
//!
//! [`to_gguf`] and [`from_gguf`] do all of it; [`export`](export()) and [`restore`](restore()) do
//! tensors and hyperparameters alone. All give views: a tensor is changed as it is read, a range at
//! a time.
//!
//! ```
//! use apr_arch::Families;
//! use apr_core::{CheckpointReader, Limits};
//! use apr_llama::{is_in_gguf_layout, to_gguf};
//! use apr_source::Source;
//!
//! let header = br#"{"bias":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
//! let mut file = (header.len() as u64).to_le_bytes().to_vec();
//! file.extend_from_slice(header);
//! file.extend_from_slice(&[0; 8]);
//! let model = apr_registry::open(file, "model.safetensors", &Limits::default())?;
//!
//! assert!(!is_in_gguf_layout(&*model));
//! let families = Families::builtin();
//! let refused = to_gguf(&Source::new(&*model, &families)).map(drop).unwrap_err();
//! assert_eq!(
//!     refused.message(),
//!     "GGUF requires the model family, which metadata and names do not show"
//! );
//! # Ok::<(), apr_core::Error>(())
//! ```
//!
//! # How GGUF differs
//!
//! llama.cpp has its own names, row order (rotary queries and keys), offsets (Gemma's norms),
//! transpositions (GPT-2) and stacks (experts). It stores configuration and tokenizer as key-value
//! pairs. Family-specific facts are in the family's table under `[gguf]`. `apr-llama` has the
//! common code: `export` and `restore` put a `View` over a checkpoint that changes tensors on
//! reading, a range at a time, and `apr_tokenizer::gguf` writes and reads the pairs. The pairs are
//! stored typed and in order under the metadata key `gguf`, packed in memory as in the file
//! (`apr_core::KeyValues`). A file that came from GGUF therefore goes back byte for byte, with
//! unknown keys.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod companions;
mod described;
mod export;
mod factors;
mod gguf_keys;
mod hyperparameters;
mod import;
mod layouts;
mod reranker;
mod rope;
mod sentence;
mod with_images;

pub use companions::{from_gguf, is_in_gguf_layout, to_gguf};
pub use described::describe;
pub use export::{GgufExport, export, file_type};
pub use import::{Restored, described, restore, restore_to};
pub use with_images::with_images;
