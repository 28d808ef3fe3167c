//! What a model is before its weights are read: its family, its names, what the files beside it
//! say.
//!
//! [`family_of`] finds the family that a checkpoint belongs to, or applies the one that a user
//! asked for. [`naming`] gives its tensors their canonical names and gives the source's names back.
//! [`companions`] reads the files that travel with the weights, [`sentence`] those of
//! sentence-transformers. An import asks all three, and so
//! does whoever writes another program's format: both are built on this crate.
//!
//! ```
//! use apr_arch::Families;
//! use apr_core::{CheckpointReader, Limits};
//! use apr_source::{Architecture, family_of, naming};
//!
//! let header = br#"{"model.layers.0.self_attn.q_proj.weight":
//!     {"dtype":"F32","shape":[1,1],"data_offsets":[0,4]}}"#;
//! let mut file = (header.len() as u64).to_le_bytes().to_vec();
//! file.extend_from_slice(header);
//! file.extend_from_slice(&[0; 4]);
//! let model = apr_registry::open(file, "model.safetensors", &Limits::default())?;
//!
//! let families = Families::builtin();
//! let family = family_of(&*model, &families, &Architecture::Named("llama".to_owned()))?
//!     .expect("it was asked for");
//! let view = naming::canonical(&*model, &family);
//! assert_eq!(view.tensors()[0].name, "layers.0.attn.q_proj.weight");
//! # Ok::<(), apr_core::Error>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod adapter;
pub mod companions;
pub mod exported;
mod family;
mod in_memory;
pub mod naming;
pub mod sentence;
mod source;

pub use family::{Architecture, family_in, family_of, is_unpacked};
pub use in_memory::MemoryNames;
pub use source::{Knowledge, Source};
